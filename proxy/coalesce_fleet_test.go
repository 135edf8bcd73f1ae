package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/cache"
)

// sharedTier is an in-memory cache that replicas share.
type sharedTier struct {
	mu         sync.Mutex
	entries    map[cache.Key][]*cache.Entry
	candidates map[cache.Key][]cache.Key
	leases     map[cache.Key]cache.FetchLease
	until      map[cache.Key]time.Time // ends of the leases
	memories   []*cache.Memory
	generation cache.Generation
	away       bool
	lookups    int // number of look-ups of candidates
	gets       int
}

// change changes the tier while no replica uses it.
func (c *sharedTier) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *sharedTier) Get(_ context.Context, key cache.Key) []*cache.Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gets++
	if c.away {
		return nil
	}
	return c.entries[key]
}

func (c *sharedTier) Put(_ context.Context, key cache.Key, e *cache.Entry) (stored bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.away && len(e.Body) <= 1<<20 {
		c.entries[key] = []*cache.Entry{e}
		return true
	}
	return false
}

func (c *sharedTier) Delete(_ context.Context, key cache.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, key)
}

func (c *sharedTier) AddCandidate(_ context.Context, about, key cache.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.candidates[about] = append([]cache.Key{key}, c.candidates[about]...)
}

func (c *sharedTier) CandidateKeys(_ context.Context, about cache.Key) []cache.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookups++
	if c.away {
		return nil
	}
	return c.candidates[about]
}

func (c *sharedTier) Purge(_ context.Context, p cache.Purge) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation += 1000
	for _, m := range c.memories {
		m.ApplyPurge(p, c.generation)
	}
}

func (c *sharedTier) Following() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.away
}

func (c *sharedTier) AcquireFetch(_ context.Context, key cache.Key, lease cache.FetchLease) (acquired bool, other *cache.FetchLease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		return false, nil
	}
	current, ok := c.leases[key]
	if ok && current.Owner != lease.Owner && time.Now().Before(c.until[key]) {
		return false, &current
	}
	c.leases[key], c.until[key] = lease, time.Now().Add(3*time.Second)
	return true, nil
}

func (c *sharedTier) ReleaseFetch(_ context.Context, key cache.Key, owner string, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leases[key].Owner != owner {
		return
	}
	delete(c.leases, key)
	if failed {
		c.leases[key], c.until[key] = cache.FetchLease{Owner: "-", Failed: true}, time.Now().Add(time.Second)
	}
}

// replicas returns gateways with the configuration and the upstream of w that share a tier.
func (w *world) replicas(n int) ([]*Gateway, *sharedTier) {
	c := &sharedTier{entries: map[cache.Key][]*cache.Entry{}, candidates: map[cache.Key][]cache.Key{}, leases: map[cache.Key]cache.FetchLease{}, until: map[cache.Key]time.Time{}}
	list := make([]*Gateway, n)
	for i := range list {
		list[i] = w.replica(c)
	}
	return list, c
}

// sendTo sends a GET request to a replica.
func sendTo(g *Gateway, path string, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w
}

// sendToAll sends n identical requests at the same time, distributed over the replicas.
func sendToAll(list []*Gateway, n int, path string, fields ...string) []*httptest.ResponseRecorder {
	got := make([]*httptest.ResponseRecorder, n)
	var clients sync.WaitGroup
	for i := range got {
		clients.Go(func() { got[i] = sendTo(list[i%len(list)], path, fields...) })
	}
	clients.Wait()
	return got
}

func TestIdenticalRequestsAreCoalescedAcrossReplicas(t *testing.T) {
	setup(slowly("all")).run(t, func(w *world) {
		list, _ := w.replicas(3)
		for _, r := range sendToAll(list, 1000, watchers) {
			if r.Code != http.StatusOK || r.Body.String() != "all" {
				w.Fatal(r.Code, r.Body)
			}
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
		w.want("Cache-Status of another replica", sendTo(list[2], watchers).Header().Get("Cache-Status")[:9], "weir; hit")
	})
}

func TestPollsAreSharedAcrossReplicas(t *testing.T) {
	setup(computing(10*time.Second)).run(t, func(w *world) {
		list, _ := w.replicas(3)
		start := time.Now()
		var short sync.WaitGroup
		short.Go(func() {
			time.Sleep(time.Second / 2)
			for _, g := range list {
				r := sendTo(g, contributors, "Prefer", "wait=1")
				w.want("status with a short wait", r.Code, http.StatusAccepted)
			}
		})
		for _, r := range sendToAll(list, 1000, contributors, "Prefer", "wait=60") {
			if r.Code != http.StatusOK {
				w.Fatal(r.Code, r.Body)
			}
		}
		short.Wait()
		w.want("polls", w.upstreamSaw(), 5)
		if took := time.Since(start); took > 16*time.Second {
			w.Errorf("the last response arrived after %v", took)
		}
	})
}

func TestFetchLeaseOfALostReplicaExpires(t *testing.T) {
	setup(slowly("all")).run(t, func(w *world) {
		list, c := w.replicas(2)
		key := make(chan cache.Key, 1)
		go func() { // finds the key of the lease
			time.Sleep(time.Second / 2)
			c.mu.Lock()
			defer c.mu.Unlock()
			for k := range c.leases {
				key <- k
			}
		}()
		sendTo(list[0], watchers)
		k := <-key
		synctest.Wait() // the lease is released
		c.Delete(w.Context(), k)
		c.mu.Lock()
		c.leases[k], c.until[k] = cache.FetchLease{Owner: "dead", Since: w.gateway.Cache.Generation(), Sent: true}, time.Now().Add(3*time.Second)
		c.mu.Unlock()
		start := time.Now()
		w.want("body from the other replica", sendTo(list[1], watchers).Body.String(), "all")
		if took := time.Since(start); took < 4*time.Second || took > 5*time.Second {
			w.Errorf("got the response after %v", took)
		}
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}

func TestReplicasSendUnsharableRequestsConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "no-store")
			_, _ = fmt.Fprint(w, "mine")
		})
		list, _ := w.replicas(3)
		start := time.Now()
		for _, r := range sendToAll(list, 3, watchers) {
			w.want("body", r.Body.String(), "mine")
		}
		w.want("requests upstream", w.upstreamSaw(), 3)
		if took := time.Since(start); took > 2500*time.Millisecond {
			t.Errorf("the requests were serialized: %v", took)
		}
	})
}

func TestUncacheableResponsesAreNotLookedUpInTheSharedTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := "no-store"
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", rule)
			_, _ = fmt.Fprint(w, "text")
		})
		list, c := w.replicas(2)
		sendTo(list[0], watchers)
		before := c.gets
		for range 3 {
			sendTo(list[0], watchers)
		}
		w.want("reads of the shared tier", c.gets-before, 0)
		rule = "max-age=60"
		sendTo(list[0], watchers)
		synctest.Wait() // the shared tier stores the response
		for _, g := range list {
			if got := sendTo(g, watchers).Header().Get("Cache-Status"); !strings.HasPrefix(got, "weir; hit") {
				t.Errorf("Cache-Status %q after the response became cacheable", got)
			}
		}
		w.want("requests upstream", w.upstreamSaw(), 5)
	})
}

func TestRequestsForAnUncacheableResponseDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Cache-Control", "no-store")
			h.Set("X-RateLimit-Limit", "5000") // ends the slow start
			h.Set("X-RateLimit-Used", "1")
			h.Set("X-RateLimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
			time.Sleep(time.Second)
			_, _ = fmt.Fprint(w, "text")
		})
		w.get(watchers)
		start := time.Now()
		for _, r := range w.concurrently(5, watchers) {
			w.want("status", r.StatusCode, http.StatusOK)
		}
		w.want("duration", time.Since(start), time.Second)
		w.want("requests upstream", w.upstreamSaw(), 6)
	})
}

func TestEachReplicaSendsWithoutTheSharedTier(t *testing.T) {
	setup(slowly("all")).run(t, func(w *world) {
		list, c := w.replicas(3)
		c.away = true
		for _, r := range sendToAll(list, 9, watchers) {
			w.want("body", r.Body.String(), "all")
		}
		w.want("requests upstream", w.upstreamSaw(), 3)
	})
}

// All clients get a response, and each replica sends each request at most once.
func TestCoalescingSurvivesAnUnstableSharedTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-RateLimit-Limit", "5000")
			w.Header().Set("X-RateLimit-Used", "1")
			w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10))
			slowly(r.URL.Path)(w, r)
		})
		list, tier := w.replicas(2)
		stop := make(chan struct{})
		var toggling, clients sync.WaitGroup
		toggling.Go(func() {
			for pause := 3 * time.Millisecond; ; pause = pause*5/4 + time.Millisecond {
				select {
				case <-stop:
					return
				case <-time.After(pause % (400 * time.Millisecond)):
				}
				tier.mu.Lock()
				tier.away = !tier.away
				tier.mu.Unlock()
			}
		})
		for i := range 400 {
			clients.Go(func() {
				time.Sleep(time.Duration(i*7%3000) * time.Millisecond)
				path := fmt.Sprint("/users/", i%8)
				if r := sendTo(list[i%2], path, "Authorization", "Bearer a"); r.Code != http.StatusOK || r.Body.String() != path {
					t.Errorf("%s: got %d %q, want 200 with the path", path, r.Code, r.Body)
				}
			})
		}
		clients.Wait()
		close(stop)
		toggling.Wait()
		if n := w.upstreamSaw(); n < 8 || n > 16 {
			t.Errorf("%d requests upstream, for 8 responses and 2 replicas", n)
		}
	})
}

func TestPurgeEndsCoalescingAcrossReplicas(t *testing.T) {
	setup(slowly("all")).run(t, func(w *world) {
		list, _ := w.replicas(2)
		var first sync.WaitGroup
		first.Go(func() { sendTo(list[0], watchers) })
		time.Sleep(time.Second / 2)
		list[1].Cache.Purge(w.Context(), "repo:acme/widgets")
		start := time.Now()
		sendTo(list[1], watchers)
		w.want("duration", time.Since(start), time.Second)
		first.Wait()
		synctest.Wait() // for the writes to the shared tier
		w.want("requests upstream", w.upstreamSaw(), 2)
		w.want("Cache-Status of the first replica", sendTo(list[0], watchers).Header().Get("Cache-Status")[:9], "weir; hit")
	})
}

// A follower gets a refusal at its deadline while the lease of a lost replica delays the leader.
func TestFollowerIsRefusedAtItsDeadline(t *testing.T) {
	setup(computing(time.Hour)).run(t, func(w *world) {
		list, c := w.replicas(1)
		g := list[0]
		ex := &exchange{in: httptest.NewRequest(http.MethodGet, contributors, http.NoBody), w: &recorder{}}
		if err := g.check(ex); err != nil {
			w.Fatal(err)
		}
		c.leases[ex.key], c.until[ex.key] = cache.FetchLease{Owner: "dead", Since: w.gateway.Cache.Generation(), Sent: true}, time.Now().Add(3*time.Second)
		var clients sync.WaitGroup
		clients.Go(func() { sendTo(g, contributors) })
		synctest.Wait()
		start := time.Now()
		w.want("status with a short wait", sendTo(g, contributors, "Prefer", "wait=1").Code, http.StatusAccepted)
		if took := time.Since(start); took > 5*time.Second {
			w.Errorf("got the response after %v", took)
		}
		clients.Wait()
	})
}

// A replica does not wait for a fetch lease if the response will not be in the shared tier.
func TestReplicasDoNotWaitForUnsharableResponses(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		fields []string
	}{
		"validated": {"all", []string{"Cache-Control", "no-cache"}},
		"too large": {strings.Repeat("x", 2<<20), nil},
	} {
		setup(slowly(c.body)).run(t, func(w *world) {
			list, _ := w.replicas(3)
			start := time.Now()
			for _, r := range sendToAll(list, 3, watchers, c.fields...) {
				w.want("length", r.Body.Len(), len(c.body))
			}
			if took := time.Since(start); took > 2500*time.Millisecond {
				w.Errorf("%s: the requests were serialized: %v", name, took)
			}
		})
	}
}
