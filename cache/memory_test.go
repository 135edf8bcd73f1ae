package cache

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); testservers.NoError(t, err) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

func TestMain(m *testing.M) { testservers.Main(m) }

// put stores an entry with this body under a key and returns the entry.
func put(m *Memory, key Key, body string, change func(*Entry)) *Entry {
	e := NewEntry(response(200), []byte(body), time.Hour)
	e.Since = m.Generation()
	e.Answered = time.Now()
	if change != nil {
		change(e)
	}
	m.Put(key, e)
	return e
}

// newStore returns a store with a small memory and a shared tier, which may be nil.
func newStore(shared Shared) *Store { return NewStore(NewMemory(1<<20), shared) }

// find returns the body of an entry, or "", and reports whether the entry was purged.
func (m *Memory) find(key Key, fields ...string) (body string, purged bool) {
	e, purged := m.Lookup(key, header(fields...))
	if e == nil {
		return "", false
	}
	return string(e.Body), purged
}

// forLanguage returns a change for put.
func forLanguage(language string, tags ...string) func(*Entry) {
	return func(e *Entry) { e.Vary, e.Tags = []Field{{"Accept-Language", language, false}}, tags }
}

// memoryFor returns a tier with a memory budget for the given number of entries without body.
func memoryFor(entries int) *Memory {
	m := NewMemory(1 << 20)
	m.maxBytes = uint64(entries) * entryOverhead
	return m
}

func (m *Memory) has(key Key) bool { return m.variants.Contains(key) } // Lookup would mark the key as used

func TestMemoryKeepsVariantsApart(t *testing.T) {
	m, key := NewMemory(1<<20), NewKey("a")
	put(m, key, "alt", forLanguage("de"))
	put(m, key, "vieux", forLanguage("fr"))
	put(m, key, "neu", forLanguage("de"))
	for language, want := range map[string]string{"Accept-Language: de": "neu", "Accept-Language: fr": "vieux", "Accept: de": ""} {
		body, _ := m.find(key, language)
		failIf(t, body != want, "%s: got %q, want %q", language, body, want)
	}
}

func TestMemoryBoundsVariantsOfOneKey(t *testing.T) {
	m := NewMemory(1 << 20)
	key := NewKey("a")
	for i := range 10 * maxVariants {
		put(m, key, "x", forLanguage(fmt.Sprint(i)))
	}
	list := m.get(key)
	failIf(t, len(list) != maxVariants, "%d variants", len(list))
}

// A client chooses the values of the fields that select an entry, so their length must count.
func TestMemoryCountsVaryValuesInTheSize(t *testing.T) {
	m := NewMemory(1 << 20)
	value := strings.Repeat("x", 30<<10)
	for i := range 100 {
		put(m, NewKey(fmt.Sprint(i)), "", forLanguage(value))
	}
	keys, _ := m.Size()
	failIf(t, keys > 1<<20/len(value), "%d entries with values of %d bytes fit into 1 MiB", keys, len(value))
}

func TestMemoryEvictsTheLeastRecentlyUsedKey(t *testing.T) {
	m := memoryFor(3)
	keys := []Key{NewKey("a"), NewKey("b"), NewKey("c"), NewKey("d")}
	for _, key := range keys[:3] {
		put(m, key, "", nil)
	}
	m.Lookup(keys[0], nil)
	put(m, keys[3], "", nil)
	for i, want := range []bool{true, false, true, true} {
		failIf(t, m.has(keys[i]) != want, "key %d: got stored %v, want %v", i, !want, want)
	}
}

func TestPutRemovesEntriesWhoseRetentionEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(1 << 20)
		for i := range 50 {
			put(m, NewKey(fmt.Sprint(i)), "", nil)
		}
		put(m, NewKey("long-lived"), "", func(e *Entry) { e.Lifetime = 10 * time.Hour })
		time.Sleep(time.Hour + retention + 2*time.Second)
		put(m, NewKey("another"), "", nil)
		keys, _ := m.Size()
		failIf(t, keys != 2, "%d keys are stored", keys)
	})
}

func TestLookupFindsAnEntryWhileItIsReplaced(t *testing.T) {
	m, key := NewMemory(1<<20), NewKey("a")
	put(m, key, "", nil)
	var readers sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if e, _ := m.Lookup(key, nil); e == nil {
					t.Error("no entry found")
					return
				}
			}
		})
	}
	for range 5000 {
		put(m, key, "", nil)
	}
	close(done)
	readers.Wait()
}

// TestMemoryIsAMapWithEviction compares the tier with a map, and the reported size with the stored entries.
func TestMemoryIsAMapWithEviction(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := memoryFor(rapid.IntRange(1, 6).Draw(t, "entries"))
		latest := map[Key]string{}
		key := rapid.Map(rapid.IntRange(0, 12), func(i int) Key { return NewKey(fmt.Sprint(i)) })
		tag := rapid.SampledFrom([]string{"x", "y"})
		body := func(t *rapid.T) string {
			return strings.Repeat(rapid.StringN(1, 1, 1).Draw(t, "letter"), rapid.IntRange(0, 3000).Draw(t, "size"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				k, text := key.Draw(t, "key"), body(t)
				e := put(m, k, text, func(e *Entry) { e.Tags = []string{tag.Draw(t, "tag")} })
				latest[k] = text
				found, _ := m.Lookup(k, nil)
				if fits := weight([]*Entry{e}) <= m.maxBytes; (found != nil) != fits {
					t.Fatalf("fits: %v, found: %v", fits, found != nil)
				}
			},
			"lookup": func(t *rapid.T) {
				k := key.Draw(t, "key")
				if e, _ := m.Lookup(k, nil); e != nil && string(e.Body) != latest[k] {
					t.Fatalf("found %q, want %q", e.Body, latest[k])
				}
			},
			"delete": func(t *rapid.T) {
				k := key.Draw(t, "key")
				m.Delete(k)
				if e, _ := m.Lookup(k, nil); e != nil {
					t.Fatal("an entry was found after Delete")
				}
			},
			"purge": func(t *rapid.T) {
				which := tag.Draw(t, "tag")
				if n := m.Count(which); n != m.ApplyPurge(Purge{Tags: []string{which}, Hard: true}, 0) || m.Count(which) != 0 {
					t.Fatalf("not all of the %d entries were removed", n)
				}
			},
			"": func(t *rapid.T) {
				bytes := uint64(0)
				for _, list := range m.variants.Values() {
					bytes += weight(list)
				}
				if keys, size := m.Size(); keys != m.variants.Len() || size != bytes || bytes > m.maxBytes {
					t.Fatalf("got size %d keys, %d bytes; want %d keys, %d bytes, at most %d", keys, size, m.variants.Len(), bytes, m.maxBytes)
				}
			},
		})
	})
}

func BenchmarkLookup(b *testing.B) {
	m := NewMemory(1 << 20)
	key := NewKey("a")
	put(m, key, "body", func(e *Entry) { e.Tags = []string{"op:x", "url:/x", "x/1", "repo:o/r", "org:o"} })
	h := header("Accept: application/json")
	b.ReportAllocs()
	for b.Loop() {
		if e, _ := m.Lookup(key, h); e == nil {
			b.Fatal("entry lost")
		}
	}
}
