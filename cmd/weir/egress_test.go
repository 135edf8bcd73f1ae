package main

import (
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/testservers"
)

// egressProxy connects every name to one upstream.
type egressProxy struct{ *testservers.EgressProxy }

const egressPassword = "s3cret-egress"

func startEgressProxy(t *testing.T, upstream string) egressProxy {
	t.Helper()
	address := upstream[strings.Index(upstream, "://")+3:]
	return egressProxy{testservers.NewEgressProxy(t, "weir:"+egressPassword, func(string) string { return address })}
}

// url returns the URL of the proxy with a password.
func (p egressProxy) url(password string) credential.Secret {
	return credential.Secret(strings.Replace(p.URL, "://", "://weir:"+password+"@", 1))
}

// TestEgressProxyPassesRequests checks an HTTPS upstream through CONNECT, an HTTP upstream in absolute form, refused
// credentials, refused targets and exceptions. The names resolve only in the proxy. The environment has no effect, and the
// password is nowhere in the log and the shown configuration.
func TestEgressProxyPassesRequests(t *testing.T) {
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		failIf(t, r.Header.Get("Proxy-Authorization") != "", "the upstream got Proxy-Authorization")
		_, _ = io.WriteString(w, `{"through":"proxy"}`)
	}))
	defer api.Close()
	roots := x509.NewCertPool()
	roots.AddCert(api.Certificate())
	p := startEgressProxy(t, api.URL)
	t.Setenv("HTTPS_PROXY", p.URL)
	t.Setenv("HTTP_PROXY", p.URL)
	for _, c := range []struct {
		upstream, password string
		exceptions         []string
		status             int
		seen               string
	}{
		{"https://example.com", egressPassword, nil, 200, "CONNECT example.com:443"},
		{"http://example.com", egressPassword, nil, 200, "GET http://example.com/user"},
		{"https://example.com", "wrong-egress", nil, 502, "CONNECT example.com:443"},
		{"http://example.com", "wrong-egress", nil, 502, "GET http://example.com/user"},
		{"https://forbidden.example.com", egressPassword, nil, 502, "CONNECT forbidden.example.com:443"},
		{"https://unreachable.example.com", egressPassword, nil, 502, "CONNECT unreachable.example.com:443"},
		{"https://api.invalid", egressPassword, []string{".invalid"}, 502, ""},
		{"https://127.0.0.9:9", egressPassword, []string{"127.0.0.8/31:9"}, 502, ""},
		{"https://example.com:8443", egressPassword, []string{"example.com:443"}, 200, "CONNECT example.com:8443"},
		{"https://api.invalid", "", nil, 502, ""},
	} {
		var log testservers.Output
		g := openLogged(t, configure(c.upstream, trusting, func(cfg *config.Config) {
			cfg.Upstream.NoProxy = c.exceptions
			if c.password != "" {
				cfg.Upstream.Proxy = p.url(c.password)
			}
		}), &log)
		tls := api.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		tls.RootCAs = roots
		g.transport.TLSClientConfig = tls
		w := sendTo(g, http.MethodGet, "/user", "", "Prefer: wait=0")
		seen := strings.Join(p.Take(), ", ")
		first, _, _ := strings.Cut(seen, ", ") // a refused request may be repeated
		failIf(t, w.Code != c.status || first != c.seen, "%s with %q: got %d, %q; want %d, %q: %s", c.upstream, c.password, w.Code, seen, c.status, c.seen, w.Body)
		g.observer.Flush()
		shown := fmt.Sprint(w.Body, w.Header(), g.current.Load().config.Masked()["upstream"], g.recent(), log.String())
		failIf(t, c.password != "" && strings.Contains(shown, c.password), "%s: the password is shown: %s", c.upstream, shown)
	}
}

// TestDoctorNamesThePartOfTheEgressProxyThatFails checks the messages for each part of the way.
func TestDoctorNamesThePartOfTheEgressProxyThatFails(t *testing.T) {
	p := startEgressProxy(t, nowhere)
	for _, c := range []struct {
		upstream string
		proxy    credential.Secret
		result   string
		found    string
	}{
		{"http://example.com", p.url(egressPassword), checkOK, "passes requests to example.com"},
		{"https://example.com", p.url("wrong-egress"), checkFailed, "refused CONNECT example.com:443 with 407"},
		{"http://example.com", p.url("wrong-egress"), checkFailed, "refused GET http://example.com with 407"},
		{"https://forbidden.example.com", p.url(egressPassword), checkFailed, "refused CONNECT forbidden.example.com:443 with 403 Forbidden; permit this target"},
		{"https://unreachable.example.com", p.url(egressPassword), checkFailed, "502 Bad Gateway; check that the proxy can reach this target"},
		{"https://example.com", "http://weir:" + egressPassword + "@127.0.0.1:9", checkFailed, "no connection to the proxy"},
		{"http://127.0.0.1:9", p.url(egressPassword), checkSkipped, "loopback"},
	} {
		_, checks := runDoctor(t, t.TempDir(), fmt.Sprintf("upstream: {url: %q, dialect: github, proxy: %q}\n", c.upstream, c.proxy.Reveal()))
		assertCheck(t, checks, "egress proxy", c.result, c.found)
		text := fmt.Sprint(checks)
		failIf(t, strings.Contains(text, egressPassword) || strings.Contains(text, "wrong-egress"), "the password is shown: %s", text)
	}
}
