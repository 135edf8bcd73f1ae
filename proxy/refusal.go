package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/learned"
	"github.com/weirgate/weir/proxy/record"
	"github.com/weirgate/weir/proxy/wire"
)

// failure is an error response by Weir itself. The client gets message, and the operator gets cause.
type failure struct {
	status     int
	message    string          // stable text
	detail     string          // parameter of Cache-Status
	cause      error           // error in the log
	finding    *policy.Finding // set for a request that the upstream would certainly refuse
	graphQL    *policy.GraphQLError
	refusal    *limits.Refusal // set for a limit
	retryAfter time.Duration   // set without refusal
	allow      string          // value of the Allow field
	// documentation is the path below the dialect's documentation URL.
	documentation string
	plain         bool // the body is the message as text, for a program that does not read JSON
	closes        bool // the connection ends after the response, because the rest of the request is unknown
}

func (f *failure) Error() string { return f.message }

// refuse writes the error response for err. No other function writes an error body.
func (g *Gateway) refuse(ex *exchange, err error) {
	f := ex.drained()
	if f == nil {
		f = g.failureOf(err, ex.in.Header["Authorization"])
	}
	if f.refusal != nil {
		f.status, ex.record.Until = g.refusalStatus(ex), f.refusal.Wall()
	}
	if f.cause != nil {
		ex.record.Error = f.cause.Error()
	}
	if f.status == statusClientGone {
		return
	}
	ex.record.Cache = record.CacheStatus{Detail: cmp.Or(f.detail, defaultDetail(f.status)), Own: f.finding != nil || f.graphQL != nil && f.status == http.StatusOK}
	h := ex.w.Header()
	clear(h)
	g.setWeirHeaders(ex, f.status, h)
	g.allowOrigins(h)
	h.Set(g.Dialect.RequestID, ex.record.ID)
	if f.allow != "" {
		h.Set("Allow", f.allow)
	}
	if f.status == http.StatusUnauthorized { // RFC 9110 section 15.5.2
		h.Set("WWW-Authenticate", `Bearer realm="weir"`)
	}
	if f.refusal != nil {
		setLimitHeaders(h, f.refusal)
	}
	if f.retryAfter > 0 {
		h.Set("Retry-After", retryAfter(f.retryAfter))
	}
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	body := g.errorBody(f)
	if f.plain {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		body = []byte(f.message + "\n")
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	ex.w.Closes = ex.w.Closes || f.closes
	ex.w.WriteHeader(f.status)
	if ex.in.Method != http.MethodHead {
		_, _ = ex.w.Write(body)
	}
	endsStream := ex.in.ProtoMajor > 1 && ex.in.Method == http.MethodHead // Flush may then return an error in any case
	if f.closes && !endsStream && http.NewResponseController(&ex.w).Flush() != nil {
		ex.w.Status = statusClientGone
	}
}

// retryAfter formats a delay for Retry-After in whole seconds, rounded up, at least 1.
func retryAfter(d time.Duration) string {
	return strconv.Itoa(max(1, int((d+time.Second-1)/time.Second)))
}

// defaultDetail returns the detail of a refusal without a detail, so that a client can recognize every refusal by the
// gateway from an error of the upstream.
func defaultDetail(status int) string {
	if status >= http.StatusInternalServerError {
		return "internal"
	}
	return "form"
}

// Misdirected refuses a request for a host name that the gateway does not serve (RFC 9110 section 15.5.20).
func (g *Gateway) Misdirected(w http.ResponseWriter, r *http.Request) {
	ex := g.open(w, r)
	defer g.finish(ex)
	err := g.throttle(ex)
	if err == nil {
		err = &failure{status: http.StatusMisdirectedRequest, message: "Misdirected Request: this gateway does not serve this host name; its configuration lists the names"}
	}
	g.refuse(ex, err)
}

// setLimitHeaders sets the fields for the end of a limit. Clients recognize a primary limit by a remaining budget of 0
// (Document B section 7).
func setLimitHeaders(h http.Header, r *limits.Refusal) {
	after := retryAfter(time.Until(r.Until))
	h.Set("Retry-After", after)
	if r.Reason != limits.Primary && r.Reason != limits.ClientBudget {
		return
	}
	h.Set("X-Ratelimit-Remaining", "0")
	h.Set("X-Ratelimit-Used", h.Get("X-Ratelimit-Limit"))
	// Some clients wait for the reset instead of Retry-After, so both fields have the same time.
	h.Set("X-Ratelimit-Reset", strconv.FormatInt(r.Wall().Add(time.Second-1).Unix(), 10))
	if field := h.Get("Ratelimit"); field != "" {
		name, _, _ := strings.Cut(field, ";")
		h.Set("Ratelimit", name+";r=0;t="+after)
	}
}

// errorBody returns an error body in the API's format, with the members in the API's order.
func (g *Gateway) errorBody(f *failure) []byte {
	type fieldError struct {
		Resource string `json:"resource"`
		Field    string `json:"field"`
		Code     string `json:"code"`
	}
	body := struct {
		Message       string `json:"message"`
		Errors        []any  `json:"errors,omitempty"` // also makes the body a GraphQL response
		Documentation string `json:"documentation_url"`
		Status        string `json:"status,omitempty"`
	}{Message: f.message, Documentation: g.Dialect.Documentation + f.documentation}
	if g.Dialect.StatusMember {
		body.Status = strconv.Itoa(f.status)
	}
	switch {
	case f.graphQL != nil:
		body.Errors = []any{f.graphQL}
	case f.finding != nil && f.finding.Field != "":
		body.Errors = []any{fieldError{f.finding.Resource, f.finding.Field, f.finding.Code}}
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // JSON can encode all strings
	}
	return text
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

// identityRetry is the Retry-After of a client whose identity provider is unavailable. It is the pause after which the
// provider's keys are fetched again.
const identityRetry = 10 * time.Second

func (g *Gateway) failureOf(err error, authorization []string) *failure {
	var f *failure
	var target *policy.TargetError
	var refusal *limits.Refusal
	var writes *limits.WritesError
	var unusable *policy.UnusableError
	var unverified *learned.UnverifiedError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &target):
		status := cmp.Or(target.Status, http.StatusBadRequest)
		f := &failure{status: status, message: http.StatusText(status) + ": " + target.Reason, cause: err}
		if status == http.StatusMethodNotAllowed {
			f.allow = http.MethodPost
		}
		return f
	case errors.As(err, &refusal):
		f := &failure{detail: string(refusal.Reason), refusal: refusal, cause: refusal}
		f.message, f.documentation = g.Dialect.Messages.Secondary, "/secondary-rate-limits"
		switch refusal.Reason {
		case limits.Closed:
			f.message += " The gateway has closed this account, because repeated probes failed. An operator must open it."
		case limits.Primary:
			f.message, f.documentation = g.Dialect.Messages.Primary, "/rate-limits"
		case limits.ClientBudget:
			f.message, f.documentation = g.Dialect.Messages.Primary, "/rate-limits"
			f.message += " The gateway keeps the rest of this window for its other clients or tags."
		case limits.Writes:
			f.message += " The gateway limits the writes of this client (clients[].writes)."
		}
		return f
	case errors.As(err, &writes):
		f := &failure{status: http.StatusForbidden, detail: string(limits.Writes), message: writes.Error(), cause: writes}
		f.graphQL = &policy.GraphQLError{Type: "FORBIDDEN", Message: f.message}
		return f
	case errors.As(err, &unusable):
		return &failure{
			status: http.StatusServiceUnavailable, detail: "credential", cause: err,
			retryAfter: max(time.Second, time.Until(unusable.Until)),
			message:    "Service Unavailable: the credential that pays for this client cannot be used now",
		}
	case errors.As(err, &unverified):
		return &failure{
			status: http.StatusTooManyRequests, detail: "unverified-token", retryAfter: unverified.RetryAfter, cause: err,
			message: "Too Many Requests: too many requests with new tokens from this address had no success, and the upstream has not accepted this token yet",
		}
	case errors.Is(err, caller.ErrUnauthenticated):
		f := &failure{status: http.StatusUnauthorized, detail: "key", cause: err}
		f.message = "This gateway requires authentication: send a key or a token for it in Authorization"
		if len(authorization) > 0 {
			f.message = "This gateway refuses the credential in Authorization: it is no key or token that the gateway accepts"
		}
		return f
	case errors.Is(err, caller.ErrIdentityUnavailable):
		return &failure{
			status: http.StatusServiceUnavailable, detail: "identity", retryAfter: identityRetry, cause: err,
			message: "Service Unavailable: identity provider unavailable",
		}
	case wire.IsTimeout(err):
		return &failure{
			status: http.StatusGatewayTimeout, detail: "timeout", cause: err,
			message: "Gateway Timeout: the upstream did not answer in time",
		}
	case errors.Is(err, context.Canceled):
		return &failure{status: statusClientGone, cause: err}
	}
	reason, _ := wire.ConnectionFault(err)
	reason = cmp.Or(reason, "the upstream gave no valid answer")
	return &failure{status: http.StatusBadGateway, message: "Bad Gateway: " + reason, detail: "upstream", cause: err}
}
