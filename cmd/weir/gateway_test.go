package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/testservers"
)

// TestReloadKeepsInboundCounters checks that the requests of an address still count after a
// reload, and that the new limits apply.
func TestReloadKeepsInboundCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Default()
		cfg.Upstream.URL = "http://service.test"
		cfg.Limits.Inbound.Rate, cfg.Limits.Inbound.Burst = 1, 3
		g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.close)
		send := func(want ...int) {
			t.Helper()
			for i, status := range want {
				w := httptest.NewRecorder()
				g.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/_weir/none", nil))
				if w.Code != status {
					t.Errorf("request %d: got %d, want %d: %s", i+1, w.Code, status, w.Body)
				}
			}
		}
		reload := func(perSecond, burst int) {
			t.Helper()
			changed := *cfg
			changed.Limits.Inbound.Rate, changed.Limits.Inbound.Burst = perSecond, burst
			if err := reloadWith(g, &changed); err != nil {
				t.Fatal(err)
			}
		}
		send(404, 404, 404, 429)
		reload(1, 3)
		send(429)
		reload(3, 9)
		send(429)
		time.Sleep(time.Second)
		send(404, 404, 404, 429)
		reload(0, 0)
		send(404, 404, 404, 404, 404, 404, 404, 404, 404, 404)
	})
}

// TestReloadTurnsLimitsOffAndOn checks that a reload applies upstream.limits, and that the
// accounts and the state show the setting.
func TestReloadTurnsLimitsOffAndOn(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Cache-Control", "no-store") }))
	defer upstream.Close()
	cfg := config.Default()
	cfg.Upstream.URL = upstream.URL
	cfg.Limits.Primary.Unauthenticated, cfg.Limits.Wait = 1, 0
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	send := func(want ...int) {
		t.Helper()
		for i, status := range want {
			w := httptest.NewRecorder()
			g.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/repos/acme/widgets", nil))
			if w.Code != status {
				t.Errorf("request %d: got %d, want %d: %s", i+1, w.Code, status, w.Body)
			}
		}
	}
	shows := func(limits string, accounts int) {
		t.Helper()
		list, err := g.accounts(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		if state := g.state().(gatewayState); state.Limits != limits || len(list) != accounts {
			t.Errorf("got limits %s and %d accounts, want %s and %d", state.Limits, len(list), limits, accounts)
		}
	}
	send(200, 429)
	shows("on", 1)
	off := *cfg
	off.Upstream.Limits = false
	if err := reloadWith(g, &off); err != nil {
		t.Fatal(err)
	}
	send(200, 200, 200, 200)
	shows("off", 0)
	if err := reloadWith(g, cfg); err != nil {
		t.Fatal(err)
	}
	send(429)
	shows("on", 1)
}

func TestRevertedChangeNeedsNoRestart(t *testing.T) {
	var log strings.Builder
	cfg := config.Default()
	cfg.Upstream.URL = "http://127.0.0.1:9"
	g, err := newGateway(cfg, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	changed := *cfg
	changed.Limits.Wait = 3 * time.Second
	changed.Listen, changed.Admin.Listen, changed.Admin.Token, changed.Admin.Hosts = "127.0.0.1:1", "127.0.0.1:2", "t0ken", []string{"ops.example"}
	changed.Store.URL, changed.Limits.OnStoreLoss, changed.Cache.Memory, changed.Cache.Key = "redis://127.0.0.1:1", "closed", 1<<30, "k3y"
	changed.TLS = config.TLS{Domains: []string{"weir.example"}, HTTP: ":80", Email: "ops@example.com"}
	for _, c := range []*config.Config{&changed, &changed, cfg} {
		if err := reloadWith(g, c); err != nil {
			t.Fatal(err)
		}
		want := *cfg
		want.Limits.Wait = c.Limits.Wait // other changes need a restart
		if diff := cmp.Diff(&want, g.current.Load().config); diff != "" {
			t.Error(diff)
		}
	}
	if n := strings.Count(log.String(), "takes effect at the next start"); n != 2*9 {
		t.Errorf("%d warnings, want nine keys twice:\n%s", n, log.String())
	}
}

func TestReloadAppliesPrometheus(t *testing.T) {
	cfg := config.Default()
	cfg.Upstream.URL = "http://127.0.0.1:9"
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t0ken" {
			t.Errorf("authorization %q", r.Header.Get("Authorization"))
		}
		_, _ = io.WriteString(w, `{"status": "success", "data": {"resultType": "matrix", "result": []}}`)
	}))
	defer prometheus.Close()
	pages := g.admin(cfg.Admin)
	for _, c := range []struct {
		changed config.Prometheus
		status  int
	}{{config.Prometheus{}, 404}, {config.Prometheus{URL: prometheus.URL, Token: "t0ken"}, 200}, {config.Prometheus{}, 404}} {
		next := *cfg
		next.Admin.Prometheus = c.changed
		if err := reloadWith(g, &next); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/api/v1/trends?range=7d", nil))
		if w.Code != c.status {
			t.Errorf("with %q: got %d %s, want %d", c.changed.URL, w.Code, w.Body, c.status)
		}
	}
}

// TestDrainClosesHTTP2Connections checks that a request during a drain still succeeds, and that
// the next request needs a new connection.
func TestDrainClosesHTTP2Connections(t *testing.T) {
	g, err := newGateway(config.Default(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	server := httptest.NewUnstartedServer(g)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	var reused atomic.Bool
	send := func() {
		t.Helper()
		trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused.Store(c.Reused) }}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, server.URL+"/_weir/none", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusNotFound {
			t.Errorf("got %s %s", resp.Proto, resp.Status)
		}
	}
	send()
	if send(); !reused.Load() {
		t.Fatal("the second request used a new connection before the drain")
	}
	g.drain.Begin()
	send()
	testservers.Eventually(t, "a request uses a new connection", func(context.Context) bool { send(); return !reused.Load() })
}

// serveOnListeners serves the listeners of a gateway until the test ends. Before serving starts, the functions in
// changes can change the endpoint of clients.
func serveOnListeners(t *testing.T, g *gateway, changes ...func(clients *endpoint)) []endpoint {
	t.Helper()
	endpoints, err := g.listen()
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		change(&endpoints[0])
	}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = serveAll(ctx, slog.New(slog.DiscardHandler), noDrain, endpoints...) })
	t.Cleanup(func() { stop(); serving.Wait() })
	return endpoints
}

// reloadWith reloads a configuration that is not in a file.
func reloadWith(g *gateway, c *config.Config) error {
	load := g.load
	defer func() { g.load = load }()
	g.load = func() (*config.Config, error) { return c, nil }
	return g.reload()
}

func TestConcurrentReloadsApplyTheLastConfiguration(t *testing.T) {
	cfg := config.Default()
	cfg.Upstream.URL = "http://127.0.0.1:9"
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	older, newer := *cfg, *cfg
	older.Limits.Wait, newer.Limits.Wait = time.Second, 2*time.Second
	loading, proceed := make(chan struct{}), make(chan struct{})
	var loads atomic.Int32
	g.load = func() (*config.Config, error) {
		if loads.Add(1) == 1 {
			close(loading)
			<-proceed
			return &older, nil
		}
		return &newer, nil
	}
	var reloads sync.WaitGroup
	reloads.Go(func() {
		if err := g.reload(); err != nil {
			t.Error(err)
		}
	})
	<-loading
	second := make(chan struct{})
	reloads.Go(func() {
		defer close(second)
		if err := g.reload(); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-second:
	case <-time.After(100 * time.Millisecond): // the second reload waits for the first one
	}
	close(proceed)
	reloads.Wait()
	if got := g.current.Load().config.Limits.Wait; got != newer.Limits.Wait {
		t.Errorf("the configuration in force has limits.wait %v, want %v", got, newer.Limits.Wait)
	}
}
