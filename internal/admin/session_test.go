package admin

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Requests of browsers and of programs.
const (
	login     = `POST /api/v1/login {"token":"sesame"}`
	getConfig = "GET /api/v1/config"
	bearer    = "Authorization: Bearer sesame"
)

// browser stores cookies and sends them with each request.
type browser struct {
	*testing.T
	handler http.Handler
	address string
	secure  bool
	cookies map[string]string
	last    *http.Cookie
}

func newBrowser(t *testing.T, handler http.Handler) *browser {
	return &browser{T: t, handler: handler, address: "192.0.2.1:1", cookies: map[string]string{}}
}

func (b *browser) send(request string, fields ...string) *httptest.ResponseRecorder {
	r := newRequest(request, fields...)
	r.RemoteAddr = b.address
	if b.secure {
		r.TLS = &tls.ConnectionState{}
	}
	for name, value := range b.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	w := serve(b.handler, r)
	for _, c := range w.Result().Cookies() {
		b.last = c
		if b.cookies[c.Name] = c.Value; c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		}
	}
	return w
}

// expect sends a request, checks the status of the response, and returns the header.
func (b *browser) expect(name, request string, status int, fields ...string) http.Header {
	b.Helper()
	w := b.send(request, fields...)
	equal(b, name, w.Code, status)
	return w.Header()
}

// expectCookies checks the number of stored cookies.
func (b *browser) expectCookies(after string, want int) {
	b.Helper()
	failIf(b, len(b.cookies) != want, "cookies after %s: %v", after, b.cookies)
}

func TestLoginStartsASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBrowser(t, Handler(Access{Token: "sesame"}, sources()))
		b.expect("before the login", getConfig, 401)
		equal(t, "the dashboard", b.expect("the dashboard", "GET /", 303, "Accept: text/html,*/*").Get("Location"), "/login")
		b.expect("login page", "GET /login", 200)
		b.expect("script of the login page", "GET /assets/js/login.js", 200)
		b.expect("help", "GET /help", 401)
		b.expect("wrong token", `POST /api/v1/login {"token":"sesam"}`, 401)
		b.expect("invalid JSON", "POST /api/v1/login sesame", 400)
		b.expectCookies("failed logins", 0)
		b.expect("login", login, 200)
		c := b.last
		failIf(t, !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || c.Path != "/" || c.Name != "weir-session" ||
			c.MaxAge != 12*3600 || strings.Contains(c.Value, "sesame"), "session cookie: %+v", c)
		b.expect("with the session", getConfig, 200)
		const policy = "script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"
		h := b.expect("the dashboard", "GET /", 200, "Accept: text/html,*/*")
		failIf(t, h.Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(h.Get("Content-Security-Policy"), policy), "the dashboard: %v", h)
		time.Sleep(sessionLifetime - time.Second)
		b.expect("just before expiry", getConfig, 200)
		time.Sleep(time.Second)
		b.expect("at expiry", getConfig, 401)
		b.expect("second login", login, 200)
		cookie := b.cookies["weir-session"]
		b.expect("logout", "POST /api/v1/logout", 200)
		b.expectCookies("the logout", 0)
		b.cookies["weir-session"] = cookie
		b.expect("cookie after the logout", getConfig, 401)
	})
}

func TestSessionMayChangeTheGatewayAndIsAudited(t *testing.T) {
	s := sources()
	b := newBrowser(t, Handler(Access{Token: "sesame"}, s))
	b.expect("login", login, 200)
	b.expect("same origin", "POST /api/v1/reload", 200, "Origin: http://localhost")
	b.expect("cross-site", "POST /api/v1/reload", 403, "Origin: http://evil.test", "Sec-Fetch-Site: cross-site")
	b.expect("another port", "POST /api/v1/logout", 403, "Origin: http://localhost:3000")
	last := s.Trail.Last()
	failIf(t, len(last) != 1 || last[0].Operator != "session", "audit trail: %+v", last)
}

func TestSessionIDsAreRandomAndRotate(t *testing.T) {
	b := newBrowser(t, Handler(Access{Token: "sesame"}, sources()))
	b.cookies["weir-session"] = "chosen-by-an-attacker"
	b.expect("forged session", getConfig, 401)
	b.expect("login", login, 200)
	first := b.cookies["weir-session"]
	b.expect("login again", login, 200)
	failIf(t, first == "chosen-by-an-attacker" || len(first) < 26 || first == b.cookies["weir-session"], "session IDs %q and %q", first, b.cookies["weir-session"])
	b.cookies["weir-session"] = first
	b.expect("session of the first login", getConfig, 401)
	b.expect("cross-site login", login, 403, "Sec-Fetch-Site: cross-site")
	b.expect("login after DNS rebinding", login, 403, "Host: evil.test")
	secure := newBrowser(t, b.handler)
	secure.secure = true
	secure.expect("login over TLS", login, 200)
	c := secure.last
	failIf(t, c == nil || !c.Secure || c.Name != "__Host-weir-session", "over TLS: %+v", c)
	open := newBrowser(t, Handler(Access{}, sources()))
	open.expect("login without a configured token", `POST /api/v1/login {"token":""}`, 404)
	certificates := newBrowser(t, Handler(Access{Authorities: x509.NewCertPool}, sources()))
	certificates.expect("login with certificates only", `POST /api/v1/login {"token":""}`, 404)
	certificates.expect("dashboard without a certificate", "GET /", 401, "Accept: text/html")
}

func TestWrongBearerTokensAreLoggedAndSlowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := sources()
		s.Trail = NewTrail(slog.New(slog.NewTextHandler(&log, nil)))
		b := newBrowser(t, Handler(Access{Token: "sesame"}, s))
		statuses := map[int]int{}
		for i := range 3000 {
			statuses[b.send(getConfig, fmt.Sprint("Authorization: Bearer ", i)).Code]++
		}
		failIf(t, statuses[401] != guessBurst || statuses[429] != 3000-guessBurst, "3,000 wrong tokens got %v, want %d times 401 and then 429", statuses, guessBurst)
		lines := strings.Count(log.String(), "wrong admin token refused")
		failIf(t, lines != guessBurst || !strings.Contains(log.String(), "192.0.2.1:1"), "%d log lines, want %d:\n%s", lines, guessBurst, log.String())
		b.expect("correct token after too many wrong ones", getConfig, 429, bearer)
		b.expect("login from the same address", login, 429)
		b.address = "192.0.2.2:1"
		for range 100 { // correct tokens are not bounded
			b.expect("another address", getConfig, 200, bearer)
		}
		b.address = "192.0.2.1:2"
		time.Sleep(guessInterval)
		b.expect("correct token after the pause", getConfig, 200, bearer)
		b.expect("login", login, 200)
		another := newBrowser(t, b.handler)
		for i := range 10 {
			another.send(getConfig, fmt.Sprint("Authorization: Bearer ", i))
		}
		b.expect("session from an address with wrong tokens", getConfig, 200)
	})
}

func TestLoginAttemptsAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wrong = `POST /api/v1/login {"token":"wrong"}`
		b := newBrowser(t, Handler(Access{Token: "sesame"}, sources()))
		for i := range guessBurst {
			b.expect(fmt.Sprint("attempt ", i), wrong, 401)
		}
		h := b.expect("correct token above the rate", login, 429)
		failIf(t, h.Get("Retry-After") != "2", "want Retry-After 2, got %v", h)
		b.address = "192.0.2.1:2"
		b.expect("from another port", login, 429)
		b.address = "192.0.2.2:2"
		b.expect("from another address", wrong, 401)
		b.address = "192.0.2.1:1"
		time.Sleep(guessInterval)
		b.expect("after the interval", login, 200)
		b.expect("request with the token", getConfig, 200, bearer)
	})
}

func TestSessionsAreBounded(t *testing.T) {
	s := newSessions()
	now := time.Now()
	first := s.start(now)
	for i := range maxSessions {
		stopIf(t, !s.isValid(first, now), "the first session ended after %d", i)
		s.start(now.Add(time.Duration(i+1) * time.Millisecond))
	}
	failIf(t, s.isValid(first, now) || s.expiry.Len() != maxSessions, "%d sessions", s.expiry.Len())
}

func TestAddressesOfWrongTokensAreBounded(t *testing.T) {
	g := &guard{Access: Access{Token: "sesame"}, trail: NewTrail(slog.New(slog.DiscardHandler)), guesses: newGuesses()}
	for i := range 3 * maxAddresses {
		for _, address := range []string{fmt.Sprintf("192.0.%d.%d:1", i/256, i%256), fmt.Sprintf("[2001:db8::%x]:1", i)} {
			err := g.checkToken(&http.Request{RemoteAddr: address}, "wrong")
			stopIf(t, err == nil, "accepted a wrong token")
		}
	}
	equal(t, "remembered addresses", g.guesses.wrong.Len(), maxAddresses)
	err := g.checkToken(&http.Request{RemoteAddr: "[2001:db8::ffff:1]:1"}, "wrong")
	if !errors.Is(err, errGuesses) { // the /64 network is one address
		t.Errorf("another address of an IPv6 network: got %v, want %v", err, errGuesses)
	}
}
