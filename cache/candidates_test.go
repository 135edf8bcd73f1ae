package cache

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestHoldersAreRememberedNewestFirstAndBounded(t *testing.T) {
	h, now := newHolders(1<<20), time.Now() // 292 places in each half
	about := NewKey("question")
	for i := range 3 * maxHolders {
		h.note(about, NewKey(fmt.Sprint(i)), now)
	}
	h.note(about, NewKey("20"), now) // it was there
	var want []short
	for _, i := range []int{20, 23, 22, 21, 19, 18, 17, 16} {
		want = append(want, NewKey(fmt.Sprint(i)).short())
	}
	if got := h.of(about); !slices.Equal(got, want) {
		t.Errorf("%d holders, want the eight newest in their order", len(got))
	}
	for i := range 10_000 {
		h.note(NewKey("another", fmt.Sprint(i)), NewKey("x"), now)
		if i%50 == 0 {
			h.note(about, NewKey("20"), now) // asked again and again
		}
		if held := len(h.recent) + len(h.former); held > 2*h.most+maxHolders {
			t.Fatalf("%d places, want %d at most", held, 2*h.most)
		}
	}
	if got := h.of(about); !slices.Equal(got, want) {
		t.Errorf("%d holders of what is asked again and again", len(got))
	}
	h.note(NewKey("b"), NewKey("x"), now.Add(25*time.Hour))
	h.note(NewKey("b"), NewKey("x"), now.Add(50*time.Hour))
	if got := h.of(about); len(got) > 0 {
		t.Errorf("%d holders after two days", len(got))
	}
}

// TestWhatIsOnesOwnIsNotAnothers: it is asked about once.
func TestWhatIsOnesOwnIsNotAnothers(t *testing.T) {
	s, about := NewStore(NewMemory(1<<20), nil), NewKey("question")
	for _, who := range []string{"a", "b"} {
		e := NewEntry(answer(200), []byte(who), time.Hour)
		e.BaseKey = about
		s.Put(t.Context(), NewKey(who), e)
	}
	own, others := s.Candidates(t.Context(), NewKey("a"), about)
	if len(own) != 1 || len(others) != 1 || string(others[0].Body) != "b" {
		t.Errorf("of its own %d, of others %d", len(own), len(others))
	}
}

// naming is a shared tier that names holders, and notes whose answers it is asked for.
type naming struct {
	Shared
	named, asked []Key
}

func (n *naming) CandidateKeys(context.Context, Key) []Key { return n.named }

func (n *naming) Get(_ context.Context, key Key) []*Entry {
	n.asked = append(n.asked, key)
	return nil
}

// TestFewOfTheSharedHoldersAreAsked: the newest, but not for what the caller has looked for
// already; and the list is its owner's.
func TestFewOfTheSharedHoldersAreAsked(t *testing.T) {
	all := []Key{NewKey("a"), NewKey("b"), NewKey("c"), NewKey("d")}
	shared := &naming{named: slices.Clone(all)}
	NewStore(NewMemory(1<<20), shared).Candidates(t.Context(), all[0], NewKey("question"))
	if !slices.Equal(shared.asked, all[1:3]) || !slices.Equal(shared.named, all) {
		t.Errorf("of %x, which are %x now, %x were asked", all, shared.named, shared.asked)
	}
}
