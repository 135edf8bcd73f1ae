package main

import (
	"encoding/base64"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirgate/weir/internal/config"
)

// TestClientsCannotSendTheirKeyUpstream puts a generated and a chosen key into each part of a request to the API and to a
// host with files. The request is refused, or reaches the upstream without the key.
func TestClientsCannotSendTheirKeyUpstream(t *testing.T) {
	const generated, chosen = "weir_ABCDEFGHIJKLMNOPQRSTUVWX23", "a9Hq4xWzT7rKp2mVs8bNdXy"
	var sent atomic.Value
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var text strings.Builder
		_ = r.Header.Write(&text)
		sent.Store(r.RequestURI + "\n" + text.String())
	}))
	t.Cleanup(up.Close)
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.ColdStart = up.URL, "trust"
	cfg.Credentials = []config.Credential{{Name: "ci", Kind: "user", Account: "ci", Token: "tok-held"}}
	for name, key := range map[string]string{"builds": generated, "deploys": chosen} {
		cfg.Clients = append(cfg.Clients, config.Client{Name: name, Key: keyHash(key), Share: 1, Limit: 0.9, Priority: "normal", Pace: "burst", Credentials: []string{"ci"}})
	}
	cfg.Hosts = []config.Host{{Name: "files.test", URL: up.URL, Kind: "files"}}
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	for _, key := range []string{generated, chosen} {
		pair := base64.StdEncoding.EncodeToString([]byte("x:" + key))
		for _, host := range []string{"", "files.test"} {
			for _, c := range []struct{ target, field string }{
				{"/made/up", "Private-Token: " + key}, {"/made/up", "Apikey: Bearer " + key}, {"/made/up", "Authentication: Basic " + pair}, {"/made/up", "Token: a, " + key},
				{"/made/up", "Cookie: session=" + key}, {"/made/up", "X-Api-Key: " + key}, {"/made/up", "Referer: https://x:" + key + "@gateway.test/"}, {"/users/octocat", "User-Agent: " + key},
				{"/made/up", "Via: 1.1 " + key}, {"/users/octocat", "Via: 1.1 proxy (" + key + ")"},
				{"/made/up?private_token=" + key, ""}, {"/users/octocat?access_token=" + key, ""}, {"/made/up?q=%41&token=Basic%20" + url.QueryEscape(pair), ""}, {"/made/up?" + key, ""},
				{"/made/up?key=" + url.QueryEscape(url.QueryEscape("?"+key)), ""}, {"/made/" + key, ""},
			} {
				for _, method := range []string{"GET", "POST"} {
					sent.Store("")
					r := httptest.NewRequest(method, c.target, nil)
					r.Host = host
					r.Header.Set("Authorization", "Bearer "+key)
					if name, value, ok := strings.Cut(c.field, ": "); ok {
						r.Header.Set(name, value)
					}
					w := httptest.NewRecorder()
					g.ServeHTTP(w, r)
					text := sent.Load().(string)
					if strings.Contains(text, key) || strings.Contains(text, pair) || strings.Contains(text, url.QueryEscape(pair)) {
						t.Errorf("%s %q %s %s: the upstream got %s", method, host, c.target, c.field, text)
					}
					if text == "" && (w.Code != http.StatusBadRequest || !strings.Contains(w.Header().Get("Cache-Status"), "detail=key")) {
						t.Errorf("%s %q %s %s: status %d, %s", method, host, c.target, c.field, w.Code, w.Body)
					}
				}
			}
		}
	}
}
