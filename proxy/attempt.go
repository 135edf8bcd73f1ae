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
)

// attempt gets one answer from the upstream (journey, steps 7 to 9). It is the
// only loop: round again where the catalogue says that an answer is not yet
// one.
func (g *Gateway) attempt(x *exchange, out *http.Request) (*http.Response, error) {
	for poll := 0; ; poll++ {
		permit, err := g.admit(x, out.Context())
		if err != nil {
			return nil, err
		}
		x.sent = time.Now()
		resp, outcome, err := g.send(out)
		x.record.Attempts++
		g.learn(x, *permit, outcome)
		if err != nil {
			return nil, err
		}
		wait, again := g.Statistics.next(x, resp, poll)
		if !again {
			return resp, nil
		}
		discard(resp.Body)
		x.record.Waited += wait
		if err := sleep(out.Context(), wait); err != nil {
			return nil, err
		}
	}
}

// admit waits for a permit as long as this client may wait.
func (g *Gateway) admit(x *exchange, ctx context.Context) (*limits.Permit, error) {
	claim := limits.Claim{Account: x.who.Caller.Account, Kind: x.who.Caller.Kind, Resource: x.match.Operation.Resource}
	began := time.Now()
	permit, err := g.limiter.Acquire(ctx, claim, x.until(g.Wait))
	x.record.Waited += time.Since(began)
	return permit, err
}

// learn settles the permit with what the answer told. It does not hang on the
// client: a settled permit is what keeps the ledger true.
func (g *Gateway) learn(x *exchange, permit limits.Permit, outcome limits.Outcome) {
	if outcome.Rate.Resource != "" {
		x.record.Resource = outcome.Rate.Resource
	}
	if err := g.limiter.Settle(context.WithoutCancel(x.in.Context()), permit, outcome); err != nil {
		g.Log.Error("a permit was not settled", "request", x.record.ID, "error", err)
	}
}

// send makes one wire attempt. The outcome is true whatever the error.
func (g *Gateway) send(out *http.Request) (*http.Response, limits.Outcome, error) {
	var written atomic.Bool
	ctx, watch := watchProgress(out.Context(), g.Timeout)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders: func() { written.Store(true) },
	})
	wire := out.WithContext(ctx)
	if out.Body != nil && out.Body != http.NoBody {
		wire.Body = &watchedBody{out.Body, watch, false}
	}
	resp, err := g.Transport.RoundTrip(wire)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		watch.stop()
		return nil, limits.Outcome{Sent: written.Load()}, err
	}
	watch.progress()
	resp.Body = &watchedBody{resp.Body, watch, true}
	outcome := limits.Outcome{Sent: true, Answered: true}
	now := time.Now()
	outcome.Rate, _ = limits.ReadRate(resp.Header, now)
	if resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusTooManyRequests {
		outcome.Limited = limits.Recognize(resp.StatusCode, resp.Header, peek(resp))
		outcome.RetryAfter = limits.RetryAfter(resp.Header, now)
	}
	return resp, outcome, nil
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
