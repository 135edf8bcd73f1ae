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

	"github.com/weirgate/weir/internal/testservers"
)

// overLink runs a test with a fleet on redis-server, and a fleet whose connections to the same database pass a link.
func overLink(t *testing.T, test func(near, far *fleet, link *testservers.Link)) {
	onRedis(t, func(f *fleet) {
		link := testservers.NewSocketLink(f, f.address)
		test(f, &fleet{T: t, network: f.network, address: link.Address, database: f.database, replicaLife: f.replicaLife}, link)
	})
}

// WEIR_PURGES sets the number of purges.
func TestPurgeReturnsAfterAllReplicasAppliedIt(t *testing.T) {
	overLink(t, func(f, far *fleet, link *testservers.Link) {
		a, b := f.open(""), far.open("")
		link.Delay(time.Millisecond)
		took := make([]time.Duration, testservers.Setting(t, "WEIR_PURGES", 100))
		for i := range took {
			b.remember("old", "repo:o/r")
			began := time.Now()
			a.Purge(f.Context(), "repo:o/r")
			took[i] = time.Since(began)
			stopIf(f, !b.stale(), "purge %d: the entry of the other replica is fresh", i)
		}
		slices.Sort(took)
		f.Logf("a purge took %v (median), %v (99th percentile)", took[len(took)/2], took[len(took)*99/100])
	})
}

// A fetch that began before the purge is stale on every replica, because the purge has a later generation.
func TestFetchBeforeAPurgeIsStaleOnTheOtherReplica(t *testing.T) {
	overLink(t, func(f, far *fleet, link *testservers.Link) {
		a, b := f.open(""), far.open("")
		link.Delay(time.Millisecond)
		for i := range 1 + testservers.Setting(t, "WEIR_PURGES", 100)/5 {
			since := b.Generation()
			a.Purge(f.Context(), "repo:o/r")
			b.Put(f.Context(), page, fetched(since, "old", "repo:o/r"))
			for name, r := range map[string]*replica{"purging": a, "fetching": b} {
				body, purged := r.holds(nil)
				stopIf(f, body != "" && !purged, "purge %d: the response is fresh on the %s replica", i, name)
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
			joining.remember("old", "x")
			a.Purge(f.Context(), "x")
			failIf(f, !joining.stale(), "replica %d: the entry is fresh after the purge", i)
		}
	})
}

func TestPurgeWaitsOnlyForReplicasThatFollow(t *testing.T) {
	overLink(t, func(f, far *fleet, link *testservers.Link) {
		f.replicaLife, far.replicaLife = replicaLife, replicaLife
		a, stopped, hanging := f.open(""), f.open(""), far.open("")
		stopped.stop()
		a.shared.purgeWait = 30 * time.Second
		a.Purge(f.Context(), "x")
		link.Cut()
		purge := func(least time.Duration) {
			f.Helper()
			began := time.Now()
			a.Purge(f.Context(), "x")
			took := time.Since(began)
			failIf(f, took < least || took > 20*time.Second, "a purge with a hanging replica took %v, want about %v", took, replicaLife)
		}
		purge(time.Second)
		purge(0)
		link.Restore()
		f.eventually("purges wait for the replica again", func() bool {
			hanging.remember("old", "x")
			a.Purge(f.Context(), "x")
			return hanging.stale()
		})
	})
}

func TestPurgeWaitsForAHangingReplicaForAShortTime(t *testing.T) {
	overLink(t, func(f, far *fleet, link *testservers.Link) {
		a := f.open("")
		far.open("")
		a.shared.purgeWait = purgeWait
		link.Cut()
		defer link.Restore()
		began := time.Now()
		a.Purge(f.Context(), "x")
		took := time.Since(began)
		failIf(f, took < purgeWait || took > 10*time.Second, "a purge took %v, want %v", took, purgeWait)
	})
}

// A replica whose own report has expired does not wait for itself.
func TestPurgingReplicaThatDoesNotFollowHasNoOlderEntries(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.pair()
		a.stop()
		b.Purge(f.Context(), "another tag")
		stopIf(f, !b.Put(f.Context(), page, fetched(b.Generation(), "old", "x")), "the entry is not shared")
		a.Purge(f.Context(), "x")
		body, purged := a.holds(nil)
		failIf(f, body != "old" || !purged, "got %q (purged: %t), want the purged entry", body, purged)
	})
}

// The positions of other replicas may be unreadable, or stay in Redis after a crash.
func TestUnreadablePositionsAreRemoved(t *testing.T) {
	onEach(t, func(f *fleet) {
		client := f.client()
		a := f.open("")
		for i := range 100 {
			noError(f, client.HSet(f.Context(), replicas, fmt.Sprint(i), []string{"", "\xffrubbish", "0 00000000000000000000"}[i%3]).Err())
		}
		a.Purge(f.Context(), "x")
		f.eventually("only one replica is left", func() bool { return client.HLen(f.Context(), replicas).Val() == 1 })
		noError(f, client.Set(f.Context(), replicas, "of another type", 0).Err())
		a.Purge(f.Context(), "x")
		f.eventually("the position is written again", func() bool { return client.HLen(f.Context(), replicas).Val() == 1 })
	})
}

func TestPurgeDuringAnOutageReachesTheOtherReplicaSoon(t *testing.T) {
	reaches := func(f *fleet, a, b *replica, begin, end func()) {
		f.Helper()
		a.shared.purgeWait, b.shared.purgeWait = purgeWait, purgeWait
		begin()
		f.eventually("the outage is noticed", a.shared.lost.Load)
		b.remember("old", "x")
		a.Purge(f.Context(), "x")
		end()
		ended := time.Now()
		f.eventually("the other replica applies the purge", b.stale)
		if took := time.Since(ended); took > 4*time.Second { // less than one second on a machine that is not busy
			f.Errorf("the purge took %v", took)
		}
	}
	t.Run("connections are refused", func(t *testing.T) {
		onEach(t, func(f *fleet) {
			reaches(f, f.open(""), f.open(""), func() { f.cut(true) }, func() { f.cut(false) })
		})
	})
	t.Run("one replica is cut off", func(t *testing.T) {
		overLink(t, func(f, far *fleet, link *testservers.Link) {
			reaches(f, far.open(""), f.open(""), link.Cut, link.Restore)
		})
	})
}

func TestTooManyPurgesDuringAnOutageMakeEverythingStale(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.pair()
		b.remember("old", "another tag")
		f.cut(true)
		f.eventually("the outage is noticed", func() bool { return a.shared.lost.Load() })
		for i := range 3*maxPending - 1 {
			a.Purge(f.Context(), fmt.Sprint(i))
		}
		f.cut(false)
		f.eventually("the entries of the other replica are stale", b.stale)
	})
}

func TestPurgesOfOtherTagsLeaveEntriesOfAllReplicasFresh(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.pair()
		for _, r := range []*replica{a, b} {
			r.remember("other", "repo:o/r")
		}
		for i := range 200 {
			tags := make([]string, 1000)
			for j := range tags {
				tags[j] = strconv.Itoa(i*len(tags) + j)
			}
			a.Purge(f.Context(), tags...)
		}
		for name, r := range map[string]*replica{"purging": a, "other": b} {
			failIf(f, r.stale(), "the entry of the %s replica is stale", name)
		}
		a.Purge(f.Context(), "repo:o/r")
		for name, r := range map[string]*replica{"purging": a, "other": b} {
			failIf(f, !r.stale(), "the entry of the %s replica is fresh after a purge of its tag", name)
		}
	})
}

// The stream keeps a bounded number of purges. A replica that reads too late must not ignore the dropped purges.
func TestReplicaThatReadsTooLateTreatsOlderEntriesAsStale(t *testing.T) {
	onEach(t, func(f *fleet) {
		client := f.client()
		late, memory := f.store("")
		f.open("")
		noError(f, late.check(f.Context(), memory))
		noError(f, late.follow(f.Context(), memory))
		memory.Put(page, fetched(memory.Generation(), "old", "x"))
		tag := "x"
		for range streamLength/20 + 50 {
			_, err := client.Pipelined(f.Context(), func(pipe redis.Pipeliner) error {
				for range 20 { // more would fill the pipe to miniredis
					pipe.XAdd(f.Context(), &redis.XAddArgs{Stream: stream, MaxLen: streamLength, Approx: true, Values: []any{"purge", `{"tags":["` + tag + `"]}`}})
					tag = "other"
				}
				return nil
			})
			noError(f, err)
		}
		noError(f, late.follow(f.Context(), memory))
		_, purged := memory.Lookup(page, nil)
		failIf(f, !purged, "the entry is fresh although its purge was dropped from the stream")
	})
}

// If the key of the stream contains garbage, the replicas treat older entries as stale, and later purges reach all of them.
func TestGarbageInTheStreamOfPurgesIsRepaired(t *testing.T) {
	type write func(context.Context, *redis.Client) error
	add := func(id string, values ...any) write {
		return func(ctx context.Context, c *redis.Client) error {
			return c.XAdd(ctx, &redis.XAddArgs{Stream: stream, ID: id, Values: values}).Err()
		}
	}
	replace := func(by write) write {
		return func(ctx context.Context, c *redis.Client) error {
			return errors.Join(c.Del(ctx, stream).Err(), by(ctx, c))
		}
	}
	for name, garbage := range map[string]write{
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
				a, b := f.pair()
				client := f.client()
				bothStale := func() bool { return a.stale() && b.stale() }
				for _, r := range []*replica{a, b} {
					r.remember("old", "y")
				}
				if err := garbage(f.Context(), client); err != nil {
					f.Skip(err) // miniredis does not accept all IDs
				}
				f.eventually("older entries are stale", bothStale)
				f.eventually("both replicas follow the stream", func() bool { return a.shared.Following() && b.shared.Following() })
				for _, r := range []*replica{a, b} {
					r.remember("new", "repo:o/r")
				}
				a.Purge(f.Context(), "repo:o/r")
				f.eventually("a later purge reaches both replicas", bothStale)
			})
		})
	}
}
