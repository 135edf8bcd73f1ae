package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/testservers"
)

// overLink returns a fleet whose connections to the same Redis server pass a link.
func (f *fleet) overLink() (*fleet, *testservers.Link) {
	link := testservers.NewLink
	if f.network == "unix" {
		link = testservers.NewSocketLink
	}
	l := link(f, f.address)
	return &fleet{T: f.T, network: f.network, address: l.Address, replicaLife: f.replicaLife}, l
}

func TestPurgeReturnsAfterAllReplicasAppliedIt(t *testing.T) {
	onEach(t, func(f *fleet) {
		far, link := f.overLink()
		a, b := f.open(""), far.open("")
		link.Delay(time.Millisecond)
		took := make([]time.Duration, 1000)
		for i := range took {
			b.Memory.Put(page, fetched(b.Generation(), "old", "repo:o/r"))
			began := time.Now()
			a.Purge(f.Context(), "repo:o/r")
			took[i] = time.Since(began)
			if _, purged := b.Memory.Lookup(page, nil); !purged {
				f.Fatalf("purge %d: the entry of the other replica is fresh", i)
			}
		}
		slices.Sort(took)
		f.Logf("a purge took %v (median), %v (99th percentile)", took[len(took)/2], took[len(took)*99/100])
	})
}

// A fetch that began before the purge is stale on every replica, because the purge has a later generation.
func TestFetchBeforeAPurgeIsStaleOnTheOtherReplica(t *testing.T) {
	onEach(t, func(f *fleet) {
		far, link := f.overLink()
		a, b := f.open(""), far.open("")
		link.Delay(time.Millisecond)
		for i := range 100 {
			since := b.Generation()
			a.Purge(f.Context(), "repo:o/r")
			b.Put(f.Context(), page, fetched(since, "old", "repo:o/r"))
			for name, r := range map[string]*replica{"purging": a, "fetching": b} {
				if body, purged := r.holds(nil); body != "" && !purged {
					f.Fatalf("purge %d: the response is fresh on the %s replica", i, name)
				}
			}
		}
	})
}

func TestPurgeWaitsForAReplicaThatHasJoined(t *testing.T) {
	onEach(t, func(f *fleet) {
		a := f.open("")
		for i := range 20 {
			joining := f.start("")
			<-joining.shared.Joined()
			joining.Memory.Put(page, fetched(joining.Generation(), "old", "x"))
			a.Purge(f.Context(), "x")
			if _, purged := joining.Memory.Lookup(page, nil); !purged {
				f.Errorf("replica %d: the entry is fresh after the purge", i)
			}
			joining.stop()
		}
	})
}

func TestPurgeWaitsOnlyForReplicasThatFollow(t *testing.T) {
	onEach(t, func(f *fleet) {
		f.replicaLife = replicaLife
		far, link := f.overLink()
		a, stopped, hanging := f.open(""), f.open(""), far.open("")
		stopped.stop()
		a.shared.purgeWait = 30 * time.Second
		a.Purge(f.Context(), "x")
		link.Cut()
		began := time.Now()
		a.Purge(f.Context(), "x")
		if took := time.Since(began); took < time.Second || took > 20*time.Second {
			f.Errorf("a purge with a hanging replica took %v, want about %v", took, replicaLife)
		}
		began = time.Now()
		a.Purge(f.Context(), "x")
		if took := time.Since(began); took > 20*time.Second {
			f.Errorf("the next purge took %v", took)
		}
		link.Restore()
		testservers.Eventually(f, "purges wait for the replica again", func(context.Context) bool {
			hanging.Memory.Put(page, fetched(hanging.Generation(), "old", "x"))
			a.Purge(f.Context(), "x")
			_, purged := hanging.Memory.Lookup(page, nil)
			return purged
		})
	})
}

func TestPurgeWaitsForAHangingReplicaForAShortTime(t *testing.T) {
	onEach(t, func(f *fleet) {
		far, link := f.overLink()
		a := f.open("")
		far.open("")
		a.shared.purgeWait = purgeWait
		link.Cut()
		defer link.Restore()
		began := time.Now()
		a.Purge(f.Context(), "x")
		if took := time.Since(began); took < purgeWait || took > 10*time.Second {
			f.Errorf("a purge took %v, want %v", took, purgeWait)
		}
	})
}

// The positions of other replicas may be unreadable, or stay in Redis after a crash.
func TestUnreadablePositionsAreRemoved(t *testing.T) {
	onEach(t, func(f *fleet) {
		client := f.client()
		defer func() { _ = client.Close() }()
		a := f.open("")
		for i := range 100 {
			if err := client.HSet(f.Context(), replicas, fmt.Sprint(i), []string{"", "\xffrubbish", "0 00000000000000000000"}[i%3]).Err(); err != nil {
				f.Fatal(err)
			}
		}
		a.Purge(f.Context(), "x")
		testservers.Eventually(f, "only one replica is left", func(ctx context.Context) bool { return client.HLen(ctx, replicas).Val() == 1 })
		if err := client.Set(f.Context(), replicas, "of another type", 0).Err(); err != nil {
			f.Fatal(err)
		}
		a.Purge(f.Context(), "x")
		testservers.Eventually(f, "the position is written again", func(ctx context.Context) bool { return client.HLen(ctx, replicas).Val() == 1 })
	})
}

func TestPurgeDuringAnOutageReachesTheOtherReplicaSoon(t *testing.T) {
	onEach(t, func(f *fleet) {
		far, link := f.overLink()
		for name, fault := range map[string]struct{ begin, end func() }{
			"connections are refused": {func() { f.cut(true); far.cut(true) }, func() { f.cut(false); far.cut(false) }},
			"one replica is cut off":  {link.Cut, link.Restore},
		} {
			a, b := far.open(""), f.open("")
			a.shared.purgeWait, b.shared.purgeWait = purgeWait, purgeWait
			fault.begin()
			testservers.Eventually(f, "the outage is noticed", func(context.Context) bool { return a.shared.lost.Load() })
			b.Memory.Put(page, fetched(b.Generation(), "old", name))
			a.Purge(f.Context(), name)
			fault.end()
			ended := time.Now()
			testservers.Eventually(f, "the other replica applies the purge", func(context.Context) bool { _, purged := b.Memory.Lookup(page, nil); return purged })
			took := time.Since(ended)
			f.Logf("%s: the purge took %v", name, took)
			if took > 4*time.Second { // less than one second on a machine that is not busy
				f.Errorf("%s: the purge took %v", name, took)
			}
		}
	})
}

func TestTooManyPurgesDuringAnOutageMakeEverythingStale(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.open(""), f.open("")
		b.Memory.Put(page, fetched(b.Generation(), "old", "another tag"))
		f.cut(true)
		testservers.Eventually(f, "the outage is noticed", func(context.Context) bool { return a.shared.lost.Load() })
		for i := range 3*maxPending - 1 {
			a.Purge(f.Context(), fmt.Sprint(i))
		}
		f.cut(false)
		testservers.Eventually(f, "the entries of the other replica are stale", func(context.Context) bool { _, purged := b.Memory.Lookup(page, nil); return purged })
	})
}

func TestPurgesOfOtherTagsLeaveEntriesOfAllReplicasFresh(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.open(""), f.open("")
		for _, r := range []*replica{a, b} {
			r.Memory.Put(page, fetched(r.Generation(), "other", "repo:o/r"))
		}
		for i := range 200 {
			tags := make([]string, 1000)
			for j := range tags {
				tags[j] = strconv.Itoa(i*len(tags) + j)
			}
			a.Purge(f.Context(), tags...)
		}
		for name, r := range map[string]*replica{"purging": a, "other": b} {
			if _, purged := r.Memory.Lookup(page, nil); purged {
				f.Errorf("the entry of the %s replica is stale", name)
			}
		}
		a.Purge(f.Context(), "repo:o/r")
		for name, r := range map[string]*replica{"purging": a, "other": b} {
			if _, purged := r.Memory.Lookup(page, nil); !purged {
				f.Errorf("the entry of the %s replica is fresh after a purge of its tag", name)
			}
		}
	})
}

// The stream keeps a bounded number of purges. A replica that reads too late must not ignore the dropped purges.
func TestReplicaThatReadsTooLateTreatsOlderEntriesAsStale(t *testing.T) {
	onEach(t, func(f *fleet) {
		client := f.client()
		f.Cleanup(func() { _ = client.Close() })
		codec, err := cache.NewCodec(nil)
		if err != nil {
			f.Fatal(err)
		}
		memory := cache.NewMemory(1 << 20)
		late := New(client, codec, memory, f.open("").shared.log)
		if err := late.check(f.Context()); err != nil {
			f.Fatal(err)
		}
		if err := late.follow(f.Context()); err != nil {
			f.Fatal(err)
		}
		memory.Put(page, fetched(memory.Generation(), "old", "x"))
		tag := "x"
		for range streamLength/500 + 2 {
			_, err = client.Pipelined(f.Context(), func(pipe redis.Pipeliner) error {
				for range 500 {
					pipe.XAdd(f.Context(), &redis.XAddArgs{Stream: stream, MaxLen: streamLength, Approx: true, Values: []any{"purge", `{"tags":["` + tag + `"]}`}})
					tag = "other"
				}
				return nil
			})
			if err != nil {
				f.Fatal(err)
			}
		}
		if err := late.follow(f.Context()); err != nil {
			f.Fatal(err)
		}
		if _, purged := memory.Lookup(page, nil); !purged {
			f.Error("the entry is fresh although its purge was dropped from the stream")
		}
	})
}

// Whatever stands at the key of the stream, the replicas treat older entries as stale, and later purges reach all of them.
func TestGarbageInTheStreamOfPurgesIsRepaired(t *testing.T) {
	add := func(id string, values ...any) func(context.Context, *redis.Client) error {
		return func(ctx context.Context, c *redis.Client) error {
			return c.XAdd(ctx, &redis.XAddArgs{Stream: stream, ID: id, Values: values}).Err()
		}
	}
	replace := func(write func(context.Context, *redis.Client) error) func(context.Context, *redis.Client) error {
		return func(ctx context.Context, c *redis.Client) error {
			_, err := c.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return pipe.Del(ctx, stream).Err() })
			return errors.Join(err, write(ctx, c))
		}
	}
	for name, garbage := range map[string]func(context.Context, *redis.Client) error{
		"a string":                      replace(func(ctx context.Context, c *redis.Client) error { return c.Set(ctx, stream, "garbage", 0).Err() }),
		"a hash":                        replace(func(ctx context.Context, c *redis.Client) error { return c.HSet(ctx, stream, "a", "b").Err() }),
		"a list":                        replace(func(ctx context.Context, c *redis.Client) error { return c.LPush(ctx, stream, "a").Err() }),
		"a record that is no JSON":      add("*", "purge", "garbage"),
		"a record of another type":      add("*", "purge", `["x"]`),
		"a record without a purge":      add("*", "other", "x"),
		"a record without tags":         add("*", "purge", `{"tags":[]}`),
		"the last ID":                   add("18446744073709551615-18446744073709551615", "purge", "garbage"),
		"an ID out of range":            add("18446744073709551610-0", "purge", `{"tags":["x"]}`),
		"a new stream with the last ID": replace(add("18446744073709551615-18446744073709551615", "purge", `{"tags":["x"]}`)),
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(f *fleet) {
				a, b := f.open(""), f.open("")
				client := f.client()
				f.Cleanup(func() { _ = client.Close() })
				isStale := func(r *replica) bool {
					_, purged := r.Memory.Lookup(page, nil)
					return purged
				}
				for _, r := range []*replica{a, b} {
					r.Memory.Put(page, fetched(r.Generation(), "old", "y"))
				}
				if err := garbage(f.Context(), client); err != nil {
					f.Skip(err) // miniredis does not accept all IDs
				}
				testservers.Eventually(f, "older entries are stale", func(context.Context) bool { return isStale(a) && isStale(b) })
				testservers.Eventually(f, "both replicas follow the stream", func(context.Context) bool { return a.shared.Following() && b.shared.Following() })
				for _, r := range []*replica{a, b} {
					r.Memory.Put(page, fetched(r.Generation(), "new", "repo:o/r"))
				}
				a.Purge(f.Context(), "repo:o/r")
				testservers.Eventually(f, "a later purge reaches both replicas", func(context.Context) bool { return isStale(a) && isStale(b) })
			})
		})
	}
}
