// Package refusal describes the errors by which the gateway refuses requests, and formats them like errors of the API.
package refusal

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
	"github.com/weirgate/weir/proxy/wire"
)

// Error is an error response by Weir itself. The client gets Message, and the operator gets Cause.
type Error struct {
	Status     int
	Message    string          // stable text
	Detail     string          // parameter of Cache-Status
	Cause      error           // error in the log
	Finding    *policy.Finding // set for a request that the upstream would certainly refuse
	GraphQL    *policy.GraphQLError
	Limit      *limits.Refusal // set for a limit
	RetryAfter time.Duration   // set without Limit
	Allow      string          // value of the Allow field
	// Documentation is the path below the dialect's documentation URL.
	Documentation string
	Plain         bool // the body is the message as text, for a program that does not read JSON
	Closes        bool // the connection ends after the response, because the rest of the request is unknown
}

func (f *Error) Error() string { return f.Message }

// ClientGone is the recorded status if the client disconnected before the end of the response.
const ClientGone = 499

const (
	// UnknownRetry is the Retry-After if no component knows when a retry can succeed.
	UnknownRetry = time.Second
	// IdentityRetry is the Retry-After of a client whose identity provider is unavailable. It is the pause after which the
	// provider's keys are fetched again.
	IdentityRetry = 10 * time.Second
)

// Of returns the refusal for an error. authorized means that the client sent a credential.
func Of(err error, dialect *policy.Dialect, authorized bool) *Error {
	var f *Error
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
		f := &Error{Status: status, Message: http.StatusText(status) + ": " + target.Reason, Cause: err}
		if status == http.StatusMethodNotAllowed {
			f.Allow = http.MethodPost
		}
		return f
	case errors.As(err, &refusal):
		f := &Error{Detail: string(refusal.Reason), Limit: refusal, Cause: refusal}
		f.Message, f.Documentation = dialect.Messages.Secondary, "/secondary-rate-limits"
		switch refusal.Reason {
		case limits.Closed:
			f.Message += " The gateway has closed this account, because repeated probes failed. An operator must open it."
		case limits.Primary:
			f.Message, f.Documentation = dialect.Messages.Primary, "/rate-limits"
		case limits.ClientBudget:
			f.Message, f.Documentation = dialect.Messages.Primary, "/rate-limits"
			f.Message += " The gateway keeps the rest of this window for its other clients or tags."
		case limits.Writes:
			f.Message += " The gateway limits the writes of this client (clients[].writes)."
		}
		return f
	case errors.As(err, &writes):
		f := &Error{Status: http.StatusForbidden, Detail: string(limits.Writes), Message: writes.Error(), Cause: writes}
		f.GraphQL = &policy.GraphQLError{Type: "FORBIDDEN", Message: f.Message}
		return f
	case errors.As(err, &unusable):
		return &Error{
			Status: http.StatusServiceUnavailable, Detail: "credential", Cause: err,
			RetryAfter: max(time.Second, time.Until(unusable.Until)),
			Message:    "Service Unavailable: the credential that pays for this client cannot be used now",
		}
	case errors.As(err, &unverified):
		return &Error{
			Status: http.StatusTooManyRequests, Detail: "unverified-token", RetryAfter: unverified.RetryAfter, Cause: err,
			Message: "Too Many Requests: too many requests with new tokens from this address had no success, and the upstream has not accepted this token yet",
		}
	case errors.Is(err, caller.ErrUnauthenticated):
		f := &Error{Status: http.StatusUnauthorized, Detail: "key", Cause: err}
		f.Message = "This gateway requires authentication: send a key or a token for it in Authorization"
		if authorized {
			f.Message = "This gateway refuses the credential in Authorization: it is no key or token that the gateway accepts"
		}
		return f
	case errors.Is(err, caller.ErrIdentityUnavailable):
		return &Error{
			Status: http.StatusServiceUnavailable, Detail: "identity", RetryAfter: IdentityRetry, Cause: err,
			Message: "Service Unavailable: identity provider unavailable",
		}
	case wire.IsTimeout(err):
		return &Error{
			Status: http.StatusGatewayTimeout, Detail: "timeout", Cause: err,
			Message: "Gateway Timeout: the upstream did not answer in time",
		}
	case errors.Is(err, context.Canceled):
		return &Error{Status: ClientGone, Cause: err}
	}
	reason, _ := wire.ConnectionFault(err)
	reason = cmp.Or(reason, "the upstream gave no valid answer")
	return &Error{Status: http.StatusBadGateway, Message: "Bad Gateway: " + reason, Detail: "upstream", Cause: err}
}

// CacheDetail returns the detail for Cache-Status. Each refusal has one, so that a client can distinguish the refusals of the
// gateway from the errors of the upstream.
func (f *Error) CacheDetail() string {
	switch {
	case f.Detail != "":
		return f.Detail
	case f.Status >= http.StatusInternalServerError:
		return "internal"
	}
	return "form"
}

// Format sets the fields of the response, and returns its body. h has the rate limit fields of the account.
func (f *Error) Format(h http.Header, dialect *policy.Dialect) (body []byte) {
	if f.Allow != "" {
		h.Set("Allow", f.Allow)
	}
	if f.Status == http.StatusUnauthorized { // RFC 9110 section 15.5.2
		h.Set("WWW-Authenticate", `Bearer realm="weir"`)
	}
	if f.Limit != nil {
		setLimitHeaders(h, f.Limit)
	}
	if f.RetryAfter > 0 {
		h.Set("Retry-After", RetryAfter(f.RetryAfter))
	}
	h.Set("Cache-Control", "no-store")
	if f.Plain {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		body = []byte(f.Message + "\n")
	} else {
		h.Set("Content-Type", "application/json; charset=utf-8")
		body = f.body(dialect)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	return body
}

// RetryAfter formats a delay for Retry-After in whole seconds, rounded up, at least 1.
func RetryAfter(d time.Duration) string {
	return strconv.Itoa(max(1, int((d+time.Second-1)/time.Second)))
}

// setLimitHeaders sets the fields for the end of a limit. Clients recognize a primary limit by a remaining budget of 0
// (Document B section 7).
func setLimitHeaders(h http.Header, r *limits.Refusal) {
	after := RetryAfter(time.Until(r.Until))
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

// body returns the body in the API's format, with the members in the API's order.
func (f *Error) body(dialect *policy.Dialect) []byte {
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
	}{Message: f.Message, Documentation: dialect.Documentation + f.Documentation}
	if dialect.StatusMember {
		body.Status = strconv.Itoa(f.Status)
	}
	switch {
	case f.GraphQL != nil:
		body.Errors = []any{f.GraphQL}
	case f.Finding != nil && f.Finding.Field != "":
		body.Errors = []any{fieldError{f.Finding.Resource, f.Finding.Field, f.Finding.Code}}
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // JSON can encode all strings
	}
	return text
}
