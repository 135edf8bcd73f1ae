package admin

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/weirgate/weir/internal/credential"
)

// Bounds of what a browser is lent in the place of the token: how many sessions there
// are, how long one lasts, how often an address may try to get one.
const (
	maxSessions   = 100
	sessionTime   = 12 * time.Hour
	loginBurst    = 5
	loginEvery    = 2 * time.Second
	maxLoginHosts = 1000
)

// sessions are those of browsers whose user has shown the token. Its zero value has none.
// It keeps hashes: what it holds lets nobody in.
type sessions struct {
	mu    sync.Mutex
	ends  map[[sha256.Size]byte]time.Time
	tries map[string]*rate.Limiter // by address
}

// begin returns the name of a new session. Of too many the one that ends first gives way.
func (s *sessions) begin(now time.Time) credential.Secret {
	id := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ends == nil {
		s.ends = map[[sha256.Size]byte]time.Time{}
	}
	var first [sha256.Size]byte
	for name, end := range s.ends {
		if now.After(end) {
			delete(s.ends, name)
		} else if at, ok := s.ends[first]; !ok || end.Before(at) {
			first = name
		}
	}
	if len(s.ends) >= maxSessions {
		delete(s.ends, first)
	}
	s.ends[sha256.Sum256([]byte(id))] = now.Add(sessionTime)
	return credential.Secret(id)
}

// lasts reports whether a session is one, and has not ended. What is compared is a hash:
// the time it takes tells nothing of the names there are.
func (s *sessions) lasts(id credential.Secret, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, ok := s.ends[sha256.Sum256([]byte(id.Reveal()))]
	return ok && now.Before(end)
}

func (s *sessions) end(id credential.Secret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ends, sha256.Sum256([]byte(id.Reveal())))
}

// mayTry reports whether an address may show a token now.
func (s *sessions) mayTry(address string, now time.Time) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tries == nil || len(s.tries) >= maxLoginHosts {
		s.tries = map[string]*rate.Limiter{}
	}
	if s.tries[host] == nil {
		s.tries[host] = rate.NewLimiter(rate.Every(loginEvery), loginBurst)
	}
	return s.tries[host].AllowN(now, 1)
}

// cookieName is that of the session's cookie. Under TLS browsers take it from this host
// alone, and send it nowhere else (RFC 6265bis, the prefix __Host-).
func cookieName(r *http.Request) string {
	if r.TLS != nil {
		return "__Host-weir-session"
	}
	return "weir-session"
}

// sessionOf is the session that a request shows; empty where it shows none.
func sessionOf(r *http.Request) credential.Secret {
	c, err := r.Cookie(cookieName(r))
	if err != nil {
		return ""
	}
	return credential.Secret(c.Value)
}

// lend sets the session's cookie for so many seconds; a negative number takes it away. No
// script reads it, and no other site's page sends it.
func lend(w http.ResponseWriter, r *http.Request, id credential.Secret, seconds int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(r), Value: id.Reveal(), Path: "/", MaxAge: seconds, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
}

// login lends a session to who shows the token. It is always a new one, whatever session
// the request shows: nobody is logged in with a name that another has chosen.
func (g *guard) login(w http.ResponseWriter, r *http.Request) {
	if g.Token == "" {
		fail(w, http.StatusNotFound, fmt.Errorf("no token is asked for here"))
		return
	}
	if !g.sessions.mayTry(r.RemoteAddr, time.Now()) {
		w.Header().Set("Retry-After", fmt.Sprint(int(loginEvery/time.Second)))
		fail(w, http.StatusTooManyRequests, fmt.Errorf("too many attempts: try again in %s", loginEvery))
		return
	}
	var shown struct{ Token string }
	if err := json.NewDecoder(r.Body).Decode(&shown); err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf(`write {"token": TOKEN}: %w`, err))
		return
	}
	if !g.Token.Equal(credential.Secret(shown.Token)) {
		fail(w, http.StatusUnauthorized, fmt.Errorf("this is not the admin token"))
		return
	}
	g.sessions.end(sessionOf(r))
	lend(w, r, g.sessions.begin(time.Now()), int(sessionTime/time.Second))
	show(w, map[string]any{"until": time.Now().Add(sessionTime).UTC()})
}

// logout ends the session that the request shows.
func (g *guard) logout(w http.ResponseWriter, r *http.Request) {
	g.sessions.end(sessionOf(r))
	lend(w, r, "", -1)
	show(w, map[string]any{"ended": true})
}
