package history

import (
	"errors"
	"time"
)

// Event is something that happens: a request has ended ("request", a [Told]), accounts
// have changed ("accounts"), the last points of the series ("series"), what operations
// and clients cost ("operations"), the gateway's state ("state"), or how many requests
// this watcher was not told of ("skipped").
type Event struct {
	Name string
	// ID is how many requests there were before it, and with it.
	ID   uint64
	Data any
}

// Bounds of those who watch.
const (
	maxWatchers = 32
	maxBehind   = 256 // events
)

// ErrTooMany refuses one more watcher.
var ErrTooMany = errors.New("as many watch as may (32): close one of them")

var errClosed = errors.New("the gateway is being shut down")

// Watcher gets events; close it.
type Watcher struct {
	history *History
	want    Wanted
	events  chan Event
	skipped uint64 // guarded by history.mu, as what follows
	behind  bool   // it was not told of accounts that have changed
	second  int64
	told    int // requests in that second
}

// Wanted is what a watcher wants to be told.
type Wanted struct {
	// Only is the one event that is wanted; all are where it is empty.
	Only string
	// Most is how many requests it wants to be told of in a second; 0 is all.
	Most int
	// After is the ID of the last event that it knows, of an earlier watch; 0 is none.
	After uint64
}

// Skipped is how many requests a watcher was not told of.
type Skipped struct {
	Requests uint64 `json:"requests"`
}

// Watch begins to tell what happens, and first how things are. An error is [ErrTooMany],
// or says that all ends.
func (h *History) Watch(want Wanted) (*Watcher, error) {
	h.listing.Lock()
	defer h.listing.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, errClosed
	case len(h.watchers) >= maxWatchers:
		return nil, ErrTooMany
	}
	w := &Watcher{history: h, want: want, events: make(chan Event, maxBehind)}
	if want.After > 0 && want.After < h.requests {
		w.skipped = h.requests - want.After
	}
	h.watchers[w] = true
	now := time.Now()
	w.tell(Event{accountsEvent, h.requests, h.allAccounts()})
	w.tell(Event{"operations", h.requests, h.costs(now)})
	if h.state != nil {
		w.tell(Event{"state", h.requests, h.state})
	}
	return w, nil
}

// Events are what happens, until the history is closed.
func (w *Watcher) Events() <-chan Event { return w.events }

// Close ends the watch.
func (w *Watcher) Close() {
	w.history.mu.Lock()
	defer w.history.mu.Unlock()
	delete(w.history.watchers, w)
}

// tell is told to a watcher if it wants it and has room; history.mu is held. What it
// skips it is told as soon as there is room.
func (w *Watcher) tell(e Event) {
	request := e.Name == requestEvent
	if w.skipped > 0 && !request { // also where it wants requests alone, and none comes
		w.admit()
	}
	if w.want.Only != "" && w.want.Only != e.Name {
		return
	}
	if request && w.want.Most > 0 {
		if second := time.Now().Unix(); second != w.second {
			w.second, w.told = second, 0
		}
		if w.told++; w.told > w.want.Most {
			w.skipped++
			return
		}
	}
	if w.skipped > 0 {
		w.admit()
	}
	if len(w.events) == cap(w.events) { // who sends holds history.mu
		w.skipped += btou(request)
		w.behind = w.behind || e.Name == accountsEvent
		return
	}
	if late, ok := e.Data.(func() any); ok {
		e.Data = late()
	}
	w.events <- e
}

func btou(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// admit tells what was skipped, if there is room.
func (w *Watcher) admit() {
	select {
	case w.events <- Event{"skipped", w.history.requests, Skipped{w.skipped}}:
		w.skipped = 0
	default:
	}
}

// publish tells all; mu is held.
func (h *History) publish(name string, data any) {
	for w := range h.watchers {
		w.tell(Event{name, h.requests, data})
	}
}

// Watchers is how many there are.
func (h *History) Watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watchers)
}

// Close ends all watches; nobody can begin one any more.
func (h *History) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watchers {
		close(w.events)
		delete(h.watchers, w)
	}
}
