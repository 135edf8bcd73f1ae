package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/service"
)

// BenchmarkService compares how many answers of 2 KB a second the reference
// service gives, with its limits enforced, and a gateway that keeps nothing in
// front of an origin that does nothing else. "ratio" is the first over the second;
// both are asked in turns, so that what else the machine does meets both.
func BenchmarkService(b *testing.B) {
	cfg := config.Default()
	cfg.Limits.Primary.User = 1 << 30
	cfg.Limits.Points.REST = 1 << 30
	cfg.Limits.CPU.Total, cfg.Limits.CPU.GraphQL = 24*time.Hour, 24*time.Hour
	cfg.Limits.ColdStart, cfg.Limits.Inbound.Rate = "trust", 0
	s, err := newService(cfg, 1, service.Faults{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	direct := httptest.NewServer(s)
	defer direct.Close()

	body := bytes.Repeat([]byte("0123456789abcdef"), 2<<10/16)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("X-Ratelimit-Limit", fmt.Sprint(1<<30))
		h.Set("X-Ratelimit-Remaining", fmt.Sprint(1<<29))
		h.Set("X-Ratelimit-Used", fmt.Sprint(1<<29))
		h.Set("X-Ratelimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
		h.Set("X-Ratelimit-Resource", "core")
		h.Set("Cache-Control", "no-store")
		_, _ = w.Write(body)
	}))
	defer origin.Close()
	cfg.Upstream.URL = origin.URL
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer g.close()
	through := httptest.NewServer(g)
	defer through.Close()

	const clients, each = 8, 50
	var took [2]time.Duration
	for b.Loop() {
		for i, base := range []string{direct.URL, through.URL} {
			took[i] += inTurns(b, base, clients, each)
		}
	}
	requests := float64(b.N * clients * each)
	b.ReportMetric(requests/took[0].Seconds(), "service/s")
	b.ReportMetric(requests/took[1].Seconds(), "gateway/s")
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "ratio")
	if v := s.Violations(); v.Violations != 0 {
		b.Fatalf("%+v", v)
	}
}

// inTurns lets so many clients ask so often each, and returns how long it took.
func inTurns(b *testing.B, base string, clients, each int) time.Duration {
	b.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	began := time.Now()
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for range each {
				if size, err := ask(client, base+"/repos/acme/widgets/subscribers?per_page=2"); err != nil || size < 1500 {
					b.Errorf("%d bytes, %v", size, err)
					return
				}
			}
		})
	}
	group.Wait()
	return time.Since(began)
}

// ask reads one answer.
func ask(client *http.Client, url string) (size int64, err error) {
	req, err := http.NewRequest(http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer tok-owner")
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %d", resp.StatusCode)
	}
	return io.Copy(io.Discard, resp.Body)
}
