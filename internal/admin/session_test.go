package admin

import (
	"crypto/tls"
	"crypto/x509"
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
		for i := range loginBurst {
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
		time.Sleep(loginInterval)
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
	for i := range 3 * maxLoginHosts {
		s.allowAttempt(strings.Repeat("x", i%1000+1)+":"+string(rune('a'+i%26)), now)
		s.allowAttempt("no port "+strings.Repeat("y", i), now)
	}
	if s.attempts.Len() > maxLoginHosts {
		t.Errorf("%d addresses", s.attempts.Len())
	}
}
