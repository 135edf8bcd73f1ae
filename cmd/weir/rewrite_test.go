package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weirgate/weir/internal/config"
)

// TestURLsInBodiesLeadToTheGateway checks that each client gets the URLs by which it calls the gateway, from one stored
// response, and that a client that calls the API by its own name gets the upstream's URLs.
func TestURLsInBodiesLeadToTheGateway(t *testing.T) {
	const body = `{"url":"https://api.test/repos/a/b","upload_url":"https://uploads.test/repos/a/b{?name}","body":"https://api.test/x"}`
	requests := 0
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "public, max-age=60")
		w.Header().Set("Etag", `"1"`)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(up.Close)
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Upstream.Rewrite, cfg.Limits.ColdStart = up.URL, true, "trust"
	cfg.Hosts = []config.Host{
		{Name: "api.test", URL: up.URL, Kind: "api"}, {Name: "uploads.test", URL: up.URL, Kind: "api", Path: "/api/uploads"},
		{Name: "files.test", URL: up.URL, Kind: "files", Path: "/files"},
	}
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	const rewritten = `{"url":"http://weir.internal/repos/a/b","upload_url":"http://weir.internal/api/uploads/repos/a/b{?name}","body":"https://api.test/x"}`
	for _, c := range []struct{ host, target, want, etag string }{
		{"weir.internal", "/gitignore/templates", rewritten, `W/"1"`},
		{"weir.internal", "/gitignore/templates", rewritten, `W/"1"`},
		{"api.test", "/gitignore/templates", body, `"1"`},
		{"weir.internal", "/files/package.json", body, `"1"`},
		{"[::1]:8080", "/api/v3/gitignore/templates", `{"url":"http://[::1]:8080/api/v3/repos/a/b","upload_url":"http://[::1]:8080/api/uploads/repos/a/b{?name}","body":"https://api.test/x"}`, `W/"1"`},
	} {
		r := httptest.NewRequest("GET", c.target, nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Body.String() != c.want || w.Header().Get("Etag") != c.etag {
			t.Errorf("%s%s: got %s with %s\nwant %s with %s", c.host, c.target, w.Body, w.Header().Get("Etag"), c.want, c.etag)
		}
	}
	if requests != 2 {
		t.Errorf("%d requests upstream, want one for the API and one for the file", requests)
	}
	r := httptest.NewRequest("GET", "/gitignore/templates", nil)
	r.Host = "weir.internal"
	r.Header.Set("If-None-Match", `W/"1"`)
	w := httptest.NewRecorder()
	if g.ServeHTTP(w, r); w.Code != http.StatusNotModified {
		t.Errorf("the rewritten ETag: got %d", w.Code)
	}
}
