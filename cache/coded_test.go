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
	decoded := contentcoding.Decode("gzip", body, 1<<20)
	failIf(t, !bytes.Equal(decoded, e.Body), "the coded body decodes to %d bytes, want %d", len(decoded), len(e.Body))
	_, after := m.Size()
	failIf(t, after != before+uint64(len(body)), "size %d, want %d and %d bytes", after, before, len(body))
	kept, _ := m.Lookup(key, nil)
	if again := m.Coded(key, kept, gzipCoding); &again[0] != &body[0] {
		t.Error("the body was encoded again")
	}
	m.Coded(key, kept, contentcoding.Select([]string{"zstd"}))
	kept, _ = m.Lookup(key, nil)
	failIf(t, len(kept.Coded) != 2, "%d codings are kept, want 2", len(kept.Coded))
	renewed := kept.Validated(response(304, "Date: Mon, 12 Jan 1970 13:46:40 GMT"))
	again := m.Coded(key, renewed, gzipCoding)
	failIf(t, &again[0] != &body[0], "the body was encoded again after a 304")
	m.Put(key, renewed)
	m.Delete(key)
	keys, size := m.Size()
	failIf(t, keys != 0 || size != 0, "%d keys and %d bytes remain", keys, size)
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
		_, size := m.Size()
		stopIf(t, size > bound, "%d bytes, want at most %d", size, bound)
		if e, _ := m.Lookup(key, nil); e == nil || e.Coded == nil {
			t.Fatal("the entry was evicted by its own coded body")
		}
	}
	full, key := textEntry(strings.Repeat("x", 60)), NewKey("full")
	full.Body = full.Body[:60<<10-entryOverhead-30]
	m.Put(key, full)
	stored, _ := m.Lookup(key, nil)
	m.Coded(key, stored, gzipCoding)
	e, _ := m.Lookup(key, nil)
	failIf(t, e != stored, "a coded body without space replaced its entry")
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
	decoded := contentcoding.Decode("gzip", m.Coded(key, first, gzipCoding), 1<<20)
	failIf(t, !bytes.Equal(decoded, first.Body), "the coded body belongs to another entry")
	e, _ := m.Lookup(key, nil)
	failIf(t, e != second, "the replaced entry is stored again")
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
				decoded := contentcoding.Decode("gzip", m.Coded(key, e, gzipCoding), 1<<20)
				failIf(t, !bytes.Equal(decoded, e.Body), "the coded body belongs to another entry")
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
		failIf(t, shared, "the entry is shared")
	})
	_, size := s.Size()
	failIf(t, size != weight([]*Entry{{Header: e.Header}})+uint64(cap(e.Packed)), "size %d with the capacity %d", size, cap(e.Packed))
	head := (&http.Response{ContentLength: 4000})
	failIf(t, e.Differs(head) || e.SameBody(textEntry("text")), "the entry has another length, or the body of another entry")
}
