package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
)

// payerTurn is one credential's turn at a question, and what came of it. It has an exchange
// of its own: what its answer is kept under is not changed by another's turn.
type payerTurn struct {
	ex      *exchange
	resp    *http.Response // nil where err is set
	err     error
	refusal *limits.Refusal // set where there was no permit
}

// verdict says whether an answer is one for the client, or why another credential of the
// client's is asked.
type verdict int

const (
	final    verdict = iota
	atLimit          // the credential is at a limit
	unseeing         // it may not see what is asked for, or there is nothing
	rejected         // the upstream does not accept it, now or for some time already
)

// payerTurns are those whose answer was not final.
type payerTurns struct {
	limited, blind []payerTurn
	// sent is set once the upstream has refused one; a second refusal is final.
	sent bool
}

// answerByAny gets the answer by the credential that pays, or by another of the client's
// where that one will not do. Each has one turn; then who is soonest back from its limit
// has another, for as long as the client waits.
//
// What is not safe another asks only while nothing of it was sent, or when it was refused
// and had no body.
func (g *Gateway) answerByAny(ex *exchange, out *http.Request) (*http.Response, error) {
	if ex.identity.Pick == nil || ex.record.Background {
		return g.answer(ex, out)
	}
	var before payerTurns
	who := ex.identity
	for {
		t := g.takeTurn(ex, out, who, &before)
		what := t.verdict(before.sent)
		if what == final {
			return g.settleFor(ex, t, before)
		}
		before.add(t, what)
		next, ok := g.nextPayer(ex, what == atLimit)
		if what == rejected && t.resp != nil && (ok || !before.none()) {
			discard(t.resp.Body)
		}
		if !ok {
			return g.lastResort(ex, out, t, before)
		}
		who = next
	}
}

func (b *payerTurns) add(t payerTurn, what verdict) {
	switch what {
	case atLimit:
		b.limited = append(b.limited, t)
		if t.resp != nil {
			discard(t.resp.Body)
		}
	case unseeing:
		if len(b.blind) == 0 {
			holdBack(t.resp)
		} else {
			discard(t.resp.Body) // the first one stands, if any
		}
		b.blind = append(b.blind, t)
	case rejected:
		b.sent = b.sent || t.resp != nil
	}
}

// maxHeldBack is how much of an answer is read that may not be the client's.
const maxHeldBack = 256 << 10

// holdBack reads an answer, so that it is whole however long the turns of others take,
// and its place among the concurrent requests is free meanwhile. Of one that is larger
// what comes later may be lost.
func holdBack(resp *http.Response) {
	body := resp.Body
	start, err := io.ReadAll(io.LimitReader(body, maxHeldBack))
	rest := io.Reader(body)
	if err == nil && len(start) < maxHeldBack {
		_ = body.Close() // it has ended
		rest = http.NoBody
	} else if err != nil {
		rest = brokenReader{err}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), rest), body}
}

// none reports whether nobody has a better answer than a rejection.
func (b *payerTurns) none() bool { return len(b.limited)+len(b.blind) == 0 }

// nextPayer returns another of the client's credentials, if one is worth a request.
func (g *Gateway) nextPayer(ex *exchange, limited bool) (Identity, bool) {
	w := g.wanted(ex)
	w.Left, w.Limited = g.left(ex), limited
	return ex.identity.Pick(w)
}

// takeTurn asks by one credential. x keeps what is the client's: who has been asked,
// what that took, and the record.
func (g *Gateway) takeTurn(ex *exchange, out *http.Request, who Identity, before *payerTurns) payerTurn {
	first := len(ex.tried) == 0
	ex.tried = append(ex.tried, who.Caller.Class)
	_, more := ex.identity.Pick(g.wanted(ex))
	own := *ex
	own.hasAlternative = more || len(before.limited) > 0 || len(before.blind) > 0
	t := payerTurn{ex: &own}
	switch {
	case first && own.denial != nil:
		t.resp = g.recalled(&own, own.denial) //nolint:bodyclose // as below
	case first:
		t.resp, t.err = g.answer(&own, out) //nolint:bodyclose // passed on, or discarded by who judges it
	default:
		t.resp, t.err = g.answerAs(&own, out.Clone(out.Context()), who) //nolint:bodyclose // as above
	}
	ex.record.copyProgress(&own.record)
	_ = errors.As(t.err, &t.refusal) // or it is of another kind
	return t
}

// answerAs lets another credential pay: it may have the answer in the cache.
func (g *Gateway) answerAs(ex *exchange, out *http.Request, who Identity) (*http.Response, error) {
	g.charge(ex, who)
	out.Header = ex.header.Clone()
	ex.record.Cache = "weir; fwd=" + ex.bypass()
	if ex.cacheable {
		if e := g.recall(ex); e != nil {
			return g.recalled(ex, e), nil
		}
	}
	return g.answer(ex, out)
}

// recalled is a turn's answer that comes from the cache.
func (g *Gateway) recalled(ex *exchange, e *cache.Entry) *http.Response {
	now := time.Now()
	ex.record.Cache = hitStatus(e, now)
	return entryResponse(ex, e, now)
}

// mayBeBlind reports whether an answer of this status is not one for the client, for
// another of its credentials may see more.
func (ex *exchange) mayBeBlind(status int) bool {
	return ex.identity.Pick != nil && (status == http.StatusForbidden || status == http.StatusNotFound) &&
		ex.match.Operation.Safe() && !ex.match.Operation.Personal
}

// verdict judges what came of a turn.
func (t payerTurn) verdict(refusedBefore bool) verdict {
	safe := t.ex.match.Operation.Safe()
	var unusable *UnusableError
	switch {
	case errors.As(t.err, &unusable):
		return rejected
	case t.refusal != nil && t.ex.hasAlternative:
		return atLimit
	case t.err != nil:
		return final
	case t.ex.limited != limits.NotLimited:
		if safe && t.ex.hasAlternative {
			return atLimit
		}
	case t.resp.StatusCode == http.StatusUnauthorized:
		if (safe || t.ex.in.ContentLength == 0) && !refusedBefore {
			return rejected
		}
	case t.ex.mayBeBlind(t.resp.StatusCode):
		return unseeing
	}
	return final
}

// settleFor answers with what a turn has brought. If it was more than 403 or 404 those
// who were told that are known to be blind; if it is an error the first who was told that
// stands.
func (g *Gateway) settleFor(ex *exchange, t payerTurn, before payerTurns) (*http.Response, error) {
	good := t.err == nil && t.resp.StatusCode < http.StatusBadRequest
	if !good && len(before.blind) > 0 && len(before.limited) == 0 {
		if t.resp != nil {
			discard(t.resp.Body)
		}
		t, before.blind = before.blind[0], before.blind[1:]
	}
	for _, b := range before.blind {
		if good {
			b.ex.identity.OnHidden(g.wanted(b.ex), b.resp.StatusCode, true)
		}
		discard(b.resp.Body)
	}
	return ex.take(t)
}

// lastResort answers when everybody has had a turn, and none was final.
func (g *Gateway) lastResort(ex *exchange, out *http.Request, last payerTurn, before payerTurns) (*http.Response, error) {
	switch {
	case len(before.limited) > 0:
		// Whether there is what the others do not see nobody knows but who is at a limit.
		own := *ex
		resp, err := g.answerAs(&own, out.Clone(out.Context()), soonest(before.limited).ex.identity)
		ex.record.copyProgress(&own.record)
		return g.settleFor(ex, payerTurn{ex: &own, resp: resp, err: err}, before)
	case len(before.blind) == 0:
		return ex.take(last)
	}
	for _, b := range before.blind {
		b.ex.identity.OnHidden(g.wanted(b.ex), b.resp.StatusCode, false)
	}
	for _, b := range before.blind[1:] {
		discard(b.resp.Body)
	}
	return ex.take(before.blind[0])
}

// soonest is who is back from its limit first, as far as that is known.
func soonest(list []payerTurn) payerTurn {
	best := list[0]
	for _, t := range list[1:] {
		if t.refusal != nil && (best.refusal == nil || t.refusal.Until.Before(best.refusal.Until)) {
			best = t
		}
	}
	return best
}

// take makes a turn's answer that of the client's exchange.
func (ex *exchange) take(t payerTurn) (*http.Response, error) {
	so := ex.record
	ex.question, ex.record = t.ex.question, t.ex.record
	ex.record.copyProgress(&so)
	return t.resp, t.err
}
