package proxy

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"
)

// Drain is the end of a gateway's life, so that it fails no request: it outlives a
// [Gateway], like who listens. The zero value has not begun. It is safe for concurrent
// use.
type Drain struct{ begun atomic.Bool }

// Begin has each answer from now on close its connection, by HTTP/2 each connection take
// no more requests: clients go on elsewhere, and connections that are in use meanwhile are
// not closed on who has just sent something.
func (d *Drain) Begin() { d.begun.Store(true) }

// Begun reports whether it has.
func (d *Drain) Begun() bool { return d != nil && d.begun.Load() }

// ErrDrained is the cause for which the contexts of requests end that a gateway which stops
// can wait for no longer. Those that have no answer yet get 503, or 504 where the API may
// have done what they ask for.
var ErrDrained = errors.New("the gateway stops")

// drained is what a request gets for which the gateway did not wait; nil for others. Only
// what has surely changed nothing is worth sending again.
func (ex *exchange) drained() *failure {
	switch {
	case !errors.Is(context.Cause(ex.in.Context()), ErrDrained):
		return nil
	case ex.record.Attempts > 0 && !ex.match.Operation.Safe():
		return &failure{
			status: http.StatusGatewayTimeout, detail: "drain", cause: ErrDrained,
			message: "Gateway Timeout: this gateway stops, and did not wait for the answer: what was asked for may have been done",
		}
	}
	return &failure{
		status: http.StatusServiceUnavailable, detail: "drain", retryAfter: time.Second, cause: ErrDrained,
		message: "Service Unavailable: this gateway stops; another answers",
	}
}

// undrained is a context that ends neither with the client nor with the request, but where
// the gateway waits for it no longer.
func (ex *exchange) undrained() context.Context {
	in := ex.in.Context()
	ctx, end := context.WithCancelCause(ex.detach())
	context.AfterFunc(in, func() {
		if cause := context.Cause(in); errors.Is(cause, ErrDrained) {
			end(cause)
		}
	})
	return ctx
}
