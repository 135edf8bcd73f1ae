package cache

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// tagged returns a change for put.
func tagged(tags ...string) func(*Entry) { return func(e *Entry) { e.Tags = tags } }

// heap returns the bytes of the heap in use.
func heap() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

func TestPurgeMakesEntriesWithTheTagStale(t *testing.T) {
	m := NewMemory(1 << 20)
	widgets, other := NewKey("widgets"), NewKey("other")
	purged := func(key Key) bool { _, p := m.Lookup(key, nil); return p }

	put(m, widgets, "1", tagged("org:acme", "repo:acme/widgets"))
	put(m, other, "1", tagged("org:acme", "repo:acme/other"))
	began := m.Generation()
	late := func(e *Entry) { e.Tags = []string{"repo:acme/widgets"}; e.Since = began }
	m.ApplyPurge(Purge{Tags: []string{"repo:acme/widgets"}}, 0)
	failIf(t, !purged(widgets) || purged(other), "the wrong entry was purged")
	put(m, widgets, "2", late)
	failIf(t, !purged(widgets), "a fetch that began before the purge is fresh")
	put(m, widgets, "3", tagged("repo:acme/widgets"))
	failIf(t, purged(widgets), "a fetch that began after the purge is stale")
	put(m, widgets, "late", late)
	e, p := m.Lookup(widgets, nil)
	failIf(t, p || string(e.Body) != "3", "%q replaced an entry that was fetched after the purge", e.Body)
}

// A response that is fetched while a change may still happen is stale, also later.
func TestResponsesFetchedDuringAnUnsettledChangeStayStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(nil)
		key, other := NewKey("a"), NewKey("b")
		purged := func(key Key) bool { _, p := s.Memory.Lookup(key, nil); return p }
		fetch := func(key Key, tag string) {
			began := s.BeginFetch(func() []string { return []string{tag} })
			s.Memory.Delete(key)
			put(s.Memory, key, "x", func(e *Entry) { e.Tags = []string{tag}; e.Began(began) })
		}
		s.PurgeUnsettled(t.Context(), 10*time.Second, CauseWrite, "changing")
		time.Sleep(9 * time.Second)
		fetch(key, "changing")
		fetch(other, "unchanged")
		time.Sleep(time.Minute)
		failIf(t, !purged(key) || purged(other), "during the change: the wrong response is stale")
		fetch(key, "changing")
		failIf(t, purged(key), "after the change: the response is stale")
		s.PurgeUnsettled(t.Context(), 10*time.Second, CauseWrite, make([]string, maxUnsettled+1)...)
		fetch(key, "any tag")
		failIf(t, !purged(key), "beyond the bound: the response is fresh")
		time.Sleep(10 * time.Second)
		fetch(key, "any tag")
		failIf(t, purged(key), "after the changes beyond the bound: the response is stale")
	})
}

// Changes that never pause must not fill the list with changes that have ended.
func TestEndedChangesLeaveOtherResponsesFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(nil)
		for batch := range maxUnsettled/100 + 10 {
			tags := make([]string, 100)
			for i := range tags {
				tags[i] = fmt.Sprint(batch, "/", i)
			}
			s.PurgeUnsettled(t.Context(), 10*time.Second, CauseWrite, tags...)
			time.Sleep(time.Second)
		}
		began := s.BeginFetch(func() []string { return []string{"unchanged"} })
		failIf(t, began.Suspect != "", "a response without an unsettled change is stale")
		n := len(s.unsettled.changes)
		failIf(t, n > maxUnsettled, "%d tags, want at most %d", n, maxUnsettled)
	})
}

func TestPurgeHardRemovesEntriesWithTheTag(t *testing.T) {
	m := NewMemory(1 << 20)
	before := m.Generation()
	put(m, NewKey("a"), "one", forLanguage("de", "x"))
	put(m, NewKey("a"), "two", forLanguage("fr", "y"))
	put(m, NewKey("b"), "three", forLanguage("de", "x"))
	counted, removed := m.Count("x"), m.ApplyPurge(Purge{Tags: []string{"x"}, Hard: true}, 0)
	failIf(t, counted != 2 || removed != 2, "%d entries have the tag, and %d were removed; want 2", counted, removed)
	for _, key := range []Key{NewKey("a"), NewKey("b")} {
		body, _ := m.find(key, "Accept-Language: de")
		failIf(t, body != "", "%q was not removed", body)
	}
	if body, purged := m.find(NewKey("a"), "Accept-Language: fr"); body != "two" || purged {
		t.Error("a variant without the tag was purged")
	}
	put(m, NewKey("b"), "late", func(e *Entry) { e.Tags, e.Since = []string{"x"}, before })
	_, purged := m.find(NewKey("b"))
	failIf(t, !purged, "a fetch that began before the purge is fresh")
}

func TestPurgesOfOtherTagsLeaveAnEntryFresh(t *testing.T) {
	m := NewMemory(1 << 20)
	fetchBegan := m.Generation()
	put(m, NewKey("a"), "", tagged("org:acme", "repo:acme/widgets"))
	before := heap()
	for i := range 1_000_000 {
		m.ApplyPurge(Purge{Tags: []string{fmt.Sprint("url:/repos/acme/other/issues/", i)}}, 0)
	}
	if _, purged := m.Lookup(NewKey("a"), nil); purged {
		t.Error("the entry is stale after purges of other tags")
	}
	grown := int64(heap()) - int64(before)
	failIf(t, grown > 40<<20, "the heap grew by %d bytes", grown)
	failIf(t, !m.Purged([]string{"url:/repos/acme/other/issues/0"}, fetchBegan), "a fetch that began before a forgotten purge of its tag is fresh")
	failIf(t, m.Purged([]string{"never"}, m.Generation()), "a fetch that began after the purges is stale")
	m.ApplyPurge(Purge{Tags: []string{"repo:acme/widgets"}}, 0)
	_, purged := m.Lookup(NewKey("a"), nil)
	failIf(t, !purged, "the entry is fresh after a purge of its tag")
}

func TestPurgesAreForgottenAfterADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(1 << 20)
		since := m.Generation()
		for i := range 100 {
			m.ApplyPurge(Purge{Tags: []string{fmt.Sprint("first ", i)}}, 0)
		}
		for day := range 3 {
			time.Sleep(purgedFor + time.Second)
			m.ApplyPurge(Purge{Tags: []string{"x"}}, 0)
			got, want := len(m.record.recent.last)+len(m.record.older.last), []int{101, 2, 2}[day]
			failIf(t, got != want, "%d purges are recorded, want %d", got, want)
			failIf(t, !m.Purged([]string{"first 7"}, since), "a fetch that began before the purge is fresh")
		}
	})
}

// TestPurgedEntriesAreNeverFresh compares a small memory with a list of all purges. Entries are evicted, replaced and
// stored long after their fetch began.
func TestPurgedEntriesAreNeverFresh(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := memoryFor(rapid.IntRange(1, 8).Draw(t, "entries"))
		m.maxBytes *= 2 // for the tags
		m.record.maxTags = 4
		key := rapid.Map(rapid.IntRange(0, 12), func(i int) Key { return NewKey(fmt.Sprint(i)) })
		name := rapid.Map(rapid.IntRange(0, 20), func(i int) string { return fmt.Sprint("tag ", i) })
		type model struct {
			tags         []string
			since        Generation
			beyondRecord bool // more purges followed the start of the fetch than the record contains
		}
		entries, last, lost := map[Key]model{}, map[string]Generation{}, m.Generation()
		purgedSince := func(tags []string, since Generation) bool {
			for _, tag := range tags {
				if last[tag] > since {
					return true
				}
			}
			return since < lost
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				k, tags := key.Draw(t, "key"), rapid.SliceOfN(name, 0, 4).Draw(t, "tags")
				since := m.Generation() - Generation(rapid.IntRange(0, int(m.Generation())).Draw(t, "purges during the fetch"))
				if _, stored := entries[k]; stored && m.has(k) && entries[k].since > since {
					return // Put keeps the present entry
				}
				put(m, k, "", func(e *Entry) { e.Tags, e.Since = tags, since })
				entries[k] = model{tags: slices.Compact(slices.Sorted(slices.Values(tags))), since: since, beyondRecord: m.Generation()-since > Generation(m.record.maxTags)}
			},
			"purge": func(t *rapid.T) {
				tag := name.Draw(t, "tag")
				m.ApplyPurge(Purge{Tags: []string{tag}}, 0)
				last[tag] = m.Generation()
			},
			"purge hard": func(t *rapid.T) {
				tag := name.Draw(t, "tag")
				n := m.Count(tag)
				if removed := m.ApplyPurge(Purge{Tags: []string{tag}, Hard: true}, 0); removed != n || m.Count(tag) != 0 {
					t.Fatalf("%d entries removed, want %d", removed, n)
				}
				last[tag] = m.Generation()
			},
			"lose purges": func(t *rapid.T) {
				m.PurgeUntil(m.Generation() + 1)
				lost = m.Generation()
			},
			"": func(t *rapid.T) {
				used := map[string]int{}
				for k, want := range entries {
					if !m.has(k) {
						continue
					}
					e, purged := m.Lookup(k, nil)
					if must := purgedSince(want.tags, want.since); must && !purged {
						t.Fatalf("%v of generation %d is fresh after a purge", e.Tags, e.Since)
					} else if purged && !must && !want.beyondRecord {
						t.Fatalf("%v of generation %d is stale without a purge", e.Tags, e.Since)
					}
					for _, tag := range want.tags {
						used[tag]++
					}
				}
				for tag, n := range used {
					if got := m.Count(tag); got != n {
						t.Fatalf("%d entries have %q, want %d", got, tag, n)
					}
				}
				if len(m.tags) != len(used) {
					t.Fatalf("%d tags are kept, want %d", len(m.tags), len(used))
				}
			},
		})
	})
}

// BenchmarkPurge purges a tag of 100,000 entries.
func BenchmarkPurge(b *testing.B) {
	m := NewMemory(1 << 30)
	for i := range 100_000 {
		put(m, NewKey(fmt.Sprint(i)), "", tagged(fmt.Sprint("url:/", i), "repo:acme/widgets"))
	}
	b.ReportAllocs()
	for b.Loop() {
		m.ApplyPurge(Purge{Tags: []string{"repo:acme/widgets"}}, 0)
	}
}
