package main

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

// misfortune is a kind of fault: it begins, and what it returns ends it.
type misfortune struct {
	name  string
	begin func(*soak, *rand.Rand) (end func())
}

// misfortunes happen one after the other, each kind as often as any other. The first
// replica is never ended, so that what it holds can be seen to stay.
var misfortunes = []misfortune{
	{"replica killed", func(s *soak, r *rand.Rand) func() { return s.ends(1+r.IntN(len(s.replicas)-1), syscall.SIGKILL) }},
	{"replica asked to end", func(s *soak, r *rand.Rand) func() { return s.ends(1+r.IntN(len(s.replicas)-1), syscall.SIGTERM) }},
	{"replica paused", func(s *soak, r *rand.Rand) func() {
		process := s.replicas[r.IntN(len(s.replicas))].process.Process
		_ = process.Signal(syscall.SIGSTOP)
		return func() { _ = process.Signal(syscall.SIGCONT) }
	}},
	{"configuration reloaded", func(s *soak, r *rand.Rand) func() {
		i := r.IntN(len(s.replicas))
		s.configure(i, r.IntN(100))
		_ = s.replicas[i].process.Process.Signal(syscall.SIGHUP)
		return func() {}
	}},
	{"Redis paused", func(s *soak, _ *rand.Rand) func() {
		_ = s.redis.Process.Signal(syscall.SIGSTOP)
		return func() { _ = s.redis.Process.Signal(syscall.SIGCONT) }
	}},
	{"Redis killed, and empty", func(s *soak, _ *rand.Rand) func() {
		_ = s.redis.Process.Kill()
		_ = s.redis.Wait()
		return func() { s.redis = s.startRedis(s.address) }
	}},
	{"way to Redis cut", func(s *soak, r *rand.Rand) func() {
		return s.onWires(r, (*testservers.Link).Cut)
	}},
	{"way to Redis slow", func(s *soak, r *rand.Rand) func() {
		by := time.Duration(1+r.IntN(200)) * time.Millisecond
		return s.onWires(r, func(w *testservers.Link) { w.Delay(by) })
	}},
	{"keys lost in Redis", func(s *soak, r *rand.Rand) func() {
		s.loseKeys(r)
		return func() {}
	}},
	{"API: secondary limit", func(s *soak, r *rand.Rand) func() {
		s.report.limits(time.Minute)
		end := s.faulty(`{"secondary_every":%d}`, 20+r.IntN(40))
		return func() {
			end()
			s.report.limits(2 * time.Second)
		}
	}},
	{"API: errors", func(s *soak, r *rand.Rand) func() {
		return s.faulty(`{"error_every":%d,"error_status":%d}`, 2+r.IntN(8), 500+r.IntN(4))
	}},
	{"API: delays", func(s *soak, r *rand.Rand) func() {
		return s.faulty(`{"delay_before":"%dms","delay_after":"%dms"}`, r.IntN(600), r.IntN(600))
	}},
	{"API: truncated bodies", func(s *soak, r *rand.Rand) func() { return s.faulty(`{"truncate_every":%d}`, 2+r.IntN(8)) }},
	{"API: broken connections", func(s *soak, r *rand.Rand) func() {
		ctx, mend := context.WithCancel(s.Context())
		every, over := time.Duration(50+r.IntN(400))*time.Millisecond, make(chan struct{})
		go func() {
			defer close(over)
			for ctx.Err() == nil {
				s.upstream.Break()
				pass(ctx, every)
			}
		}()
		return func() {
			mend()
			<-over
		}
	}},
}

// ends ends a replica, and starts it again. One that is asked to ends well.
func (s *soak) ends(i int, signal syscall.Signal) func() {
	process := s.replicas[i].process
	_ = process.Process.Signal(signal)
	if err := process.Wait(); err != nil && signal == syscall.SIGTERM {
		s.Errorf("a replica that was asked to end: %v", err)
	}
	return func() { s.run(i) }
}

// onWires does something to the way of one replica to Redis, or of all.
func (s *soak) onWires(r *rand.Rand, does func(*testservers.Link)) func() {
	wires := s.toRedis
	if i := r.IntN(2 * len(wires)); i < len(wires) {
		wires = wires[i : i+1]
	}
	for _, w := range wires {
		does(w)
	}
	return func() {
		for _, w := range wires {
			w.Restore()
		}
	}
}

// loseKeys deletes one in two of those that hold accounts.
func (s *soak) loseKeys(r *rand.Rand) {
	c := redis.NewClient(&redis.Options{Addr: s.address})
	defer func() { _ = c.Close() }()
	for _, key := range c.Keys(s.Context(), "weir:account:*").Val() {
		if r.IntN(2) == 0 {
			_ = c.Del(s.Context(), key).Err()
		}
	}
}

// faulty orders faults of the API.
func (s *soak) faulty(format string, values ...any) func() {
	s.order(http.MethodPut, "/_service/faults", fmt.Sprintf(format, values...))
	return func() { s.order(http.MethodDelete, "/_service/faults", "") }
}

// misfortunes lets them happen until ctx ends, each kind in turn, in an order of its own
// each time.
func (s *soak) misfortunes(ctx context.Context, r *rand.Rand) {
	lasts, rests := 6*time.Second, 5*time.Second
	if s.long < time.Minute { // as many as fit
		lasts, rests = 300*time.Millisecond, 100*time.Millisecond
	}
	for pass(ctx, rests); ctx.Err() == nil; {
		for _, i := range r.Perm(len(misfortunes)) {
			m := misfortunes[i]
			long, rest := time.Duration(1+r.Int64N(int64(lasts))), time.Duration(1+r.Int64N(int64(rests)))
			if ctx.Err() != nil {
				return
			}
			s.report.happens(m.name)
			end := m.begin(s, r)
			pass(ctx, long)
			end()
			s.order(http.MethodPost, "/_service/events", `{"event":"push","repository":"acme/monolith"}`)
			s.allWell(m.name)
			pass(ctx, rest)
		}
	}
}

// allWell waits until every replica answers again, and has found Redis.
func (s *soak) allWell(after string) {
	began := time.Now()
	for i, r := range s.replicas {
		for {
			_, metrics := s.get(s.Context(), "http://"+r.admin+"/metrics")
			status, body := s.get(s.Context(), r.url+"/rate_limit")
			if strings.Contains(metrics, "\nweir_store_up 1\n") && status == http.StatusOK {
				break
			}
			if time.Since(began) > 40*time.Second {
				_ = r.process.Process.Signal(syscall.SIGQUIT) // it tells what it is at
				pass(s.Context(), time.Second)
				s.Fatalf("replica %d is not well after %q: %d, %s\n%s", i, after, status, body, metrics)
			}
			pass(s.Context(), 50*time.Millisecond)
		}
	}
	s.report.recovers(time.Since(began))
}
