package proxy

import (
	"cmp"
	"net/http"

	"github.com/weirgate/weir/proxy/cors"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/refusal"
)

// refuse writes the error response for err. No other function writes an error body of the gateway.
func (g *Gateway) refuse(ex *exchange, err error) {
	f := ex.drained()
	if f == nil {
		f = refusal.Of(err, g.Dialect, len(ex.in.Header["Authorization"]) > 0)
	}
	if f.Limit != nil {
		f.Status, ex.record.Until = g.refusalStatus(ex), f.Limit.Wall()
	}
	if f.Cause != nil {
		ex.record.Error = f.Cause.Error()
	}
	if f.Status == refusal.ClientGone {
		return
	}
	ex.record.Cache = record.CacheStatus{Detail: f.CacheDetail(), Own: f.Finding != nil || f.GraphQL != nil && f.Status == http.StatusOK}
	h := ex.w.Header()
	clear(h)
	g.setWeirHeaders(ex, f.Status, h)
	cors.Allow(h, g.exposed)
	h.Set(g.Dialect.RequestID, ex.record.ID)
	body := f.Format(h, g.Dialect)
	ex.w.Closes = ex.w.Closes || f.Closes
	ex.w.WriteHeader(f.Status)
	if ex.in.Method != http.MethodHead {
		_, _ = ex.w.Write(body)
	}
	endsStream := ex.in.ProtoMajor > 1 && ex.in.Method == http.MethodHead // Flush may then return an error in any case
	if f.Closes && !endsStream && http.NewResponseController(&ex.w).Flush() != nil {
		ex.w.Status = refusal.ClientGone
	}
}

// Misdirected refuses a request for a host name that the gateway does not serve (RFC 9110 section 15.5.20).
func (g *Gateway) Misdirected(w http.ResponseWriter, r *http.Request) {
	ex := g.open(w, r)
	defer g.finish(ex)
	err := g.throttle(ex)
	if err == nil {
		err = &refusal.Error{Status: http.StatusMisdirectedRequest, Message: "Misdirected Request: this gateway does not serve this host name; its configuration lists the names"}
	}
	g.refuse(ex, err)
}

// refusalStatus returns the status of a limit refusal. A limit has one status, whether the upstream or the gateway reports it,
// unless the configuration has another status.
func (g *Gateway) refusalStatus(ex *exchange) int {
	own := 0
	if ex.question != nil {
		own = ex.question.identity.RefusalStatus
	}
	return cmp.Or(own, g.RefusalStatus, g.limitErrors.Last(g.Ledger.Canonical(ex.record.Account)), g.Dialect.RefusalStatus)
}
