package cache

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestCandidatesAreBoundedAndNewestFirst(t *testing.T) {
	m, base := NewMemory(1<<20), NewKey("question")
	for i := range 3 * maxCandidates {
		m.addCandidate(base, NewKey(fmt.Sprint(i)))
	}
	m.addCandidate(base, NewKey("20")) // already recorded
	var want []Key
	for _, i := range []int{20, 23, 22, 21, 19, 18, 17, 16} {
		want = append(want, NewKey(fmt.Sprint(i)))
	}
	if got := m.candidateKeys(base); !slices.Equal(got, want) {
		t.Errorf("%d keys, want the newest eight in their order", len(got))
	}
	bound := 1 << 20 / candidatesPart / candidatesSize
	for i := range 3 * bound {
		m.addCandidate(NewKey("another", fmt.Sprint(i)), NewKey("x"))
		m.candidateKeys(base)
	}
	n := m.candidates.Len()
	failIf(t, n > bound, "%d lists, want at most %d", n, bound)
	got := m.candidateKeys(base)
	failIf(t, !slices.Equal(got, want), "a list in use was evicted")
}

func TestCandidatesSeparateOwnEntriesFromThoseOfOtherCallers(t *testing.T) {
	s, base := newStore(nil), NewKey("question")
	for _, caller := range []string{"a", "b"} {
		e := NewEntry(response(200), []byte(caller), time.Hour)
		e.BaseKey, e.Answered = base, time.Now()
		s.Put(t.Context(), NewKey(caller), e, func(bool) {})
	}
	own, otherCallers := s.Candidates(t.Context(), NewKey("a"), base)
	failIf(t, len(own) != 1 || len(otherCallers) != 1 || string(otherCallers[0].Body) != "b", "%d own entries, %d of other callers", len(own), len(otherCallers))
}

// listingTier is a shared tier that lists candidate keys and records which keys are read.
type listingTier struct {
	Shared
	listed, read []Key
}

func (l *listingTier) CandidateKeys(context.Context, Key) []Key { return l.listed }

func (l *listingTier) Get(_ context.Context, key Key) []*Entry {
	l.read = append(l.read, key)
	return nil
}

func TestCandidatesReadFewKeysOfTheSharedTier(t *testing.T) {
	all := []Key{NewKey("a"), NewKey("b"), NewKey("c"), NewKey("d")}
	shared := &listingTier{listed: slices.Clone(all)}
	newStore(shared).Candidates(t.Context(), all[0], NewKey("question"))
	failIf(t, !slices.Equal(shared.read, all[1:3]) || !slices.Equal(shared.listed, all), "listed %x, now %x; read %x", all, shared.listed, shared.read)
}
