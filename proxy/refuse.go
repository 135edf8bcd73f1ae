package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// failure is an answer that Weir gives itself. What is public and what is for
// the operator are different fields.
type failure struct {
	status  int
	message string // for the client; stable text
	detail  string // for Cache-Status
	cause   error  // for the log
	// finding is set for an answer by the documents' own words.
	finding *policy.Finding
	// refusal is set for a limit.
	refusal *limits.Refusal
	// retryAfter is set where no budget but time alone helps.
	retryAfter time.Duration
	allow      string
	// documentation is the path below the dialect's.
	documentation string
}

func (f *failure) Error() string { return f.message }

// refuse writes what err means to the client. It is the only place that writes
// an error body.
func (g *Gateway) refuse(ex *exchange, err error) {
	f := ex.drained()
	if f == nil {
		f = g.failureOf(err)
	}
	if f.cause != nil {
		ex.record.Error = f.cause.Error()
	}
	if f.status == statusClientGone {
		return
	}
	h := ex.w.Header()
	for name := range h {
		delete(h, name)
	}
	ex.record.Cache = "weir"
	if f.finding != nil {
		ex.record.Outcome = "own"
	}
	if f.detail != "" {
		ex.record.Cache += "; detail=" + f.detail
	}
	g.setWeirHeaders(ex, h)
	if f.allow != "" {
		h.Set("Allow", f.allow)
	}
	if f.refusal != nil {
		g.limitHeaders(h, f.refusal)
	}
	if f.retryAfter > 0 {
		h.Set("Retry-After", retryAfter(f.retryAfter))
	}
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	body := g.errorBody(f)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	ex.w.WriteHeader(f.status)
	if ex.in.Method != http.MethodHead {
		_, _ = ex.w.Write(body)
	}
}

// Misdirected answers what was sent to a name that is not answered for (RFC 9110,
// section 15.5.20), by a listener that stands beside the gateway's own.
func (g *Gateway) Misdirected(w http.ResponseWriter, r *http.Request) {
	ex := g.begin(w, r)
	defer g.finish(ex)
	err := g.throttle(ex)
	if err == nil {
		err = &failure{status: http.StatusMisdirectedRequest, message: "Misdirected Request: this name is not answered for here"}
	}
	g.refuse(ex, err)
}

// limitHeaders tell a limited client when to come back. What counts as a
// primary refusal is told by remaining 0 (Document B section 7).
func (g *Gateway) limitHeaders(h http.Header, r *limits.Refusal) {
	h.Set("Retry-After", retryAfter(time.Until(r.Until)))
	if r.Reason == limits.Primary {
		h.Set("X-Ratelimit-Remaining", "0")
		h.Set("X-Ratelimit-Used", h.Get("X-Ratelimit-Limit"))
		// Clients wait for the reset, not for Retry-After: both are the same moment.
		h.Set("X-Ratelimit-Reset", strconv.FormatInt(r.Until.Add(time.Second-1).Unix(), 10))
		if field := h.Get("Ratelimit"); field != "" {
			// What is left, and not before it is worth coming back.
			name, _, _ := strings.Cut(field, ";")
			h.Set("Ratelimit", name+";r=0;t="+retryAfter(time.Until(r.Until)))
		}
	}
}

// errorBody has the API's shape; its members stand in the API's order.
func (g *Gateway) errorBody(f *failure) []byte {
	type member struct {
		Resource string `json:"resource"`
		Field    string `json:"field"`
		Code     string `json:"code"`
	}
	body := struct {
		Message       string   `json:"message"`
		Errors        []member `json:"errors,omitempty"`
		Documentation string   `json:"documentation_url"`
	}{Message: f.message, Documentation: g.Dialect.Documentation + f.documentation}
	if f.finding != nil && f.finding.Field != "" {
		body.Errors = []member{{f.finding.Resource, f.finding.Field, f.finding.Code}}
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings only
	}
	return text
}

// failureOf gives every error its status and its public words.
func (g *Gateway) failureOf(err error) *failure {
	var f *failure
	var target *policy.TargetError
	var refusal *limits.Refusal
	var unusable *UnusableError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &target):
		return &failure{status: http.StatusBadRequest, message: "Bad Request: " + target.Reason, cause: err}
	case errors.As(err, &refusal):
		return g.limited(refusal)
	case errors.As(err, &unusable):
		return &failure{
			status: http.StatusServiceUnavailable, message: "Service Unavailable: the credential that pays for this client cannot be used now",
			detail: "credential", retryAfter: max(time.Second, time.Until(unusable.Until)), cause: err,
		}
	case errors.Is(err, ErrUnauthenticated):
		return &failure{status: http.StatusUnauthorized, message: "Requires authentication", cause: err}
	case errors.Is(err, ErrIdentityUnavailable):
		return &failure{
			status: http.StatusServiceUnavailable, detail: "identity", retryAfter: identityRetry, cause: err,
			message: "Service Unavailable: who sends this cannot be verified at the moment",
		}
	case errors.Is(err, errStalled), isTimeout(err):
		return &failure{status: http.StatusGatewayTimeout, message: "Gateway Timeout: the upstream did not answer in time", detail: "timeout", cause: err}
	case errors.Is(err, errInterim), errors.Is(err, errClosedOn): // how it was ended is no matter
	case errors.Is(err, context.Canceled):
		return &failure{status: statusClientGone, cause: err}
	}
	return &failure{status: http.StatusBadGateway, message: "Bad Gateway: " + reasonOf(err), detail: "upstream", cause: err}
}

// identityRetry is when it is worth asking again who sends a request: by then an
// issuer has been asked once more.
const identityRetry = 10 * time.Second

func (g *Gateway) limited(r *limits.Refusal) *failure {
	f := &failure{status: g.RefusalStatus, detail: string(r.Reason), refusal: r, cause: r}
	if r.Reason == limits.Primary {
		f.message, f.documentation = g.Dialect.Messages.Primary, "/rate-limits"
		return f
	}
	f.message, f.documentation = g.Dialect.Messages.Secondary, "/secondary-rate-limits"
	return f
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// reasonOf names what is wrong with the upstream without telling where it is.
func reasonOf(err error) string {
	return cmp.Or(connectionFault(err), "the upstream gave no valid answer")
}

// connectionFault names what is wrong with the connection to the upstream; it is empty
// where that is not what is wrong.
func connectionFault(err error) string {
	var name *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &name):
		return "the upstream's name cannot be resolved"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the upstream refuses connections"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the upstream broke the connection"
	case errors.As(err, &op) && op.Op == "dial":
		return "the upstream cannot be reached"
	}
	return ""
}
