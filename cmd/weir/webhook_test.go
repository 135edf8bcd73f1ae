package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/testservers"
)

// TestDeliveryPurgesTagsOfCatalogue checks which responses each kind of event makes stale.
func TestDeliveryPurgesTagsOfCatalogue(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=600")
		w.Header().Set("Etag", `"one"`)
		_, _ = fmt.Fprint(w, "[]")
	}))
	defer up.Close()
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.ColdStart, cfg.Webhooks.Secret = up.URL, "trust", credential.Secret("secret")
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	send := func(method, path, body string, fields ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		for _, f := range fields {
			name, value, _ := strings.Cut(f, ": ")
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		return w
	}
	deliver := func(event, delivery, secret, body string) int {
		keyHash := hmac.New(sha256.New, []byte(secret))
		keyHash.Write([]byte(body))
		return send(http.MethodPost, cfg.Webhooks.Path, body, "X-Service-Event: "+event, "X-Service-Delivery: "+delivery,
			"X-Hub-Signature-256: sha256="+hex.EncodeToString(keyHash.Sum(nil))).Code
	}
	paths := map[string]string{
		"statistics": "/repos/acme/widgets/stats/participation", "another repository": "/repos/acme/other/stats/participation", "by number": "/repositories/42/stats/participation",
		"rulesets": "/repos/acme/widgets/rulesets", "organization": "/orgs/acme/rulesets",
	}
	const payload = `{"repository": {"full_name": "Acme/Widgets"}, "organization": {"login": "acme"}}`
	for i, c := range []struct {
		event, secret, body string
		code                int
		stale               string
	}{
		{"push", "secret", payload, 202, "statistics, by number"},
		{"push", "other", payload, 401, ""},
		{"branch_protection_rule", "secret", payload, 409, ""}, // a replayed body keeps its event
		{"made_up", "secret", payload + " ", 202, ""},
		{"branch_protection_rule", "secret", payload + "  ", 202, "rulesets"},
		{"custom_property", "secret", `{"organization": {"login": "acme"}}`, 202, "rulesets"},
		{"push", "secret", `{}`, 202, "by number"},
	} {
		for _, path := range paths {
			send(http.MethodGet, path, "")
		}
		if code := deliver(c.event, fmt.Sprint(i), c.secret, c.body); code != c.code {
			t.Errorf("%s: got %d, want %d", c.event, code, c.code)
		}
		var stale []string
		for _, name := range []string{"statistics", "another repository", "by number", "rulesets", "organization"} {
			if strings.Contains(send(http.MethodGet, paths[name], "").Header().Get("Cache-Status"), "fwd=stale") {
				stale = append(stale, name)
			}
		}
		if got := strings.Join(stale, ", "); got != c.stale {
			t.Errorf("%s, %s: stale: %s; want %s", c.event, c.body, got, c.stale)
		}
	}
	send(http.MethodGet, paths["statistics"], "")
	deliver("push", "0", "secret", payload) // the second delivery
	if got := send(http.MethodGet, paths["statistics"], "").Header().Get("Cache-Status"); !strings.Contains(got, "hit") {
		t.Errorf("after a replayed delivery: %s", got)
	}
}

// TestReplicasUseResponsesUntilAnEvent delivers the ping of a webhook to one of two replicas on one Redis. Both replicas
// then use responses after their lifetime, until an event that arrives at the other replica.
func TestReplicasUseResponsesUntilAnEvent(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=1")
		w.Header().Set("Etag", `"one"`)
		_, _ = fmt.Fprint(w, "[]")
	}))
	defer up.Close()
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Upstream.Dialect, cfg.Store.URL = up.URL, "github", "unix://"+testservers.Redis(t)
	cfg.Webhooks.Secret, cfg.Webhooks.Fresh = credential.Secret("secret"), time.Hour
	var replicas [2]*gateway
	for i := range replicas {
		g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer g.close()
		replicas[i] = g
	}
	deliver := func(g *gateway, event, body string) {
		keyHash := hmac.New(sha256.New, []byte("secret"))
		keyHash.Write([]byte(body))
		r := httptest.NewRequest(http.MethodPost, cfg.Webhooks.Path, strings.NewReader(body))
		for name, value := range map[string]string{
			"X-GitHub-Event": event, "X-GitHub-Delivery": event, "X-GitHub-Hook-Installation-Target-Type": "repository",
			"X-Hub-Signature-256": "sha256=" + hex.EncodeToString(keyHash.Sum(nil)),
		} {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		if g.ServeHTTP(w, r); w.Code != http.StatusAccepted {
			t.Errorf("%s: status %d, want 202", event, w.Code)
		}
	}
	read := func(g *gateway) string {
		r := httptest.NewRequest(http.MethodGet, "/repos/acme/widgets/issues", http.NoBody)
		r.Header.Set("Authorization", "Bearer token")
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		return w.Header().Get("Cache-Status")
	}
	const repository = `"repository": {"full_name": "acme/widgets"}`
	deliver(replicas[0], "ping", `{"hook": {"type": "Repository", "events": ["*"]}, `+repository+"}")
	for _, g := range replicas {
		testservers.Eventually(t, "the replica knows the webhook", func(context.Context) bool { return strings.Contains(read(g), "detail=webhook") })
	}
	deliver(replicas[1], "issues", "{"+repository+"}")
	for _, g := range replicas {
		testservers.Eventually(t, "the event reached the replica", func(context.Context) bool { return !strings.Contains(read(g), "detail=webhook") })
	}
}

func TestWebhooksRequireSecret(t *testing.T) {
	cfg := config.Default()
	cfg.Upstream.URL = "http://127.0.0.1:9"
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	w := httptest.NewRecorder()
	g.ServeHTTP(w, httptest.NewRequest(http.MethodPost, cfg.Webhooks.Path, strings.NewReader("{}")))
	if w.Code != http.StatusNotFound {
		t.Errorf("got %d, want 404", w.Code)
	}
}

func TestWebhooksObeyTheRateOfAnAddress(t *testing.T) {
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Webhooks.Secret = "http://127.0.0.1:9", credential.Secret("secret")
	cfg.Limits.Inbound.Rate, cfg.Limits.Inbound.Burst = 1, 3
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	var codes []int
	for range 4 {
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequest(http.MethodPost, cfg.Webhooks.Path, strings.NewReader("{}")))
		codes = append(codes, w.Code)
	}
	if want := []int{401, 401, 401, 429}; !slices.Equal(codes, want) {
		t.Errorf("got %v, want %v", codes, want)
	}
	large := httptest.NewRequest(http.MethodPost, cfg.Webhooks.Path, strings.NewReader(strings.Repeat("a", 40<<10)))
	large.RemoteAddr = "192.0.2.2:1"
	for i, want := range []int{401, 429} { // 40 KiB count as three requests
		w := httptest.NewRecorder()
		g.ServeHTTP(w, large.Clone(t.Context()))
		if w.Code != want {
			t.Errorf("large delivery %d: got %d, want %d", i, w.Code, want)
		}
	}
}
