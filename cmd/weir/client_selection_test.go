package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"path/filepath"
	"testing"

	"github.com/weirgate/weir/internal/config"
)

// withClientCertificate returns a client with the certificate from a directory, or without a
// certificate.
func withClientCertificate(t *testing.T, roots *x509.CertPool, dir string) *http.Client {
	t.Helper()
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: served}}
	t.Cleanup(transport.CloseIdleConnections)
	if dir != "" {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
		if err != nil {
			t.Fatal(err)
		}
		transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return &http.Client{Transport: transport}
}

// TestClientCertificateSelectsClient checks clients with known, missing and foreign
// certificates. A reload applies to an open connection.
func TestClientCertificateSelectsClient(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
	}))
	t.Cleanup(up.Close)
	dir, builds, stranger := t.TempDir(), t.TempDir(), t.TempDir()
	roots := selfSigned(t, dir, served, 1)
	selfSigned(t, builds, "builds.example.com", 2)
	selfSigned(t, stranger, "builds.example.com", 3)
	authorities, err := filepath.Rel(dir, filepath.Join(builds, "tls.crt"))
	if err != nil {
		t.Fatal(err)
	}
	load := func(certificate string) *config.Config {
		path := filepath.Join(dir, "weir.yaml")
		write(t, path, fmt.Sprintf(`listen: "127.0.0.1:0"
admin: {listen: "127.0.0.1:0"}
upstream: {url: %q}
tls: {certificates: [{certificate: tls.crt, key: tls.key}], client_ca: %q}
callers: {pass_through: false}
credentials: [{name: ci, kind: user, token: held}]
clients: [{name: builds, certificate: %q, credentials: [ci]}]
`, up.URL, authorities, certificate))
		c, err := config.Load(config.Source{Path: path, Getenv: func(string) (string, bool) { return "", false }})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	g, err := newGateway(load("dns:builds.example.com"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	endpoints := serveOnListeners(t, g)

	address := endpoints[0].listener.Addr().String()
	reused := false
	send := func(c *http.Client) string {
		trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, "https://"+address+"/user", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			return "no connection"
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return resp.Status
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	known := withClientCertificate(t, roots, builds)
	for _, c := range []struct {
		name string
		from *http.Client
		want string
	}{
		{"its certificate", known, "Bearer held"},
		{"no certificate", withClientCertificate(t, roots, ""), "401 Unauthorized"},
		{"a certificate of another authority", withClientCertificate(t, roots, stranger), "no connection"},
	} {
		if got := send(c.from); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if err := reloadWith(g, load("dns:deploys.example.com")); err != nil {
		t.Fatal(err)
	}
	if got := send(known); got != "401 Unauthorized" || !reused {
		t.Errorf("removed client on its open connection (reused: %t): %s, want 401", reused, got)
	}
}
