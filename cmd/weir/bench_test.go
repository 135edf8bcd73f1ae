package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/service"
)

// BenchmarkService compares the throughput of the reference service with the throughput of a gateway that stores no
// responses. The metric "ratio" is the first throughput divided by the second. The runs alternate, so that other load
// affects both.
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
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("X-Ratelimit-Limit", fmt.Sprint(1<<30))
		h.Set("X-Ratelimit-Remaining", fmt.Sprint(1<<29))
		h.Set("X-Ratelimit-Used", fmt.Sprint(1<<29))
		h.Set("X-Ratelimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
		h.Set("X-Ratelimit-Resource", "core")
		h.Set("Cache-Control", "no-store")
		_, _ = w.Write(body)
	}))
	defer upstream.Close()
	cfg.Upstream.URL = upstream.URL
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
			took[i] += runClients(b, base, clients, each)
		}
	}
	requests := float64(b.N * clients * each)
	b.ReportMetric(requests/took[0].Seconds(), "service/s")
	b.ReportMetric(requests/took[1].Seconds(), "gateway/s")
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "ratio")
	if v := s.Violations(); v.Violations != 0 {
		b.Fatalf("the service counted violations: %+v", v)
	}
}

// runClients runs clients that send requests in sequence, and returns the duration.
func runClients(b *testing.B, base string, clients, each int) time.Duration {
	b.Helper()
	address := strings.TrimPrefix(base, "http://")
	request := []byte("GET /repos/acme/widgets/subscribers?per_page=2 HTTP/1.1\r\nHost: " + address + "\r\nAuthorization: Bearer tok-owner\r\n\r\n")
	began := time.Now()
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			if err := sendRaw(address, request, each); err != nil {
				b.Error(err)
			}
		})
	}
	group.Wait()
	return time.Since(began)
}

// sendRaw sends a raw request several times over one connection, and reads the responses.
func sendRaw(address string, request []byte, times int) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	responses := bufio.NewReader(conn)
	for range times {
		if _, err := conn.Write(request); err != nil {
			return err
		}
		resp, err := http.ReadResponse(responses, nil)
		if err != nil {
			return err
		}
		size, err := io.Copy(io.Discard, resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || size < 1500 {
			return fmt.Errorf("status %d, %d bytes, %w", resp.StatusCode, size, err)
		}
	}
	return nil
}
