package cache

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// room is a tier that holds so many small entries.
func room(entries int) *Memory {
	m := NewMemory(1 << 20)
	m.most = uint64(entries) * uint64(newHeld(Key{}, []*Entry{NewEntry(answer(200), nil, time.Hour)}).weight)
	return m
}

func (m *Memory) has(key Key) bool { return m.find(key.short()) != nil } // Lookup would use it

// TestWhatIsUsedStays: what was used since the hand passed outlives what was not, once.
func TestWhatIsUsedStays(t *testing.T) {
	m := room(4)
	keys := make([]Key, 8)
	for i := range keys {
		keys[i] = NewKey(fmt.Sprint(i))
	}
	want := func(held ...int) {
		t.Helper()
		found := []int{}
		for i, key := range keys {
			if m.has(key) {
				found = append(found, i)
			}
		}
		if fmt.Sprint(found) != fmt.Sprint(held) {
			t.Errorf("held are %v, want %v", found, held)
		}
	}
	for _, key := range keys[:4] {
		kept(m, key, "", nil)
	}
	m.Lookup(keys[0], nil)
	m.Lookup(keys[2], nil)
	kept(m, keys[4], "", nil)
	want(0, 2, 3, 4) // the hand has passed 0
	kept(m, keys[5], "", nil)
	want(0, 2, 4, 5) // and 2
	kept(m, keys[6], "", nil)
	want(0, 2, 5, 6)
	m.Lookup(keys[6], nil)
	m.Lookup(keys[0], nil)
	kept(m, keys[5], "", nil) // anew: it was asked for again, and is the newest
	kept(m, keys[7], "", nil)
	want(0, 5, 6, 7) // the hand has passed 6, 5 and 0, and begun over again
}

// TestWhatHasHadItsTimeGoes though there is room.
func TestWhatHasHadItsTimeGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(1 << 20)
		const n = 50
		kept(m, NewKey("lasting"), "", func(e *Entry) { e.Lifetime = 10 * time.Hour })
		for i := range n {
			kept(m, NewKey(fmt.Sprint(i)), "", nil)
		}
		time.Sleep(time.Hour + retention + 2*time.Second)
		for range n/sweepEach + 2 {
			kept(m, NewKey("another"), "", nil)
		}
		if keys, _ := m.Size(); keys != 2 {
			t.Errorf("%d are held", keys)
		}
	})
}

// TestWhatIsReplacedIsLetGo though another variant stays: what is held now must not lead to
// what was held before.
func TestWhatIsReplacedIsLetGo(t *testing.T) {
	m, key := NewMemory(64<<20), NewKey("a")
	body := strings.Repeat("x", 1<<20)
	for i := range 200 {
		kept(m, key, body, func(e *Entry) {
			e.fields, e.Vary = newFields(header(`Etag: "1"`)), []Field{{"Accept-Language", fmt.Sprint(i % 2), false}}
		})
	}
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	if all := m.at(key).list(); len(all) != 2 || memory.HeapAlloc > 32<<20 {
		t.Errorf("%d variants of a megabyte, and %d bytes are in use", len(all), memory.HeapAlloc)
	}
}

// TestFieldsOfAnySizeAreHeld: in the piece that holds the entry or beside it, of the newest and of
// those that Vary keeps apart, and of what was held before.
func TestFieldsOfAnySizeAreHeld(t *testing.T) {
	for size := range 600 {
		m, key := NewMemory(1<<20), NewKey("a")
		value := func(variant int) string { return strings.Repeat(fmt.Sprint(variant), size) }
		for i := range 3 {
			e := NewEntry(answer(200, "Link: "+value(i)), nil, time.Hour)
			e.Vary = []Field{{"Accept-Language", fmt.Sprint(i), false}}
			m.Put(key, e)
		}
		for i := range 3 {
			e, _ := m.Lookup(key, http.Header{"Accept-Language": {fmt.Sprint(i)}})
			if e == nil || e.Field("Link") != value(i) {
				t.Fatalf("of %d bytes: %+v", size, e)
			}
		}
	}
}

// TestWhatIsReplacedIsFoundAllTheWhile: the one or the other.
func TestWhatIsReplacedIsFoundAllTheWhile(t *testing.T) {
	m, key := NewMemory(1<<20), NewKey("a")
	kept(m, key, "", nil)
	var looking sync.WaitGroup
	ended := make(chan struct{})
	for range 4 {
		looking.Go(func() {
			for found := true; found; {
				select {
				case <-ended:
					return
				default:
				}
				e, _ := m.Lookup(key, nil)
				if found = e != nil; !found {
					t.Error("nothing is there")
				}
			}
		})
	}
	for range 5000 {
		kept(m, key, "", nil)
	}
	close(ended)
	looking.Wait()
}

// TestKeysThatAreNearlyAlike take each other's place, and are never taken for each other.
func TestKeysThatAreNearlyAlike(t *testing.T) {
	m, one := NewMemory(1<<20), NewKey("a")
	other := one
	other[len(other)-1]++
	kept(m, one, "one", nil)
	if e, _ := m.Lookup(other, nil); e != nil {
		t.Errorf("got %q", e.Body)
	}
	kept(m, other, "other", nil)
	if e, _ := m.Lookup(one, nil); e != nil {
		t.Errorf("got %q", e.Body)
	}
	if e, _ := m.Lookup(other, nil); e == nil || string(e.Body) != "other" {
		t.Errorf("got %+v", e)
	}
	m.Delete(one)
	if keys, _ := m.Size(); keys != 1 {
		t.Errorf("%d are held", keys)
	}
}

// TestMemoryIsAMapThatForgets: whatever is done, what is found is what was kept last, and
// what is held is within the bound, on the shelves and in the order alike.
func TestMemoryIsAMapThatForgets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := room(rapid.IntRange(1, 6).Draw(t, "room"))
		latest := map[Key]string{}
		key := rapid.Map(rapid.IntRange(0, 12), func(i int) Key { return NewKey(fmt.Sprint(i)) })
		tag := rapid.SampledFrom([]string{"x", "y"})
		body := func(t *rapid.T) string {
			return strings.Repeat(rapid.StringN(1, 1, 1).Draw(t, "letter"), rapid.IntRange(0, 3000).Draw(t, "size"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"keep": func(t *rapid.T) {
				k, text := key.Draw(t, "key"), body(t)
				e := kept(m, k, text, func(e *Entry) { e.Tag(tag.Draw(t, "tag")) })
				latest[k] = text
				found, _ := m.Lookup(k, nil)
				if fits := uint64(newHeld(k, []*Entry{e}).weight) <= m.most; (found != nil) != fits {
					t.Fatalf("it fits: %v; it is there: %v", fits, found != nil)
				}
			},
			"look": func(t *rapid.T) {
				k := key.Draw(t, "key")
				if e, _ := m.Lookup(k, nil); e != nil && string(e.Body) != latest[k] {
					t.Fatalf("found %q, want %q", e.Body, latest[k])
				}
			},
			"forget": func(t *rapid.T) {
				k := key.Draw(t, "key")
				m.Delete(k)
				if e, _ := m.Lookup(k, nil); e != nil {
					t.Fatal("it is still there")
				}
			},
			"drop": func(t *rapid.T) {
				which := tag.Draw(t, "tag")
				if n := m.Count(which); n != m.PurgeHard(which) || m.Count(which) != 0 {
					t.Fatalf("of %d not all are dropped", n)
				}
			},
			"": func(t *rapid.T) { consistent(t, m) },
		})
	})
}

// consistent checks what must hold of a tier at any time.
func consistent(t *rapid.T, m *Memory) {
	before := uint32(0)
	count, weight := 0, uint64(0)
	for h := range m.order.all {
		if m.find(h.key.short()) != h || m.order.nodes[h.place].older != before {
			t.Fatal("the order has what is not held, or has lost its way back")
		}
		count, weight, before = count+1, weight+uint64(h.weight), h.place
	}
	for _, hand := range []uint32{m.order.hand, m.order.broom} {
		if hand != 0 && m.order.nodes[hand].held == nil {
			t.Fatal("what is gone is looked at")
		}
	}
	spare := 0
	for place := m.order.spare; place != 0; place = m.order.nodes[place].newer {
		if spare++; m.order.nodes[place].held != nil {
			t.Fatal("what is gone is held on to")
		}
	}
	if 1+count+spare != len(m.order.nodes) {
		t.Fatalf("of %d places %d are in use, and %d spare", len(m.order.nodes), count, spare)
	}
	shelved := 0
	for i := range m.shelves {
		shelved += len(m.shelves[i].held)
	}
	if keys, bytes := m.Size(); keys != count || bytes != weight || shelved != count || before != m.order.nodes[0].older || weight > m.most {
		t.Fatalf("says %d keys of %d bytes, has %d of %d, on shelves %d; the most are %d bytes", keys, bytes, count, weight, shelved, m.most)
	}
}
