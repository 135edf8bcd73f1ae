package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/signals"
	"github.com/weirgate/weir/policy"
)

// attempt gets one answer from the upstream (journey, steps 7 to 9). prepare completes
// the request once it is let go. It is the only loop: round again where the catalogue
// says that an answer is not yet one.
func (g *Gateway) attempt(x *exchange, out *http.Request, prepare func()) (*http.Response, error) {
	caller := x.who.Caller
	for { // bounded by the client's patience
		permit, err := g.admit(x, out.Context(), caller)
		if err != nil {
			return nil, err
		}
		if prepare != nil {
			g.prepared(x, *permit, prepare)
			prepare = nil
		}
		x.sent = time.Now()
		x.flight.goes()
		resp, outcome, err := g.send(out)
		x.record.Attempts++
		x.limited = outcome.Limited
		if err == nil {
			// The place among the concurrent requests is free when the body has
			// ended, not when headers came.
			outcome.Ended = resp.ContentLength == 0 || resp.Body == http.NoBody
		}
		g.learn(x, *permit, outcome)
		if err != nil {
			return nil, err
		}
		if !outcome.Ended {
			resp.Body = &permittedBody{ReadCloser: resp.Body, end: func(aborted bool) { g.release(x, *permit, aborted) }}
		}
		if g.comesBack(x, outcome) {
			discard(resp.Body)
			x.flight.waits()
			continue // admission waits for as long as the upstream asked
		}
		wait, again := g.Statistics.next(x, resp)
		if !again {
			return resp, nil
		}
		discard(resp.Body)
		x.flight.waits()
		caller.Priority = policy.Batch // a poll is nobody's hurry
		x.record.Waited += wait
		if err := sleep(out.Context(), wait); err != nil {
			return nil, err
		}
	}
}

// prepared completes a request that is let go; a panic gives its permit back.
func (g *Gateway) prepared(x *exchange, permit limits.Permit, prepare func()) {
	done := false
	defer func() {
		if !done {
			g.learn(x, permit, limits.Outcome{})
		}
	}()
	prepare()
	done = true
}

// comesBack reports whether a request that met a limit of the upstream's is sent
// again when that is over: a safe one, whose client can still wait (design
// section 5.4). Everybody else is told when to come back, in the upstream's own
// words.
func (g *Gateway) comesBack(x *exchange, o limits.Outcome) bool {
	now := time.Now()
	var over time.Time
	switch {
	case o.Limited == signals.NotLimited || !x.match.Operation.Safe():
		return false
	case o.RetryAfter > 0:
		over = now.Add(o.RetryAfter)
	case o.Limited == signals.PrimaryLimit || o.Rate.Limit != 0 && o.Rate.Used >= o.Rate.Limit:
		over = o.Rate.Reset
	default:
		over = now.Add(time.Minute)
	}
	return over.After(now) && !over.Add(roundedAway).After(x.until(g.Wait))
}

// roundedAway is how much later than told a limit may be over.
const roundedAway = 2 * time.Second

// admit waits for a permit as long as this client may wait.
func (g *Gateway) admit(x *exchange, ctx context.Context, caller policy.Caller) (*limits.Permit, error) {
	op := x.operation
	claim := limits.Claim{Operation: x.scope, Resource: op.Resource, Points: op.Points, CreatesContent: op.CreatesContent}
	began := time.Now()
	permit, err := g.Limiter.Acquire(ctx, claim, caller, x.until(g.Wait))
	x.record.Waited += time.Since(began)
	return permit, err
}

// learn settles the permit with what the answer told. It does not hang on the
// client: a settled permit is what keeps the ledger true.
func (g *Gateway) learn(x *exchange, permit limits.Permit, outcome limits.Outcome) {
	if outcome.Rate.Resource != "" {
		x.record.Resource = outcome.Rate.Resource
	}
	if err := g.Limiter.Settle(context.WithoutCancel(x.in.Context()), permit, outcome); err != nil {
		// A ledger that is lost says so once, and is told later.
		g.Log.Debug("a permit was not settled", "request", x.record.ID, "error", err)
	}
}

func (g *Gateway) release(x *exchange, permit limits.Permit, aborted bool) {
	if err := g.Limiter.Release(context.WithoutCancel(x.in.Context()), permit, aborted); err != nil {
		g.Log.Debug("a permit was not released", "request", x.record.ID, "error", err)
	}
}

// permittedBody releases the permit when the body has ended, or was given up.
type permittedBody struct {
	io.ReadCloser
	end func(aborted bool) // nil once called
}

func (b *permittedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.finish(err != io.EOF)
	}
	return n, err
}

func (b *permittedBody) Close() error {
	err := b.ReadCloser.Close()
	b.finish(true)
	return err
}

func (b *permittedBody) finish(aborted bool) {
	if b.end != nil {
		b.end(aborted)
		b.end = nil
	}
}

// wire is what httptrace tells of one attempt.
type wire struct {
	written atomic.Int32 // how often the header was written
	first   atomic.Int64 // when it was first, in nanoseconds since start
	start   time.Time
}

func (w *wire) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{WroteHeaders: func() {
		if w.written.Add(1) == 1 {
			w.first.Store(int64(time.Since(w.start)))
		}
	}}
}

// outcome is what is known of the attempt so far.
func (w *wire) outcome() limits.Outcome {
	written := int(w.written.Load())
	o := limits.Outcome{Sent: written > 0, Resent: max(0, written-1)}
	if o.Sent {
		o.Elapsed = time.Since(w.start) - time.Duration(w.first.Load())
	}
	return o
}

// send makes one wire attempt. The outcome is true whatever the error.
func (g *Gateway) send(out *http.Request) (*http.Response, limits.Outcome, error) {
	attempt := &wire{start: time.Now()}
	ctx, watch := watchProgress(out.Context(), g.Timeout)
	sent := out.WithContext(httptrace.WithClientTrace(ctx, attempt.trace()))
	if out.Body != nil && out.Body != http.NoBody {
		sent.Body = &watchedBody{out.Body, watch, false}
	}
	resp, err := g.Transport.RoundTrip(sent)
	outcome := attempt.outcome()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		watch.stop()
		return nil, outcome, err
	}
	watch.progress()
	if resp.Body != http.NoBody {
		resp.Body = &watchedBody{resp.Body, watch, true}
	} else {
		watch.stop()
	}
	outcome.Sent, outcome.Answered = true, true
	outcome.Failed = resp.StatusCode >= http.StatusInternalServerError ||
		resp.StatusCode == http.StatusRequestTimeout || resp.StatusCode == http.StatusTooEarly
	outcome.Rate, _ = signals.ReadRate(resp.Header)
	g.heed(resp, &outcome)
	return resp, outcome, nil
}

// heed recognizes a limit error (design section 5.4). GraphQL may tell it in
// an answer of 200.
func (g *Gateway) heed(resp *http.Response, outcome *limits.Outcome) {
	switch resp.StatusCode {
	case http.StatusForbidden, http.StatusTooManyRequests:
	case http.StatusOK:
		if outcome.Rate.Resource != policy.GraphQL {
			return
		}
	default:
		return
	}
	outcome.Limited = signals.Recognize(resp.StatusCode, resp.Header, peek(resp))
	outcome.RetryAfter = signals.RetryAfter(resp.Header, time.Now())
}

// maxPeek is how much of a refusal is read to recognize it.
const maxPeek = 8 << 10

// peek reads the beginning of the body and puts it back.
func peek(resp *http.Response) []byte {
	start, err := io.ReadAll(io.LimitReader(resp.Body, maxPeek))
	rest := resp.Body
	again := io.MultiReader(bytes.NewReader(start), rest)
	if err != nil {
		again = io.MultiReader(bytes.NewReader(start), brokenReader{err})
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{again, rest}
	return start
}

type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
