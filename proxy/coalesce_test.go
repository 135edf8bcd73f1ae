package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
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

// slowly returns an upstream that responds after a second. The body is fresh for a minute.
func slowly(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Second)
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Etag", `"one"`)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = fmt.Fprint(w, body)
	}
}

const watchers = "/repos/acme/widgets/subscribers"

func TestIdenticalRequestsAreCoalesced(t *testing.T) {
	setup(slowly("all")).run(t, func(w *world) {
		collapsed := 0
		for _, r := range w.concurrently(1000, watchers) {
			if r.body != "all" || r.StatusCode != http.StatusOK {
				w.Fatalf("got %v: %q, want 200 with the body all", r.Status, r.body)
			}
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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Length", "3")
			_, _ = io.WriteString(w, "all")
		})
		const rounds = 300
		for i := range rounds {
			for _, r := range w.concurrently(20, watchers+"?page="+strconv.Itoa(i+1)) {
				w.want("body", r.body, "all")
			}
		}
		w.want("requests upstream", w.upstreamSaw(), rounds)
	})
}

// Requests of different security classes or for different representations do not share a call.
func TestDifferentQuestionsAreNotCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			slowly(r.Header.Get("Authorization")+r.Header.Get("Accept"))(w, r)
		})
		var clients sync.WaitGroup
		for range 5 {
			for _, token := range []string{"a", "b", "c"} {
				clients.Go(func() { w.want("body", w.get(watchers, "Authorization: "+token, "Accept: */*").body, token+"*/*") })
			}
			clients.Go(func() {
				w.want("body", w.get(watchers, "Authorization: a", "Accept: text/plain").body, "atext/plain")
			})
		}
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 4)
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
			first := w.dial()
			_, _ = io.WriteString(first, "GET "+watchers+" HTTP/1.1\r\nHost: g\r\n\r\n")
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
			conn := w.dial()
			_, _ = io.WriteString(conn, "GET "+watchers+" HTTP/1.1\r\nHost: g\r\n\r\n")
			synctest.Wait()
			time.AfterFunc(time.Duration(i+1)*time.Second, func() { _ = conn.Close() })
		}
		w.want("the request ended after", <-gone, 3*time.Second)
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

func TestSlowLeaderDoesNotDelayFollowers(t *testing.T) {
	setup(slowly(strings.Repeat("x", 1<<20))).run(t, func(w *world) {
		slow := w.dial()
		_, _ = io.WriteString(slow, "GET "+watchers+" HTTP/1.1\r\nHost: g\r\n\r\n")
		synctest.Wait() // the client reads nothing
		for _, r := range w.concurrently(5, watchers) {
			w.want("length", len(r.body), 1<<20)
		}
		w.want("hit", w.get(watchers).Header.Get("Cache-Status")[:9], "weir; hit")
		r, err := http.ReadResponse(bufio.NewReader(slow), nil)
		if err != nil {
			w.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		w.want("length for the slow client", len(body), 1<<20)
		w.want("error", err, nil)
		_ = slow.Close()
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// Followers of a response that cannot be shared send their requests concurrently.
func TestFollowersOfUnsharableResponsesSendConcurrently(t *testing.T) {
	for _, c := range []struct {
		name     string
		upstream http.HandlerFunc
		status   int
	}{
		{"no-store", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Cache-Control", "no-store") }, 200},
		{"no-cache (RFC 9111 5.2.2.4)", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "no-cache, max-age=60")
			w.Header().Set("Etag", `"one"`)
		}, 200},
		{"stale on arrival (RFC 9111 4)", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=0")
			w.Header().Set("Etag", `"one"`)
		}, 200},
		{"cookie", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Set-Cookie", "a=b") }, 200},
		{"error", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, 500},
		{"too large", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			_, _ = w.Write(make([]byte, maxEntry+1))
		}, 200},
		{"Vary: *", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Vary", "*") }, 200},
	} {
		bubble(t, c.name, func(t *testing.T) {
			w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				w.Header().Set("X-Ratelimit-Limit", "5000")
				w.Header().Set("X-Ratelimit-Remaining", "4000")
				w.Header().Set("X-Ratelimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
				c.upstream(w, r)
			})
			w.get("/emojis") // the first response reports the limit, so concurrent requests are allowed afterwards
			start := time.Now()
			clients := 8
			if c.name == "too large" {
				clients = 3 // the race detector needs a second for each body
			}
			for _, r := range w.concurrently(clients, watchers) {
				w.want("status", r.StatusCode, c.status)
			}
			w.want("requests upstream", w.upstreamSaw(), 1+clients)
			w.want("duration", time.Since(start), 2*time.Second)
		})
	}
}

func TestTruncatedResponseIsNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var once sync.Once
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			broken := false
			once.Do(func() { broken = true })
			_, _ = w.Write(make([]byte, 64<<10))
			_ = http.NewResponseController(w).Flush()
			if broken {
				time.Sleep(time.Second)
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write([]byte("end"))
		})
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
	setup(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }).run(t, func(w *world) {
		start := time.Now()
		for _, r := range w.concurrently(20, watchers) {
			w.want("status", r.StatusCode, http.StatusGatewayTimeout)
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
		w.want("duration", time.Since(start), w.gateway.Timeout)
	})
}

// A refusal of the leader does not end followers with a longer deadline.
func TestFollowersOutliveARefusedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := policy.DefaultLimits()
		rules.Concurrent = 1
		w := newWorld(t, slowly("all"), limited(rules))
		var clients sync.WaitGroup
		clients.Go(func() { w.get("/emojis") }) // reserves the only concurrent permit
		synctest.Wait()
		clients.Go(func() {
			w.want("status of the leader", w.get(watchers, "Prefer: respond-async").StatusCode, http.StatusTooManyRequests)
		})
		clients.Go(func() {
			for _, r := range w.concurrently(5, watchers) {
				w.want("body of a follower", r.body, "all")
			}
		})
		clients.Go(func() {
			time.Sleep(time.Millisecond)
			r := w.get(watchers, "Prefer: respond-async")
			w.want("status of a follower without a wait", r.StatusCode, http.StatusTooManyRequests)
		})
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}

// A request after a purge does not join a call that started before the purge.
func TestPurgeEndsCoalescing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		n := 0
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			n++
			body := fmt.Sprint("version ", n)
			mu.Unlock()
			slowly(body)(w, r)
		})
		var clients sync.WaitGroup
		clients.Go(func() { w.want("body before the purge", w.get(watchers).body, "version 1") })
		synctest.Wait()
		w.gateway.Cache.Purge(t.Context(), "repo:acme/widgets")
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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, slowly("all"), func(c *Config) {
			catalogue, err := c.Catalogue.WithCacheRules(map[string]policy.CacheOverride{"watching/list-subscribers": {NoCoalesce: true}})
			if err != nil {
				t.Fatal(err)
			}
			c.Catalogue = catalogue
		})
		w.concurrently(3, watchers)
		w.want("requests upstream", w.upstreamSaw(), 3)
	})
}

func TestPanicOfTheLeaderDoesNotBlockFollowers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var once sync.Once
		w := newWorld(t, slowly("all"), func(c *Config) {
			next := c.Transport
			c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				resp, err := next.RoundTrip(r)
				once.Do(func() { panic("in the leader") })
				return resp, err
			})
		})
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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Trailer", "X-Sum")
			_, _ = fmt.Fprint(w, "body")
			_ = http.NewResponseController(w).Flush()
			w.Header().Set("X-Sum", "1")
		})
		for i := range 20 {
			r := w.get(fmt.Sprint("/users/u", i))
			w.want("body", r.body, "body")
			w.want("trailers", len(r.Trailer), 0)
		}
	})
}

func TestPanicInABackgroundRequestIsContained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=10, stale-while-revalidate=60")
			_, _ = fmt.Fprint(w, strings.Repeat("x", 2*smallBody))
		}, func(c *Config) {
			next, n := c.Transport, 0
			c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				resp, err := next.RoundTrip(r)
				if n++; n == 2 {
					resp.Header.Set("Cache-Control", "no-store") // the body is not buffered
					resp.Body = panicking{resp.Body}
				}
				return resp, err
			})
		})
		w.get("/users/octocat")
		time.Sleep(15 * time.Second)
		w.get("/users/octocat")
		synctest.Wait()
		w.want("status of another request", w.get("/users/other").StatusCode, http.StatusOK)
	})
}

type panicking struct{ io.ReadCloser }

func (panicking) Read([]byte) (int, error) { panic("in the middle") }
