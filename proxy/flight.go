package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// flight is a question that is being asked of the upstream, for its first client
// and all who ask the same meanwhile: by key, and so of one security class. It does
// not end with the first client as long as others wait; it ends when the answer is
// kept, or as soon as it is known that it will not be.
type flight struct {
	key     cache.Key     // under which it is joined
	path    string        // what is asked for
	caller  policy.Caller // its first client
	began   time.Time
	since   cache.Generation
	done    chan struct{} // closed when it has landed
	mu      sync.Mutex
	waiting int
	left    bool                    // the first client has
	cancel  context.CancelCauseFunc // set before left is
	paused  chan struct{}           // closed while the question is held up
	pending computation             // once the upstream has said that it computes the answer
	shared  bool                    // other replicas have the answer, too
	leader  trace.SpanContext       // of who asks; not valid where no trace is kept
	landing landing
	err     error // of a flight that failed
}

// landing is how a flight ended.
type landing int

const (
	inTheAir landing = iota
	// kept: the answer is in the cache.
	kept
	// alone: it is for its first client only, and everybody else must ask for
	// themselves, all at once.
	alone
	// refused: its first client was not let go before its time was over; others may
	// have more.
	refused
	// failed: the upstream could not be asked, whoever asks.
	failed
	// unfinished: the answer is still computed, and it is not asked for any more.
	unfinished
)

// landingNames are what people are told of a landing.
var landingNames = [...]string{inTheAir: "in the air", kept: "kept", alone: "alone", refused: "refused", failed: "failed", unfinished: "unfinished"}

// flights are those that can be joined.
type flights struct {
	mu     sync.Mutex
	flying map[cache.Key]*flight
}

// maxJoined bounds how often one client waits for what others have asked.
const maxJoined = 3

// Why a flight is given up.
var (
	errNobodyWaits = fmt.Errorf("nobody waits for the answer any more: %w", context.Canceled)
	errClosed      = fmt.Errorf("the gateway is closed: %w", context.Canceled)
)

// collapses reports whether the question may be asked for others, too. One with a
// validator of its client's may be answered 304, and one whose client takes what is
// stale may be answered so by a cache on the way: nobody else is helped with either.
func (ex *exchange) collapses() bool {
	return ex.cacheable && ex.method == http.MethodGet && !ex.match.Operation.Cache.NoCoalesce && !ex.cacheControl.Has("max-stale") && !ex.cacheControl.Has("stale-if-error") &&
		(ex.stale != nil || ex.header["If-None-Match"] == nil && ex.header["If-Modified-Since"] == nil)
}

// join returns the flight for the question, and whether it is new: then the caller
// must see to it that it lands. A flight that began before a purge of what it brings
// is not joined.
func (g *Gateway) join(ex *exchange) (f *flight, first bool) {
	l, key := &g.flights, g.flightKey(ex)
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.flying[key]; f != nil && f.board() {
		if !g.Cache.Purged(ex.tags(), f.since) {
			return f, false
		}
		f.leave()
	}
	paused := make(chan struct{})
	close(paused)
	f = &flight{key: key, path: ex.match.Path, began: time.Now(), caller: ex.identity.Caller, since: g.Cache.Generation(), done: make(chan struct{}), paused: paused}
	if l.flying == nil {
		l.flying = map[cache.Key]*flight{}
	}
	l.flying[key] = f
	return f, true
}

// flightKey names the question with the fields by which its answer varies, as far as
// that is known: who asks for another variant is not helped with this one. Those who
// did not wait for one that is held up ask together, apart from it.
func (g *Gateway) flightKey(ex *exchange) cache.Key {
	parts := []string{string(ex.key[:])}
	variants, _ := g.Cache.Candidates(ex.in.Context(), ex.key, cache.Key{})
	if i := slices.IndexFunc(variants, func(e *cache.Entry) bool { return len(e.Vary) > 0 }); i >= 0 {
		for _, f := range variants[i].Vary {
			parts = append(parts, f.Name, strings.Join(ex.header[f.Name], ", "))
		}
	}
	if ex.apart > 0 {
		parts = append(parts, "apart", strconv.Itoa(ex.apart))
	}
	if len(parts) == 1 {
		return ex.key
	}
	return cache.NewKey(parts...)
}

// land ends the exchange's flight, if it has one.
func (g *Gateway) land(ex *exchange, as landing, err error) {
	if ex.call != nil {
		g.landed(ex.call, as, err)
	}
}

// landed ends a flight, the first time it is called.
func (g *Gateway) landed(f *flight, as landing, err error) {
	l := &g.flights
	l.mu.Lock()
	if l.flying[f.key] == f {
		delete(l.flying, f.key)
	}
	l.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.landing == inTheAir {
		f.landing, f.err = as, err
		close(f.done)
		f.endUnwanted()
	}
}

// board enters one more who waits, unless the flight has landed or is being given up.
func (f *flight) board() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.landing != inTheAir || f.left && f.waiting == 0 {
		return false
	}
	f.waiting++
	return true
}

// takeOver lets another than the first client ask on, which waits from now on as
// all others do. It reports whether anybody does.
func (f *flight) takeOver(cancel context.CancelCauseFunc) bool {
	if !f.board() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.cancel = true, cancel
	return true
}

func (f *flight) hasLanded() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// leave takes out one who waited.
func (f *flight) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting--
	f.endUnwanted()
}

// firstLeaves notes that the first client has left.
func (f *flight) firstLeaves() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = true
	f.endUnwanted()
}

// endUnwanted gives up what nobody waits for; the caller holds mu.
func (f *flight) endUnwanted() {
	if f.left && (f.waiting == 0 || f.landing != inTheAir) {
		f.cancel(errNobodyWaits)
	}
}

// giveUp ends the flight, whoever waits.
func (f *flight) giveUp() {
	if f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.cancel(errClosed)
	}
}

// computes notes that the upstream computes the answer, and when it is asked again.
func (f *flight) computes(answer *cache.Entry, next time.Time) {
	if f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.pending = computation{answer, next, f.pending.asked + 1}
	}
}

func (f *flight) computation() computation {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pending
}

// goes notes that the question is let go to the upstream, waits that it is held up.
func (f *flight) goes() {
	if f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.pause(false)
	}
}

func (f *flight) waits() {
	if f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.pause(true)
	}
}

// isPaused reports whether the question is held up, pause changes it; the caller
// holds mu.
func (f *flight) isPaused() bool {
	select {
	case <-f.paused:
		return true
	default:
		return false
	}
}

func (f *flight) pause(held bool) {
	switch was := f.isPaused(); {
	case held && !was:
		close(f.paused)
	case !held && was:
		f.paused = make(chan struct{})
	}
}

// lead notes by whose span others can find the question; ledBy tells it.
func (f *flight) lead(by trace.SpanContext) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leader = by
}

func (f *flight) ledBy() trace.SpanContext {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leader
}

// sharesIt notes whether other replicas have the answer, too.
func (f *flight) sharesIt(shared bool) {
	if f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.shared = shared
	}
}

// await waits for a flight to land. A client whose patience is over before the
// question is let go asks for itself: it is told then why it has to wait. One that
// waits for an answer that is computed takes no for an answer, and will come again:
// it is still waited for.
func (f *flight) await(ctx context.Context, patience time.Time) (how landing, err error) {
	defer func() {
		if how != unfinished {
			f.leave()
		}
	}()
	timer := time.NewTimer(time.Until(patience))
	defer timer.Stop()
	select {
	case <-f.done:
		return f.landing, f.err
	case <-ctx.Done():
		return failed, context.Cause(ctx)
	case <-timer.C:
	}
	f.mu.Lock()
	paused := f.paused
	f.mu.Unlock()
	select {
	case <-f.done:
		return f.landing, f.err
	case <-ctx.Done():
		return failed, context.Cause(ctx)
	case <-paused:
	}
	if f.computation().answer != nil {
		return unfinished, nil
	}
	return alone, nil
}

// collapse asks the question, once for all who ask it at the same time (journey,
// step 6).
func (g *Gateway) collapse(ex *exchange, out *http.Request) (*http.Response, error) {
	for joined := 0; joined < maxJoined; {
		f, first := g.join(ex)
		if first {
			resp, err := g.lead(ex, f, out)
			if err != nil || !g.poll(ex, resp) {
				return resp, err
			}
		}
		s := g.enter(ex, ex.in.Context(), stageFlight)
		how, err := f.await(ex.in.Context(), g.joins(ex, f))
		s.linkTo(f.ledBy())
		ex.record.Waited += s.leave(landingNames[how], err)
		switch how {
		case kept:
			if resp := g.shared(ex, ex.start); resp != nil {
				return resp, nil
			}
			joined++
		case failed:
			return g.insteadOf(ex, err)
		case alone:
			switch {
			case !f.hasLanded() && time.Now().Before(ex.until(g.patience(ex))):
				ex.apart++ // with others who are in a hurry
			case !ex.computed():
				return g.ask(ex, out)
			}
			joined++ // one error does not end what all wait for
		case unfinished:
			return g.stillComputed(ex, f), nil
		}
	}
	return g.ask(ex, out)
}

// hurry is how long a client waits for a question that is not let go though its own
// might be.
const hurry = 50 * time.Millisecond

// joins is until when a client waits for a question that is not let go. One whose
// question another account pays for, or another priority holds up, may be let go
// earlier by itself.
func (g *Gateway) joins(ex *exchange, f *flight) time.Time {
	until, own := ex.until(g.patience(ex)), ex.identity.Caller
	if soon := time.Now().Add(hurry); !ex.computed() && (ex.hasAlternative || own.Account != f.caller.Account || own.Priority != f.caller.Priority) && soon.Before(until) {
		return soon
	}
	return until
}

// patience is how long a client waits unless it says.
func (g *Gateway) patience(ex *exchange) time.Duration {
	if ex.computed() {
		return g.Statistics.Wait
	}
	return g.Wait
}

// lead asks the question for all.
func (g *Gateway) lead(ex *exchange, f *flight, out *http.Request) (resp *http.Response, err error) {
	defer func() {
		if resp == nil { // also after a panic
			g.land(ex, alone, nil)
		}
	}()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(out.Context()))
	ex.call, f.cancel = f, cancel
	f.lead(ex.spanContext())
	context.AfterFunc(ex.in.Context(), f.firstLeaves)
	return g.askForAll(ex, f, out.WithContext(ctx))
}

// shared answers with what another's question has brought, if it may: it is fresh,
// or was asked for after since, when that is known.
func (g *Gateway) shared(ex *exchange, since time.Time) *http.Response {
	e, purged := g.Cache.Lookup(ex.in.Context(), ex.key, ex.header)
	now := time.Now()
	if e == nil || purged {
		return nil
	}
	asked := !since.IsZero() && !e.Requested().Before(since)
	if !asked && (!e.Fresh(now) || ex.mustAsk(e, now)) {
		return nil
	}
	ex.record.Cache += "; collapsed; ttl=" + strconv.Itoa(-int(e.Staleness(now)/time.Second))
	return entryResponse(ex, e, now)
}

// landingOf is how a flight ends with an answer that is kept.
func (ex *exchange) landingOf(e *cache.Entry) landing {
	if e.SingleUse(ex.rule) {
		return alone
	}
	return kept
}

// landingAfter is how a flight ends that came to nothing.
func landingAfter(err error) landing {
	var limited *limits.Refusal
	switch {
	case errors.As(err, &limited), errors.Is(err, errNotYet):
		return refused
	case errors.Is(err, context.Canceled):
		return alone // that is about who asked
	}
	return failed
}
