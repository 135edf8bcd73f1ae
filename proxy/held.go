package proxy

import (
	"net/http"
	"time"

	"github.com/weirgate/weir/cache"
)

// AnswerAtOnce answers a request from what this process holds fresh, if that is all it takes,
// and reports whether it did. If not, nothing has happened, and [Gateway.ServeHTTP] is to
// answer. It keeps neither w nor r. It is the journey of a hit, less what could wait or fail:
// who must wait, is refused, or is told of the gateway's own state takes the whole one.
func (g *Gateway) AnswerAtOnce(w http.ResponseWriter, r *http.Request) bool {
	if g.Drain.Begun() {
		return false
	}
	x, ok := g.exchanges.Get().(*exchange)
	if !ok {
		x = &exchange{}
	}
	defer g.exchanges.Put(x)
	*x = exchange{w: record(w, r, g.Timeout, g.Drain), start: time.Now(), written: g.written, in: r}
	x.record.Method = methodLabel(r.Method)
	e, now := g.heldFor(x), time.Now()
	if e == nil || g.throttle(x) != nil {
		return false
	}
	x.ready, x.record.ID, x.record.Start = x.start, newRequestID(), x.start
	g.traceRequest(x)
	defer g.finish(x)
	g.replyFromEntry(x, e, now)
	return true
}

// heldFor returns the fresh entry that is the answer to a request, or nil where there is none or
// something else is to be looked at. For what [screen] refuses none is ever kept.
func (g *Gateway) heldFor(x *exchange) *cache.Entry {
	if g.identify(x) != nil || g.classify(x) != nil || g.authorize(x) != nil || g.preflight(x) != nil {
		return nil
	}
	if !x.kept {
		return nil
	}
	e, purged := g.Cache.Memory.Lookup(x.key, x.header)
	if now := time.Now(); e == nil || purged || x.mustAsk(e, now) || !e.Fresh(now) || x.mayBeBlind(e.Status) {
		return nil
	}
	if e.Field("Content-Type") == "" && len(e.Body) > 0 {
		return nil // net/http guesses
	}
	g.noteHeld(x)
	return e
}
