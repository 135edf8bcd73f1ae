package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
)

// asked is a request as a front hands it over.
func asked(path string, fields ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Add(name, value)
	}
	return r
}

// wired takes heads as they are sent.
type wired struct{ *httptest.ResponseRecorder }

func (w *wired) WriteHead(status int, fields []byte) {
	read, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader("HTTP/1.1 304 Not Modified\r\n"), bytes.NewReader(fields), strings.NewReader("\r\n"))), nil)
	if err != nil {
		panic(err)
	}
	maps.Copy(w.Header(), read.Header)
	w.WriteHeader(status)
}

// TestAHitIsTheSameAtOnce: who is answered at once gets what the whole journey would give.
func TestAHitIsTheSameAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			for name, value := range map[string]string{
				"Cache-Control": "max-age=60", "Etag": `"1"`, "Content-Type": "application/json", "Link": "<" + upstreamURL + `/user/subscriptions?page=2>; rel="next"`,
				"X-RateLimit-Limit": "7", "Last-Modified": "Sat, 01 Jan 2000 00:00:00 GMT",
			} {
				w.Header().Set(name, value)
			}
			_, _ = fmt.Fprint(w, "[]")
		}, func(c *Config) { c.RateLimitFields = true })
		w.gateway.ServeHTTP(httptest.NewRecorder(), asked("/user/subscriptions"))
		time.Sleep(3 * time.Second)
		for _, fields := range [][]string{
			nil, {`If-None-Match: W/"1"`}, {`If-None-Match: "2"`}, {"If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT"}, {"Cache-Control: max-age=10"}, {"Accept: application/json"}, {"Host: elsewhere"},
		} {
			whole, first, second := httptest.NewRecorder(), httptest.NewRecorder(), &wired{ResponseRecorder: httptest.NewRecorder()}
			w.gateway.ServeHTTP(whole, asked("/user/subscriptions", fields...))
			if !w.gateway.AnswerAtOnce(first, asked("/user/subscriptions", fields...)) || !w.gateway.AnswerAtOnce(second, asked("/user/subscriptions", fields...)) {
				t.Fatalf("%q: not answered at once", fields)
			}
			if whole.Header().Get(requestIDHeader) == first.Header().Get(requestIDHeader) {
				t.Errorf("%q: two requests of one name", fields)
			}
			for _, r := range []*httptest.ResponseRecorder{whole, first, second.ResponseRecorder} {
				delete(r.Header(), requestIDHeader)
				if whole.Code != r.Code || whole.Body.String() != r.Body.String() || !reflect.DeepEqual(whole.Header(), r.Header()) {
					t.Errorf("%q: %d %q %v\nwhole: %d %q %v", fields, r.Code, r.Body, r.Header(), whole.Code, whole.Body, whole.Header())
				}
			}
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// TestWhatIsNotAnsweredAtOnceLeavesNoTrace: it comes again, and counts then.
func TestWhatIsNotAnsweredAtOnceLeavesNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var observed int
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Path == "/repos/a/b/untyped" {
				w.Header().Set("Content-Type", "")
			}
			_, _ = fmt.Fprint(w, "[]")
		}, func(c *Config) {
			c.Observe = func(*Record) { observed++ }
			c.RateLimiter = &inbound.RateLimiter{}
			c.RateLimiter.Configure(1, 21)
			c.Drain = &inbound.Drain{}
			c.Identify = func(r *http.Request) (Identity, error) {
				who, err := identifyByToken(r)
				switch r.Header.Get("Authorization") {
				case "unknown":
					who.Caller = policy.Caller{Kind: policy.Unauthenticated, Account: "egress:test", Class: "anonymous"}
					err = ErrUnauthenticated
				case "scoped":
					who.Caller = policy.Caller{Kind: policy.Unauthenticated, Account: "egress:test", Class: "anonymous"} // for whom it is held
					who.Scope = &policy.Scope{Operations: []string{"search/code"}}
				}
				return who, err
			}
		})
		warm := func(path string, fields ...string) {
			w.gateway.ServeHTTP(httptest.NewRecorder(), asked(path, fields...))
		}
		const held = "/repos/a/b/subscribers"
		warm(held)
		warm("/api/v3/_weir/x") // is kept under a path that is Weir's own
		warm("/repos/a/b/untyped")
		warm("/repos/a/purged/subscribers")
		w.gateway.Cache.Purge(t.Context(), "repo:a/purged")
		recent, seen, counted := len(w.gateway.Recent()), w.upstreamSaw(), observed
		post := httptest.NewRequest(http.MethodPost, held, http.NoBody)
		for name, r := range map[string]*http.Request{
			"cold": asked("/repos/a/c/subscribers"), "purged": asked("/repos/a/purged/subscribers"), "another caller": asked("/user/subscriptions", "Authorization: b"), "no-cache": asked(held, "Cache-Control: no-cache"),
			"Pragma": asked(held, "Pragma: no-cache"), "no-store": asked(held, "Cache-Control: no-store"), "too old": asked(held, "Cache-Control: max-age=0"),
			"a part": asked(held, "Range: bytes=0-1"), "for the origin": asked(held, `If-Match: "1"`), "a write": post, "nobody known": asked(held, "Authorization: unknown"),
			"out of scope": asked(held, "Authorization: scoped"), "rate limit": asked("/rate_limit"), "own path": asked("/_weir/x"), "no type": asked("/repos/a/b/untyped"),
			"must fail": asked("/search/code?q=repo:a/b"), "a bad path": asked("/../x"), "only-if-cached": asked("/repos/a/c/subscribers", "Cache-Control: only-if-cached"),
		} {
			time.Sleep(10 * time.Millisecond)
			got := httptest.NewRecorder()
			if w.gateway.AnswerAtOnce(got, r) || len(got.Header()) > 0 || got.Body.Len() > 0 {
				t.Errorf("%s: answered at once: %d %v", name, got.Code, got.Header())
			}
		}
		time.Sleep(10 * time.Second)
		w.want("records", len(w.gateway.Recent()), recent)
		w.want("observed", observed, counted)
		w.want("requests upstream", w.upstreamSaw(), seen)

		for range 21 { // none of those above has taken from what the address may send
			if !w.gateway.AnswerAtOnce(httptest.NewRecorder(), asked(held)) {
				t.Fatal("not answered at once")
			}
		}
		w.want("records", len(w.gateway.Recent()), recent+21)
		w.want("observed", observed, counted+21)
		if w.gateway.AnswerAtOnce(httptest.NewRecorder(), asked(held)) {
			t.Error("answered at once what is sent too fast")
		}
		got := httptest.NewRecorder()
		w.gateway.ServeHTTP(got, asked(held))
		w.want("too fast", got.Code, http.StatusTooManyRequests)

		time.Sleep(time.Minute)
		if w.gateway.AnswerAtOnce(httptest.NewRecorder(), asked(held)) {
			t.Error("answered at once what is stale")
		}
		warm(held)
		w.gateway.Drain.Begin()
		if w.gateway.AnswerAtOnce(httptest.NewRecorder(), asked(held)) {
			t.Error("answered at once while clients are told to go")
		}
	})
}

// TestAPanicIsAnsweredOnce: who is told that nothing was written would write another answer.
func TestAPanicIsAnsweredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, "[]")
		})
		w.gateway.ServeHTTP(httptest.NewRecorder(), asked("/user/subscriptions"))
		for _, answer := range []http.ResponseWriter{httptest.NewRecorder(), &wired{httptest.NewRecorder()}} {
			w.gateway.Ledger = &mistaken{Ledger: w.gateway.Ledger}
			if !w.gateway.AnswerAtOnce(answer, asked("/user/subscriptions")) {
				t.Errorf("%T: not answered, and wrote %v", answer, answer.Header())
			}
		}
	})
}

// mistaken is a ledger that panics the first time that it is asked for a budget.
type mistaken struct {
	limits.Ledger
	panicked bool
}

func (l *mistaken) Budget(ctx context.Context, name string, kind policy.CallerKind, resource string) (limits.Budget, error) {
	if !l.panicked {
		l.panicked = true
		panic("a mistake")
	}
	return l.Ledger.Budget(ctx, name, kind, resource)
}

// TestWhatIsNoFieldIsNotKept, for net/http's client takes it for one of this name.
func TestWhatIsNoFieldIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\nCache-Control: max-age=60\r\nContent-Type: text/plain\r\nTransfer-Encoding : chunked\r\nContent-Length: 2\r\n\r\n[]")
			_ = c.Close()
		})
		w.gateway.ServeHTTP(httptest.NewRecorder(), asked("/nobody/documents/this"))
		got := httptest.NewRecorder()
		if !w.gateway.AnswerAtOnce(got, asked("/nobody/documents/this")) {
			t.Fatal("not answered at once")
		}
		for name := range got.Header() {
			if strings.Contains(name, "Transfer-Encoding") {
				t.Errorf("%q was kept", name)
			}
		}
	})
}

// TestWhoSendsTooFastIsNotLookedAt, at once no more than on the whole journey.
func TestWhoSendsTooFastIsNotLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looked := 0
		w := newWorld(t, func(http.ResponseWriter, *http.Request) {}, func(c *Config) {
			c.RateLimiter = &inbound.RateLimiter{}
			c.RateLimiter.Configure(1, 1)
			c.Identify = func(r *http.Request) (Identity, error) {
				looked++
				return identifyByToken(r)
			}
		})
		for _, want := range []int{2, 2, 2} { // the first is looked at twice: at once, and for good
			atOnce(w.gateway, httptest.NewRecorder(), asked("/repos/a/b/subscribers"))
			w.want("looked at", looked, want)
		}
	})
}

// TestWhatIsSentKeepsNoEntry: HTTP/2 keeps the fields that it has sent, to clients and upstream, for
// as long as a connection lasts. A body that the cache let go must not stay for them.
func TestWhatIsSentKeepsNoEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, path, date = 7 << 20, "/repos/o/r", "Sat, 01 Jan 2000 00:00:00 GMT"
		etag, failing := "", false
		var asks []string
		w := newWorld(t, nil, func(c *Config) {
			c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				asks = slices.AppendSeq(asks, linesOf(r.Header))
				answer := httptest.NewRecorder()
				answer.Header().Set("Cache-Control", "max-age=60, stale-if-error=60")
				answer.Header().Set("Last-Modified", date)
				if etag != "" {
					answer.Header().Set("Etag", etag)
				}
				if failing {
					answer.WriteHeader(http.StatusBadGateway)
				} else if isUnconditional(r.Header) {
					answer.Header().Set("Content-Length", strconv.Itoa(size))
					_, _ = answer.Write(make([]byte, size))
				} else {
					answer.WriteHeader(http.StatusNotModified)
				}
				return answer.Result(), nil
			})
		})
		heap := func() uint64 {
			for range 3 { // pools are emptied at the second
				runtime.GC()
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		var sent []string // values; the names are lower case on the wire, and so copies
		ask := func(fields ...string) (cacheStatus string) {
			answer := discarding{http.Header{}}
			w.gateway.ServeHTTP(answer, asked(path, fields...))
			sent = slices.AppendSeq(sent, linesOf(answer.header))
			return answer.header.Get("Cache-Status")
		}
		for _, etag = range []string{`"1"`, ""} {
			asks, sent = nil, nil
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
				if got := ask(c.field); !strings.HasPrefix(got, c.want) {
					t.Errorf("the cache's part in the answer to %q was %q, want %q", c.field, got, c.want)
				}
			}
			if dropped := w.gateway.Cache.Memory.PurgeHard(tag); dropped != 1 {
				t.Errorf("%d entries were dropped, want 1", dropped)
			}
			if kept := int64(heap() - before); kept > size/2 {
				t.Errorf("ETag %q: %d bytes are kept by what was sent", etag, kept)
			}
			runtime.KeepAlive(asks)
			runtime.KeepAlive(sent)
		}
	})
}

// linesOf are the values of a header.
func linesOf(h http.Header) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, values := range h {
			for _, value := range values {
				if !yield(value) {
					return
				}
			}
		}
	}
}

// discarding keeps the fields of an answer, and nothing of its body.
type discarding struct{ header http.Header }

func (d discarding) Header() http.Header         { return d.header }
func (d discarding) WriteHeader(int)             {}
func (d discarding) Write(p []byte) (int, error) { return len(p), nil }
