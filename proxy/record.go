package proxy

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Record describes one request. The gateway fills the record during the request, and passes it to [Config.Observe] at the
// end. The access line, the response headers, the trace and the list of recent requests all use the same record.
type Record struct {
	ID        string    `json:"id"`
	Start     time.Time `json:"start"`
	Method    string    `json:"method"`
	Route     string    `json:"route"`
	Operation string    `json:"operation"`
	// Path is the path without segments that may contain a secret, or the route of an unknown operation. Target is a hash
	// of the path with its query, and of a GraphQL query with its variables.
	Path   string `json:"-"`
	Target string `json:"-"`
	// Upstream is the host name of the upstream.
	Upstream string `json:"-"`
	// Query is the name of the GraphQL operation of a call, at most maxQueryName bytes.
	Query   string `json:"graphql_operation,omitempty"`
	Account string `json:"account"`
	Client  string `json:"client,omitempty"`
	// Tag names the client's run, repository or agent.
	Tag      string        `json:"tag,omitempty"`
	Resource string        `json:"resource"`
	Status   int           `json:"status"`
	Bytes    int64         `json:"bytes"`
	Elapsed  time.Duration `json:"elapsed_ns"`
	Cache    CacheStatus   `json:"-"` // documents have its text
	// Background marks a request that Weir sent without a waiting client.
	Background bool `json:"background,omitempty"`
	// Waited is the time spent waiting for permits, for coalesced calls, between polls and before retries. Attempts
	// counts the requests sent upstream.
	Waited   time.Duration `json:"waited_ns"`
	Attempts int           `json:"attempts"`
	// Spent is the quota that the attempts cost in the primary window: requests, or the costs of GraphQL calls. Polls counts the attempts that got a 202 for statistics.
	Spent int `json:"spent"`
	Polls int `json:"polls,omitempty"`
	// Outcome is the outcome of Cache. The value refused means a refusal by Weir.
	Outcome Outcome `json:"outcome"`
	// Limited is the limit error of the last response from the upstream, and LimitAnswer the row of
	// policy/limitanswers.yaml that recognized it.
	Limited     limits.LimitKind `json:"limited,omitempty"`
	LimitAnswer string           `json:"limit_answer,omitempty"`
	// OutsideRange is the name of a number of the last response that Weir ignored or clamped (policy/numbers.go).
	OutsideRange string `json:"outside_range,omitempty"`
	// Saved is set for a response without quota cost that would have cost quota without Weir.
	Saved bool `json:"saved,omitempty"`
	// Until is the time at which a request that a limit refused would be admitted if no other request is sent.
	Until time.Time `json:"until,omitzero"`
	// Withheld are the rows of policy/fields.yaml for request fields that were not forwarded.
	Withheld []string `json:"withheld,omitempty"`
	// Error describes the failure for the operator.
	Error string `json:"error,omitempty"`
	// Trace and Span identify the request's span in hexadecimal. Both are empty for a request that is not sampled.
	Trace string `json:"trace_id,omitempty"`
	Span  string `json:"span_id,omitempty"`
	// Stages are in the order of their start. A hit has no stages.
	Stages []Stage `json:"stages,omitempty"`
}

// maxQueryName bounds the names of GraphQL operations, which clients choose.
const maxQueryName = 64

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

// Stage is one time-consuming part of handling a request.
type Stage struct {
	// Name is one of these stages:
	//   - queue: the wait for a permit
	//   - coalesce: the wait for a coalesced call
	//   - attempt: a request upstream
	//   - settle: the report of the cost to the ledger
	//   - poll: the pause before the next poll for statistics
	//   - retry: the pause after a broken connection
	Name string `json:"name"`
	// Start is relative to the start of the request.
	Start   time.Duration `json:"start_ns"`
	Elapsed time.Duration `json:"elapsed_ns"`
	// Detail is the reason or the result, such as the name of a limit or a status.
	Detail string `json:"detail,omitempty"`
	// Shared is the use of the budget that delayed or refused the permit, if clients share the budget.
	Shared *limits.SharedUse `json:"shared,omitempty"`
	// Limited is the limit error of an attempt.
	Limited limits.LimitKind `json:"limited,omitempty"`
	// Failed is set for a stage that ended with an error, such as a refused permit.
	Failed bool `json:"failed,omitempty"`
}

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

// admission returns the result of the last queue stage, or an empty string.
func (r *Record) admission() (last string) {
	for _, s := range r.Stages {
		if s.Name == stageQueue {
			last = s.Admission()
		}
	}
	return last
}

// ClientLabel returns the client's name for metrics. All clients that are not configured share one label.
func (r *Record) ClientLabel() string {
	if r.Client == "" {
		return "pass-through"
	}
	return r.Client
}

// copyProgress copies the costs and stages from another record of the same request.
func (r *Record) copyProgress(from *Record) {
	r.Attempts, r.Waited, r.Spent, r.Polls, r.Stages = from.Attempts, from.Waited, from.Spent, from.Polls, from.Stages
}

// maxDebug bounds the length of the Weir-Debug field.
const maxDebug = 1 << 10

// debug returns the Weir-Debug field: the decisions and stages so far, with the syntax of Cache-Status. q is nil for a
// request that was refused before its question was built.
func (r *Record) debug(q *question) string {
	parts := []string{"weir"}
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	add("operation", r.Operation)
	if q != nil {
		add("cache", string(q.operation.Cache.Class))
		add("points", strconv.Itoa(q.operation.Points))
	}
	add("resource", r.Resource)
	add("client", r.Client)
	add("tag", r.Tag)
	add("account", r.Account)
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

// conclude sets the fields that describe the result and the target at the end of the request.
func (ex *exchange) conclude() {
	r := ex.record
	if ex.lateLimit != nil {
		if e := ex.lateLimit.result(); e.Kind != limits.NotLimited {
			r.Limited, r.LimitAnswer = e.Kind, e.Name
			for i, s := range slices.Backward(r.Stages) {
				if s.Name == stageAttempt {
					r.Stages[i].Limited = e.Kind
					break
				}
			}
		}
	}
	r.Outcome = r.Cache.Outcome()
	r.Path, r.Target = ex.maskedPath(), ex.question.targetHash()
	switch q := ex.question; {
	case q == nil, r.Background, r.Spent > 0, r.Status == statusClientGone, r.Operation == rateLimitOperation:
	case r.Status == http.StatusNotModified && q.identity.Caller.Kind != policy.Unauthenticated:
		// An authenticated 304 costs no quota at the upstream either.
	default:
		r.Saved = r.Outcome != OutcomeRefused && r.Outcome != OutcomeBypass && r.Outcome != OutcomeMiss
	}
}
