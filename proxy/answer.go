package proxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/signals"
	"github.com/weirgate/weir/policy"
)

// answerFromCache answers with a fresh entry (journey, step 5) and reports
// whether it did. What is stale it leaves in x for answer.
func (g *Gateway) answerFromCache(x *exchange) bool {
	if x.part && g.answerPart(x) {
		return true
	}
	if !x.kept {
		x.record.Cache = "weir; fwd=" + x.bypass()
		return g.onlyIfCached(x)
	}
	e := g.recall(x)
	if e == nil {
		return g.onlyIfCached(x)
	}
	if x.mayBeBlind(e.Status) && !x.ask.Has("only-if-cached") {
		x.denial = e
		return false
	}
	g.replyFromEntry(x, e, time.Now())
	return true
}

// recall returns the entry that may be used for the question, or notes what is held
// and may not, and why it must be asked.
func (g *Gateway) recall(x *exchange) *cache.Entry {
	e, purged := g.look(x)
	now := time.Now()
	switch {
	case e == nil:
		x.record.Cache = "weir; fwd=uri-miss"
	case purged:
		x.stale, x.record.Cache = e, "weir; fwd=stale"
	case x.mustAsk(e, now):
		x.stale, x.record.Cache = e, "weir; fwd=request"
	case e.Fresh(now):
		return e
	case !e.NeverStale(x.rule) && e.Pleases(now, x.ask):
		return e
	case !e.NeverStale(x.rule) && e.WhileRevalidated(now) && g.refresh(x):
		return e
	default:
		x.stale, x.record.Cache = e, "weir; fwd=stale"
		if !e.NeverStale(x.rule) {
			x.spare = e
		}
	}
	return nil
}

// onlyIfCached refuses what would be sent, where its client wants nothing that is
// (RFC 9111 section 5.2.1.7), and reports whether it did.
func (g *Gateway) onlyIfCached(x *exchange) bool {
	if !x.ask.Has("only-if-cached") || !x.match.Operation.Safe() {
		return false
	}
	g.refuse(x, &failure{status: http.StatusGatewayTimeout, message: "Gateway Timeout: not in the cache", detail: "only-if-cached"})
	return true
}

// answerPart answers with a part of a fresh whole answer (RFC 9110 section 14) and
// reports whether it did. What is not held whole the origin divides.
func (g *Gateway) answerPart(x *exchange) bool {
	if !strings.HasPrefix(x.in.Header.Get("Range"), "bytes=") {
		return false // another unit: the origin may know it
	}
	e, purged := g.Cache.Lookup(x.in.Context(), x.key, x.header)
	now := time.Now()
	if e == nil || purged || e.Status != http.StatusOK || !e.Fresh(now) || x.mustAsk(e, now) {
		return false
	}
	g.replyPart(x, e, now)
	return true
}

// bypass says why the cache has no part in the question (RFC 9211 section
// 2.2).
func (x *exchange) bypass() string {
	switch {
	case x.method != http.MethodGet && x.method != http.MethodHead:
		return "method"
	case x.ask.Has("no-store"):
		return "request"
	}
	return "bypass"
}

// mustAsk reports whether the client wants a fresh entry validated all the
// same (RFC 9111 section 5.2.1).
func (x *exchange) mustAsk(e *cache.Entry, now time.Time) bool {
	if x.ask.Has("no-cache") || len(x.ask) == 0 && x.in.Header.Get("Pragma") == "no-cache" {
		return true
	}
	if oldest, ok := x.ask.Seconds("max-age"); ok && e.Age(now) > oldest {
		return true
	}
	if least, ok := x.ask.Seconds("min-fresh"); ok && e.Lifetime-e.Age(now) < least {
		return true
	}
	return false
}

// answer gets the answer from upstream, or from whoever asks the same there now
// (journey, steps 6 to 10).
func (g *Gateway) answer(x *exchange, out *http.Request) (*http.Response, error) {
	switch {
	case x.flight != nil && x.polls == 0:
		return g.askForAll(x, x.flight, out)
	case x.flight == nil && x.collapses():
		return g.collapse(x, out)
	}
	return g.ask(x, out)
}

// ask gets the answer from upstream.
func (g *Gateway) ask(x *exchange, out *http.Request) (*http.Response, error) {
	asked, since := false, g.Cache.Generation()
	resp, err := g.attempt(x, out, func() error {
		err := g.showCredential(x, out)
		if err == nil {
			asked = g.validate(x, out)
		}
		return err
	})
	if err != nil {
		g.land(x, landingAfter(err), err)
		return g.insteadOf(x, err)
	}
	if why := x.standsIn(resp); why != "" {
		discard(resp.Body)
		g.land(x, alone, nil)
		x.record.Cache += "; fwd-status=" + itoa(resp.StatusCode)
		return x.useSpare(why), nil
	}
	switch resp.StatusCode {
	case http.StatusNotModified:
		if x.match.Operation.Safe() && (asked || isUnconditional(x.header)) {
			return g.notModified(x, out, resp, since)
		}
	case http.StatusBadRequest, http.StatusPreconditionFailed, http.StatusRequestHeaderFieldsTooLarge:
		if asked && !onlyHeld(x.offers) { // it may have been too much
			again, err := g.askAgain(x, out, resp)
			if err == nil && again.StatusCode != resp.StatusCode {
				g.trustIn(x).proofs.told(false, time.Now())
			}
			return again, err
		}
	}
	a := cache.Answer{Status: resp.StatusCode, Header: resp.Header, Requested: x.sent, Answered: time.Now()}
	x.record.Cache += "; fwd-status=" + itoa(resp.StatusCode)
	switch {
	case x.computed() && resp.StatusCode == http.StatusAccepted:
		if x.record.Background {
			g.land(x, unfinished, nil)
		}
	case x.kept && x.method == http.MethodGet:
		return g.keep(x, resp, out.Header, a, since)
	case x.ends(resp):
		g.Cache.Forget(x.in.Context(), x.key)
	case !x.match.Operation.Safe() && resp.StatusCode < 400:
		g.Cache.Purge(x.in.Context(), append(g.invalidated(x.match), g.elsewhereInvalidated(x, resp.Header)...)...)
	}
	return resp, nil
}

// standsIn says why a stale answer is given in the place of this one; it is empty
// where none is.
func (x *exchange) standsIn(resp *http.Response) string {
	switch {
	case x.spare == nil:
	case isError(resp.StatusCode) && x.spare.InsteadOfError(time.Now(), x.ask):
		return "stale-if-error"
	case x.limited != signals.NotLimited && !x.inHurry:
		return string(x.limitReason())
	}
	return ""
}

// notModified answers from what a 304 says has not changed. Where its ETag is of
// nothing that was asked about, it says still that what is stale holds, but its fields
// are of another answer (RFC 9111 section 4.3.4); unless that was judged by a date, or
// nothing is stale: then the question is asked anew, with no condition of ours. A 304
// to that is an error, for who has nothing is helped with none.
func (g *Gateway) notModified(x *exchange, out *http.Request, resp *http.Response, since cache.Generation) (*http.Response, error) {
	if isUnconditional(out.Header) {
		discard(resp.Body)
		err := &failure{status: http.StatusBadGateway, message: "Bad Gateway: the API says that something has not changed that it was not asked about", detail: "upstream"}
		g.land(x, failed, err)
		return g.insteadOf(x, err)
	}
	o, ok := g.proven(x, out.Header, resp.Header)
	if !ok {
		return g.askAgain(x, out, resp)
	}
	discard(resp.Body)
	a := cache.Answer{Status: resp.StatusCode, Header: resp.Header, Requested: x.sent, Answered: time.Now()}
	if o.etag == "" && a.Header.Get("Etag") != "" {
		a.Header = http.Header{"Date": a.Header["Date"], "Age": a.Header["Age"]}
	}
	x.record.Cache += "; fwd-status=" + itoa(resp.StatusCode)
	return g.revalidated(x, o, a, since), nil
}

// askAgain asks as the client did, with no condition of ours.
func (g *Gateway) askAgain(x *exchange, out *http.Request, resp *http.Response) (*http.Response, error) {
	discard(resp.Body)
	x.unproven = true
	x.flight.waits()                          // for a permit
	return g.ask(x, out.Clone(out.Context())) // its header may still be on its way
}

// limitReason is what a limit error of the upstream's is called.
func (x *exchange) limitReason() limits.Reason {
	if x.limited == signals.PrimaryLimit {
		return limits.Primary
	}
	return limits.Cooldown
}

// isError are the statuses in whose place a stale answer may be given (RFC 5861
// section 4).
func isError(status int) bool {
	switch status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// insteadOf answers with a stale entry what could not be asked: the budget is out,
// or the upstream cannot be reached. An entry that may not be used so is an error of
// its own (RFC 9111 section 5.2.2.2).
func (g *Gateway) insteadOf(x *exchange, err error) (*http.Response, error) {
	var refused *limits.Refusal
	var unusable *UnusableError
	switch limited := errors.As(err, &refused); {
	case x.in.Context().Err() != nil:
		return nil, context.Cause(x.in.Context()) // nobody is there to take it
	case limited && x.inHurry, errors.As(err, &unusable):
		return nil, err // for another credential; what this one has seen it may see no more
	case x.shed != nil && x.spare != nil:
		x.record.Cache = "weir; hit"
		return x.useSpare("overload"), nil
	case x.shed != nil:
		return nil, err
	case x.spare == nil && x.stale != nil && x.stale.NeverStale(x.rule) && !limited:
		return nil, &failure{status: http.StatusGatewayTimeout, message: "Gateway Timeout: the answer must be validated, and the API cannot be reached", detail: "upstream", cause: err}
	case x.spare == nil:
		return nil, err
	case limited:
		if x.record.Attempts == 0 {
			x.record.Cache = "weir; hit" // nothing was forwarded
		}
		return x.useSpare(string(refused.Reason)), nil
	}
	x.record.Error = err.Error()
	return x.useSpare("upstream"), nil
}

// useSpare answers with the stale entry, and says why.
func (x *exchange) useSpare(why string) *http.Response {
	now := time.Now()
	x.record.Cache += "; ttl=" + itoa(-int(x.spare.Staleness(now)/time.Second)) + "; detail=" + why
	return entryResponse(x, x.spare, now)
}

// revalidated merges a 304 into the entry that it says is the answer (RFC 9111
// section 4.3.4) and answers from it.
func (g *Gateway) revalidated(x *exchange, o offer, a cache.Answer, since cache.Generation) *http.Response {
	now, e := a.Answered, o.entry
	if o.from == foreign {
		e = e.Foreign(cmp.Or(a.Header.Get("Etag"), o.etag), g.Dialect.Describe)
	}
	a = g.ofAll(x, a)
	renewed := e.Renewed(a)
	lifetime, ok := cache.Keep(renewed, x.ask, x.rule)
	vary, one := cache.VaryFields(renewed.Header, x.header, g.covered)
	if ok && one {
		g.trustIn(x).unkept.Store(0)
		e = e.Validated(a, lifetime, since)
		e.Vary, e.About = vary, g.about(x)
		e.Tag(x.tags()...)
		x.flight.sharesIt(g.Cache.Keep(x.in.Context(), x.key, e))
		x.noteStored(e, now)
		g.land(x, x.landingOf(e), nil)
	} else {
		e = e.Validated(a, 0, since)
		g.Cache.Forget(x.in.Context(), x.key)
		g.land(x, alone, nil)
	}
	return entryResponse(x, e, now)
}

// keep stores the answer once its body has gone by, complete. Of one that is kept
// trailers are not passed on: they come while another reads the body, and a hit has
// none either. A small one that breaks off is no answer.
func (g *Gateway) keep(x *exchange, resp *http.Response, sent http.Header, a cache.Answer, since cache.Generation) (*http.Response, error) {
	lifetime, ok := cache.Keep(a, x.ask, x.rule)
	vary, one := cache.VaryFields(a.Header, x.header, g.covered)
	if !ok || !one || resp.ContentLength > maxEntry || !delimited(resp) {
		if x.stale != nil && x.replaces(resp.StatusCode) {
			g.Cache.Forget(x.in.Context(), x.key)
		}
		if u := &g.trustIn(x).unkept; resp.StatusCode == http.StatusOK && u.Load() < unkeepable {
			u.Add(1)
		}
		g.land(x, alone, nil)
		return resp, nil
	}
	g.trustIn(x).unkept.Store(0)
	own := *resp
	own.Trailer = nil
	e := cache.NewEntry(g.ofAll(x, a), nil, lifetime) // now: the header is the client's from here on
	e.Vary, e.Since, e.About = vary, since, g.about(x)
	e.Tag(x.tags()...)
	if x.landingOf(e) == alone {
		g.land(x, alone, nil)
	}
	ahead := func(s *spool) {
		g.Background.run(func() {
			defer context.AfterFunc(g.Background.ctx, x.flight.giveUp)()
			defer func() {
				if p := recover(); p != nil { // there is no server to take it
					g.Log.Error("panic behind a request", "request", x.record.ID, "panic", p, "stack", string(debug.Stack()))
					_ = s.body.Close()
					s.stop(errPanic)
					g.land(x, alone, nil)
				}
			}()
			s.fill()
		})
	}
	err := spooled(&own, &g.Background.room, ahead, func(body []byte, all bool) {
		if !all {
			g.land(x, alone, nil)
			return
		}
		e.Body = body
		g.compare(x, sent, e)
		x.flight.sharesIt(g.Cache.Keep(x.in.Context(), x.key, e))
		g.land(x, kept, nil)
	})
	if err != nil {
		return g.insteadOf(x, err)
	}
	x.noteStored(e, a.Answered)
	return &own, nil
}

// ofAll is an answer as it is kept: without what may speak of the caller who fetched
// it, where all callers share it.
func (g *Gateway) ofAll(x *exchange, a cache.Answer) cache.Answer {
	if x.match.Operation.Cache.Class == policy.Shared {
		return a.ForAll(g.Dialect.Describe)
	}
	return a
}

// ends reports whether what is held has come to its end by the answer to a HEAD, which
// tells what a GET would bring (RFC 9111 section 4.3.5), or to a request for a part.
func (x *exchange) ends(resp *http.Response) bool {
	switch {
	case !x.part && (!x.kept || x.stale == nil):
		return false // nothing is known to be held
	case resp.StatusCode >= 400:
		return x.replaces(resp.StatusCode)
	}
	return x.kept && resp.StatusCode == http.StatusOK && x.stale.Differs(resp)
}

// replaces reports whether an answer that is not kept ends what is held: it is there
// no more, or is another now. One credential's refusal says nothing of what all
// share, nor does a limit error of anything.
func (x *exchange) replaces(status int) bool {
	switch {
	case status < 400, status == http.StatusNotFound, status == http.StatusGone:
		return true
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return x.limited == signals.NotLimited && x.match.Operation.Cache.Class != policy.Shared
	}
	return false
}

func (x *exchange) noteStored(e *cache.Entry, now time.Time) {
	x.record.Cache += "; stored; ttl=" + itoa(int((e.Lifetime-e.Age(now))/time.Second))
}

// delimited reports whether the end of the body is marked, so that a broken
// connection cannot pass for it (RFC 9112 section 8).
func delimited(resp *http.Response) bool {
	return resp.ContentLength >= 0 || resp.ProtoMajor >= 2 || len(resp.TransferEncoding) > 0
}

// discard lets the connection be used again after an answer nobody reads.
func discard(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, maxDiscard) // best effort: a longer or broken rest costs the connection
	_ = body.Close()
}

const maxDiscard = 256 << 10
