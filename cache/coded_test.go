package cache

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/contentcoding"
)

var gzipCoding = contentcoding.Select([]string{"gzip"})

// textEntry returns a fresh entry with a compressible body.
func textEntry(text string) *Entry {
	return &Entry{Status: 200, Header: header("Content-Type: text/plain"), Body: []byte(strings.Repeat(text, 1000)), Lifetime: time.Hour, Answered: time.Now()}
}

func TestCodedBodyIsKeptWithinTheBoundOfTheMemory(t *testing.T) {
	m := NewMemory(1 << 20)
	key := NewKey("a")
	m.Put(key, textEntry("text"))
	e, _ := m.Lookup(key, nil)
	_, before := m.Size()
	body := m.Coded(key, e, gzipCoding)
	if decoded := contentcoding.Decode("gzip", body, 1<<20); !bytes.Equal(decoded, e.Body) {
		t.Errorf("the coded body decodes to %d bytes, want %d", len(decoded), len(e.Body))
	}
	if _, after := m.Size(); after != before+uint64(len(body)) {
		t.Errorf("size %d, want %d and %d bytes", after, before, len(body))
	}
	kept, _ := m.Lookup(key, nil)
	if again := m.Coded(key, kept, gzipCoding); &again[0] != &body[0] {
		t.Error("the body was encoded again")
	}
	m.Coded(key, kept, contentcoding.Select([]string{"zstd"}))
	if kept, _ = m.Lookup(key, nil); len(kept.Coded) != 2 {
		t.Errorf("%d codings are kept, want 2", len(kept.Coded))
	}
	renewed := kept.Validated(response(304, "Date: Mon, 12 Jan 1970 13:46:40 GMT"))
	if again := m.Coded(key, renewed, gzipCoding); &again[0] != &body[0] {
		t.Error("the body was encoded again after a 304")
	}
	m.Put(key, renewed)
	m.Delete(key)
	if keys, size := m.Size(); keys != 0 || size != 0 {
		t.Errorf("%d keys and %d bytes remain", keys, size)
	}
}

// A coded body evicts other entries, but not its own.
func TestCodedBodyObservesTheBound(t *testing.T) {
	const bound = 64 << 10
	m := NewMemory(bound)
	for i := range 100 {
		key := NewKey("a", strconv.Itoa(i))
		m.Put(key, textEntry(strconv.Itoa(i)))
		e, _ := m.Lookup(key, nil)
		m.Coded(key, e, gzipCoding)
		if _, size := m.Size(); size > bound {
			t.Fatalf("%d bytes, want at most %d", size, bound)
		}
		if e, _ := m.Lookup(key, nil); e == nil || e.Coded == nil {
			t.Fatal("the entry was evicted by its own coded body")
		}
	}
	full, key := textEntry(strings.Repeat("x", 60)), NewKey("full")
	full.Body = full.Body[:60<<10-entryOverhead-30]
	m.Put(key, full)
	stored, _ := m.Lookup(key, nil)
	m.Coded(key, stored, gzipCoding)
	if e, _ := m.Lookup(key, nil); e != stored {
		t.Error("a coded body without space replaced its entry")
	}
}

// An entry that was replaced while its body was encoded does not return.
func TestCodedBodyOfReplacedEntryIsNotKept(t *testing.T) {
	m := NewMemory(1 << 20)
	key := NewKey("a")
	first, second := textEntry("first"), textEntry("second")
	m.Put(key, first)
	first, _ = m.Lookup(key, nil)
	m.Put(key, second)
	second, _ = m.Lookup(key, nil)
	if decoded := contentcoding.Decode("gzip", m.Coded(key, first, gzipCoding), 1<<20); !bytes.Equal(decoded, first.Body) {
		t.Error("the coded body belongs to another entry")
	}
	if e, _ := m.Lookup(key, nil); e != second {
		t.Error("the replaced entry is stored again")
	}
}

func TestConcurrentCallsGetTheirOwnCodedBody(t *testing.T) {
	m := NewMemory(1 << 20)
	var calls sync.WaitGroup
	for i := range 50 {
		calls.Go(func() {
			key := NewKey("a", strconv.Itoa(i%5))
			own := textEntry(strconv.Itoa(i))
			m.Put(key, own)
			e, _ := m.Lookup(key, nil)
			for _, e := range []*Entry{own, e} {
				if decoded := contentcoding.Decode("gzip", m.Coded(key, e, gzipCoding), 1<<20); !bytes.Equal(decoded, e.Body) {
					t.Error("the coded body belongs to another entry")
				}
			}
		})
	}
	calls.Wait()
}

// Replicas do not share a packed body, and its capacity counts.
func TestPackedEntryStaysInMemory(t *testing.T) {
	s, key := newStore(&stream{}), NewKey("a")
	e := textEntry("text")
	e.Packed, e.Unpacked, e.Body = append(make([]byte, 0, 4000), gzipCoding.Encode(e.Body)...), int64(len(e.Body)), nil
	s.Put(t.Context(), key, e, func(shared bool) {
		if shared {
			t.Error("the entry is shared")
		}
	})
	if _, size := s.Size(); size != weight([]*Entry{{Header: e.Header}})+uint64(cap(e.Packed)) {
		t.Errorf("size %d with the capacity %d", size, cap(e.Packed))
	}
	if head := (&http.Response{ContentLength: 4000}); e.Differs(head) || e.SameBody(textEntry("text")) {
		t.Error("the entry has another length, or the body of another entry")
	}
}
