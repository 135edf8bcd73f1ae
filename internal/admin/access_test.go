package admin

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func TestChangesFromOtherSitesAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		fields []string
		status int
	}{
		{"not a browser", []string{"Host: 127.0.0.1:9090"}, 200},
		{"same origin", []string{"Origin: http://localhost:9090", "Sec-Fetch-Site: same-origin"}, 200},
		{"same origin in a browser without fetch metadata", []string{"Origin: http://localhost:9090"}, 200},
		{"cross-site", []string{"Origin: http://evil.test", "Sec-Fetch-Site: cross-site"}, 403},
		{"cross-site in a browser without fetch metadata", []string{"Origin: http://evil.test"}, 403},
		{"another port of the same host", []string{"Origin: http://localhost:3000", "Sec-Fetch-Site: same-site"}, 403},
		{"sandboxed frame", []string{"Origin: null"}, 403},
		{"JSON sent by a form", []string{"Origin: http://evil.test", "Content-Type: text/plain"}, 403},
		{"DNS rebinding", []string{"Host: evil.test:9090", "Origin: http://evil.test:9090", "Sec-Fetch-Site: same-origin"}, 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, purged := sources(), false
			s.Purge = func(Purge) (int, error) { purged = true; return 1, nil }
			fields := append([]string{"Host: localhost:9090"}, c.fields...)
			expectResponse(t, Handler(Access{}, s), `POST /api/v1/cache/purge {"tag":"op:x"}`, c.status, "", fields...)
			equal(t, "purged", purged, c.status == 200)
		})
	}
}

func TestUnknownHostsAreRefused(t *testing.T) {
	for host, status := range map[string]int{
		"localhost": 200, "LOCALHOST:9090": 200, "127.0.0.1": 200, "[::1]:9090": 200, "10.1.2.3:9090": 200, "[fe80::1]": 200,
		"weir.internal:9090": 200, "Weir.Internal": 200,
		"evil.test": 403, "localhost.evil.test:9090": 403, "127.0.0.1.evil.test": 403, "localhost.": 403, "weir.internal.evil.test": 403, "": 403, "0x7f000001": 403,
	} {
		h := Handler(Access{Hosts: []string{"weir.internal"}}, sources())
		for target, known := range map[string]int{"/": 200, "/api/v1/accounts": 200, "/none": 404} {
			want := known
			if status != 200 {
				want = status
			}
			expectResponse(t, h, "GET "+target, want, "", "Host: "+host)
		}
		expectResponse(t, h, "GET /healthz", 200, "", "Host: "+host)
	}
}

func TestPathsMatchExactly(t *testing.T) {
	for target, want := range map[string]int{
		"/api/v1/config": 200, "/api/v1/config?x=1": 200,
		"/api/v1/config/": 404, "/api/v1/config/0": 404, "/api/v1/config00": 404, "/api/v1": 404, "/api/v1/": 404,
		"//api/v1/config": 404, "/api//v1/config": 404, "/api/v1/../v1/config": 404, "/./api/v1/config": 404, "/healthz/../api/v1/config": 404,
		"/api/v1/%63onfig": 404, "/api%2Fv1%2Fconfig": 404, "/api/v1/config%00": 404, "/API/v1/config": 404, "/healthz/": 404, "/healthz;/api/v1/config": 404,
	} {
		for token, want := range map[string]int{"secret": want, "wrong": 401} {
			expectResponse(t, Handler(Access{Token: "secret"}, sources()), "GET "+target, want, "", "Authorization: Bearer "+token)
		}
	}
}

func TestWrongMethodListsTheAllowedMethods(t *testing.T) {
	for path, allow := range map[string]string{
		"/": "GET, HEAD", "/healthz": "GET, HEAD", "/api/v1/config": "GET, HEAD", "/api/v1/reload": "POST", "/api/v1/cache/purge": "POST",
	} {
		for _, method := range []string{"PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "FOO"} {
			w := expectResponse(t, Handler(Access{}, sources()), method+" "+path, 405, "")
			equal(t, method+" "+path+": Allow", w.Header().Get("Allow"), allow)
		}
	}
}

func TestEveryResponseForbidsScriptsAndFraming(t *testing.T) {
	broken := sources()
	broken.Reload = func() error { return errors.New("<script>alert(1)</script>") }
	h := Handler(Access{}, broken)
	for _, c := range []struct{ request, host string }{
		{"GET /", "localhost"}, {"GET /healthz", "localhost"}, {"GET /api/v1/config", "localhost"}, {"GET /none", "localhost"},
		{"PUT /", "localhost"}, {"POST /api/v1/reload", "localhost"}, {"GET /", "evil.test"},
	} {
		header := send(h, c.request, "Host: "+c.host).Header()
		for name, want := range map[string]string{
			"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
			"Access-Control-Allow-Origin": "",
		} {
			equal(t, c.request+": "+name, header.Get(name), want)
		}
		csp := header.Get("Content-Security-Policy")
		failIf(t, !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") ||
			strings.Contains(header.Get("Content-Type"), "html"), "%s: the header allows scripts or frames: %v", c.request, header)
	}
}

func TestChangesAreAudited(t *testing.T) {
	var log bytes.Buffer
	s := sources()
	s.Trail = NewTrail(slog.New(slog.NewTextHandler(&log, nil)))
	s.Reload = func() error { return errors.New("weir.yaml:1:1: no") }
	s.Purge = func(p Purge) (int, error) { return len(p.Tag), nil }
	trusted := newAuthority()
	h := Handler(Access{Token: "secret", Authorities: trusted.pool}, s)
	const purge = `POST /api/v1/cache/purge {"tag":"op:x"}`
	certified := newRequest(purge)
	certified.TLS = trusted.connection(&x509.Certificate{Subject: pkix.Name{CommonName: "ops\nlevel=ERROR"}})
	send(h, "POST /api/v1/reload", "Authorization: Bearer secret")
	serve(h, certified)
	send(h, purge) // without authentication the purge is refused
	got := fmt.Sprint(len(s.Trail.Last()))
	for _, c := range s.Trail.Last() {
		got += fmt.Sprintf("\n%s|%s|%s|%s|%s|%v", c.Operator, c.Address, c.Action, c.Target, c.Outcome, c.Time.IsZero())
	}
	want := "2\ncertificate CN=ops\nlevel=ERROR|192.0.2.1:1234|purge|op:x|4 entries|false\ntoken|192.0.2.1:1234|reload|configuration|failed: weir.yaml:1:1: no|false"
	equal(t, "trail", got, want)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	failIf(t, len(lines) != 2 || !strings.Contains(lines[0], `msg=audit operator=token address=192.0.2.1:1234 action=reload target=configuration outcome="failed: weir.yaml:1:1: no"`), "audit log: %s", log.String())
}

func TestTrailIsBounded(t *testing.T) {
	trail := NewTrail(slog.New(slog.DiscardHandler))
	for i := range maxChanges + 10 {
		trail.Record(Change{Action: fmt.Sprint(i), Target: strings.Repeat("x", 2*maxText)})
	}
	last := trail.Last()
	failIf(t, len(last) != maxChanges || last[0].Action != fmt.Sprint(maxChanges+9) || last[maxChanges-1].Action != "10" || len(last[0].Target) != maxText, "%d, from %s to %s, %d bytes", len(last), last[0].Action, last[len(last)-1].Action, len(last[0].Target))
}

// authority signs certificates of operators.
type authority struct{ *testservers.CA }

func newAuthority() authority { return authority{must(testservers.NewCA())} }

// connection returns the state of a connection whose client presented a certificate.
func (a authority) connection(template *x509.Certificate) *tls.ConnectionState {
	leaf := must(a.Sign(template)).Leaf
	return &tls.ConnectionState{
		HandshakeComplete: true, PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf, a.Certificate}},
	}
}

// pool returns a pool with only this authority.
func (a authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.Certificate)
	return p
}

// Each request is verified against the current authorities, independently of the handshake.
func TestCertificatesAuthenticateEachRequest(t *testing.T) {
	trusted, foreign := newAuthority(), newAuthority()
	ops := func() *x509.Certificate { return &x509.Certificate{Subject: pkix.Name{CommonName: "ops"}} }
	good, expired, server := trusted.connection(ops()), ops(), ops()
	expired.NotAfter = time.Now().Add(-time.Minute)
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	unfinished := *good
	unfinished.HandshakeComplete = false
	for _, c := range []struct {
		name   string
		access Access
		tls    *tls.ConnectionState
		token  string
		status int
	}{
		{"of the authority", Access{Authorities: trusted.pool}, good, "", 200},
		{"of another authority, verified by the handshake before a reload", Access{Authorities: trusted.pool}, foreign.connection(ops()), "", 401},
		{"expired during an open connection", Access{Authorities: trusted.pool}, trusted.connection(expired), "", 401},
		{"server certificate", Access{Authorities: trusted.pool}, trusted.connection(server), "", 401},
		{"incomplete handshake", Access{Authorities: trusted.pool}, &unfinished, "", 401},
		{"all authorities removed", Access{Authorities: x509.NewCertPool}, good, "", 401},
		{"no certificate", Access{Authorities: trusted.pool}, &tls.ConnectionState{HandshakeComplete: true}, "", 401},
		{"no TLS", Access{Authorities: trusted.pool}, nil, "", 401},
		{"empty token, none configured", Access{Authorities: trusted.pool}, nil, "Bearer ", 401},
		{"certificates are not configured", Access{Token: "secret"}, good, "", 401},
		{"token without a certificate", Access{Token: "secret", Authorities: trusted.pool}, nil, "Bearer secret", 200},
		{"token with a certificate of another authority", Access{Token: "secret", Authorities: trusted.pool}, foreign.connection(ops()), "Bearer secret", 200},
		{"token as a basic password", Access{Token: "secret"}, nil, "Basic secret", 401},
	} {
		r := newRequest("GET /api/v1/config", "Authorization: "+c.token)
		r.TLS = c.tls
		w := serve(Handler(c.access, sources()), r)
		equal(t, c.name+": status", w.Code, c.status)
	}
}
