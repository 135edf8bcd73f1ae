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

// browser keeps the cookies that it is given, and sends them as browsers do.
type browser struct {
	*testing.T
	pages   http.Handler
	address string
	secure  bool
	cookies map[string]string
	last    *http.Cookie
}

func (b *browser) asks(method, path, body string, fields ...string) *httptest.ResponseRecorder {
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
	b.pages.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		b.last = c
		if b.cookies[c.Name] = c.Value; c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		}
	}
	return w
}

func (b *browser) wants(what string, w *httptest.ResponseRecorder, status int) {
	b.Helper()
	if w.Code != status {
		b.Errorf("%s: %d %s, want %d", what, w.Code, w.Body, status)
	}
}

func newBrowser(t *testing.T, pages http.Handler) *browser {
	return &browser{T: t, pages: pages, address: "192.0.2.1:1", cookies: map[string]string{}}
}

func TestALoginLendsASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBrowser(t, Handler(Access{Token: "sesame"}, sources()))
		b.wants("before", b.asks("GET", "/api/v1/config", ""), 401)
		w := b.asks("GET", "/", "", "Accept", "text/html,*/*")
		if w.Code != 303 || w.Header().Get("Location") != "/login" {
			t.Errorf("the dashboard: %d %v", w.Code, w.Header())
		}
		b.wants("the login's page", b.asks("GET", "/login", ""), 200)
		b.wants("what it is made of", b.asks("GET", "/assets/js/login.js", ""), 200)
		b.wants("the index", b.asks("GET", "/help", ""), 401)
		b.wants("a wrong token", b.asks("POST", "/api/v1/login", `{"token":"sesam"}`), 401)
		b.wants("no JSON", b.asks("POST", "/api/v1/login", `sesame`), 400)
		if len(b.cookies) != 0 {
			t.Errorf("%v", b.cookies)
		}
		b.wants("the token", b.asks("POST", "/api/v1/login", `{"token":"sesame"}`), 200)
		if c := b.last; !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || c.Path != "/" || c.Name != "weir-session" || c.MaxAge != 12*3600 || strings.Contains(c.Value, "sesame") {
			t.Errorf("%+v", c)
		}
		b.wants("with the session", b.asks("GET", "/api/v1/config", ""), 200)
		w = b.asks("GET", "/", "", "Accept", "text/html,*/*")
		if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(w.Header().Get("Content-Security-Policy"), "script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:") {
			t.Errorf("the dashboard: %d %v", w.Code, w.Header())
		}
		time.Sleep(sessionLifetime - time.Second)
		b.wants("just before its end", b.asks("GET", "/api/v1/config", ""), 200)
		time.Sleep(time.Second)
		b.wants("at its end", b.asks("GET", "/api/v1/config", ""), 401)
		b.wants("again", b.asks("POST", "/api/v1/login", `{"token":"sesame"}`), 200)
		kept := b.cookies["weir-session"]
		b.wants("logout", b.asks("POST", "/api/v1/logout", ""), 200)
		if len(b.cookies) != 0 {
			t.Errorf("%v", b.cookies)
		}
		b.cookies["weir-session"] = kept
		b.wants("who has kept the cookie", b.asks("GET", "/api/v1/config", ""), 401)
	})
}

func TestASessionChangesThingsAndIsOnTheRecord(t *testing.T) {
	s := sources()
	b := newBrowser(t, Handler(Access{Token: "sesame"}, s))
	b.asks("POST", "/api/v1/login", `{"token":"sesame"}`)
	b.wants("its own page", b.asks("POST", "/api/v1/reload", "", "Origin", "http://localhost"), 200)
	if last := s.Trail.Last(); len(last) != 1 || last[0].Operator != "session" {
		t.Errorf("%+v", last)
	}
	b.wants("another site's page", b.asks("POST", "/api/v1/reload", "", "Origin", "http://evil.test", "Sec-Fetch-Site", "cross-site"), 403)
	b.wants("another port's", b.asks("POST", "/api/v1/logout", "", "Origin", "http://localhost:3000"), 403)
	if len(s.Trail.Last()) != 1 {
		t.Error("another site's page has changed something")
	}
}

func TestAttack57ASessionIsNobodysChoice(t *testing.T) {
	b := newBrowser(t, Handler(Access{Token: "sesame"}, sources()))
	b.cookies["weir-session"] = "chosen-by-somebody-else"
	b.wants("a name that was chosen", b.asks("GET", "/api/v1/config", ""), 401)
	b.wants("login", b.asks("POST", "/api/v1/login", `{"token":"sesame"}`), 200)
	first := b.cookies["weir-session"]
	if first == "chosen-by-somebody-else" || len(first) < 26 {
		t.Errorf("%q", first)
	}
	b.wants("login again", b.asks("POST", "/api/v1/login", `{"token":"sesame"}`), 200)
	second := b.cookies["weir-session"]
	b.cookies["weir-session"] = first
	if first == second {
		t.Error("the name stays")
	}
	b.wants("the one before", b.asks("GET", "/api/v1/config", ""), 401)
	b.wants("login from another site", b.asks("POST", "/api/v1/login", `{"token":"sesame"}`, "Sec-Fetch-Site", "cross-site"), 403)
	b.wants("login by a name that leads here", func() *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "http://evil.test/api/v1/login", strings.NewReader(`{"token":"sesame"}`))
		w := httptest.NewRecorder()
		b.pages.ServeHTTP(w, r)
		return w
	}(), 403)
	secure := newBrowser(t, b.pages)
	secure.secure = true
	secure.asks("POST", "/api/v1/login", `{"token":"sesame"}`)
	if c := secure.last; c == nil || !c.Secure || c.Name != "__Host-weir-session" {
		t.Errorf("under TLS: %+v", c)
	}
	open := newBrowser(t, Handler(Access{}, sources()))
	open.wants("where no token is asked for", open.asks("POST", "/api/v1/login", `{"token":""}`), 404)
	certificates := newBrowser(t, Handler(Access{Authorities: x509.NewCertPool}, sources()))
	certificates.wants("where only certificates let in", certificates.asks("POST", "/api/v1/login", `{"token":""}`), 404)
	certificates.wants("the dashboard there", certificates.asks("GET", "/", "", "Accept", "text/html"), 401)
}

// TestAttack57LoginTakesItsTime: tokens cannot be tried out fast, and what is compared is
// compared in constant time (credential.Secret.Equal).
func TestAttack57LoginTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBrowser(t, Handler(Access{Token: "sesame"}, sources()))
		tries := func(token string) int {
			w := b.asks("POST", "/api/v1/login", `{"token":"`+token+`"}`)
			if w.Code == 429 && w.Header().Get("Retry-After") != "2" {
				t.Errorf("%v", w.Header())
			}
			return w.Code
		}
		for i := range loginBurst {
			if status := tries("wrong"); status != 401 {
				t.Errorf("try %d: %d", i, status)
			}
		}
		if status := tries("sesame"); status != 429 {
			t.Errorf("the right one, too early: %d", status)
		}
		b.address = "192.0.2.1:2"
		if status := tries("sesame"); status != 429 {
			t.Errorf("from another port: %d", status)
		}
		b.address = "192.0.2.2:2"
		if status := tries("wrong"); status != 401 {
			t.Errorf("from another address: %d", status)
		}
		b.address = "192.0.2.1:1"
		time.Sleep(loginInterval)
		if status := tries("sesame"); status != 200 {
			t.Errorf("later: %d", status)
		}
		if w := b.asks("GET", "/api/v1/config", "", "Authorization", "Bearer sesame"); w.Code != 200 {
			t.Errorf("who shows the token itself: %d", w.Code)
		}
	})
}

func TestSessionsAreBounded(t *testing.T) {
	var s sessions
	now := time.Now()
	first := s.start(now)
	for i := range maxSessions {
		if !s.isValid(first, now) {
			t.Fatalf("the first has ended after %d", i)
		}
		s.start(now.Add(time.Duration(i+1) * time.Millisecond))
	}
	if s.isValid(first, now) || len(s.expiry) != maxSessions {
		t.Errorf("%d sessions", len(s.expiry))
	}
	s.start(now.Add(2 * sessionLifetime))
	if len(s.expiry) != 1 {
		t.Errorf("%d sessions when all have ended", len(s.expiry))
	}
	for i := range 3 * maxLoginHosts {
		s.allowAttempt(strings.Repeat("x", i%1000+1)+":"+string(rune('a'+i%26)), now)
		s.allowAttempt("no port "+strings.Repeat("y", i), now)
	}
	if len(s.attempts) > maxLoginHosts {
		t.Errorf("%d addresses", len(s.attempts))
	}
}
