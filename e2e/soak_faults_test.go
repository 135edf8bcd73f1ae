//go:build e2e && soak

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
)

// soakFault is a kind of fault. The function begin starts the fault and returns a function that ends the fault.
type soakFault struct {
	name  string
	begin func(*soak, *rand.Rand) (end func())
}

// soakFaults are all kinds of faults. The first replica is never stopped, so that leaks in its process become visible.
var soakFaults = []soakFault{
	{"replica killed", func(s *soak, r *rand.Rand) func() { return s.stop(1+r.IntN(len(s.replicas)-1), syscall.SIGKILL) }},
	{"replica terminated", func(s *soak, r *rand.Rand) func() { return s.stop(1+r.IntN(len(s.replicas)-1), syscall.SIGTERM) }},
	{"replica paused", func(s *soak, r *rand.Rand) func() {
		p := s.replicas[r.IntN(len(s.replicas))]
		p.signal(syscall.SIGSTOP)
		return func() { p.signal(syscall.SIGCONT) }
	}},
	{"configuration reloaded", func(s *soak, r *rand.Rand) func() {
		i := r.IntN(len(s.replicas))
		s.configure(i, r.IntN(100))
		s.replicas[i].signal(syscall.SIGHUP)
		return func() {}
	}},
	{"Redis paused", func(s *soak, _ *rand.Rand) func() {
		_ = s.redis.Process.Signal(syscall.SIGSTOP)
		return func() { _ = s.redis.Process.Signal(syscall.SIGCONT) }
	}},
	{"Redis restarted empty", func(s *soak, _ *rand.Rand) func() {
		_ = s.redis.Process.Kill()
		_ = s.redis.Wait()
		return func() { s.redis = s.startRedis(s.address) }
	}},
	{"connection to Redis cut", func(s *soak, r *rand.Rand) func() {
		return s.onRedisLinks(r, (*testservers.Link).Cut)
	}},
	{"connection to Redis slow", func(s *soak, r *rand.Rand) func() {
		by := time.Duration(1+r.IntN(200)) * time.Millisecond
		return s.onRedisLinks(r, func(l *testservers.Link) { l.Delay(by) })
	}},
	{"accounts deleted in Redis", func(s *soak, r *rand.Rand) func() {
		s.deleteAccounts(r)
		return func() {}
	}},
	{"upstream: secondary limit", func(s *soak, r *rand.Rand) func() {
		s.allowLateRequests(time.Minute)
		end := s.serviceFault(`{"secondary_every":%d}`, 20+r.IntN(40))
		return func() {
			end()
			s.allowLateRequests(2 * time.Second)
		}
	}},
	{"upstream: errors", func(s *soak, r *rand.Rand) func() {
		return s.serviceFault(`{"error_every":%d,"error_status":%d}`, 2+r.IntN(8), 500+r.IntN(4))
	}},
	{"upstream: delays", func(s *soak, r *rand.Rand) func() {
		return s.serviceFault(`{"delay_before":"%dms","delay_after":"%dms"}`, r.IntN(600), r.IntN(600))
	}},
	{"upstream: truncated bodies", func(s *soak, r *rand.Rand) func() { return s.serviceFault(`{"truncate_every":%d}`, 2+r.IntN(8)) }},
	{"upstream: broken connections", func(s *soak, r *rand.Rand) func() {
		ctx, cancel := context.WithCancel(s.Context())
		every, done := time.Duration(50+r.IntN(400))*time.Millisecond, make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				s.upstream.Break()
				sleep(ctx, every)
			}
		}()
		return func() {
			cancel()
			<-done
		}
	}},
}

// stop stops a replica. The returned function starts the replica again.
func (s *soak) stop(i int, signal syscall.Signal) (start func()) {
	r := s.replicas[i]
	r.signal(signal)
	err := r.exited()
	failIf(s, err != nil && signal == syscall.SIGTERM, "terminated replica: %v", err)
	return func() { s.restart(i) }
}

// onRedisLinks applies a fault to the link of one replica or of all replicas.
func (s *soak) onRedisLinks(r *rand.Rand, fault func(*testservers.Link)) (restore func()) {
	links := s.redisLinks
	if i := r.IntN(2 * len(links)); i < len(links) {
		links = links[i : i+1]
	}
	for _, l := range links {
		fault(l)
	}
	return func() {
		for _, l := range links {
			l.Restore()
		}
	}
}

// deleteAccounts deletes about half of the accounts in Redis.
func (s *soak) deleteAccounts(r *rand.Rand) {
	c := redis.NewClient(&redis.Options{Addr: s.address})
	defer func() { _ = c.Close() }()
	for _, key := range c.Keys(s.Context(), "weir:account:*").Val() {
		if r.IntN(2) == 0 {
			_ = c.Del(s.Context(), key).Err()
		}
	}
}

// allowLateRequests allows some requests to accounts that the upstream limits without a reason. A cool-down lasts
// longer than d. No request may be sent in the rest of the cool-down.
func (s *soak) allowLateRequests(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limitedUntil = time.Now().Add(d)
}

// serviceFault starts a fault of the reference service.
func (s *soak) serviceFault(format string, values ...any) (end func()) {
	s.control(http.MethodPut, "/_service/quirks", fmt.Sprintf(format, values...))
	return func() { s.control(http.MethodDelete, "/_service/quirks", "") }
}

// runFaults runs all kinds of faults in random order, repeatedly, until ctx ends.
func (s *soak) runFaults(ctx context.Context, r *rand.Rand) {
	longest, longestPause := 6*time.Second, 5*time.Second
	if s.long < time.Minute { // run more faults in a short time
		longest, longestPause = 300*time.Millisecond, 100*time.Millisecond
	}
	for sleep(ctx, longestPause); ctx.Err() == nil; {
		for _, i := range r.Perm(len(soakFaults)) {
			if ctx.Err() != nil {
				return
			}
			fault := soakFaults[i]
			s.mu.Lock()
			s.faults[fault.name]++
			s.latest = fault.name
			s.mu.Unlock()
			end := fault.begin(s, r)
			sleep(ctx, time.Duration(1+r.Int64N(int64(longest))))
			end()
			s.control(http.MethodPost, "/_service/events", `{"event":"push","repository":"acme/monolith"}`)
			s.awaitRecovery(fault.name)
			sleep(ctx, time.Duration(1+r.Int64N(int64(longestPause))))
		}
	}
}

// awaitRecovery waits until every replica responds and is connected to Redis.
func (s *soak) awaitRecovery(fault string) {
	for i, r := range s.replicas {
		s.eventually(fmt.Sprintf("replica %d recovers from %q", i, fault), func(ctx context.Context) bool {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return s.responds(ctx, "http://"+r.admin+"/metrics", "\nweir_store_up 1\n") && s.responds(ctx, r.url+"/rate_limit", "")
		})
	}
}

// responds reports whether a URL responds with 200 and a text.
func (s *soak) responds(ctx context.Context, url, text string) bool {
	req := newRequest(ctx, http.MethodGet, url, "", "Authorization: Bearer tok-owner")
	req.Close = true
	resp, body, err := do(http.DefaultClient, req)
	return err == nil && resp.StatusCode == http.StatusOK && strings.Contains(body, text)
}
