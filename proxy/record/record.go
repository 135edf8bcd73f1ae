// Package record describes one request for the access line, the response headers, the trace, the metrics and the list of
// recent requests.
package record

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Record describes one request. The gateway fills the record during the request, and passes it to its observer at the end.
type Record struct {
	ID    string    `json:"id"`
	Start time.Time `json:"start"`
	Request
	Status  int           `json:"status"`
	Bytes   int64         `json:"bytes"`
	Elapsed time.Duration `json:"elapsed_ns"`
	Cache   CacheStatus   `json:"-"` // documents have its text
	// Background marks a request that Weir sent without a waiting client.
	Background bool `json:"background,omitempty"`
	// Waited is the time spent waiting for permits, for coalesced calls, between polls and before retries. Sent
	// counts the HTTP requests sent upstream, of all credentials.
	Waited time.Duration `json:"waited_ns"`
	Sent   int           `json:"attempts"`
	// Spent is the quota that these requests cost in the primary window: requests, or the costs of GraphQL calls.
	// Polls counts the requests that got a 202 for statistics.
	Spent int `json:"spent"`
	Polls int `json:"polls,omitempty"`
	// Outcome is the outcome of Cache. The value refused means a refusal by Weir.
	Outcome Outcome `json:"outcome"`
	Report
	// Saved is set for a response without quota cost that would have cost quota without Weir.
	Saved bool `json:"saved,omitempty"`
	// Until is the time at which a request that a limit refused would be admitted if no other request is sent.
	Until time.Time `json:"until,omitzero"`
	// Withheld are the rows of policy/fields.yaml for request fields that were not forwarded.
	Withheld []string `json:"withheld,omitempty"`
	// Error describes the failure for the operator.
	Error string `json:"error,omitempty"`
	Tracing
}

// Request says who asked for what.
type Request struct {
	Method    string `json:"method"`
	Route     string `json:"route"`
	Operation string `json:"operation"`
	// Path is the path without segments that may contain a secret, or the route of an unknown operation. Target is a hash
	// of the path with its query, and of a GraphQL query with its variables.
	Path   string `json:"-"`
	Target string `json:"-"`
	// Upstream is the host name of the upstream.
	Upstream string `json:"-"`
	// Version is the version of the API that the client asks for ([policy.Dialect.VersionLabel]).
	Version string `json:"api_version,omitempty"`
	// QueryHash is the beginning of the hash of a GraphQL query.
	QueryHash string `json:"query_hash,omitempty"`
	// Query is the name of the GraphQL operation of a call, at most MaxQueryName bytes.
	Query   string `json:"graphql_operation,omitempty"`
	Account string `json:"account"`
	Client  string `json:"client,omitempty"`
	// Tag names the client's run, repository or agent.
	Tag      string `json:"tag,omitempty"`
	Resource string `json:"resource"`
}

// Report is what the last response of the upstream said about limits and failures.
type Report struct {
	// Limited is the limit error of the last response from the upstream, and LimitAnswer the row of
	// policy/limitanswers.yaml that recognized it.
	Limited     policy.LimitKind `json:"limited,omitempty"`
	LimitAnswer string           `json:"limit_answer,omitempty"`
	// QueryFailure is the row of policy/queryfailures.yaml for the last response to a GraphQL query, or "refused" if Weir
	// did not send the query because of earlier failures.
	QueryFailure string `json:"query_failure,omitempty"`
	// OutsideRange is the name of a number of the last response that Weir ignored or clamped (policy/numbers.go).
	OutsideRange string `json:"outside_range,omitempty"`
}

// Tracing is the trace of a request.
type Tracing struct {
	// Trace and Span identify the request's span in hexadecimal. Both are empty for a request that is not sampled.
	Trace string `json:"trace_id,omitempty"`
	Span  string `json:"span_id,omitempty"`
	// Stages are in the order of their start. A request that a hit answered at once has no stages.
	Stages []Stage `json:"stages,omitempty"`
}

const (
	// OtherRoute is the route of requests without an operation.
	OtherRoute = "_OTHER"
	// OtherMethod replaces the methods that are not registered.
	OtherMethod = "_OTHER"
)

// MethodLabel bounds the methods in logs and metrics.
func MethodLabel(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE":
		return method
	}
	return OtherMethod
}

// MaxQueryName bounds the names of GraphQL operations, which clients choose.
const MaxQueryName = 64

// QueryHashLength is the length of the hashes of queries in records.
const QueryHashLength = 12

// CacheStatus describes how the gateway handled a request: the member of Cache-Status (RFC 9211) that the gateway adds to a response.
// The zero value is that of a refusal, or of a request without a response.
type CacheStatus struct {
	// Hit is set if the response is a stored one, and no request upstream has confirmed it.
	Hit bool
	// Forward is the reason for a forwarded request, otherwise empty. ForwardStatus is the status of its last response, or 0.
	Forward       ForwardReason
	ForwardStatus int
	// Stored is set if the forwarded response is stored, and Collapsed if the request shared another request upstream.
	Stored, Collapsed bool
	// TTL is the rest of the lifetime in seconds, negative for a stale response. It counts only if HasTTL is set.
	TTL    int
	HasTTL bool
	// Detail is the reason for a refusal or for a stale response, or the source of a hit. [DetailSuspect] and
	// [DetailWasSuspect] are prefixes of the cause of a suspect response.
	Detail string
	// Own is set for an answer without cache and upstream, such as the rate limit status. It is not part of the field.
	Own bool
}

// ForwardReason is the fwd parameter of Cache-Status (RFC 9211 section 2.2).
type ForwardReason string

// Reasons for forwarded requests.
const (
	ForwardMethod  ForwardReason = "method"
	ForwardBypass  ForwardReason = "bypass"
	ForwardRequest ForwardReason = "request"
	ForwardMiss    ForwardReason = "uri-miss"
	ForwardStale   ForwardReason = "stale"
)

// Outcome is a CacheStatus in one word.
type Outcome string

// Outcomes of requests.
const (
	OutcomeHit       Outcome = "hit"
	OutcomeStale     Outcome = "stale"
	OutcomeValidated Outcome = "validated"
	OutcomeMiss      Outcome = "miss"
	OutcomeBypass    Outcome = "bypass"
	OutcomeCollapsed Outcome = "collapsed"
	OutcomeRefused   Outcome = "refused"
	OutcomeOwn       Outcome = "own"
)

// Outcome returns the status in one word.
func (s *CacheStatus) Outcome() Outcome {
	switch {
	case s.Own:
		return OutcomeOwn
	case s.Collapsed:
		return OutcomeCollapsed
	case s.Stale():
		return OutcomeStale
	case s.Hit:
		return OutcomeHit
	case s.ForwardStatus == http.StatusNotModified:
		return OutcomeValidated
	case s.Forward == ForwardBypass, s.Forward == ForwardMethod, s.Forward == ForwardRequest && !s.Stored:
		return OutcomeBypass
	case s.Forward != "":
		return OutcomeMiss
	}
	return OutcomeRefused
}

// Stale reports whether the client got a stale response. The TTL of a stored response is that of the stored one.
func (s *CacheStatus) Stale() bool { return s.TTL < 0 && !s.Stored }

// SetTTL sets the rest of the lifetime of an entry.
func (s *CacheStatus) SetTTL(e *cache.Entry, now time.Time) {
	s.TTL, s.HasTTL = -int(e.Staleness(now)/time.Second), true
	if !s.Stored && !e.Fresh(now) {
		s.TTL = min(s.TTL, -1) // stale for less than a second
	}
	if e.Suspect != "" {
		s.TTL = min(s.TTL, 0)
	}
}

const (
	// DetailSuspect means that the response may be older than a change of the cause, so its next use revalidates it.
	DetailSuspect = "suspect-"
	// DetailWasSuspect means that the request was forwarded because the stored response was suspect.
	DetailWasSuspect = "was-suspect-"
)

// SetSuspect sets the detail of a response that is suspect for a cause. An empty cause has no effect.
func (s *CacheStatus) SetSuspect(cause cache.Cause) {
	if cause != "" {
		s.Detail = DetailSuspect + string(cause)
	}
}

// String returns the member of the field.
func (s CacheStatus) String() string {
	var space [96]byte
	b := append(space[:0], "weir"...)
	if s.Hit {
		b = append(b, "; hit"...)
	}
	if s.Forward != "" {
		b = append(append(b, "; fwd="...), s.Forward...)
	}
	if s.ForwardStatus != 0 {
		b = strconv.AppendInt(append(b, "; fwd-status="...), int64(s.ForwardStatus), 10)
	}
	if s.Stored {
		b = append(b, "; stored"...)
	}
	if s.Collapsed {
		b = append(b, "; collapsed"...)
	}
	if s.HasTTL {
		b = strconv.AppendInt(append(b, "; ttl="...), int64(s.TTL), 10)
	}
	if s.Detail != "" {
		b = append(append(b, "; detail="...), s.Detail...)
	}
	return string(b)
}

// Stage is one time-consuming part of handling a request.
type Stage struct {
	Name string `json:"name"` // such as StageQueue
	// Start is relative to the start of the request.
	Start   time.Duration `json:"start_ns"`
	Elapsed time.Duration `json:"elapsed_ns"`
	// Detail is the reason or the result, such as the name of a limit or a status.
	Detail string `json:"detail,omitempty"`
	// Shared is the use of the budget that delayed or refused the permit, if clients share the budget.
	Shared *limits.SharedUse `json:"shared,omitempty"`
	// Limited is the limit error of a request upstream.
	Limited policy.LimitKind `json:"limited,omitempty"`
	// Failed is set for a stage that ended with an error, such as a refused permit.
	Failed bool `json:"failed,omitempty"`
}

// These are the names of stages.
const (
	StageQueue    = "queue"    // the wait for a permit
	StageCoalesce = "coalesce" // the wait for a coalesced call
	StageRequest  = "attempt"  // one HTTP request upstream
	StageSettle   = "settle"   // the report of the cost to the ledger
	StagePoll     = "poll"     // the pause before the next poll for statistics
	StageRetry    = "retry"    // the pause after a broken connection
)

// Admission returns the result of a queue stage: admitted, waited, or the reason for the refusal.
func (s Stage) Admission() string {
	switch {
	case s.Failed:
		return s.Detail
	case s.Detail == "":
		return "admitted"
	}
	return "waited"
}

// Admission returns the result of the last queue stage, or an empty string.
func (r *Record) Admission() (last string) {
	for _, s := range r.Stages {
		if s.Name == StageQueue {
			last = s.Admission()
		}
	}
	return last
}

// OperationName returns the operation, with the name of the GraphQL operation. For an unknown operation it returns the
// route.
func (r *Record) OperationName() string {
	switch {
	case r.Query != "":
		return r.Operation + " " + r.Query
	case r.Operation == "" || r.Operation == policy.UnknownID:
		return r.Route
	}
	return r.Operation
}

// ClientLabel returns the client's name for metrics. All clients that are not configured share one label.
func (r *Record) ClientLabel() string {
	if r.Client == "" {
		return "pass-through"
	}
	return r.Client
}

// SetLimit sets the limit error of the last request upstream.
func (r *Record) SetLimit(e policy.LimitError) {
	r.Limited, r.LimitAnswer = e.Kind, e.Name
	for i, s := range slices.Backward(r.Stages) {
		if s.Name == StageRequest {
			r.Stages[i].Limited = e.Kind
			return
		}
	}
}

// maxDebug bounds the length of the Weir-Debug field.
const maxDebug = 1 << 10

// Debug returns the Weir-Debug field: the decisions and stages so far, with the syntax of Cache-Status. op is nil for a request
// that was refused before its operation was known. account is the name of the account in the ledger.
func (r *Record) Debug(op *policy.Operation, account string) string {
	parts := []string{"weir"}
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	add("operation", r.Operation)
	if op != nil {
		add("cache", string(op.Cache.Class))
		add("points", strconv.Itoa(op.Points))
	}
	add("resource", r.Resource)
	add("client", r.Client)
	add("tag", r.Tag)
	add("account", account)
	for _, s := range r.Stages {
		value := strings.Replace(s.Elapsed.Round(time.Microsecond).String(), "µ", "u", 1) // field values are ASCII
		if s.Detail != "" {
			value += " (" + s.Detail + ")"
		}
		add(s.Name, value)
	}
	add("withheld", strings.Join(r.Withheld, ", "))
	add("error", r.Error)
	text := strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, strings.Join(parts, "; "))
	return text[:min(len(text), maxDebug)]
}
