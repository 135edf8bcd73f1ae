package admin

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/proxy/inbound"
)

const (
	maxSessions     = 100
	sessionLifetime = 12 * time.Hour
	// An address may send guessBurst wrong admin tokens without a pause, and one more per guessInterval.
	guessBurst    = 5
	guessInterval = 2 * time.Second
	maxAddresses  = 1000
)

// sessions holds the browser sessions as hashes, which cannot be turned into cookies. The number of sessions is bounded.
// All sessions have the same lifetime, and reading does not change their order, so the session that expires first is
// evicted.
type sessions struct {
	expiry *lru.Cache[[sha256.Size]byte, time.Time]
}

func newSessions() sessions {
	expiry, _ := lru.New[[sha256.Size]byte, time.Time](maxSessions) // fails only for a size below 1
	return sessions{expiry}
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

// guesses bounds the wrong admin tokens of each address. The number of addresses is bounded.
type guesses struct {
	mu     sync.Mutex
	wrong  *lru.Cache[netip.Addr, *rate.Limiter]
	logged rate.Sometimes
}

func newGuesses() guesses {
	wrong, _ := lru.New[netip.Addr, *rate.Limiter](maxAddresses) // fails only for a size below 1
	return guesses{wrong: wrong, logged: rate.Sometimes{First: guessBurst, Interval: time.Second}}
}

var (
	errWrongToken = errors.New("wrong admin token")
	errGuesses    = fmt.Errorf("too many wrong admin tokens from this address; retry in %s", guessInterval)
)

// checkToken compares a token with the admin token. The error is errWrongToken, or errGuesses if the address has sent too
// many wrong tokens. The token is not compared then, because a guess would otherwise cost nothing.
func (g *guard) checkToken(r *http.Request, token string) error {
	remote, _ := netip.ParseAddrPort(r.RemoteAddr)
	address := inbound.ClientOf(remote.Addr())
	g.guesses.mu.Lock()
	defer g.guesses.mu.Unlock()
	now := time.Now()
	limiter, ok := g.guesses.wrong.Get(address)
	switch {
	case ok && limiter.TokensAt(now) < 1:
		return errGuesses
	case g.Token.Equal(credential.Secret(token)):
		return nil
	case !ok:
		limiter = rate.NewLimiter(rate.Every(guessInterval), guessBurst)
		g.guesses.wrong.Add(address, limiter)
	}
	limiter.AllowN(now, 1)
	g.guesses.logged.Do(func() { g.trail.log.Warn("wrong admin token refused", "address", r.RemoteAddr) })
	return errWrongToken
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
	var body struct{ Token string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf(`invalid login; send {"token": TOKEN}: %w`, err))
		return
	}
	if err := g.checkToken(r, body.Token); err != nil {
		refuseToken(w, err)
		return
	}
	g.sessions.end(sessionOf(r))
	setCookie(w, r, g.sessions.start(time.Now()), int(sessionLifetime/time.Second))
	writeIndented(w, map[string]any{"until": time.Now().Add(sessionLifetime).UTC()})
}

// refuseToken responds to a request whose token checkToken refused.
func refuseToken(w http.ResponseWriter, err error) {
	if errors.Is(err, errGuesses) {
		w.Header().Set("Retry-After", fmt.Sprint(int(guessInterval/time.Second)))
		fail(w, http.StatusTooManyRequests, err)
		return
	}
	fail(w, http.StatusUnauthorized, err)
}

// logout ends the session of the request.
func (g *guard) logout(w http.ResponseWriter, r *http.Request) {
	g.sessions.end(sessionOf(r))
	setCookie(w, r, "", -1)
	writeIndented(w, map[string]any{"ended": true})
}
