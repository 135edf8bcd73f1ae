package proxy

import (
	"net/http"
	"time"
)

// ServeHit serves a request for the fast path if a fresh stored response in memory answers
// it, and reports whether it did. Otherwise [Gateway.ServeHTTP] must serve the request, and
// ServeHit has had no effect. It leaves refusals to ServeHTTP.
func (g *Gateway) ServeHit(w http.ResponseWriter, r *http.Request) (served bool) {
	if g.Drain.Begun() || !g.RateLimiter.HasToken(g.TrustedProxies.ClientAddress(r), time.Now()) {
		return false
	}
	ex := g.open(w, r)
	if g.check(ex) != nil || !ex.cacheable {
		return false
	}
	e, purged := g.Cache.Memory.Lookup(ex.key, ex.header)
	if now := time.Now(); e == nil || purged || ex.mustRevalidate(e, now) || !e.Fresh(now) || ex.mayBeHidden(e.Status) {
		return false
	}
	if e.Header.Get("Content-Type") == "" && len(e.Body) > 0 { // net/http detects the type
		return false
	}
	if g.throttle(ex) != nil {
		return false
	}
	g.traceRequest(ex)
	defer g.finish(ex) // responds with 500 if replyFromEntry panics
	served = true
	g.replyFromEntry(ex, e, time.Now())
	return served
}
