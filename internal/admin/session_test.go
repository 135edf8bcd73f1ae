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

// browser stores cookies and sends them with each request.
type browser struct {
	*testing.T
	handler http.Handler
	address string
	secure  bool
	cookies map[string]string
	last    *http.Cookie
}

func (b *browser) send(method, path, body string, fields ...string) *httptest.ResponseRecorder {
	b.Helper()
	r := httptest.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	r.RemoteAddr = b.address
	if b.secure {
		r.TLS = &tls.ConnectionState{}
	}
	for name, value := range b.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		b.last = c
		if b.cookies[c.Name] = c.Value; c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		}
	}
	return w
}

func (b *browser) expect(name string, w *httptest.ResponseRecorder, status int) {
	b.Helper()
	if w.Code != status {
		b.Errorf("%s: got %d %s, want %d", name, w.Code, w.Body, status)
	}
}

func newBrowser(t *testing.T, handler http.Handler) *browser {
	return &browser{T: t, handler: handler, address: "192.0.2.1:1", cookies: map[string]string{}}
}

func TestLoginStartsASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBrowser(t, Handler(Access{Token: "sesame"}, sources()))
		b.expect("before the login", b.send("GET", "/api/v1/config", ""), 401)
		w := b.send("GET", "/", "", "Accept", "text/html,*/*")
		if w.Code != 303 || w.Header().Get("Location") != "/login" {
			t.Errorf("the dashboard: %d %v", w.Code, w.Header())
		}
		b.expect("login page", b.send("GET", "/login", ""), 200)
		b.expect("script of the login page", b.send("GET", "/assets/js/login.js", ""), 200)
		b.expect("help", b.send("GET", "/help", ""), 401)
		b.expect("wrong token", b.send("POST", "/api/v1/login", `{"token":"sesam"}`), 401)
		b.expect("invalid JSON", b.send("POST", "/api/v1/login", `sesame`), 400)
		if len(b.cookies) != 0 {
			t.Errorf("cookies after failed logins: %v", b.cookies)
		}
		b.expect("login", b.send("POST", "/api/v1/login", `{"token":"sesame"}`), 200)
		if c := b.last; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || c.Path != "/" || c.Name != "weir-session" || c.MaxAge != 12*3600 || strings.Contains(c.Value, "sesame") {
			t.Errorf("session cookie: %+v", c)
		}
		b.expect("with the session", b.send("GET", "/api/v1/config", ""), 200)
		w = b.send("GET", "/", "", "Accept", "text/html,*/*")
		if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(w.Header().Get("Content-Security-Policy"), "script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:") {
			t.Errorf("the dashboard: %d %v", w.Code, w.Header())
		}
		time.Sleep(sessionLifetime - time.Second)
		b.expect("just before expiry", b.send("GET", "/api/v1/config", ""), 200)
		time.Sleep(time.Second)
		b.expect("at expiry", b.send("GET", "/api/v1/config", ""), 401)
		b.expect("second login", b.send("POST", "/api/v1/login", `{"token":"sesame"}`), 200)
		cookie := b.cookies["weir-session"]
		b.expect("logout", b.send("POST", "/api/v1/logout", ""), 200)
		if len(b.cookies) != 0 {
			t.Errorf("cookies after the logout: %v", b.cookies)
		}
		b.cookies["weir-session"] = cookie
		b.expect("cookie after the logout", b.send("GET", "/api/v1/config", ""), 401)
	})
}

func TestSessionMayChangeTheGatewayAndIsAudited(t *testing.T) {
	s := sources()
	b := newBrowser(t, Handler(Access{Token: "sesame"}, s))
	b.send("POST", "/api/v1/login", `{"token":"sesame"}`)
	b.expect("same origin", b.send("POST", "/api/v1/reload", "", "Origin", "http://localhost"), 200)
	if last := s.Trail.Last(); len(last) != 1 || last[0].Operator != "session" {
		t.Errorf("audit trail: %+v", last)
	}
	b.expect("cross-site", b.send("POST", "/api/v1/reload", "", "Origin", "http://evil.test", "Sec-Fetch-Site", "cross-site"), 403)
	b.expect("another port", b.send("POST", "/api/v1/logout", "", "Origin", "http://localhost:3000"), 403)
	if len(s.Trail.Last()) != 1 {
		t.Error("a cross-site request changed the gateway")
	}
}

func TestSessionIDsAreRandomAndRotate(t *testing.T) {
	b := newBrowser(t, Handler(Access{Token: "sesame"}, sources()))
	b.cookies["weir-session"] = "chosen-by-an-attacker"
	b.expect("forged session", b.send("GET", "/api/v1/config", ""), 401)
	b.expect("login", b.send("POST", "/api/v1/login", `{"token":"sesame"}`), 200)
	first := b.cookies["weir-session"]
	if first == "chosen-by-an-attacker" || len(first) < 26 {
		t.Errorf("session ID %q", first)
	}
	b.expect("login again", b.send("POST", "/api/v1/login", `{"token":"sesame"}`), 200)
	second := b.cookies["weir-session"]
	b.cookies["weir-session"] = first
	if first == second {
		t.Error("the second login has the same session ID")
	}
	b.expect("session of the first login", b.send("GET", "/api/v1/config", ""), 401)
	b.expect("cross-site login", b.send("POST", "/api/v1/login", `{"token":"sesame"}`, "Sec-Fetch-Site", "cross-site"), 403)
	b.expect("login after DNS rebinding", func() *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "http://evil.test/api/v1/login", strings.NewReader(`{"token":"sesame"}`))
		w := httptest.NewRecorder()
		b.handler.ServeHTTP(w, r)
		return w
	}(), 403)
	secure := newBrowser(t, b.handler)
	secure.secure = true
	secure.send("POST", "/api/v1/login", `{"token":"sesame"}`)
	if c := secure.last; c == nil || !c.Secure || c.Name != "__Host-weir-session" {
		t.Errorf("over TLS: %+v", c)
	}
	open := newBrowser(t, Handler(Access{}, sources()))
	open.expect("login without a configured token", open.send("POST", "/api/v1/login", `{"token":""}`), 404)
	certificates := newBrowser(t, Handler(Access{Authorities: x509.NewCertPool}, sources()))
	certificates.expect("login with certificates only", certificates.send("POST", "/api/v1/login", `{"token":""}`), 404)
	certificates.expect("dashboard without a certificate", certificates.send("GET", "/", "", "Accept", "text/html"), 401)
}

func TestWrongBearerTokensAreLoggedAndSlowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := sources()
		s.Trail = NewTrail(slog.New(slog.NewTextHandler(&log, nil)))
		b := newBrowser(t, Handler(Access{Token: "sesame"}, s))
		get := func(token string) int {
			return b.send("GET", "/api/v1/config", "", "Authorization", "Bearer "+token).Code
		}
		statuses := map[int]int{}
		for i := range 3000 {
			statuses[get(fmt.Sprint(i))]++
		}
		if statuses[401] != guessBurst || statuses[429] != 3000-guessBurst {
			t.Errorf("3,000 wrong tokens got %v, want %d times 401 and then 429", statuses, guessBurst)
		}
		if lines := strings.Count(log.String(), "wrong admin token refused"); lines != guessBurst || !strings.Contains(log.String(), "192.0.2.1:1") {
			t.Errorf("%d log lines, want %d:\n%s", lines, guessBurst, log.String())
		}
		if status := get("sesame"); status != 429 {
			t.Errorf("correct token after too many wrong ones: got %d, want 429", status)
		}
		w := b.send("POST", "/api/v1/login", `{"token":"sesame"}`)
		b.expect("login from the same address", w, 429)
		b.address = "192.0.2.2:1"
		for range 100 { // correct tokens are not bounded
			b.expect("another address", b.send("GET", "/api/v1/config", "", "Authorization", "Bearer sesame"), 200)
		}
		b.address = "192.0.2.1:2"
		time.Sleep(guessInterval)
		if status := get("sesame"); status != 200 {
			t.Errorf("correct token after the pause: got %d, want 200", status)
		}
		b.send("POST", "/api/v1/login", `{"token":"sesame"}`)
		another := newBrowser(t, b.handler)
		for i := range 10 {
			another.send("GET", "/api/v1/config", "", "Authorization", fmt.Sprint("Bearer ", i))
		}
		b.expect("session from an address with wrong tokens", b.send("GET", "/api/v1/config", ""), 200)
	})
}

func TestLoginAttemptsAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBrowser(t, Handler(Access{Token: "sesame"}, sources()))
		login := func(token string) int {
			w := b.send("POST", "/api/v1/login", `{"token":"`+token+`"}`)
			if w.Code == 429 && w.Header().Get("Retry-After") != "2" {
				t.Errorf("want Retry-After 2, got %v", w.Header())
			}
			return w.Code
		}
		for i := range guessBurst {
			if status := login("wrong"); status != 401 {
				t.Errorf("attempt %d: %d", i, status)
			}
		}
		if status := login("sesame"); status != 429 {
			t.Errorf("correct token above the rate: %d", status)
		}
		b.address = "192.0.2.1:2"
		if status := login("sesame"); status != 429 {
			t.Errorf("from another port: %d", status)
		}
		b.address = "192.0.2.2:2"
		if status := login("wrong"); status != 401 {
			t.Errorf("from another address: %d", status)
		}
		b.address = "192.0.2.1:1"
		time.Sleep(guessInterval)
		if status := login("sesame"); status != 200 {
			t.Errorf("after the interval: %d", status)
		}
		if w := b.send("GET", "/api/v1/config", "", "Authorization", "Bearer sesame"); w.Code != 200 {
			t.Errorf("request with the token: %d", w.Code)
		}
	})
}

func TestSessionsAreBounded(t *testing.T) {
	s := newSessions()
	now := time.Now()
	first := s.start(now)
	for i := range maxSessions {
		if !s.isValid(first, now) {
			t.Fatalf("the first session ended after %d", i)
		}
		s.start(now.Add(time.Duration(i+1) * time.Millisecond))
	}
	if s.isValid(first, now) || s.expiry.Len() != maxSessions {
		t.Errorf("%d sessions", s.expiry.Len())
	}
}

func TestAddressesOfWrongTokensAreBounded(t *testing.T) {
	g := &guard{Access: Access{Token: "sesame"}, trail: NewTrail(slog.New(slog.DiscardHandler)), guesses: newGuesses()}
	for i := range 3 * maxAddresses {
		for _, address := range []string{fmt.Sprintf("192.0.%d.%d:1", i/256, i%256), fmt.Sprintf("[2001:db8::%x]:1", i)} {
			if err := g.checkToken(&http.Request{RemoteAddr: address}, "wrong"); err == nil {
				t.Fatal("accepted a wrong token")
			}
		}
	}
	if n := g.guesses.wrong.Len(); n != maxAddresses {
		t.Errorf("%d addresses are remembered, want %d", n, maxAddresses)
	}
	err := g.checkToken(&http.Request{RemoteAddr: "[2001:db8::ffff:1]:1"}, "wrong")
	if !errors.Is(err, errGuesses) { // the /64 network is one address
		t.Errorf("another address of an IPv6 network: got %v, want %v", err, errGuesses)
	}
}
