package admin

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/weirgate/weir/internal/credential"
)

const (
	maxSessions     = 100
	sessionLifetime = 12 * time.Hour
	// An address may attempt loginBurst logins at once, and one more per loginInterval.
	loginBurst    = 5
	loginInterval = 2 * time.Second
	maxLoginHosts = 1000
)

// sessions holds the browser sessions. Its zero value is empty. It stores hashes, from which no cookie can be made.
type sessions struct {
	mu       sync.Mutex
	expiry   map[[sha256.Size]byte]time.Time
	attempts map[string]*rate.Limiter // by address
}

// start returns the identifier of a new session. If there are too many it ends the one that expires first.
func (s *sessions) start(now time.Time) credential.Secret {
	id := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expiry == nil {
		s.expiry = map[[sha256.Size]byte]time.Time{}
	}
	var first [sha256.Size]byte
	for hash, end := range s.expiry {
		if now.After(end) {
			delete(s.expiry, hash)
		} else if at, ok := s.expiry[first]; !ok || end.Before(at) {
			first = hash
		}
	}
	if len(s.expiry) >= maxSessions {
		delete(s.expiry, first)
	}
	s.expiry[sha256.Sum256([]byte(id))] = now.Add(sessionLifetime)
	return credential.Secret(id)
}

// isValid reports whether a session exists and has not expired. It looks up a hash, so its timing reveals no identifier.
func (s *sessions) isValid(id credential.Secret, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, ok := s.expiry[sha256.Sum256([]byte(id.Reveal()))]
	return ok && now.Before(end)
}

func (s *sessions) end(id credential.Secret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.expiry, sha256.Sum256([]byte(id.Reveal())))
}

// allowAttempt reports whether an address may attempt a login now.
func (s *sessions) allowAttempt(address string, now time.Time) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attempts == nil || len(s.attempts) >= maxLoginHosts {
		s.attempts = map[string]*rate.Limiter{}
	}
	if s.attempts[host] == nil {
		s.attempts[host] = rate.NewLimiter(rate.Every(loginInterval), loginBurst)
	}
	return s.attempts[host].AllowN(now, 1)
}

// cookieName returns the name of the session cookie. With TLS its prefix binds the cookie to this host (RFC 6265bis).
func cookieName(r *http.Request) string {
	if r.TLS != nil {
		return "__Host-weir-session"
	}
	return "weir-session"
}

// sessionOf returns the session cookie of a request, or an empty secret.
func sessionOf(r *http.Request) credential.Secret {
	c, err := r.Cookie(cookieName(r))
	if err != nil {
		return ""
	}
	return credential.Secret(c.Value)
}

// setCookie sets the session cookie for some seconds; a negative number deletes it. Scripts cannot read the cookie, and other
// sites cannot send it.
func setCookie(w http.ResponseWriter, r *http.Request, id credential.Secret, seconds int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(r), Value: id.Reveal(), Path: "/", MaxAge: seconds, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
}

// login starts a session for a request with the token. The identifier is always new, which prevents session fixation.
func (g *guard) login(w http.ResponseWriter, r *http.Request) {
	if g.Token == "" {
		fail(w, http.StatusNotFound, errors.New("login not available: admin.token is not configured"))
		return
	}
	if !g.sessions.allowAttempt(r.RemoteAddr, time.Now()) {
		w.Header().Set("Retry-After", fmt.Sprint(int(loginInterval/time.Second)))
		fail(w, http.StatusTooManyRequests, fmt.Errorf("too many login attempts; retry in %s", loginInterval))
		return
	}
	var body struct{ Token string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf(`invalid login; send {"token": TOKEN}: %w`, err))
		return
	}
	if !g.Token.Equal(credential.Secret(body.Token)) {
		fail(w, http.StatusUnauthorized, errors.New("wrong admin token"))
		return
	}
	g.sessions.end(sessionOf(r))
	setCookie(w, r, g.sessions.start(time.Now()), int(sessionLifetime/time.Second))
	writeIndented(w, map[string]any{"until": time.Now().Add(sessionLifetime).UTC()})
}

// logout ends the session of the request.
func (g *guard) logout(w http.ResponseWriter, r *http.Request) {
	g.sessions.end(sessionOf(r))
	setCookie(w, r, "", -1)
	writeIndented(w, map[string]any{"ended": true})
}
