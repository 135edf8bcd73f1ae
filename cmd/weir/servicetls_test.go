package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/config"
)

// startSecureService starts weir service --tls for all operations. It returns a dialer to the service, and what trusts it.
func startSecureService(t *testing.T, args ...string) (dial func(context.Context, string, string) (net.Conn, error), trust *tls.Config) {
	t.Helper()
	c := start(t, append([]string{"service", "--tls", "--listen", "127.0.0.1:0"}, args...)...)
	address := c.find(`msg="reference service started" address=(\S+)`)
	trust = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	stopIf(t, !trust.RootCAs.AppendCertsFromPEM(must(os.ReadFile(c.find(`authority=(\S+)`)))(t)), "the authority is no certificate")
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}, trust
}

func TestServiceSpeaksHTTP2AndHTTP1WithTLS(t *testing.T) {
	dial, trust := startSecureService(t)
	for version := 1; version <= 2; version++ {
		for _, host := range serviceNames[:2] {
			transport := &http.Transport{DialContext: dial, TLSClientConfig: trust.Clone(), ForceAttemptHTTP2: version == 2}
			resp := must((&http.Client{Transport: transport}).Get("https://" + host + "/zen"))(t)
			_ = resp.Body.Close()
			failIf(t, resp.StatusCode != http.StatusOK || resp.ProtoMajor != version, "https://%s: got %d over %s", host, resp.StatusCode, resp.Proto)
			transport.CloseIdleConnections()
		}
	}
}

// TestGatewayReachesAllHostsOfTheService follows the URLs that a client of the API gets through a gateway with hosts.
func TestGatewayReachesAllHostsOfTheService(t *testing.T) {
	dial, trust := startSecureService(t)
	g := open(t, configure("https://api.localhost", trusting, func(c *config.Config) {
		c.Upstream.Dialect = "github"
		c.Hosts = []config.Host{
			{Name: "uploads.localhost", Kind: "api"}, {Name: "raw.localhost", Kind: "files", Credential: true},
			{Name: "codeload.localhost", Kind: "files", Credential: true}, {Name: "objects.localhost", Kind: "files"},
		}
	}))
	for _, transport := range []*http.Transport{g.transport, g.files} {
		transport.DialContext, transport.TLSClientConfig = dial, trust.Clone()
	}
	send := func(method, host, target string) (int, string) {
		r := httptest.NewRequest(method, target, strings.NewReader("content"))
		r.Host = host
		r.Header.Set("Authorization", "Bearer tok-owner")
		resp := serveRequest(g, r).Result()
		return resp.StatusCode, string(must(io.ReadAll(resp.Body))(t))
	}
	_, release := send("GET", "api.localhost", "/repos/acme/widgets/releases/latest")
	_, upload, _ := strings.Cut(release, `"upload_url":"https://uploads.localhost`)
	upload, _, _ = strings.Cut(upload, "{")
	for _, c := range []struct {
		request, host string
		status        int
		want          string
	}{
		{"GET /repos/acme/secret/contents/vault.go", "api.localhost", 200, `"download_url":"https://raw.localhost/acme/secret/main/vault.go"`},
		{"GET /acme/secret/main/vault.go", "raw.localhost", 200, "package vault"},
		{"GET /repos/acme/secret/tarball/main", "api.localhost", 302, ""},
		{"GET /acme/secret/legacy.tar.gz/main", "codeload.localhost", 200, "\x1f\x8b"},
		{"GET /repos/acme/widgets/actions/artifacts/1/zip", "objects.localhost", 200, "content of"},
		{"POST " + upload + "?name=a", "uploads.localhost", 201, `"state":"uploaded"`},
	} {
		method, target, _ := strings.Cut(c.request, " ")
		status, body := send(method, c.host, target)
		failIf(t, status != c.status || !strings.Contains(body, c.want), "%s %s: got %d %q, want %d with %q", c.host, c.request, status, body, c.status, c.want)
	}
}
