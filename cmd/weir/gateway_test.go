package main

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/testservers"
)

// TestReloadKeepsInboundCounters checks that the requests of an address still count after a
// reload, and that the new limits apply.
func TestReloadKeepsInboundCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := open(t, configure(nowhere, inboundRate(1, 3)))
		wantStatuses(t, g, "/_weir/none", 404, 404, 404, 429)
		reloadChanged(t, g)
		wantStatuses(t, g, "/_weir/none", 429)
		reloadChanged(t, g, inboundRate(3, 9))
		wantStatuses(t, g, "/_weir/none", 429)
		time.Sleep(time.Second)
		wantStatuses(t, g, "/_weir/none", 404, 404, 404, 429)
		reloadChanged(t, g, inboundRate(0, 0))
		wantStatuses(t, g, "/_weir/none", 404, 404, 404, 404, 404, 404, 404, 404, 404, 404)
	})
}

// TestReloadTurnsLimitsOffAndOn checks that a reload applies upstream.limits, and that the
// accounts and the state show the setting.
func TestReloadTurnsLimitsOffAndOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := open(t, configure("http://service.test", func(c *config.Config) { c.Limits.Primary.Unauthenticated, c.Limits.Wait = 1, 0 }))
		connectTo(t, g, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Cache-Control", "no-store") }))
		for _, step := range []struct {
			limits   bool
			statuses []int
			state    string
			accounts int
		}{{true, []int{200, 429}, "on", 1}, {false, []int{200, 200, 200, 200}, "off", 0}, {true, []int{429}, "on", 1}} {
			reloadChanged(t, g, func(c *config.Config) { c.Upstream.Limits = config.Switch(step.limits) })
			wantStatuses(t, g, "/repos/acme/widgets", step.statuses...)
			list := must(g.accounts(t.Context(), 10))(t)
			state := g.state().(gatewayState)
			failIf(t, state.Limits != step.state || len(list) != step.accounts, "got limits %s and %d accounts, want %s and %d", state.Limits, len(list), step.state, step.accounts)
		}
	})
}

func TestRevertedChangeNeedsNoRestart(t *testing.T) {
	var log testservers.Output
	cfg := configure(nowhere)
	g := openLogged(t, cfg, &log)
	changed := *cfg
	changed.Limits.Wait = 3 * time.Second
	changed.Listen, changed.Admin.Listen, changed.Admin.Token, changed.Admin.Hosts = "127.0.0.1:1", "127.0.0.1:2", "t0ken", []string{"ops.example"}
	changed.Store.URL, changed.Limits.OnStoreLoss, changed.Cache.Memory, changed.Cache.Key = "redis://127.0.0.1:1", "closed", 1<<30, "k3y"
	changed.TLS = config.TLS{Domains: []string{"weir.example"}, HTTP: ":80", Email: "ops@example.com"}
	for _, c := range []*config.Config{&changed, &changed, cfg} {
		noError(t, reloadWith(g, c))
		want := *cfg
		want.Limits.Wait = c.Limits.Wait // other changes need a restart
		diff := gocmp.Diff(&want, g.current.Load().config)
		failIf(t, diff != "", "%v", diff)
	}
	n := strings.Count(log.String(), "takes effect at the next start")
	failIf(t, n != 2*9, "%d warnings, want nine keys twice:\n%s", n, log.String())
}

func TestReloadAppliesPrometheus(t *testing.T) {
	g := open(t, configure(nowhere))
	prometheus := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		failIf(t, r.Header.Get("Authorization") != "Bearer t0ken", "authorization %q", r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, `{"status": "success", "data": {"resultType": "matrix", "result": []}}`)
	})
	pages := g.admin(g.started.Admin)
	for _, changed := range []config.Prometheus{{}, {URL: prometheus, Token: "t0ken"}, {}} {
		reloadChanged(t, g, func(c *config.Config) { c.Admin.Prometheus = changed })
		want := cmp.Or(map[string]int{prometheus: 200}[changed.URL], 404)
		w := sendTo(pages, http.MethodGet, "/api/v1/trends?range=7d", "")
		failIf(t, w.Code != want, "with %q: got %d %s, want %d", changed.URL, w.Code, w.Body, want)
	}
}

// TestDrainClosesHTTP2Connections checks that a request during a drain still succeeds, and that
// the next request needs a new connection.
func TestDrainClosesHTTP2Connections(t *testing.T) {
	g := open(t, configure(nowhere))
	server := serveTLS(t, g, true)
	var reused atomic.Bool
	send := func() {
		t.Helper()
		trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused.Store(c.Reused) }}
		req := must(http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, server.URL+"/_weir/none", nil))(t)
		resp := must(server.Client().Do(req))(t)
		_ = resp.Body.Close()
		failIf(t, resp.ProtoMajor != 2 || resp.StatusCode != http.StatusNotFound, "got %s %s", resp.Proto, resp.Status)
	}
	send()
	send()
	stopIf(t, !reused.Load(), "the second request used a new connection before the drain")
	g.drain.Begin()
	send()
	testservers.Eventually(t, "a request uses a new connection", func(context.Context) bool { send(); return !reused.Load() })
}

// serveTLS serves a gateway with the production settings behind TLS until the test ends.
func serveTLS(t *testing.T, g *gateway, http2 bool) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	server.Config, server.EnableHTTP2 = newServer(g, slog.New(slog.DiscardHandler)), http2
	g.connections.Observe(server.Config)
	server.Listener = g.connections.Listener(server.Listener, clientWriteTimeout, g.log)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func TestConcurrentReloadsApplyTheLastConfiguration(t *testing.T) {
	cfg := configure(nowhere)
	g := open(t, cfg)
	older, newer := *cfg, *cfg
	older.Limits.Wait, newer.Limits.Wait = time.Second, 2*time.Second
	loading, proceed := make(chan struct{}), make(chan struct{})
	var loads atomic.Int32
	g.load = func() (*config.Config, error) {
		if loads.Add(1) > 1 {
			return &newer, nil
		}
		close(loading)
		<-proceed
		return &older, nil
	}
	reload := func(done chan error) { done <- g.reload() }
	first, second := make(chan error, 1), make(chan error, 1)
	go reload(first)
	<-loading
	go reload(second)
	select {
	case err := <-second:
		t.Fatalf("the second reload did not wait for the first: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(proceed)
	noError(t, <-first)
	noError(t, <-second)
	got := g.current.Load().config.Limits.Wait
	failIf(t, got != newer.Limits.Wait, "the configuration in force has limits.wait %v, want %v", got, newer.Limits.Wait)
}

// TestClientAboveTwiceTheRateIsDisconnected checks that a client first gets 429, and then loses its connection.
func TestClientAboveTwiceTheRateIsDisconnected(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			var log testservers.Output
			g := openLogged(t, configure(nowhere, inboundRate(20, 50)), &log)
			server := serveTLS(t, g, protocol == "HTTP/2.0")
			began, outcomes := time.Now(), map[int]int{} // by status, 0 for a disconnect
			for range 5000 {
				if outcomes[0] == 100 {
					break
				}
				resp, err := server.Client().Get(server.URL + "/_weir/none")
				if err != nil {
					outcomes[0]++
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body) // keeps the connection
				_ = resp.Body.Close()
				stopIf(t, resp.Proto != protocol, "got %s", resp.Proto)
				outcomes[resp.StatusCode]++
			}
			seconds := 1 + int(time.Since(began).Seconds())
			allowed, refused := outcomes[404], outcomes[429]
			failIf(t, allowed < 50 || allowed > 50+20*seconds || refused < 40 || outcomes[0] < 100, "outcomes %v in %d seconds; want at least 50 times 404, 40 times 429, and 100 disconnects", outcomes, seconds)
			n := strings.Count(log.String(), "client disconnected")
			failIf(t, n < 1 || n > 1+seconds, "%d log lines about disconnects in %d seconds, want one per second:\n%s", n, seconds, log.String())
		})
	}
}

// TestConnectionOfTrustedProxyIsKept checks that a client above twice its rate gets 429 if it shares the connection of a
// trusted proxy with other clients.
func TestConnectionOfTrustedProxyIsKept(t *testing.T) {
	g := open(t, configure(nowhere, inboundRate(1, 5), func(c *config.Config) { c.Callers.TrustedProxies = []string{"192.0.2.0/24"} }))
	for i := range 100 {
		client := map[bool]string{true: "198.51.100.0", false: "198.51.100.1"}[i < 50]
		w := sendTo(g, http.MethodGet, "/_weir/none", "", "X-Forwarded-For: "+client) // panics if it would disconnect
		want := []int{404, 429}[min(1, i%50/5)]
		failIf(t, w.Code != want, "request %d: got %d, want %d", i, w.Code, want)
	}
}
