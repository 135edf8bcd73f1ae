package main

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
)

// loopbackAdmin is a gateway with an admin listener on loopback that requires no token. All pages in the operator's
// browser can reach this listener.
type loopbackAdmin struct {
	*testing.T
	*gateway
	address string
	reloads atomic.Int32
}

func startLoopbackAdmin(t *testing.T) *loopbackAdmin {
	t.Helper()
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Listen, cfg.Admin.Listen, cfg.Admin.Hosts = "http://127.0.0.1:1", "127.0.0.1:0", "127.0.0.1:0", []string{"weir.internal"}
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	o := &loopbackAdmin{T: t, gateway: g}
	g.load = func() (*config.Config, error) { o.reloads.Add(1); return cfg, nil }
	endpoints := serveOnListeners(t, g)
	o.address = endpoints[1].listener.Addr().String()
	return o
}

// send writes a raw request on a new connection, and returns the response.
func (o *loopbackAdmin) send(body string, lines ...string) *http.Response {
	o.Helper()
	conn, err := net.Dial("tcp", o.address)
	if err != nil {
		o.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute)) // real time, because the connection is TCP
	_, _ = fmt.Fprintf(conn, "%s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", strings.Join(lines, "\r\n"), len(body), body)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		o.Fatalf("%q: %v", lines, err)
	}
	text, _ := io.ReadAll(resp.Body)
	resp.Body = io.NopCloser(strings.NewReader(string(text)))
	return resp
}

// TestAdminRefusesCrossSiteRequests sends requests that pages of other sites can cause, and
// requests with other host names.
func TestAdminRefusesCrossSiteRequests(t *testing.T) {
	o := startLoopbackAdmin(t)
	const reload, purge = "POST /api/v1/reload HTTP/1.1", "POST /api/v1/cache/purge HTTP/1.1"
	own := "Host: " + o.address
	for _, c := range []struct {
		name   string
		status int
		lines  []string
	}{
		{"form on a page of another site", 403, []string{reload, own, "Origin: http://evil.test", "Content-Type: application/x-www-form-urlencoded"}},
		{"form with files on a page of another site", 403, []string{purge, own, "Origin: http://evil.test", "Content-Type: multipart/form-data; boundary=x"}},
		{"JSON as text, which needs no preflight", 403, []string{purge, own, "Origin: http://evil.test", "Content-Type: text/plain"}},
		{"JSON as text with Sec-Fetch-Site", 403, []string{purge, own, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Content-Type: text/plain"}},
		{"page of another port", 403, []string{reload, "Host: localhost", "Origin: http://localhost:3000", "Sec-Fetch-Site: same-site"}},
		{"an origin with the same prefix", 403, []string{reload, own, "Origin: http://" + o.address + ".evil.test"}},
		{"a page without origin", 403, []string{reload, own, "Origin: null"}},
		{"an invalid origin", 403, []string{reload, own, "Origin: x"}},
		{"navigation from a page of another site", 403, []string{reload, own, "Origin: http://evil.test", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}},
		{"DNS rebinding", 403, []string{reload, "Host: evil.test", "Origin: http://evil.test", "Sec-Fetch-Site: same-origin"}},
		{"DNS rebinding, with the port", 403, []string{reload, "Host: evil.test:9090"}},
		{"host name that ends in -localhost", 403, []string{reload, "Host: evil-localhost"}},
		{"subdomain of localhost", 403, []string{reload, "Host: evil.localhost"}},
		{"no host, in HTTP/1.0", 403, []string{"POST /api/v1/reload HTTP/1.0"}},
		{"an empty host", 403, []string{reload, "Host:"}},
		{"no host", 400, []string{reload}},
		{"two hosts", 400, []string{reload, own, "Host: evil.test"}},
		{"two hosts, the foreign host first", 400, []string{reload, "Host: evil.test", own}},
		{"a host in the target", 403, []string{"POST http://evil.test/api/v1/reload HTTP/1.1", own}},
		{"a host with user information", 400, []string{reload, "Host: localhost@evil.test"}},
		{"method override in a header field", 405, []string{"GET /api/v1/reload HTTP/1.1", own, "X-HTTP-Method-Override: POST"}},
		{"image on a page of another site", 405, []string{"GET /api/v1/reload?x=1 HTTP/1.1", own, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: image"}},
		{"a preflight", 405, []string{"OPTIONS /api/v1/reload HTTP/1.1", own, "Origin: http://evil.test", "Access-Control-Request-Method: POST"}},
	} {
		resp := o.send(`{"tag":"op:x"}`, c.lines...)
		if resp.StatusCode != c.status || o.reloads.Load() > 0 || len(o.trail.Last()) > 0 {
			t.Errorf("%s: %s; %d reloads, %d changes in the audit trail", c.name, resp.Status, o.reloads.Load(), len(o.trail.Last()))
		}
		for field := range resp.Header {
			if strings.HasPrefix(field, "Access-Control-") {
				t.Errorf("%s: %s: %s", c.name, field, resp.Header.Get(field))
			}
		}
	}
	for i, lines := range [][]string{
		{reload, own},
		{reload, "Host: LOCALHOST:1"},
		{reload, "Host: weir.internal", "Origin: http://weir.internal", "Sec-Fetch-Site: same-origin"},
	} {
		if resp := o.send("", lines...); resp.StatusCode != http.StatusOK || o.reloads.Load() != int32(i+1) {
			t.Errorf("request of the operator %q: %s, %d reloads", lines, resp.Status, o.reloads.Load())
		}
	}
}

// TestAdminPathsHaveOneSpelling checks that the admin listener does not normalize paths.
func TestAdminPathsHaveOneSpelling(t *testing.T) {
	o := startLoopbackAdmin(t)
	for _, target := range []string{
		"/api/v1/reload/", "/api/v1/reload/0", "/api/v1/reload00", "/api/v1/Reload", "//api/v1/reload", "/api//v1/reload", "/./api/v1/reload", "/x/../api/v1/reload",
		"/healthz/../api/v1/reload", "/healthz/..%2fapi/v1/reload", "/api/v1/%72eload", "/api%2fv1%2freload", "/api/v1/reload%2f", "/api/v1/reload%00", "/api/v1/reload%20",
		"/api/v1/reload;x", "/api/v1/reload%3fx", "/api/v1/reload%23", `/api\v1\reload`, "/api/v1/reload.json", "/api/v1/reload/..", "/api/v1/reload/.", "http:api/v1/reload", "x:/api/v1/reload/",
	} {
		resp := o.send("", "POST "+target+" HTTP/1.1", "Host: localhost")
		if resp.StatusCode != http.StatusNotFound || o.reloads.Load() > 0 {
			t.Errorf("%s: %s, %d reloads", target, resp.Status, o.reloads.Load())
		}
	}
	if resp := o.send("", "POST /api/v1/reload?x=/healthz HTTP/1.1", "Host: localhost"); resp.StatusCode != http.StatusOK || o.reloads.Load() != 1 {
		t.Errorf("exact path: %s, %d reloads", resp.Status, o.reloads.Load())
	}
}
