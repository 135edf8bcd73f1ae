package admin

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/weirgate/weir/internal/credential"
)

const (
	maxSessions     = 100
	sessionLifetime = 12 * time.Hour
	// An address may attempt loginBurst logins without a pause, and one more login per loginInterval.
	loginBurst    = 5
	loginInterval = 2 * time.Second
	maxLoginHosts = 1000
)

// sessions holds the browser sessions as hashes, which cannot be turned into cookies. Sessions and addresses are bounded. All
// sessions have the same lifetime, and reading does not change their order, so the session that expires first is
// evicted.
type sessions struct {
	expiry   *lru.Cache[[sha256.Size]byte, time.Time]
	attempts *lru.Cache[string, *rate.Limiter] // by address
}

func newSessions() sessions {
	expiry, err1 := lru.New[[sha256.Size]byte, time.Time](maxSessions)
	attempts, err2 := lru.New[string, *rate.Limiter](maxLoginHosts)
	if err := errors.Join(err1, err2); err != nil {
		panic(err) // a size is not positive
	}
	return sessions{expiry, attempts}
}

// start returns the identifier of a new session.
func (s sessions) start(now time.Time) credential.Secret {
	id := rand.Text()
	s.expiry.Add(sha256.Sum256([]byte(id)), now.Add(sessionLifetime))
	return credential.Secret(id)
}

// isValid reports whether a session exists and has not expired. The look-up uses a hash, so its timing reveals no
// identifier.
func (s sessions) isValid(id credential.Secret, now time.Time) bool {
	end, ok := s.expiry.Peek(sha256.Sum256([]byte(id.Reveal())))
	return ok && now.Before(end)
}

func (s sessions) end(id credential.Secret) { s.expiry.Remove(sha256.Sum256([]byte(id.Reveal()))) }

// allowAttempt reports whether an address may attempt a login now.
func (s sessions) allowAttempt(address string, now time.Time) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	s.attempts.ContainsOrAdd(host, rate.NewLimiter(rate.Every(loginInterval), loginBurst))
	limiter, ok := s.attempts.Get(host)
	return ok && limiter.AllowN(now, 1)
}

// cookieName returns the name of the session cookie. With TLS, the prefix of the name binds the cookie to this host
// (RFC 6265bis).
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

// setCookie sets the session cookie for the given number of seconds. A negative number deletes the cookie. Scripts
// cannot read the cookie, and other sites cannot send the cookie.
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
