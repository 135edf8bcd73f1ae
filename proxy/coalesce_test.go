package proxy

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/bodies"
)

// concurrently sends n identical requests at the same time and returns the responses.
func (w *world) concurrently(n int, path string, fields ...string) []got {
	w.Helper()
	list := make([]got, n)
	var clients sync.WaitGroup
	for i := range list {
		clients.Go(func() { list[i] = w.try(http.MethodGet, path, nil, fields...) })
	}
	clients.Wait()
	return list
}

// request sends a GET request over a new connection.
func (w *world) request(path string) net.Conn {
	c := w.dial()
	_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: g\r\n\r\n")
	return c
}

// slowly returns an upstream that responds after a second. The body is fresh for a minute.
func slowly(body string) http.HandlerFunc {
	return delayed(replies(body, fresh, `Etag: "one"`, fmt.Sprint("Content-Length: ", len(body))))
}

const watchers = "/repos/acme/widgets/subscribers"

func TestIdenticalRequestsAreCoalesced(t *testing.T) {
	setup(slowly("all")).run(t, func(w *world) {
		collapsed := 0
		for _, r := range w.concurrently(1000, watchers) {
			stopIf(w, r.body != "all" || r.StatusCode != http.StatusOK, "got %v: %q, want 200 with the body all", r.Status, r.body)
			if r.Header.Get("Cache-Status") == "weir; fwd=uri-miss; collapsed; ttl=59" {
				collapsed++
			}
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
		w.want("followers", collapsed, 999)
		w.want("permits in flight", w.inFlight(), 0)
	})
}

// A client that looked up the cache before the end of a call, and became a leader after it, uses the response of that
// call. The upstream responds at once, so many calls end while other clients arrive.
func TestCallsThatFollowEachOtherShareAResponse(t *testing.T) {
	setup(replies("all", fresh, "Content-Length: 3")).run(t, func(w *world) {
		const rounds = 100
		for i := range rounds {
			for _, r := range w.concurrently(20, watchers+"?page="+strconv.Itoa(i+1)) {
				w.want("body", r.body, "all")
			}
		}
		w.want("requests upstream", w.upstreamSaw(), rounds)
	})
}

// pausing returns an upstream that pauses at the given stage of its response and closes reached. The upstream continues
// after resume is closed or the request is canceled.
func pausing(stage string, reached chan<- struct{}, resume <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		at := func(name string) {
			_ = http.NewResponseController(w).Flush()
			if name == stage {
				close(reached)
				select {
				case <-resume:
				case <-r.Context().Done():
				}
			}
		}
		w.Header().Set("Cache-Control", "max-age=60")
		// Without a length, ReverseProxy flushes in another goroutine that waits for a mutex.
		// Virtual time does not advance during such a wait.
		w.Header().Set("Content-Length", strconv.Itoa(100<<10+3))
		if stage == "before the header" {
			close(reached)
			<-resume
		}
		_, _ = io.WriteString(w, "")
		at("after the header")
		for range 10 {
			_, _ = io.WriteString(w, strings.Repeat("x", 10<<10))
		}
		at("in the body")
		_, _ = io.WriteString(w, "end")
	}
}

func TestFollowersGetTheResponseAfterTheLeaderDisconnects(t *testing.T) {
	for _, stage := range []string{"before the header", "after the header", "in the body"} {
		bubble(t, stage, func(t *testing.T) {
			reached, resume := make(chan struct{}), make(chan struct{})
			w := newWorld(t, pausing(stage, reached, resume))
			first := w.request(watchers)
			go func() { _, _ = io.CopyN(io.Discard, first, 1<<10) }()
			<-reached
			var followers sync.WaitGroup
			followers.Go(func() {
				for _, r := range w.concurrently(10, watchers) {
					w.want("length", len(r.body), 100<<10+3)
				}
			})
			synctest.Wait()
			_ = first.Close()
			time.Sleep(time.Second)
			close(resume)
			followers.Wait()
			w.want("requests upstream", w.upstreamSaw(), 1)
			w.want("permits in flight", w.inFlight(), 0)
		})
	}
}

func TestCallIsCanceledAfterAllClientsDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := make(chan time.Duration, 1)
		w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) {
			start := time.Now()
			<-r.Context().Done()
			gone <- time.Since(start)
		})
		for i := range 3 {
			conn := w.request(watchers)
			synctest.Wait()
			time.AfterFunc(time.Duration(i+1)*time.Second, func() { _ = conn.Close() })
		}
		w.want("the request ended after", <-gone, 3*time.Second)
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

func TestSlowLeaderDoesNotDelayFollowers(t *testing.T) {
	setup(slowly(strings.Repeat("x", 1<<20))).run(t, func(w *world) {
		slow := w.request(watchers)
		synctest.Wait() // the client reads nothing
		for _, r := range w.concurrently(5, watchers) {
			w.want("length", len(r.body), 1<<20)
		}
		w.want("hit", w.get(watchers).Header.Get("Cache-Status")[:9], "weir; hit")
		r, err := http.ReadResponse(bufio.NewReader(slow), nil)
		noError(w, err)
		body, err := io.ReadAll(r.Body)
		w.want("length for the slow client", len(body), 1<<20)
		w.want("error", err, nil)
		_ = slow.Close()
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// Followers of a response that cannot be shared send their requests concurrently.
func TestFollowersOfUnsharableResponsesSendConcurrently(t *testing.T) {
	for name, c := range map[string]struct {
		fields []string
		status int
	}{
		"no-store":                      {fields: lines("Cache-Control: no-store")},
		"private, without a credential": {fields: lines("Cache-Control: private, max-age=60")},
		"no-cache (RFC 9111 5.2.2.4)":   {fields: lines("Cache-Control: no-cache, max-age=60", `Etag: "one"`)},
		"stale on arrival (RFC 9111 4)": {fields: lines("Cache-Control: max-age=0", `Etag: "one"`)},
		"cookie":                        {fields: lines("Set-Cookie: a=b")},
		"error":                         {status: http.StatusInternalServerError},
		"Vary: *":                       {fields: lines("Vary: *")},
	} {
		setup(delayed(func(w http.ResponseWriter, _ *http.Request) {
			unused := slices.Delete(rates(5000, 1000, time.Hour), 1, 2) // the gateway computes the use from the remaining requests
			setFields(w, append(unused, c.fields...)...)
			w.WriteHeader(cmp.Or(c.status, http.StatusOK))
		})).sub(t, name, func(w *world) {
			w.get("/emojis") // the first response reports the limit, so concurrent requests are allowed afterwards
			start := time.Now()
			const clients = 8
			for _, r := range w.concurrently(clients, watchers) {
				w.want("status", r.StatusCode, cmp.Or(c.status, http.StatusOK))
			}
			w.want("requests upstream", w.upstreamSaw(), 1+clients)
			w.want("duration", time.Since(start), 2*time.Second)
		})
	}
}

func TestTruncatedResponseIsNotShared(t *testing.T) {
	var once sync.Once
	setup(delayed(func(w http.ResponseWriter, _ *http.Request) {
		setFields(w, fresh)
		broken := false
		once.Do(func() { broken = true })
		_, _ = w.Write(make([]byte, 64<<10))
		_ = http.NewResponseController(w).Flush()
		if broken {
			time.Sleep(time.Second)
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write([]byte("end"))
	})).run(t, func(w *world) {
		whole := 0
		for _, r := range w.concurrently(5, watchers) {
			if r.err == nil && len(r.body) == 64<<10+3 {
				whole++
			}
		}
		w.want("complete responses", whole, 4)
		w.want("length of a later response", len(w.get(watchers).body), 64<<10+3)
	})
}

func TestFollowersShareATimeout(t *testing.T) {
	setup(hang).run(t, func(w *world) {
		start := time.Now()
		for _, r := range w.concurrently(20, watchers) {
			w.want("status", r.StatusCode, http.StatusGatewayTimeout)
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
		w.want("duration", time.Since(start), w.gateway.Timeout)
	})
}

// Changes during each call do not let all clients send separate requests.
func TestFrequentPurgesDoNotEndSharing(t *testing.T) {
	for name, upstream := range map[string]http.HandlerFunc{"stored": slowly("all"), "error": delayed(responds(404))} {
		setup(upstream).sub(t, name, func(w *world) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				time.Sleep(50 * time.Millisecond) // no purge at the moment at which clients join the next call
				for range 100 {
					time.Sleep(100 * time.Millisecond)
					w.gateway.Cache.Purge(w.Context(), "repo:acme/widgets")
				}
			}()
			w.concurrently(50, watchers)
			<-done
			w.want("requests upstream", w.upstreamSaw(), maxFollowed)
		})
	}
}

// A refusal of the leader does not end followers with a longer deadline.
func TestFollowersOutliveARefusedLeader(t *testing.T) {
	rules := policy.DefaultLimits()
	rules.Concurrent = 1
	setup(slowly("all"), limited(rules)).run(t, func(w *world) {
		var clients sync.WaitGroup
		clients.Go(func() { w.get("/emojis") }) // reserves the only concurrent permit
		synctest.Wait()
		for name, after := range map[string]time.Duration{"leader": 0, "follower without a wait": time.Millisecond} {
			clients.Go(func() {
				time.Sleep(after)
				w.want("status of the "+name, w.get(watchers, "Prefer: respond-async").StatusCode, http.StatusTooManyRequests)
			})
		}
		clients.Go(func() {
			for _, r := range w.concurrently(5, watchers) {
				w.want("body of a follower", r.body, "all")
			}
		})
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}

// A request after a purge does not join a call that started before the purge, and a follower does not use its response.
func TestPurgeEndsCoalescing(t *testing.T) {
	var n atomic.Int32
	setup(func(w http.ResponseWriter, r *http.Request) { slowly(fmt.Sprint("version ", n.Add(1)))(w, r) }).run(t, func(w *world) {
		var clients sync.WaitGroup
		clients.Go(func() { w.want("body before the purge", w.get(watchers).body, "version 1") })
		synctest.Wait()
		clients.Go(func() { w.want("body of a follower from before the purge", w.get(watchers).body, "version 2") })
		time.Sleep(time.Second / 2)
		w.gateway.Cache.Purge(w.Context(), "repo:acme/widgets")
		clients.Go(func() {
			for _, r := range w.concurrently(3, watchers) {
				w.want("body after the purge", r.body, "version 2")
			}
		})
		clients.Wait()
		w.want("body later", w.get(watchers).body, "version 2")
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}

// A no-cache request joins only calls that start after the request arrives (RFC 9111 section 5.2.1.4).
func TestNoCacheRequestsShareOnlyLaterCalls(t *testing.T) {
	setup(slowly("all")).run(t, func(w *world) {
		w.get(watchers)
		var clients sync.WaitGroup
		for i := range 3 {
			clients.Go(func() {
				time.Sleep(time.Duration(i) * 400 * time.Millisecond)
				for _, r := range w.concurrently(3, watchers, "Cache-Control: no-cache") {
					w.want("body", r.body, "all")
				}
			})
		}
		clients.Wait()
		// Weir sends the first request of each group of three. Requests that arrive during a call share the next call.
		w.want("requests upstream", w.upstreamSaw(), 3)
	})
}

func TestNoCoalesceSendsEachRequest(t *testing.T) {
	catalogue, err := policy.Embedded().WithCacheRules(map[string]policy.CacheOverride{"watching/list-subscribers": {Coalesce: false}})
	noError(t, err)
	setup(slowly("all"), func(c *Config) { c.Catalogue = catalogue }).run(t, func(w *world) {
		w.concurrently(3, watchers)
		w.want("requests upstream", w.upstreamSaw(), 3)
	})
}

// changingResponses returns an option that changes the responses of the upstream; n counts from 1.
func changingResponses(change func(n int32, resp *http.Response)) option {
	return func(c *Config) {
		next := c.Transport
		var n atomic.Int32
		c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			change(n.Add(1), resp)
			return resp, err
		})
	}
}

func TestPanicOfTheLeaderDoesNotBlockFollowers(t *testing.T) {
	setup(slowly("all"), changingResponses(func(n int32, _ *http.Response) {
		if n == 1 {
			panic("in the leader")
		}
	})).run(t, func(w *world) {
		statuses := map[int]int{}
		for _, r := range w.concurrently(4, watchers) {
			statuses[r.StatusCode]++
		}
		w.want("responses", statuses[http.StatusOK], 3)
		w.want("errors", statuses[http.StatusInternalServerError], 1)
	})
}

// Trailers of stored responses are dropped on every path.
func TestTrailersOfStoredResponsesAreDropped(t *testing.T) {
	setup(func(w http.ResponseWriter, _ *http.Request) {
		setFields(w, fresh, "Trailer: X-Sum")
		_, _ = fmt.Fprint(w, "body")
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("X-Sum", "1")
	}).run(t, func(w *world) {
		for i := range 20 {
			r := w.get(fmt.Sprint("/users/u", i))
			w.want("body", r.body, "body")
			w.want("trailers", len(r.Trailer), 0)
		}
	})
}

func TestPanicInABackgroundRequestIsContained(t *testing.T) {
	upstream := replies(strings.Repeat("x", 2*bodies.Small), "Cache-Control: max-age=10, stale-while-revalidate=60")
	setup(upstream, changingResponses(func(n int32, resp *http.Response) {
		if n == 2 {
			resp.Header.Set("Cache-Control", "no-store") // the body is not buffered
			resp.Body = panicking{resp.Body}
		}
	})).run(t, func(w *world) {
		w.get("/users/octocat")
		time.Sleep(15 * time.Second)
		w.get("/users/octocat")
		synctest.Wait()
		w.want("status of another request", w.get("/users/other").StatusCode, http.StatusOK)
	})
}

type panicking struct{ io.ReadCloser }

func (panicking) Read([]byte) (int, error) { panic("in the middle") }

// Identical requests share the errors that all of them would get, and the redirect of a rename. They do not share errors
// that may concern the state of the credential or a limit.
func TestFinalErrorsAreShared(t *testing.T) {
	const herd = 50
	for _, c := range []struct {
		name     string
		upstream http.HandlerFunc
		calls    int
	}{
		{"missing object", responds(404), 1},
		{"missing object with a body", respondsWith(404, `{"message":"Not Found"}`), 1},
		{"missing object without a lifetime", responds(404, "Cache-Control: max-age=0", "Last-Modified: Mon, 02 Nov 2026 10:00:00 GMT"), 1},
		{"deleted object", responds(410), 1},
		{"empty repository", responds(409), 1},
		{"invalid query", responds(422), 1},
		{"renamed", responds(301, "Location: /repositories/1/subscribers"), 1},
		{"no-store", responds(404, "Cache-Control: no-store"), herd},
		{"cookie", responds(404, "Set-Cookie: a=b"), herd},
		{"any Vary", responds(404, "Vary: *"), herd},
		{"bad credential", responds(401), herd},
		{"no permission", responds(403), herd},
	} {
		bubble(t, c.name, func(t *testing.T) {
			w := newWorld(t, delayed(c.upstream))
			list := w.concurrently(herd, watchers, bearer("a"))
			for _, r := range list {
				failIf(t, r.err != nil || r.StatusCode != list[0].StatusCode || r.body != list[0].body, "got %v %q, want one response", r.err, r.body)
			}
			w.want("requests upstream", w.upstreamSaw(), c.calls)
			if c.calls == 1 {
				w.get(watchers, bearer("a"))
				w.want("requests upstream after the call", w.upstreamSaw(), 2)
			}
		})
	}
}

// Requests with HEAD share a call like those with GET, but not with them.
func TestIdenticalHeadRequestsAreCoalesced(t *testing.T) {
	const herd = 20
	for _, c := range []struct {
		name  string
		up    http.HandlerFunc
		calls int
	}{
		{"object", listing(longList), 1},
		{"small object", replies("{}", fresh), 1},
		{"missing object", respondsWith(404, `{"message":"Not Found"}`), 1},
		{"stale on arrival", replies("{}", "Cache-Control: private, max-age=0", `Etag: "a"`), herd},
		{"no-store", replies("{}", "Cache-Control: no-store"), herd},
		{"no permission", responds(403), herd},
	} {
		setup(delayed(c.up)).sub(t, c.name, func(w *world) {
			fields := append(accepting("gzip"), bearer("a"))
			want := w.do(http.MethodHead, "/users/octocat", nil, fields...)
			list := make([]got, herd)
			together(herd, func(i int) { list[i] = w.do(http.MethodHead, watchers, nil, fields...) })
			for _, r := range list {
				w.want("status", r.StatusCode, want.StatusCode)
				for _, name := range []string{"Content-Length", "Content-Encoding", "Content-Type", "Etag", "Vary"} {
					w.want(name, r.Header.Get(name), want.Header.Get(name))
				}
			}
			w.want("requests upstream", w.upstreamSaw(), 1+c.calls)
			w.get(watchers, fields...)
			w.want("requests upstream after GET", w.upstreamSaw(), 2+c.calls)
		})
	}
}

// respondsWith returns an upstream that sends a status with a body.
func respondsWith(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}
