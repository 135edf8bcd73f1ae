package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/cache"
)

// A replica finds a bounded number of responses that another replica fetched for other callers. Removed
// responses are not found.
func TestCandidatesAreSharedByReplicas(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b, client := f.open(""), f.open(""), f.client()
		base := cache.NewKey("the page of any caller")
		for i := range 12 {
			key := cache.NewKey("page", fmt.Sprint(i))
			e := fetched(a.Generation(), fmt.Sprint("text ", i), "repo:o/r")
			e.BaseKey = base
			a.Put(f.Context(), key, e)
		}
		if n := client.ZCard(f.Context(), candidatesName(base)).Val(); n != maxCandidates {
			f.Errorf("%d keys are recorded, want %d", n, maxCandidates)
		}
		lives := client.TTL(f.Context(), candidatesName(base)).Val()
		failIf(f, lives <= 0, "the keys expire after %v", lives)
		_, otherCallers := b.Candidates(f.Context(), page, base)
		failIf(f, len(otherCallers) != 2, "%d candidates, want the newest two", len(otherCallers))
		if _, otherCallers := b.Candidates(f.Context(), page, cache.NewKey("another question")); otherCallers != nil {
			f.Errorf("%d candidates of another question", len(otherCallers))
		}
		client.ZAdd(f.Context(), candidatesName(cache.NewKey("forged")), redis.Z{Score: 1, Member: fmt.Sprintf("%x", cache.NewKey("page", "11"))})
		if _, otherCallers := b.Candidates(f.Context(), page, cache.NewKey("forged")); otherCallers != nil {
			f.Errorf("%d candidates of another question from a forged list", len(otherCallers))
		}
		if _, otherCallers := b.Candidates(f.Context(), page, cache.Key{}); otherCallers != nil {
			f.Errorf("%d candidates without a base key", len(otherCallers))
		}

		client.ZAdd(f.Context(), candidatesName(base), redis.Z{Score: 2e15, Member: "not a key"}, redis.Z{Score: 3e15, Member: strings.Repeat("07", 33)})
		if n := len(b.shared.CandidateKeys(f.Context(), base)); n != maxCandidates-2 {
			f.Errorf("%d keys are valid", n)
		}
		a.PurgeHard(f.Context(), "repo:o/r")
		if _, otherCallers := a.Candidates(f.Context(), page, base); len(otherCallers) != 0 {
			f.Errorf("%d removed candidates", len(otherCallers))
		}

		client.Set(f.Context(), candidatesName(base), "of another type", 0)
		a.Candidates(f.Context(), page, base)
		n := client.Exists(f.Context(), candidatesName(base)).Val()
		failIf(f, n != 0 || a.shared.skipUntil.Load() > time.Now().UnixNano(), "keys of another type after a read: %d", n)
	})
}

// A response whose fetch began before a purge neither replaces nor hides a response that was fetched
// after the purge.
func TestResponseFromBeforeAPurgeDoesNotReplaceNewerResponse(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.pair()
		before := a.Generation()
		a.Purge(f.Context(), "repo:o/r")
		after := fetched(a.Generation(), "after", "repo:o/r")
		a.Put(f.Context(), page, after)

		late := fetched(before, "before", "repo:o/r")
		late.Answered = late.Answered.Add(time.Minute) // the clock of the replica runs fast
		b.Memory.Put(page, late)
		b.shared.Put(f.Context(), page, late)
		if body, purged := f.open("").holds(nil); body != "after" || purged {
			f.Errorf("another replica has %q, purged %v", body, purged)
		}
		f.eventually("the purge is applied", func() bool { return b.Generation() >= after.Since })
		body, purged := b.holds(nil)
		failIf(f, body != "after" || purged, "the replica with the late response has %q, purged %v", body, purged)
	})
}
