package cache

// order says what gives way where there is no room, by SIEVE (Zhang et al., "SIEVE is Simpler
// than LRU", NSDI 2024). What is held stands in the order in which it came. A hand goes from
// the oldest to the newest, and over again: what was used since the hand passed it stays,
// what was not goes. So what comes once in a flood goes with the flood, and a hit writes one
// bit of what it reads anyway. (With a list by use, or counts of it, a hit looked into the cold
// memory of its neighbours: 2 % of what it takes where 100,000 are held, by a profile.)
//
// It is in one piece of memory, for the collector finds what is held by the pointers there, most
// of it as it lies in memory: with 100,000 held it takes 43 ms; where each led to its neighbours
// 70, and 105 where it came by the shelves alone.
//
// Invariants: the weight is the sum of what is held; what is gone no hand stands at.
type order struct {
	// nodes are a ring; the first is between the newest and the oldest, and of nothing.
	nodes []node
	spare uint32 // a place of nothing, the others behind it; 0 is none
	hand  uint32 // of who looks for what gives way; 0 where it begins over again
	broom uint32 // of who looks for what has had its time

	count  int
	weight uint64 // bytes
}

// node is the place of something that is held.
type node struct {
	held         *held
	older, newer uint32
}

func newOrder() order { return order{nodes: make([]node, 1)} }

// add gives something its place, behind all others.
func (o *order) add(h *held) {
	place := o.spare
	if place != 0 {
		o.spare = o.nodes[place].newer
	} else {
		place = uint32(len(o.nodes))
		o.nodes = append(o.nodes, node{})
	}
	newest := o.nodes[0].older
	o.nodes[place] = node{h, newest, 0}
	o.nodes[newest].newer, o.nodes[0].older = place, place
	h.place = place
	o.count++
	o.weight += uint64(h.weight)
}

func (o *order) remove(h *held) {
	place := h.place
	n := o.nodes[place]
	for _, hand := range []*uint32{&o.hand, &o.broom} {
		if *hand == place {
			*hand = n.newer
		}
	}
	o.nodes[n.older].newer, o.nodes[n.newer].older = n.newer, n.older
	o.nodes[place] = node{newer: o.spare}
	o.spare = place
	o.count--
	o.weight -= uint64(h.weight)
}

// at returns where a hand stands: at the oldest where it begins over again. There must be
// something.
func (o *order) at(hand *uint32) *held {
	if *hand == 0 {
		*hand = o.nodes[0].newer
	}
	return o.nodes[*hand].held
}

// pass moves a hand on.
func (o *order) pass(hand *uint32) { *hand = o.nodes[*hand].newer }

// all are what is held, the oldest first; yield may remove what it is given, and nothing
// else.
func (o *order) all(yield func(*held) bool) {
	for place := o.nodes[0].newer; place != 0; {
		n := o.nodes[place]
		if !yield(n.held) {
			return
		}
		place = n.newer
	}
}
