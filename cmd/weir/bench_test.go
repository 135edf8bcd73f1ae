package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/proxy"
)

// BenchmarkService compares the throughput of the reference service with the throughput of a gateway that stores no
// responses. The metric "ratio" is the first throughput divided by the second. The runs alternate, so that other load
// affects both.
func BenchmarkService(b *testing.B) {
	cfg := configure(nowhere, trusting, inboundRate(0, 0))
	cfg.Limits.Primary.User = 1 << 30
	cfg.Limits.Points.REST = 1 << 30
	cfg.Limits.CPU.Total, cfg.Limits.CPU.GraphQL = 24*time.Hour, 24*time.Hour
	s := must(newService(cfg, 1, quirk.Set{}))(b)
	defer s.Close()
	direct := serveAPI(b, s.ServeHTTP)

	body := bytes.Repeat([]byte("0123456789abcdef"), 2<<10/16)
	upstream := serveAPI(b, func(w http.ResponseWriter, _ *http.Request) {
		setRate(w.Header(), "core", 1<<29)
		w.Header().Set("X-Ratelimit-Limit", fmt.Sprint(1<<30))
		w.Header().Set("X-Ratelimit-Used", fmt.Sprint(1<<29))
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(body)
	})
	cfg.Upstream.URL = upstream
	through := serveAPI(b, open(b, cfg).ServeHTTP)

	const clients, each = 8, 50
	var took [2]time.Duration
	for b.Loop() {
		for i, base := range []string{direct, through} {
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
			err := sendRaw(address, request, each)
			failIf(b, err != nil, "%v", err)
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

// sampleList returns a JSON list of at least size bytes, like a list of issues.
func sampleList(size int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	list := []byte("[")
	for len(list) < size {
		id := random.IntN(1 << 30)
		issue, _ := json.Marshal(map[string]any{
			"id": id, "node_id": fmt.Sprintf("I_%x", random.Uint64()), "number": id % 9999, "state": "open", "locked": false,
			"url": fmt.Sprint("https://api.example/repos/acme/widgets/issues/", id%9999), "title": fmt.Sprintf("Failure %x in step %d", random.Uint32(), id%7),
			"user":       map[string]any{"login": fmt.Sprintf("user-%x", id%500), "id": id % 500, "type": "User", "site_admin": false},
			"created_at": fmt.Sprintf("2026-11-%02dT%02d:00:00Z", 1+id%28, id%24), "labels": []string{"bug", "help wanted"}, "body": nil,
		})
		list = append(append(list, issue...), ',')
	}
	list[len(list)-1] = ']'
	return list
}

// countingWriter is a nullWriter that counts the bytes of bodies.
type countingWriter struct {
	nullWriter
	bytes int
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.bytes += len(p)
	return len(p), nil
}

// BenchmarkCodedHit measures hits of JSON by content coding, and the bytes that a client gets.
func BenchmarkCodedHit(b *testing.B) {
	for _, size := range []int{2 << 10, 64 << 10, 300 << 10} {
		body := sampleList(size)
		g := startUnlimited(b, serveAPI(b, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=3600")
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			w.Header().Set("Etag", `"sample"`)
			_, _ = w.Write(body)
		}))
		for _, accepted := range []string{"", "gzip", "zstd"} {
			b.Run(fmt.Sprintf("%dKB/%s", size>>10, accepted), func(b *testing.B) {
				r := sampleRequest("/repos/acme/widgets/subscribers")
				if accepted != "" {
					r.Header.Set("Accept-Encoding", accepted)
				}
				w := &countingWriter{nullWriter: nullWriter{http.Header{}}}
				g.ServeHTTP(w, r)
				w.bytes = 0
				b.ReportAllocs()
				for b.Loop() {
					clear(w.header)
					g.ServeHTTP(w, r)
				}
				b.ReportMetric(float64(w.bytes)/float64(b.N), "body-B/op")
			})
		}
	}
}

// nullWriter is a ResponseWriter that discards the response and keeps its header map.
type nullWriter struct{ header http.Header }

func (w *nullWriter) Header() http.Header       { return w.header }
func (*nullWriter) Write(p []byte) (int, error) { return len(p), nil }
func (*nullWriter) WriteHeader(int)             {}

// nullTransport is an upstream without a network.
type nullTransport struct{ body []byte }

func (t nullTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Request: r, ContentLength: int64(len(t.body)), Body: io.NopCloser(bytes.NewReader(t.body)),
		Header: http.Header{"Content-Type": {"application/octet-stream"}, "Cache-Control": {"no-store"}, "Content-Length": {"2048"}, "Date": {"Sat, 21 Nov 2026 12:00:00 GMT"}},
	}, nil
}

// startUnlimited starts a gateway with very high limits.
func startUnlimited(b *testing.B, upstream string) *gateway {
	b.Helper()
	return open(b, configure(upstream, trusting, inboundRate(0, 0), func(c *config.Config) {
		c.Telemetry.Sample = 0.01
		l := &c.Limits.Limits
		l.Primary.User, l.Points.REST, l.Concurrent, l.CPU.Total = 1<<30, 1<<30, 1<<20, 1000*time.Hour
	}))
}

// sampleRequest returns a typical request.
func sampleRequest(target string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, target, http.NoBody)
	r.Header.Set("Authorization", "Bearer a-sample-token")
	r.Header.Set("User-Agent", "bench")
	r.Header.Set("Accept", "application/json")
	return r
}

// benchmarkHandler measures a handler without net/http.
func benchmarkHandler(b *testing.B, h http.Handler, target string) {
	b.Helper()
	r := sampleRequest(target)
	w := &nullWriter{http.Header{}}
	h.ServeHTTP(w, r)
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		h.ServeHTTP(w, r)
	}
}

// BenchmarkHit measures a hit without net/http.
func BenchmarkHit(b *testing.B) {
	benchmarkHandler(b, startUnlimited(b, serveAPI(b, cacheableUpstream(2<<10))), "/repos/acme/widgets/subscribers")
}

// BenchmarkPass measures a forwarded request without net/http.
func BenchmarkPass(b *testing.B) {
	c := startUnlimited(b, "http://api.example").current.Load().proxy.Config
	c.Transport = nullTransport{make([]byte, 2<<10)}
	benchmarkHandler(b, proxy.New(c), "/users/octocat/subscriptions")
}

// BenchmarkTelemetry compares the hits per second without telemetry with the hits per second with metrics and sampled
// traces. One request of a hundred is traced. The metric "ratio" is the median of the second number divided by the
// first. The runs alternate, so that other load affects both.
func BenchmarkTelemetry(b *testing.B) {
	upstream := serveAPI(b, cacheableUpstream(2<<10))
	b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", serveAPI(b, func(http.ResponseWriter, *http.Request) {}))
	with := startWithHit(b, upstream, false)
	b.Setenv("OTEL_SDK_DISABLED", "true")
	comparePairs(b, "off", startWithHit(b, upstream, false), "on", with)
}

// BenchmarkTelemetryOff compares a gateway without telemetry code with a gateway with disabled
// telemetry.
func BenchmarkTelemetryOff(b *testing.B) {
	upstream := serveAPI(b, cacheableUpstream(2<<10))
	b.Setenv("OTEL_SDK_DISABLED", "true")
	comparePairs(b, "none", startWithHit(b, upstream, true), "off", startWithHit(b, upstream, false))
}

// comparePairs sends requests to two gateways alternately, and reports the hits per second of each gateway.
func comparePairs(b *testing.B, first, base, second, other string) {
	b.Helper()
	const clients, each = 4, 500
	bases := [2]string{base, other}
	var took [2]time.Duration
	var ratios []float64
	for begins := 0; b.Loop(); begins = 1 - begins {
		var now [2]time.Duration
		for _, i := range []int{begins, 1 - begins} {
			now[i] = runClients(b, bases[i], clients, each)
			took[i] += now[i]
		}
		ratios = append(ratios, now[0].Seconds()/now[1].Seconds())
	}
	requests := float64(b.N * clients * each)
	b.ReportMetric(requests/took[0].Seconds(), first+"/s")
	b.ReportMetric(requests/took[1].Seconds(), second+"/s")
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
}

// cacheableUpstream responds with a body of the given size that is fresh for one hour.
func cacheableUpstream(size int) http.HandlerFunc {
	body := make([]byte, size)
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		_, _ = w.Write(body)
	}
}

// startWithHit starts a gateway with a stored response, and traces one request of a hundred. A
// bare gateway has no telemetry.
func startWithHit(b *testing.B, upstream string, bare bool) (base string) {
	b.Helper()
	g := open(b, configure(upstream, inboundRate(0, 0), func(c *config.Config) { c.Telemetry.Sample = 0.01 }))
	handler := http.Handler(g)
	if bare {
		c := g.current.Load().proxy.Config
		c.Tracer, c.Observe = nil, g.history.Observe
		handler = proxy.New(c)
	}
	base = serveAPI(b, handler.ServeHTTP)
	runClients(b, base, 1, 1)
	return base
}
