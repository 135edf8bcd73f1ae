package proxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// answerFromCache answers with a fresh entry (journey, step 5) and reports
// whether it did. What is stale it leaves in x for answer.
func (g *Gateway) answerFromCache(ex *exchange) bool {
	if ex.ranged && g.answerPart(ex) {
		return true
	}
	if !ex.cacheable {
		ex.record.Cache = "weir; fwd=" + ex.bypass()
		return g.onlyIfCached(ex)
	}
	e := g.recall(ex)
	if e == nil {
		return g.onlyIfCached(ex)
	}
	if ex.mayBeBlind(e.Status) && !ex.cacheControl.Has("only-if-cached") {
		ex.denial = e
		return false
	}
	g.replyFromEntry(ex, e, time.Now())
	return true
}

// recall returns the entry that may be used for the question, or notes what is held
// and may not, and why it must be asked.
func (g *Gateway) recall(ex *exchange) *cache.Entry {
	e, purged := g.look(ex)
	now := time.Now()
	switch {
	case e == nil:
		ex.record.Cache = "weir; fwd=uri-miss"
	case purged:
		ex.stale, ex.record.Cache = e, "weir; fwd=stale"
	case ex.mustAsk(e, now):
		ex.stale, ex.record.Cache = e, "weir; fwd=request"
	case e.Fresh(now):
		return e
	case !e.NeverStale(ex.rule) && e.AllowedByMaxStale(now, ex.cacheControl):
		return e
	case !e.NeverStale(ex.rule) && e.UsableWhileRevalidating(now) && g.refresh(ex):
		return e
	default:
		ex.stale, ex.record.Cache = e, "weir; fwd=stale"
		if !e.NeverStale(ex.rule) {
			ex.fallback = e
		}
	}
	return nil
}

// onlyIfCached refuses what would be sent, where its client wants nothing that is
// (RFC 9111 section 5.2.1.7), and reports whether it did.
func (g *Gateway) onlyIfCached(ex *exchange) bool {
	if !ex.cacheControl.Has("only-if-cached") || !ex.match.Operation.Safe() {
		return false
	}
	g.refuse(ex, &failure{status: http.StatusGatewayTimeout, message: "Gateway Timeout: not in the cache", detail: "only-if-cached"})
	return true
}

// answerPart answers with a part of a fresh whole answer (RFC 9110 section 14) and
// reports whether it did. What is not held whole the origin divides.
func (g *Gateway) answerPart(ex *exchange) bool {
	if !strings.HasPrefix(ex.in.Header.Get("Range"), "bytes=") {
		return false // another unit: the origin may know it
	}
	e, purged := g.Cache.Lookup(ex.in.Context(), ex.key, ex.header)
	now := time.Now()
	if e == nil || purged || e.Status != http.StatusOK || !e.Fresh(now) || ex.mustAsk(e, now) {
		return false
	}
	g.replyRange(ex, e, now)
	return true
}

// bypass says why the cache has no part in the question (RFC 9211 section
// 2.2).
func (ex *exchange) bypass() string {
	switch {
	case ex.method != http.MethodGet && ex.method != http.MethodHead:
		return "method"
	case ex.cacheControl.Has("no-store"):
		return "request"
	}
	return "bypass"
}

// mustAsk reports whether the client wants a fresh entry validated all the
// same (RFC 9111 section 5.2.1).
func (ex *exchange) mustAsk(e *cache.Entry, now time.Time) bool {
	if ex.cacheControl.Has("no-cache") || len(ex.cacheControl) == 0 && ex.in.Header.Get("Pragma") == "no-cache" {
		return true
	}
	if oldest, ok := ex.cacheControl.Seconds("max-age"); ok && e.Age(now) > oldest {
		return true
	}
	if least, ok := ex.cacheControl.Seconds("min-fresh"); ok && e.Lifetime-e.Age(now) < least {
		return true
	}
	return false
}

// answer gets the answer from upstream, or from whoever asks the same there now
// (journey, steps 6 to 10).
func (g *Gateway) answer(ex *exchange, out *http.Request) (*http.Response, error) {
	switch {
	case ex.call != nil && ex.polls == 0:
		return g.askForAll(ex, ex.call, out)
	case ex.call == nil && ex.collapses():
		return g.collapse(ex, out)
	}
	return g.ask(ex, out)
}

// ask gets the answer from upstream.
func (g *Gateway) ask(ex *exchange, out *http.Request) (*http.Response, error) {
	asked, since := false, g.Cache.Generation()
	resp, err := g.attempt(ex, out, func() error {
		err := g.showCredential(ex, out)
		if err == nil {
			asked = g.validate(ex, out)
		}
		return err
	})
	if err != nil {
		g.land(ex, landingAfter(err), err)
		return g.insteadOf(ex, err)
	}
	if why := ex.standsIn(resp); why != "" {
		discard(resp.Body)
		g.land(ex, alone, nil)
		ex.record.Cache += "; fwd-status=" + strconv.Itoa(resp.StatusCode)
		return ex.useFallback(why), nil
	}
	switch resp.StatusCode {
	case http.StatusNotModified:
		if ex.match.Operation.Safe() && (asked || isUnconditional(ex.header)) {
			return g.notModified(ex, out, resp, since)
		}
	case http.StatusBadRequest, http.StatusPreconditionFailed, http.StatusRequestHeaderFieldsTooLarge:
		if asked && !onlyHeld(ex.offers) { // it may have been too much
			again, err := g.askAgain(ex, out, resp)
			if err == nil && again.StatusCode != resp.StatusCode {
				g.trustIn(ex).proofs.told(false, time.Now())
			}
			return again, err
		}
	}
	a := cache.Response{Status: resp.StatusCode, Header: resp.Header, Requested: ex.sent, Answered: time.Now()}
	ex.record.Cache += "; fwd-status=" + strconv.Itoa(resp.StatusCode)
	switch {
	case ex.computed() && resp.StatusCode == http.StatusAccepted:
		if ex.record.Background {
			g.land(ex, unfinished, nil)
		}
	case ex.cacheable && ex.method == http.MethodGet:
		return g.keep(ex, resp, out.Header, a, since)
	case ex.ends(resp):
		g.Cache.Delete(ex.in.Context(), ex.key)
	case !ex.match.Operation.Safe() && resp.StatusCode < 400:
		g.Cache.Purge(ex.in.Context(), append(g.invalidated(ex.match), g.elsewhereInvalidated(ex, resp.Header)...)...)
	}
	return resp, nil
}

// standsIn says why a stale answer is given in the place of this one; it is empty
// where none is.
func (ex *exchange) standsIn(resp *http.Response) string {
	switch {
	case ex.fallback == nil:
	case isError(resp.StatusCode) && ex.fallback.UsableOnError(time.Now(), ex.cacheControl):
		return "stale-if-error"
	case ex.limited != limits.NotLimited && !ex.hasAlternative:
		return string(ex.limitReason())
	}
	return ""
}

// notModified answers from what a 304 says has not changed. Where its ETag is of
// nothing that was asked about, it says still that what is stale holds, but its fields
// are of another answer (RFC 9111 section 4.3.4); unless that was judged by a date, or
// nothing is stale: then the question is asked anew, with no condition of ours. A 304
// to that is an error, for who has nothing is helped with none.
func (g *Gateway) notModified(ex *exchange, out *http.Request, resp *http.Response, since cache.Generation) (*http.Response, error) {
	if isUnconditional(out.Header) {
		discard(resp.Body)
		err := &failure{status: http.StatusBadGateway, message: "Bad Gateway: the API says that something has not changed that it was not asked about", detail: "upstream"}
		g.land(ex, failed, err)
		return g.insteadOf(ex, err)
	}
	o, ok := g.proven(ex, out.Header, resp.Header)
	if !ok {
		return g.askAgain(ex, out, resp)
	}
	discard(resp.Body)
	a := cache.Response{Status: resp.StatusCode, Header: resp.Header, Requested: ex.sent, Answered: time.Now()}
	if o.etag == "" && a.Header.Get("Etag") != "" {
		a.Header = http.Header{"Date": a.Header["Date"], "Age": a.Header["Age"]}
	}
	ex.record.Cache += "; fwd-status=" + strconv.Itoa(resp.StatusCode)
	return g.revalidated(ex, o, a, since), nil
}

// askAgain asks as the client did, with no condition of ours.
func (g *Gateway) askAgain(ex *exchange, out *http.Request, resp *http.Response) (*http.Response, error) {
	discard(resp.Body)
	ex.unconditional = true
	ex.call.waits()                            // for a permit
	return g.ask(ex, out.Clone(out.Context())) // its header may still be on its way
}

// limitReason is what a limit error of the upstream's is called.
func (ex *exchange) limitReason() limits.Reason {
	if ex.limited == limits.PrimaryLimit {
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
func (g *Gateway) insteadOf(ex *exchange, err error) (*http.Response, error) {
	var refused *limits.Refusal
	var unusable *UnusableError
	switch limited := errors.As(err, &refused); {
	case ex.in.Context().Err() != nil:
		return nil, context.Cause(ex.in.Context()) // nobody is there to take it
	case limited && ex.hasAlternative, errors.As(err, &unusable):
		return nil, err // for another credential; what this one has seen it may see no more
	case ex.shed != nil && ex.fallback != nil:
		ex.record.Cache = "weir; hit"
		return ex.useFallback("overload"), nil
	case ex.shed != nil:
		return nil, err
	case ex.fallback == nil && ex.stale != nil && ex.stale.NeverStale(ex.rule) && !limited:
		return nil, &failure{status: http.StatusGatewayTimeout, message: "Gateway Timeout: the answer must be validated, and the API cannot be reached", detail: "upstream", cause: err}
	case ex.fallback == nil:
		return nil, err
	case limited:
		if ex.record.Attempts == 0 {
			ex.record.Cache = "weir; hit" // nothing was forwarded
		}
		return ex.useFallback(string(refused.Reason)), nil
	}
	ex.record.Error = err.Error()
	return ex.useFallback("upstream"), nil
}

// useFallback answers with the stale entry, and says why.
func (ex *exchange) useFallback(why string) *http.Response {
	now := time.Now()
	ex.record.Cache += "; ttl=" + strconv.Itoa(-int(ex.fallback.Staleness(now)/time.Second)) + "; detail=" + why
	return entryResponse(ex, ex.fallback, now)
}

// revalidated merges a 304 into the entry that it says is the answer (RFC 9111
// section 4.3.4) and answers from it.
func (g *Gateway) revalidated(ex *exchange, o offer, a cache.Response, since cache.Generation) *http.Response {
	now, e := a.Answered, o.entry
	if o.from == foreign {
		e = e.ForCaller(cmp.Or(a.Header.Get("Etag"), o.etag), g.Dialect.Describe)
	}
	a = g.ofAll(ex, a)
	renewed := e.Renewed(a)
	lifetime, ok := cache.Storable(renewed, ex.cacheControl, ex.rule)
	vary, one := cache.VaryFields(renewed.Header, ex.header, g.covered)
	if ok && one {
		g.trustIn(ex).unkept.Store(0)
		e = e.Validated(a, lifetime, since)
		e.Vary, e.BaseKey = vary, g.about(ex)
		e.Tag(ex.tags()...)
		ex.call.sharesIt(g.Cache.Put(ex.in.Context(), ex.key, e))
		ex.noteStored(e, now)
		g.land(ex, ex.landingOf(e), nil)
	} else {
		e = e.Validated(a, 0, since)
		g.Cache.Delete(ex.in.Context(), ex.key)
		g.land(ex, alone, nil)
	}
	return entryResponse(ex, e, now)
}

// keep stores the answer once its body has gone by, complete. Of one that is kept
// trailers are not passed on: they come while another reads the body, and a hit has
// none either. A small one that breaks off is no answer.
func (g *Gateway) keep(ex *exchange, resp *http.Response, sent http.Header, a cache.Response, since cache.Generation) (*http.Response, error) {
	lifetime, ok := cache.Storable(a, ex.cacheControl, ex.rule)
	vary, one := cache.VaryFields(a.Header, ex.header, g.covered)
	if !ok || !one || resp.ContentLength > maxEntry || !delimited(resp) {
		if ex.stale != nil && ex.replaces(resp.StatusCode) {
			g.Cache.Delete(ex.in.Context(), ex.key)
		}
		if u := &g.trustIn(ex).unkept; resp.StatusCode == http.StatusOK && u.Load() < unkeepable {
			u.Add(1)
		}
		g.land(ex, alone, nil)
		return resp, nil
	}
	g.trustIn(ex).unkept.Store(0)
	own := *resp
	own.Trailer = nil
	e := cache.NewEntry(g.ofAll(ex, a), nil, lifetime) // now: the header is the client's from here on
	e.Vary, e.Since, e.BaseKey = vary, since, g.about(ex)
	e.Tag(ex.tags()...)
	if ex.landingOf(e) == alone {
		g.land(ex, alone, nil)
	}
	ahead := func(s *spool) {
		g.Background.run(func() {
			defer context.AfterFunc(g.Background.ctx, ex.call.giveUp)()
			defer func() {
				if p := recover(); p != nil { // there is no server to take it
					g.Log.Error("panic behind a request", "request", ex.record.ID, "panic", p, "stack", string(debug.Stack()))
					_ = s.body.Close()
					s.stop(errPanic)
					g.land(ex, alone, nil)
				}
			}()
			s.fill()
		})
	}
	err := spooled(&own, &g.Background.room, ahead, func(body []byte, all bool) {
		if !all {
			g.land(ex, alone, nil)
			return
		}
		e.Body = body
		g.compare(ex, sent, e)
		ex.call.sharesIt(g.Cache.Put(ex.in.Context(), ex.key, e))
		g.land(ex, kept, nil)
	})
	if err != nil {
		return g.insteadOf(ex, err)
	}
	ex.noteStored(e, a.Answered)
	return &own, nil
}

// ofAll is an answer as it is kept: without what may speak of the caller who fetched
// it, where all callers share it.
func (g *Gateway) ofAll(ex *exchange, a cache.Response) cache.Response {
	if ex.match.Operation.Cache.Class == policy.Shared {
		return a.WithoutCaller(g.Dialect.Describe)
	}
	return a
}

// ends reports whether what is held has come to its end by the answer to a HEAD, which
// tells what a GET would bring (RFC 9111 section 4.3.5), or to a request for a part.
func (ex *exchange) ends(resp *http.Response) bool {
	switch {
	case !ex.ranged && (!ex.cacheable || ex.stale == nil):
		return false // nothing is known to be held
	case resp.StatusCode >= 400:
		return ex.replaces(resp.StatusCode)
	}
	return ex.cacheable && resp.StatusCode == http.StatusOK && ex.stale.Differs(resp)
}

// replaces reports whether an answer that is not kept ends what is held: it is there
// no more, or is another now. One credential's refusal says nothing of what all
// share, nor does a limit error of anything.
func (ex *exchange) replaces(status int) bool {
	switch {
	case status < 400, status == http.StatusNotFound, status == http.StatusGone:
		return true
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return ex.limited == limits.NotLimited && ex.match.Operation.Cache.Class != policy.Shared
	}
	return false
}

func (ex *exchange) noteStored(e *cache.Entry, now time.Time) {
	ex.record.Cache += "; stored; ttl=" + strconv.Itoa(int((e.Lifetime-e.Age(now))/time.Second))
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
