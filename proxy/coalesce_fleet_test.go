package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
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
	leases     map[cache.Key]timedLease
	memories   []*cache.Memory
	generation cache.Generation
	away       bool
	lookups    int // number of look-ups of candidates
	gets       int
}

// timedLease is a lease with its end.
type timedLease struct {
	cache.FetchLease
	until time.Time
}

// change changes the tier while no replica uses it.
func (c *sharedTier) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *sharedTier) Get(_ context.Context, key cache.Key) (list []*cache.Entry) {
	c.change(func() {
		c.gets++
		if !c.away {
			list = c.entries[key]
		}
	})
	return list
}

func (c *sharedTier) Put(_ context.Context, key cache.Key, e *cache.Entry) (stored bool) {
	c.change(func() {
		if stored = !c.away && len(e.Body) <= 1<<20; stored {
			c.entries[key] = []*cache.Entry{e}
		}
	})
	return stored
}

func (c *sharedTier) Delete(_ context.Context, key cache.Key) {
	c.change(func() { delete(c.entries, key) })
}

func (c *sharedTier) AddCandidate(_ context.Context, about, key cache.Key) {
	c.change(func() { c.candidates[about] = append([]cache.Key{key}, c.candidates[about]...) })
}

func (c *sharedTier) CandidateKeys(_ context.Context, about cache.Key) (keys []cache.Key) {
	c.change(func() {
		c.lookups++
		if !c.away {
			keys = c.candidates[about]
		}
	})
	return keys
}

func (c *sharedTier) Purge(_ context.Context, p cache.Purge) (g cache.Generation) {
	c.change(func() {
		c.generation += 1000
		g = c.generation
		for _, m := range c.memories {
			m.ApplyPurge(p, g)
		}
	})
	return g
}

func (c *sharedTier) Following() (following bool) {
	c.change(func() { following = !c.away })
	return following
}

func (c *sharedTier) AcquireFetch(_ context.Context, key cache.Key, lease cache.FetchLease) (acquired bool, other *cache.FetchLease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		return false, nil
	}
	current, ok := c.leases[key]
	if ok && current.Owner != lease.Owner && time.Now().Before(current.until) {
		return false, &current.FetchLease
	}
	c.leases[key] = timedLease{lease, time.Now().Add(3 * time.Second)}
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
		c.leases[key] = timedLease{cache.FetchLease{Owner: "-", Failed: true}, time.Now().Add(time.Second)}
	}
}

// loseLease makes a replica that has sent a request hold the lease of a key until it expires.
func (c *sharedTier) loseLease(key cache.Key, since cache.Generation) {
	c.change(func() {
		c.leases[key] = timedLease{cache.FetchLease{Owner: "dead", Since: since, Sent: true}, time.Now().Add(3 * time.Second)}
	})
}

// replicas returns gateways with the configuration and the upstream of w that share a tier.
func (w *world) replicas(n int) ([]*Gateway, *sharedTier) {
	c := &sharedTier{entries: map[cache.Key][]*cache.Entry{}, candidates: map[cache.Key][]cache.Key{}, leases: map[cache.Key]timedLease{}}
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
			stopIf(w, r.Code != http.StatusOK || r.Body.String() != "all", "%v %v", r.Code, r.Body)
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
				w.want("status with a short wait", sendTo(g, contributors, "Prefer", "wait=1").Code, http.StatusAccepted)
			}
		})
		for _, r := range sendToAll(list, 1000, contributors, "Prefer", "wait=60") {
			stopIf(w, r.Code != http.StatusOK, "%v %v", r.Code, r.Body)
		}
		short.Wait()
		w.want("polls", w.upstreamSaw(), 5)
		took := time.Since(start)
		failIf(w, took > 16*time.Second, "the last response arrived after %v", took)
	})
}

func TestFetchLeaseOfALostReplicaExpires(t *testing.T) {
	setup(slowly("all")).run(t, func(w *world) {
		list, c := w.replicas(2)
		k := w.question(newGet(watchers)).key
		c.loseLease(k, w.gateway.Cache.Generation())
		start := time.Now()
		w.want("body from the other replica", sendTo(list[1], watchers).Body.String(), "all")
		took := time.Since(start)
		failIf(w, took < 4*time.Second || took > 5*time.Second, "got the response after %v", took)
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// Replicas do not wait for a fetch lease if the response will not be in the shared tier.
func TestReplicasDoNotWaitForUnsharableResponses(t *testing.T) {
	for name, c := range map[string]struct {
		upstream http.HandlerFunc
		length   int
		fields   []string
	}{
		"validated": {slowly("all"), 3, lines("Cache-Control", "no-cache")},
		"too large": {slowly(strings.Repeat("x", 2<<20)), 2 << 20, nil},
		"no-store":  {delayed(replies("mine", "Cache-Control: no-store")), 4, nil},
	} {
		setup(c.upstream).sub(t, name, func(w *world) {
			list, _ := w.replicas(3)
			start := time.Now()
			for _, r := range sendToAll(list, 3, watchers, c.fields...) {
				w.want("length", r.Body.Len(), c.length)
			}
			if name == "no-store" {
				w.want("requests upstream", w.upstreamSaw(), 3)
			}
			took := time.Since(start)
			failIf(w, took > 2500*time.Millisecond, "the requests were serialized: %v", took)
		})
	}
}

func TestUncacheableResponsesAreNotLookedUpInTheSharedTier(t *testing.T) {
	rule := "no-store"
	setup(func(w http.ResponseWriter, r *http.Request) { replies("text", "Cache-Control: "+rule)(w, r) }).run(t, func(w *world) {
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
			w.wantFields("after the response became cacheable", sendTo(g, watchers).Header(), "Cache-Status: weir; hit*")
		}
		w.want("requests upstream", w.upstreamSaw(), 5)
	})
}

func TestRequestsForAnUncacheableResponseDoNotWaitForEachOther(t *testing.T) {
	setup(delayed(func(w http.ResponseWriter, _ *http.Request) {
		setFields(w, append(rates(5000, 1, time.Hour), "Cache-Control: no-store")...) // ends the slow start
	})).run(t, func(w *world) {
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
	setup(delayed(func(w http.ResponseWriter, r *http.Request) {
		setFields(w, append(rates(5000, 1, time.Hour), fresh)...)
		_, _ = fmt.Fprint(w, r.URL.Path)
	})).run(t, func(w *world) {
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
				tier.change(func() { tier.away = !tier.away })
			}
		})
		for i := range 400 {
			clients.Go(func() {
				time.Sleep(time.Duration(i*7%3000) * time.Millisecond)
				path := fmt.Sprint("/users/", i%8)
				r := sendTo(list[i%2], path, "Authorization", "Bearer a")
				failIf(w, r.Code != http.StatusOK || r.Body.String() != path, "%s: got %d %q, want 200 with the path", path, r.Code, r.Body)
			})
		}
		clients.Wait()
		close(stop)
		toggling.Wait()
		n := w.upstreamSaw()
		failIf(w, n < 8 || n > 16, "%d requests upstream, for 8 responses and 2 replicas", n)
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
		w.wantFields("the first replica", sendTo(list[0], watchers).Header(), "Cache-Status: weir; hit*")
	})
}

// A follower gets a refusal at its deadline while the lease of a lost replica delays the leader.
func TestFollowerIsRefusedAtItsDeadline(t *testing.T) {
	setup(computing(time.Hour)).run(t, func(w *world) {
		list, c := w.replicas(1)
		c.loseLease(w.question(newGet(contributors)).key, w.gateway.Cache.Generation())
		var clients sync.WaitGroup
		clients.Go(func() { sendTo(list[0], contributors) })
		synctest.Wait()
		start := time.Now()
		w.want("status with a short wait", sendTo(list[0], contributors, "Prefer", "wait=1").Code, http.StatusAccepted)
		took := time.Since(start)
		failIf(w, took > 5*time.Second, "got the response after %v", took)
		clients.Wait()
	})
}
