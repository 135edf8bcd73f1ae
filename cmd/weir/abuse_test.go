package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/config"
)

// TestClientAboveTwiceTheRateIsDisconnected checks that a client first gets 429, and then loses its connection.
func TestClientAboveTwiceTheRateIsDisconnected(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			var log bytes.Buffer
			cfg := config.Default()
			cfg.Upstream.URL = "http://127.0.0.1:9"
			cfg.Limits.Inbound.Rate, cfg.Limits.Inbound.Burst = 20, 50
			g, err := newGateway(cfg, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewUnstartedServer(nil)
			server.Config, server.EnableHTTP2 = newServer(g, slog.New(slog.DiscardHandler)), protocol == "HTTP/2.0"
			g.connections.Observe(server.Config)
			server.Listener = g.connections.Listener(server.Listener, clientWriteTimeout, g.log)
			server.StartTLS()
			statuses := map[int]int{}
			disconnected := 0
			for range 500 {
				resp, err := server.Client().Get(server.URL + "/_weir/none")
				if err != nil {
					disconnected++
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body) // keeps the connection
				_ = resp.Body.Close()
				if resp.Proto != protocol {
					t.Fatalf("got %s", resp.Proto)
				}
				statuses[resp.StatusCode]++
			}
			server.Close()
			g.close()
			// The numbers depend on the speed of the run.
			if allowed, refused := statuses[404], statuses[429]; allowed < 50 || refused < 40 || disconnected < 100 || allowed+refused+disconnected != 500 {
				t.Errorf("statuses %v, %d disconnects; want at least 50 times 404, 40 times 429, and 100 disconnects", statuses, disconnected)
			}
			if n := strings.Count(log.String(), "client disconnected"); n < 1 || n > 30 {
				t.Errorf("%d log lines about disconnects, want one per second:\n%s", n, log.String())
			}
		})
	}
}

// TestConnectionOfTrustedProxyIsKept checks that a client above twice its rate gets 429 if it shares the connection of a
// trusted proxy with other clients.
func TestConnectionOfTrustedProxyIsKept(t *testing.T) {
	cfg := config.Default()
	cfg.Upstream.URL = "http://127.0.0.1:9"
	cfg.Callers.TrustedProxies = []string{"192.0.2.0/24"}
	cfg.Limits.Inbound.Rate, cfg.Limits.Inbound.Burst = 1, 5
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	for i := range 100 {
		r := httptest.NewRequest("GET", "/_weir/none", nil)
		r.RemoteAddr = "192.0.2.1:1"
		r.Header.Set("X-Forwarded-For", fmt.Sprint("198.51.100.", i/50))
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r) // panics if it would disconnect
		if want := []int{404, 429}[min(1, i%50/5)]; w.Code != want {
			t.Errorf("request %d: got %d, want %d", i, w.Code, want)
		}
	}
}
