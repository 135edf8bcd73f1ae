package history

import (
	"errors"
	"time"

	"golang.org/x/time/rate"
)

// Event is an event for watchers. The names are:
//
//   - request: a completed request ([Request])
//   - accounts: changed accounts
//   - series: the last points of the series
//   - operations: costs
//   - state: the state of the gateway
//   - audit: an attempt of an operator to change the gateway
//   - skipped: the number of requests that the watcher has missed ([Skipped])
type Event struct {
	Name string
	// ID is the number of requests up to and including this event.
	ID   uint64
	Data any
}

const (
	maxWatchers = 32
	maxBuffered = 256 // events per watcher
)

// ErrTooMany is returned by Watch if there are already 32 watchers.
var ErrTooMany = errors.New("too many watchers (32); close one of them")

var errClosed = errors.New("gateway is shutting down")

// Watcher receives events until it is closed.
type Watcher struct {
	history *History
	options WatchOptions
	events  chan Event
	// history.mu guards the fields below.
	limiter        *rate.Limiter // limits request events
	skipped        uint64
	missedAccounts bool // set if the watcher has missed an update of the accounts
}

// WatchOptions select the events of a watcher.
type WatchOptions struct {
	// Event is the name of the only event to receive. If Event is empty, all events are received.
	Event string
	// MaxPerSecond bounds the requests per second. 0 means no bound.
	MaxPerSecond int
	// After is the ID of the last event that an earlier watch received. 0 means no earlier watch.
	After uint64
}

// Skipped is the number of requests that a watcher has missed.
type Skipped struct {
	Requests uint64 `json:"requests"`
}

// Watch starts a watcher, whose first events are the current accounts, costs and state. The error is [ErrTooMany], or
// reports that the history is closed.
func (h *History) Watch(options WatchOptions) (*Watcher, error) {
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
	limit := rate.Inf
	if options.MaxPerSecond > 0 {
		limit = rate.Limit(options.MaxPerSecond)
	}
	w := &Watcher{
		history: h, options: options, events: make(chan Event, maxBuffered),
		limiter: rate.NewLimiter(limit, options.MaxPerSecond),
	}
	if options.After > 0 && options.After < h.recent.number {
		w.skipped = h.recent.number - options.After
	}
	h.watchers[w] = true
	w.send(Event{accountsEvent, h.recent.number, h.allAccounts()})
	w.send(Event{"operations", h.recent.number, h.costs(time.Now())})
	if h.state != nil {
		w.send(Event{"state", h.recent.number, h.state})
	}
	h.requestListing()
	return w, nil
}

// Events returns the channel of events, which closes with the history.
func (w *Watcher) Events() <-chan Event { return w.events }

// Close ends the watch.
func (w *Watcher) Close() {
	w.history.mu.Lock()
	defer w.history.mu.Unlock()
	delete(w.history.watchers, w)
}

// send sends an event if the watcher has selected it and the buffer has room. Otherwise send counts a skipped request,
// which a later "skipped" event reports. history.mu must be held.
func (w *Watcher) send(e Event) {
	isRequest := e.Name == requestEvent
	selected := w.options.Event == "" || w.options.Event == e.Name
	if isRequest && selected && !w.limiter.Allow() {
		w.skipped++
		return
	}
	if w.skipped > 0 { // also for watchers of requests only, when no request follows
		select {
		case w.events <- Event{"skipped", w.history.recent.number, Skipped{w.skipped}}:
			w.skipped = 0
		default:
		}
	}
	if !selected {
		return
	}
	select {
	case w.events <- e:
	default:
		if isRequest {
			w.skipped++
		}
		w.missedAccounts = w.missedAccounts || e.Name == accountsEvent
	}
}

// publish sends an event to all watchers. mu must be held.
func (h *History) publish(name string, data any) {
	for w := range h.watchers {
		w.send(Event{name, h.recent.number, data})
	}
}

// PublishChange sends a change of the gateway to all watchers. It must be encodable as JSON.
func (h *History) PublishChange(change any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publish("audit", change)
}

// Watchers returns the number of watchers.
func (h *History) Watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watchers)
}

// Close ends all watches and refuses new watches.
func (h *History) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watchers {
		close(w.events)
		delete(h.watchers, w)
	}
}
