package proxy

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
)

// newGet returns a request of the form that the fast path passes on; fields are "Name: value".
func newGet(path string, fields ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Add(name, value)
	}
	return r
}

// serveFast serves a request like a server with the fast path.
func serveFast(g *Gateway, w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.ContentLength != 0 || !g.ServeHit(w, r) {
		g.ServeHTTP(w, r)
	}
}

func TestServeHitWritesTheResponseOfServeHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			for name, value := range map[string]string{
				"Cache-Control": "max-age=60", "Etag": `"1"`, "Content-Type": "application/json",
				"Link":              "<" + upstreamURL + `/user/subscriptions?page=2>; rel="next"`,
				"X-RateLimit-Limit": "7", "Last-Modified": "Sat, 01 Jan 2000 00:00:00 GMT",
			} {
				w.Header().Set(name, value)
			}
			_, _ = fmt.Fprint(w, "[]")
		}, func(c *Config) { c.RateLimitFields = true })
		w.gateway.ServeHTTP(httptest.NewRecorder(), newGet("/user/subscriptions"))
		time.Sleep(3 * time.Second)
		for _, fields := range [][]string{
			nil, {`If-None-Match: W/"1"`}, {`If-None-Match: "2"`}, {"If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT"},
			{"Cache-Control: max-age=10"}, {"Accept: application/json"}, {"Host: elsewhere"},
		} {
			want, got := httptest.NewRecorder(), httptest.NewRecorder()
			w.gateway.ServeHTTP(want, newGet("/user/subscriptions", fields...))
			if !w.gateway.ServeHit(got, newGet("/user/subscriptions", fields...)) {
				t.Fatalf("%q: not served", fields)
			}
			if want.Header().Get(requestIDHeader) == got.Header().Get(requestIDHeader) {
				t.Errorf("%q: two requests have the same id", fields)
			}
			delete(want.Header(), requestIDHeader)
			delete(got.Header(), requestIDHeader)
			if want.Code != got.Code || want.Body.String() != got.Body.String() || !reflect.DeepEqual(want.Header(), got.Header()) {
				t.Errorf("%q: got %d %q %v\nwant %d %q %v", fields, got.Code, got.Body, got.Header(), want.Code, want.Body, want.Header())
			}
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// TestServeHitWithoutAHitHasNoEffect tries requests that ServeHTTP must serve. They must not be
// recorded and must not use tokens of the rate limiter.
func TestServeHitWithoutAHitHasNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var observed int
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Path == "/repos/a/b/untyped" {
				w.Header().Set("Content-Type", "")
			}
			_, _ = fmt.Fprint(w, "[]")
		}, withRateLimit(1, 21), func(c *Config) {
			c.Observe = func(*Record) { observed++ }
			c.Drain = &inbound.Drain{}
			c.Identify = func(r *http.Request) (Identity, error) {
				identity, err := identifyByToken(r)
				anonymous := policy.Caller{Kind: policy.Unauthenticated, Account: "egress:test", Class: "anonymous"}
				switch r.Header.Get("Authorization") {
				case "unknown":
					identity.Caller, err = anonymous, ErrUnauthenticated
				case "scoped":
					identity.Caller, identity.Scope = anonymous, &policy.Scope{Operations: []string{"search/code"}}
				}
				return identity, err
			}
		})
		fetch := func(path string) { w.gateway.ServeHTTP(httptest.NewRecorder(), newGet(path)) }
		const stored = "/repos/a/b/subscribers"
		fetch(stored)
		fetch("/api/v3/_weir/x")
		fetch("/repos/a/b/untyped")
		fetch("/repos/a/purged/subscribers")
		w.gateway.Cache.Purge(t.Context(), "repo:a/purged")
		records, upstream, before := len(w.gateway.Recent()), w.upstreamSaw(), observed
		for name, r := range map[string]*http.Request{
			"not stored":              newGet("/repos/a/c/subscribers"),
			"purged":                  newGet("/repos/a/purged/subscribers"),
			"stored for another user": newGet("/user/subscriptions", "Authorization: b"),
			"no-cache":                newGet(stored, "Cache-Control: no-cache"),
			"Pragma":                  newGet(stored, "Pragma: no-cache"),
			"no-store":                newGet(stored, "Cache-Control: no-store"),
			"max-age exceeded":        newGet(stored, "Cache-Control: max-age=0"),
			"range":                   newGet(stored, "Range: bytes=0-1"),
			"If-Match":                newGet(stored, `If-Match: "1"`),
			"write":                   httptest.NewRequest(http.MethodPost, stored, http.NoBody),
			"unknown client":          newGet(stored, "Authorization: unknown"),
			"operation out of scope":  newGet(stored, "Authorization: scoped"),
			"rate limit status":       newGet("/rate_limit"),
			"path of Weir":            newGet("/_weir/x"),
			"no Content-Type":         newGet("/repos/a/b/untyped"),
			"failed preflight":        newGet("/search/code?q=repo:a/b"),
			"invalid path":            newGet("/../x"),
			"only-if-cached":          newGet("/repos/a/c/subscribers", "Cache-Control: only-if-cached"),
		} {
			time.Sleep(10 * time.Millisecond)
			got := httptest.NewRecorder()
			if w.gateway.ServeHit(got, r) || len(got.Header()) > 0 || got.Body.Len() > 0 {
				t.Errorf("%s: served with %d %v", name, got.Code, got.Header())
			}
		}
		time.Sleep(10 * time.Second)
		w.want("records", len(w.gateway.Recent()), records)
		w.want("observed requests", observed, before)
		w.want("requests upstream", w.upstreamSaw(), upstream)

		for range 21 { // the whole burst is left
			if !w.gateway.ServeHit(httptest.NewRecorder(), newGet(stored)) {
				t.Fatal("a hit within the burst was not served")
			}
		}
		w.want("records", len(w.gateway.Recent()), records+21)
		w.want("observed requests", observed, before+21)
		if w.gateway.ServeHit(httptest.NewRecorder(), newGet(stored)) {
			t.Error("a hit above the burst was served")
		}
		got := httptest.NewRecorder()
		w.gateway.ServeHTTP(got, newGet(stored))
		w.want("status above the burst", got.Code, http.StatusTooManyRequests)

		time.Sleep(time.Minute)
		if w.gateway.ServeHit(httptest.NewRecorder(), newGet(stored)) {
			t.Error("a stale response was served")
		}
		fetch(stored)
		w.gateway.Drain.Begin()
		if w.gateway.ServeHit(httptest.NewRecorder(), newGet(stored)) {
			t.Error("a hit was served during the drain, without Connection: close")
		}
	})
}

func TestServeHitRespondsAfterPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, "[]")
		})
		w.gateway.ServeHTTP(httptest.NewRecorder(), newGet("/user/subscriptions"))
		w.gateway.Ledger = &panickingLedger{Ledger: w.gateway.Ledger}
		got := httptest.NewRecorder()
		if !w.gateway.ServeHit(got, newGet("/user/subscriptions")) || got.Code != http.StatusInternalServerError {
			t.Errorf("got %d %v, want 500", got.Code, got.Header())
		}
	})
}

// panickingLedger panics at the first call of Budget.
type panickingLedger struct {
	limits.Ledger
	panicked bool
}

func (l *panickingLedger) Budget(ctx context.Context, name string, kind policy.CallerKind, resource string) (limits.Budget, error) {
	if !l.panicked {
		l.panicked = true
		panic("test")
	}
	return l.Ledger.Budget(ctx, name, kind, resource)
}

// TestInvalidFieldNameIsNotStored sends a name with a trailing space, which the client of
// net/http accepts. Other clients could take the stored field for Transfer-Encoding.
func TestInvalidFieldNameIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\nCache-Control: max-age=60\r\n"+
				"Content-Type: text/plain\r\nTransfer-Encoding : chunked\r\nContent-Length: 2\r\n\r\n[]")
			_ = c.Close()
		})
		w.gateway.ServeHTTP(httptest.NewRecorder(), newGet("/undocumented/path"))
		got := httptest.NewRecorder()
		if !w.gateway.ServeHit(got, newGet("/undocumented/path")) {
			t.Fatal("not served")
		}
		for name := range got.Header() {
			if strings.Contains(name, "Transfer-Encoding") {
				t.Errorf("the field %q was stored", name)
			}
		}
	})
}

func TestServeHitChecksTheRateLimitFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		identified := 0
		w := newWorld(t, nothing, withRateLimit(1, 1), func(c *Config) {
			c.Identify = func(r *http.Request) (Identity, error) {
				identified++
				return identifyByToken(r)
			}
		})
		for range 3 { // ServeHit and ServeHTTP identify the first request
			serveFast(w.gateway, httptest.NewRecorder(), newGet("/repos/a/b/subscribers"))
			w.want("identified requests", identified, 2)
		}
	})
}

// TestSentFieldsDoNotRetainBodies checks that field values do not share memory with a stored
// body. HTTP/2 connections keep the fields that they have sent.
func TestSentFieldsDoNotRetainBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, path, date = 7 << 20, "/repos/o/r", "Sat, 01 Jan 2000 00:00:00 GMT"
		etag, failing := "", false
		var sent []string // field values, to the upstream and to clients
		keep := func(h http.Header) {
			for values := range maps.Values(h) {
				sent = append(sent, values...)
			}
		}
		w := newWorld(t, nil, func(c *Config) {
			c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				keep(r.Header)
				response := httptest.NewRecorder()
				response.Header().Set("Cache-Control", "max-age=60, stale-if-error=60")
				response.Header().Set("Last-Modified", date)
				if etag != "" {
					response.Header().Set("Etag", etag)
				}
				if failing {
					response.WriteHeader(http.StatusBadGateway)
				} else if isUnconditional(r.Header) {
					response.Header().Set("Content-Length", strconv.Itoa(size))
					_, _ = response.Write(make([]byte, size))
				} else {
					response.WriteHeader(http.StatusNotModified)
				}
				return response.Result(), nil
			})
		})
		heap := func() uint64 {
			for range 3 { // a sync.Pool is empty after two collections
				runtime.GC()
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		for _, etag = range []string{`"1"`, ""} {
			sent = nil
			before := heap()
			tag, err := w.gateway.TagOf(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct{ field, want string }{
				{"X-A: b", "weir; fwd=uri-miss; fwd-status=200; stored"}, {"X-A: b", "weir; hit"}, {"Range: bytes=0-0", "weir; hit"},
				{"Cache-Control: no-cache", "weir; fwd=request; fwd-status=304; stored"}, {"X-A: b", "weir; fwd=stale; fwd-status=502; ttl=-"},
			} {
				if failing = strings.Contains(c.want, "502"); failing {
					time.Sleep(70 * time.Second)
				}
				response := headerOnly{http.Header{}}
				w.gateway.ServeHTTP(response, newGet(path, c.field))
				keep(response.header)
				if got := response.header.Get("Cache-Status"); !strings.HasPrefix(got, c.want) {
					t.Errorf("Cache-Status after %q: got %q, want %q", c.field, got, c.want)
				}
			}
			if dropped := w.gateway.Cache.PurgeHard(t.Context(), tag); dropped != 1 {
				t.Errorf("dropped %d entries, want 1", dropped)
			}
			if retained := int64(heap() - before); retained > size/2 {
				t.Errorf("ETag %q: the sent fields retain %d bytes", etag, retained)
			}
			runtime.KeepAlive(sent)
		}
	})
}

// headerOnly is a response writer that discards the body.
type headerOnly struct{ header http.Header }

func (d headerOnly) Header() http.Header         { return d.header }
func (d headerOnly) WriteHeader(int)             {}
func (d headerOnly) Write(p []byte) (int, error) { return len(p), nil }
