package cache

// order says what gives way where there is no room, by SIEVE (Zhang et al., "SIEVE is Simpler
// than LRU", NSDI 2024). What is held stands in the order in which it came. A hand goes from
// the oldest to the newest, and over again: what was used since the hand passed it stays,
// what was not goes. So what comes once in a flood goes with the flood, and a hit writes one
// bit of what it reads anyway. (With a list by use, or counts of it, a hit looked into the cold
// memory of its neighbours: 2 % of what it takes where 100,000 are held, by a profile.)
//
// Invariants: the weight is the sum of what is held; whoever asks for room gets it.
type order struct {
	oldest, newest *held
	hand           *held // what it looks at next; nil where it begins over again
	broom          *held // the same, of who looks for what has had its time
	count          int
	weight         uint64 // bytes
}

func (o *order) add(h *held) {
	h.older, h.newer = o.newest, nil
	if o.newest == nil {
		o.oldest = h
	} else {
		o.newest.newer = h
	}
	o.newest = h
	o.count++
	o.weight += uint64(h.weight)
}

func (o *order) remove(h *held) {
	if o.hand == h {
		o.hand = h.newer
	}
	if o.broom == h {
		o.broom = h.newer
	}
	if h.older == nil {
		o.oldest = h.newer
	} else {
		h.older.newer = h.newer
	}
	if h.newer == nil {
		o.newest = h.older
	} else {
		h.newer.older = h.older
	}
	h.older, h.newer = nil, nil
	o.count--
	o.weight -= uint64(h.weight)
}

// givesWay returns what is to go; there must be something. The hand stays where it was.
func (o *order) givesWay() *held {
	for {
		if o.hand == nil {
			o.hand = o.oldest
		}
		if !o.hand.used.Swap(false) {
			return o.hand
		}
		o.hand = o.hand.newer
	}
}

// swept returns the next that may have had its time; nil of nothing.
func (o *order) swept() *held {
	if o.broom == nil {
		o.broom = o.oldest
	}
	h := o.broom
	if h != nil {
		o.broom = h.newer
	}
	return h
}

// all are what is held; yield may remove what it is given.
func (o *order) all(yield func(*held) bool) {
	for h := o.oldest; h != nil; {
		next := h.newer
		if !yield(h) {
			return
		}
		h = next
	}
}
