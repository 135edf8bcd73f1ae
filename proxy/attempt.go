package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// attempt gets one answer from the upstream (journey, steps 7 to 9). prepare completes
// the request once it is let go, or says why it cannot be sent. It is the only loop: round again where the catalogue
// says that an answer is not yet one, and where the connection broke before there was any. Each time is a request like
// any other, with a permit of its own.
func (g *Gateway) attempt(ex *exchange, out *http.Request, prepare func() error) (*http.Response, error) {
	caller, again := ex.identity.Caller, 0
	for { // bounded by the client's patience
		tries, err := g.breaker.spares(caller.Account, time.Now())
		if err != nil {
			return nil, err
		}
		permit, err := g.letGo(ex, out, caller, prepare)
		if err != nil {
			if tries {
				g.breaker.notSent(caller.Account)
			}
			return nil, err
		}
		prepare = nil
		if tries && !ex.record.Background {
			out = out.WithContext(ex.untilDrained())
		}
		ex.sent = time.Now()
		ex.call.goes()
		s := g.enter(ex, out.Context(), stageAttempt)
		resp, outcome, err := g.send(ex, out, *permit)
		s.leave(whatCame(resp, err), err)
		ex.counts(resp, outcome)
		if err == nil {
			// The place among the concurrent requests is free when the body has
			// ended, not when headers came.
			outcome.Ended = resp.ContentLength == 0 || resp.Body == http.NoBody
		}
		g.learn(ex, *permit, outcome)
		g.noteContact(ex, err)
		if err != nil {
			g.heard(ex, 0)
			if g.goesAgain(ex, out.Context(), err, again) {
				again++
				continue
			}
			return nil, err
		}
		g.heard(ex, resp.StatusCode)
		if !outcome.Ended {
			resp.Body = &permittedBody{ReadCloser: resp.Body, end: func(aborted bool) { g.release(ex, *permit, aborted) }}
		}
		if g.comesBack(ex, outcome) {
			discard(resp.Body)
			ex.call.waits()
			continue // admission waits for as long as the upstream asked
		}
		wait, again := g.Statistics.next(ex, resp)
		if !again {
			g.sift(ex.match.Operation, resp.Header)
			return resp, nil
		}
		discard(resp.Body)
		ex.call.waits()
		caller.Priority = policy.Batch // a poll is nobody's hurry
		if err := g.pause(ex, out.Context(), wait); err != nil {
			return nil, err
		}
	}
}

// letGo gets a permit, and completes the request for which it is.
func (g *Gateway) letGo(ex *exchange, out *http.Request, caller policy.Caller, prepare func() error) (*limits.Permit, error) {
	permit, err := g.admit(ex, out.Context(), caller)
	if err == nil && prepare != nil {
		err = g.prepared(ex, *permit, prepare)
	}
	return permit, err
}

// pause waits until an answer that is still computed is asked for again.
func (g *Gateway) pause(ex *exchange, ctx context.Context, wait time.Duration) error {
	s := g.enter(ex, ctx, stagePoll)
	err := sleep(ctx, wait)
	ex.record.Waited += s.leave("", err)
	return err
}

// counts notes what an attempt has cost: what was sent counts, unless the API has said
// to someone whom it knows that nothing has changed.
func (ex *exchange) counts(resp *http.Response, o limits.Outcome) {
	ex.record.Attempts++
	ex.limited = o.Limited
	if o.Sent {
		ex.record.Spent += 1 + o.Resent
	}
	if resp != nil && resp.StatusCode == http.StatusNotModified && ex.identity.Caller.Kind != policy.Unauthenticated {
		ex.record.Spent--
	}
}

// prepared completes a request that is let go; an error or a panic gives its permit
// back.
func (g *Gateway) prepared(ex *exchange, permit limits.Permit, prepare func() error) error {
	done := false
	defer func() {
		if !done {
			g.learn(ex, permit, limits.Outcome{})
		}
	}()
	err := prepare()
	done = err == nil
	return err
}

// comesBack reports whether a request that met a limit of the upstream's is sent
// again when that is over: a safe one, whose client can still wait (design
// section 5.4). Everybody else is told when to come back, in the upstream's own
// words.
func (g *Gateway) comesBack(ex *exchange, o limits.Outcome) bool {
	now := time.Now()
	var over time.Time
	switch {
	case o.Limited == limits.NotLimited || !ex.match.Operation.Safe() || ex.hasAlternative:
		return false
	case o.RetryAfter > 0:
		over = now.Add(o.RetryAfter)
	case o.Limited == limits.PrimaryLimit || o.Rate.Limit != 0 && o.Rate.Used >= o.Rate.Limit:
		over = o.Rate.Reset
	default:
		over = now.Add(time.Minute)
	}
	return over.After(now) && !over.Add(roundedAway).After(ex.until(g.Wait))
}

// roundedAway is how much later than told a limit may be over.
const roundedAway = 2 * time.Second

// admit waits for a permit as long as this client may wait.
func (g *Gateway) admit(ex *exchange, ctx context.Context, caller policy.Caller) (*limits.Permit, error) {
	op := ex.operation
	claim := limits.Claim{Operation: ex.claimScope, Resource: op.Resource, Points: op.Points, CreatesContent: op.CreatesContent}
	s := g.enter(ex, ctx, stageQueue)
	permit, err := g.Limiter.Acquire(s.ctx, claim, caller, g.admitBefore(ex, time.Now()))
	ex.record.Waited += s.leave(whyWaited(permit, err), err)
	return permit, err
}

// lasting is the request's context without its end: for what does not hang on the
// client.
func (ex *exchange) detach() context.Context {
	if ex.detached != nil {
		return ex.detached
	}
	return context.WithoutCancel(ex.in.Context())
}

// learn settles the permit with what the answer told. It does not hang on the
// client: a settled permit is what keeps the ledger true.
func (g *Gateway) learn(ex *exchange, permit limits.Permit, outcome limits.Outcome) {
	if outcome.Rate.Resource != "" {
		ex.record.Resource = outcome.Rate.Resource
	}
	s := g.enter(ex, ex.detach(), stageSettle)
	err := g.Limiter.Settle(s.ctx, permit, outcome)
	s.leave("", err)
	if err != nil {
		// A ledger that is lost says so once, and is told later.
		g.Log.DebugContext(s.ctx, "a permit was not settled", "request", ex.record.ID, "error", err)
	}
}

func (g *Gateway) release(ex *exchange, permit limits.Permit, aborted bool) {
	if err := g.Limiter.Release(ex.detach(), permit, aborted); err != nil {
		g.Log.DebugContext(ex.detach(), "a permit was not released", "request", ex.record.ID, "error", err)
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
	reused  atomic.Bool  // the connection had been used before
	written atomic.Int32 // how often the header was written
	// given is when the upstream got what it has of the request, in nanoseconds since
	// start: the header for the first time, and what there is of a body.
	given   atomic.Int64
	start   time.Time
	interim atomic.Int32 // answers so far
	ended   atomic.Bool  // by the gateway, before a copy of the request was sent
}

// gives notes that the upstream has got more of the request.
func (w *wire) gives() { w.given.Store(int64(time.Since(w.start))) }

// uploadedBody is a request's body, whose time is not the upstream's.
type uploadedBody struct {
	io.ReadCloser
	wire *wire
}

func (b *uploadedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.wire.gives()
	return n, err
}

// maxInterim is how many interim answers one answer may have: they pass on as they
// come, and nothing else bounds them.
const maxInterim = 100

// errInterim ends a wire attempt that has had more.
var errInterim = errors.New("the upstream sends interim answers without end")

// errClosedOn ends a wire attempt that the transport would begin anew by itself.
var errClosedOn = fmt.Errorf("the upstream closed the connection on the request: %w", io.ErrUnexpectedEOF)

func (w *wire) trace(end context.CancelCauseFunc, interim func(int, textproto.MIMEHeader) error) *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		// A transport sends a request again whose connection, used before, ends without an
		// answer: a copy that has no permit. It also takes an Idempotency-Key for leave to
		// send what is not safe. Whether a request goes again is for goesAgain. HTTP/2 is
		// told by the upstream that it has done nothing, and shares its connections.
		GotConn: func(c httptrace.GotConnInfo) {
			if w.written.Load() == 0 {
				w.reused.Store(c.Reused)
			}
			if w.written.Load() > 0 && !isHTTP2(c.Conn) {
				w.ended.Store(true)
				end(errClosedOn)
				_ = c.Conn.Close()
			}
		},
		WroteHeaders: func() {
			if !w.ended.Load() && w.written.Add(1) == 1 {
				w.gives()
			}
		},
		Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
			if w.interim.Add(1) > maxInterim {
				end(errInterim)
			}
			return interim(status, header)
		},
	}
}

// isHTTP2 reports whether a connection was agreed to be one of HTTP/2.
func isHTTP2(c net.Conn) bool {
	secure, ok := c.(interface{ ConnectionState() tls.ConnectionState })
	return ok && secure.ConnectionState().NegotiatedProtocol == "h2"
}

// outcome is what is known of the attempt so far.
func (w *wire) outcome() limits.Outcome {
	written := int(w.written.Load())
	o := limits.Outcome{Sent: written > 0, Resent: max(0, written-1)}
	if o.Sent {
		o.Elapsed = time.Since(w.start) - time.Duration(w.given.Load())
	}
	return o
}

// send makes one wire attempt. The outcome is true whatever the error.
func (g *Gateway) send(ex *exchange, out *http.Request, permit limits.Permit) (*http.Response, limits.Outcome, error) {
	attempt := &wire{start: time.Now()}
	ctx, watch := watchProgress(out.Context(), g.Timeout)
	hooks, sent := attempt.trace(watch.cancel, ex.interim), *out
	if out.Body != nil && out.Body != http.NoBody {
		uploaded := g.Limiter.Upload(permit)
		hooks.WroteRequest = func(httptrace.WroteRequestInfo) { attempt.gives(); uploaded() }
		sent.Body = &uploadedBody{&watchedBody{out.Body, watch, false}, attempt}
	}
	resp, err := g.Transport.RoundTrip(sent.WithContext(httptrace.WithClientTrace(ctx, hooks)))
	outcome := attempt.outcome()
	ex.reused = attempt.reused.Load()
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
	outcome.Rate, _ = limits.ReadRate(resp.Header)
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
	outcome.Limited = limits.ClassifyLimit(resp.StatusCode, resp.Header, peek(resp))
	outcome.RetryAfter = limits.ReadRetryAfter(resp.Header, time.Now())
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
