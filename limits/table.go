package limits

import (
	"hash/maphash"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/weirgate/weir/policy"
)

// table finds the accounts of a ledger by their names, and beside each what was shown of it
// last: every hit asks for that, and of 10,000 accounts none lies near. A hit costs 1.08 times
// as much with them as with one account, and 1.12 times where a map finds the account, and what
// was shown is within it (medians of three runs of eight pairs).
//
// In it stand not names but two hashes of each, with seeds of this process: 128 bits, of which
// no two names will ever have the same.
type table struct {
	seeds     [2]maphash.Seed
	resources []string
	// places are a power of two, a quarter of them free: that of an account is the first from
	// where its hash points to that nobody has taken.
	places []place
	n      int // of accounts
}

// place is that of an account, and a line of a processor's cache, 64 bytes: with the budget that
// was shown last, as long as it holds if no step is made before.
type place struct {
	name    [2]uint64
	account *account // nil where the place is free

	until, reset      int64 // µs since 1970
	limit, used, held int32
	window            int32 // s
	resource          int8
}

// fewest is how many places a table has at least.
const fewest = 16

func newTable() *table {
	return &table{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, resources: policy.Resources(), places: make([]place, fewest)}
}

// find returns the place of an account, or the free one that it would have. It is good until
// the next account comes or goes.
func (t *table) find(name string) *place { return t.place(t.hash(name)) }

func (t *table) hash(name string) [2]uint64 {
	return [2]uint64{maphash.String(t.seeds[0], name), maphash.String(t.seeds[1], name)}
}

func (t *table) place(name [2]uint64) *place {
	for i := name[0]; ; i++ {
		if p := &t.places[i&uint64(len(t.places)-1)]; p.account == nil || p.name == name {
			return p
		}
	}
}

// add takes up an account, in the place of one of that name.
func (t *table) add(a *account) {
	name := t.hash(a.name)
	if t.place(name).account == nil {
		if t.n++; t.n > len(t.places)/4*3 {
			t.resize()
		}
	}
	*t.place(name) = place{name: name, account: a}
}

// forget lets go of accounts.
func (t *table) forget(which func(*account) bool) {
	for p := range t.all() {
		if which(p.step()) {
			p.account = nil
			t.n--
		}
	}
	t.resize() // what came behind one that is gone would not be found
}

// resize makes the table as large as it needs to be.
func (t *table) resize() {
	size := fewest
	for t.n > size/4*3 {
		size *= 2
	}
	before := t.all()
	t.places = make([]place, size)
	for p := range before {
		*t.place(p.name) = *p
	}
}

// all are the places of all accounts, in no order.
func (t *table) all() iter.Seq[*place] {
	places := t.places
	return func(yield func(*place) bool) {
		for i := range places {
			if p := &places[i]; p.account != nil && !yield(p) {
				return
			}
		}
	}
}

// step is the account, about to make a step: what was shown holds no longer.
func (p *place) step() *account {
	p.until = 0
	return p.account
}

// shown returns what was shown of a resource, if that holds.
func (t *table) shown(p *place, resource string, now int64) (b Budget, ok bool) {
	if p.until <= now || t.resources[p.resource] != resource {
		return Budget{}, false
	}
	return Budget{
		Resource: resource, Limit: int(p.limit), Used: int(p.used), Remaining: int(p.limit - p.used), Held: int(p.held),
		Reset: time.UnixMicro(p.reset), Window: time.Duration(p.window) * time.Second,
	}, true
}

// show remembers what is shown until then, unless there is no room for it.
func (t *table) show(p *place, b Budget, until int64) {
	i := slices.Index(t.resources, b.Resource)
	if i < 0 || max(b.Limit, b.Held) > math.MaxInt32 || b.Window%time.Second != 0 {
		return
	}
	p.until, p.reset, p.resource = until, b.Reset.UnixMicro(), int8(i)
	p.limit, p.used, p.held, p.window = int32(b.Limit), int32(b.Used), int32(b.Held), int32(b.Window/time.Second)
}
