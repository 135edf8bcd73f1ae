package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/testservers"
)

// TestWhatOthersHold: a replica finds what another has fetched for another caller,
// of a bounded number of them, and not what was dropped.
func TestWhatOthersHold(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b, client := f.open(""), f.open(""), f.client()
		defer func() { _ = client.Close() }()
		about := cache.NewKey("the page, whoever asks")
		for i := range 12 {
			key := cache.NewKey("page", fmt.Sprint(i))
			e := fetched(a.Generation(), fmt.Sprint("text ", i), "repo:o/r")
			e.BaseKey = about
			a.Put(f.Context(), key, e)
		}
		if n := client.ZCard(f.Context(), holdersName(about)).Val(); n != maxHolders {
			f.Errorf("%d keys are noted, want %d", n, maxHolders)
		}
		if lives := client.TTL(f.Context(), holdersName(about)).Val(); lives <= 0 {
			f.Errorf("they live for %v", lives)
		}
		_, others := b.Candidates(f.Context(), page, about)
		if len(others) != 2 {
			f.Errorf("%d entries of others, want those of the newest two", len(others))
		}
		if _, others := b.Candidates(f.Context(), page, cache.NewKey("another question")); others != nil {
			f.Errorf("%d entries about another question", len(others))
		}
		client.ZAdd(f.Context(), holdersName(cache.NewKey("forged")), redis.Z{Score: 1, Member: fmt.Sprintf("%x", cache.NewKey("page", "11"))})
		if _, others := b.Candidates(f.Context(), page, cache.NewKey("forged")); others != nil {
			f.Errorf("%d entries that are about another question", len(others))
		}
		if _, others := b.Candidates(f.Context(), page, cache.Key{}); others != nil {
			f.Errorf("%d entries about nothing", len(others))
		}

		client.ZAdd(f.Context(), holdersName(about), redis.Z{Score: 2e15, Member: "not a key"}, redis.Z{Score: 3e15, Member: strings.Repeat("07", 33)})
		if n := len(b.shared.CandidateKeys(f.Context(), about)); n != maxHolders-2 {
			f.Errorf("%d keys are read", n)
		}
		a.PurgeHard(f.Context(), "repo:o/r")
		if _, others := a.Candidates(f.Context(), page, about); len(others) != 0 {
			f.Errorf("%d entries that were dropped", len(others))
		}

		client.Set(f.Context(), holdersName(about), "of another type", 0)
		a.Candidates(f.Context(), page, about)
		if n := client.Exists(f.Context(), holdersName(about)).Val(); n != 0 || a.shared.resting.Load() > time.Now().UnixNano() {
			f.Errorf("a key of another type: it is kept: %d", n)
		}
	})
}

// TestAttack29WhatIsNewerStays: an answer whose fetch began before a purge does not take the
// place of one that knows of it, nor does it hide it.
func TestAttack29WhatIsNewerStays(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.open(""), f.open("")
		before := a.Generation()
		a.Purge(f.Context(), "repo:o/r")
		after := fetched(a.Generation(), "after", "repo:o/r")
		a.Put(f.Context(), page, after)

		late := fetched(before, "before", "repo:o/r")
		late.Answered = late.Answered.Add(time.Minute) // by a clock that is ahead
		b.Memory.Put(page, late)
		b.shared.Put(f.Context(), page, late)
		if body, purged := f.open("").holds(nil); body != "after" || purged {
			f.Errorf("all: %q, purged %v", body, purged)
		}
		testservers.Eventually(f, "the purge is known", func(context.Context) bool { return b.Generation() >= after.Since })
		if body, purged := b.holds(nil); body != "after" || purged {
			f.Errorf("who has the late one: %q, purged %v", body, purged)
		}
	})
}
