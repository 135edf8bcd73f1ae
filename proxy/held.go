package proxy

import (
	"net/http"
	"time"

	"github.com/weirgate/weir/cache"
)

// AnswerAtOnce answers a request from what this process holds fresh, if that is all it takes,
// and reports whether it did. If not, nothing has happened, and [Gateway.ServeHTTP] is to
// answer. It keeps neither w nor r. It is the journey of a hit, less what could wait or fail:
// who must wait, is refused, or is told of the gateway's own state takes the whole one. (A
// budget that a replica does not remember is read from Redis all the same, in its time.)
func (g *Gateway) AnswerAtOnce(w http.ResponseWriter, r *http.Request) (answered bool) {
	if g.Drain.Begun() || !g.RateLimiter.HasToken(g.TrustedProxies.ClientAddress(r), time.Now()) {
		return false
	}
	h, ok := g.hitting.Get().(*hitting)
	if !ok {
		h = &hitting{header: make(http.Header, 8)}
	}
	defer g.hitting.Put(h)
	clear(h.header)
	h.recorder = *newRecorder(w, r, g.Timeout, g.Drain)
	h.exchange = exchange{w: &h.recorder, start: time.Now(), in: r, question: question{header: h.header}}
	ex := &h.exchange
	ex.record.Method = methodLabel(r.Method)
	e, now := g.heldFor(ex), time.Now()
	if e == nil || g.throttle(ex) != nil {
		return false
	}
	ex.waitingSince, ex.record.ID, ex.record.Start = ex.start, newRequestID(), ex.start
	g.traceRequest(ex)
	answered = true // whatever comes: finish answers where something goes wrong
	defer g.finish(ex)
	g.replyFromEntry(ex, e, now)
	return answered
}

// hitting is what a request needs that is answered at once, kept for the next.
type hitting struct {
	exchange exchange
	recorder recorder
	header   http.Header
}

// heldFor returns the fresh entry that is the answer to a request, or nil where there is none or
// something else is to be looked at.
func (g *Gateway) heldFor(ex *exchange) *cache.Entry {
	e, err := g.decide(ex)
	if e == nil || err != nil {
		return nil
	}
	if e.Header.Get("Content-Type") == "" && len(e.Body) > 0 || e.Header.Get("Date") == "" {
		return nil // net/http adds them
	}
	return e
}
