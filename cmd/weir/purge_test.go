package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirgate/weir/internal/config"
)

func TestPurge(t *testing.T) {
	var upstreamCalls atomic.Int64
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		upstreamCalls.Add(1)
		w.Header().Set("Cache-Control", "max-age=600")
		w.Header().Set("Etag", `"one"`)
		if r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = fmt.Fprint(w, "answer")
	}))
	defer up.Close()
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.ColdStart = up.URL, "trust"
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	admin := httptest.NewServer(g.admin(cfg.Admin))
	defer admin.Close()
	send := func(path string) string {
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Header().Get("Cache-Status")
	}
	weir := func(args ...string) (code int, text string) {
		var out bytes.Buffer
		getenv := func(string) (string, bool) { return "", false }
		code = run(context.Background(), append([]string{"cache", "purge", "--admin", admin.URL}, args...), getenv, &out, &out)
		return code, out.String()
	}
	const target = "/repos/acme/widgets/subscription"
	for _, c := range []struct {
		args  []string
		code  int
		text  string
		cache string // Cache-Status of the next request for the target
	}{
		{[]string{"--url", target}, 0, "2 entries will be revalidated", "fwd=stale; fwd-status=304"},
		{[]string{"--url", up.URL + target + "?x=1"}, 0, "2 entries", "fwd=stale; fwd-status=304"},
		{[]string{"--url", "https://weir.example.com/api/v3/repos/Acme/widgets/subscription"}, 0, "2 entries", "fwd=stale; fwd-status=304"},
		{[]string{"--tag", "repo:acme/widgets"}, 0, "2 entries", "fwd=stale; fwd-status=304"},
		{[]string{"--tag", "org:acme"}, 0, "2 entries", "fwd=stale; fwd-status=304"},
		{[]string{"--tag", "account:egress:shared"}, 0, "2 entries", "fwd=stale; fwd-status=304"},
		{[]string{"--tag", "repo:acme/widgets", "--hard"}, 0, "2 entries removed", "fwd=uri-miss; fwd-status=200"},
		{[]string{"--tag", "repo:acme/other"}, 0, "0 entries", "hit"},
		{[]string{"--url", target, "--tag", "org:acme"}, 2, "can't be used together", "hit"},
		{nil, 2, "missing", "hit"},
		{[]string{"--url", "/a%2"}, 1, "", "hit"},
	} {
		send(target)
		send(target + "?page=2")
		code, text := weir(c.args...)
		if code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%v: exit code %d, wrote %q", c.args, code, text)
		}
		if got := send(target); !strings.HasPrefix(got, "weir; "+c.cache) {
			t.Errorf("%v: Cache-Status %q, want %q", c.args, got, c.cache)
		}
		send(target + "?page=2")
	}
	if code, text := weir("--tag", "t", "--admin", up.URL); code != 1 || !strings.Contains(text, "not the admin listener") {
		t.Errorf("exit code %d, wrote %q", code, text)
	}
}
