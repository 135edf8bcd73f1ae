package history

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/durations"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/record"
)

// Result classifies a completed request for people. The values are the names of the series.
type Result string

// The results are in the order in which charts draw them.
const (
	Hit       Result = "hit"       // fresh, from the cache
	Stale     Result = "stale"     // stale, from the cache
	Validated Result = "validated" // from the cache after a 304
	Miss      Result = "miss"      // from the upstream
	Waited    Result = "waited"    // from the upstream after a wait, or from a coalesced call
	Refused   Result = "refused"   // by Weir
	Limited   Result = "limited"   // refused by the API, which reports a limit
	Failed    Result = "error"     // 5xx, or the client disconnected
)

// Results returns all results in this order.
func Results() []Result {
	return []Result{Hit, Stale, Validated, Miss, Waited, Refused, Limited, Failed}
}

// minWait is the shortest wait that is reported. Shorter waits are noise.
const minWait = 10 * time.Millisecond

// statusClientGone is the status that proxy records for a client that disconnected.
const statusClientGone = 499

// byWeir reports whether Weir generated the response itself.
func byWeir(s *record.CacheStatus) bool { return !s.Hit && s.Forward == "" }

// refusal reports whether Weir refused the request. Some refusals have a 5xx status.
func refusal(s *record.CacheStatus) bool {
	switch s.Detail {
	case "", "upstream", "timeout":
		return false
	}
	return byWeir(s)
}

func resultOf(r *record.Record) Result {
	switch {
	case r.Status == statusClientGone, r.Status >= 500 && !refusal(&r.Cache):
		return Failed
	case r.Outcome == record.OutcomeHit:
		return Hit
	case r.Outcome == record.OutcomeRefused, r.Outcome == record.OutcomeOwn && !r.Cache.Hit:
		return Refused
	case r.Outcome == record.OutcomeStale:
		return Stale
	case r.Outcome == record.OutcomeOwn:
		return Hit
	case r.Limited != policy.NotLimited:
		return Limited
	case r.Outcome == record.OutcomeCollapsed, r.Waited >= minWait:
		return Waited
	case r.Outcome == record.OutcomeValidated:
		return Validated
	}
	return Miss
}

// explain returns sentences that explain a response to an operator. The only source is the record, so the explanation
// agrees with headers, log and series.
func explain(r *record.Record) string {
	s := &r.Cache
	sentences := []string{decision(r)}
	if r.Waited >= minWait {
		sentences = append(sentences, explainWait(r))
	}
	for _, stage := range r.Stages {
		if stage.Failed && stage.Elapsed < minWait && stage.Shared != nil { // refused without a wait
			sentences = append(sentences, "The request needed quota: "+inUse(stage.Shared)+".")
		}
	}
	if left := r.Until.Sub(r.Start.Add(r.Elapsed)); left > 0 {
		sentences = append(sentences, fmt.Sprintf("The same request would pass after %s, at %s UTC, if no other request used the quota.", durations.Left(left), r.Until.UTC().Format(time.TimeOnly)))
	}
	if r.Sent > 1 {
		sentences = append(sentences, fmt.Sprintf("Weir sent %d requests upstream.", r.Sent))
	}
	if s.Stored && s.TTL > 0 {
		sentences = append(sentences, fmt.Sprintf("The response was stored, fresh for %s.", inWords(s.TTL)))
	}
	if cause, ok := strings.CutPrefix(s.Detail, record.DetailSuspect); ok {
		sentences = append(sentences, "The response is suspect, so its next use revalidates it: "+causes[cache.Cause(cause)]+".")
	}
	if cause, ok := strings.CutPrefix(s.Detail, record.DetailWasSuspect); ok {
		sentences = append(sentences, "The stored response was suspect: "+causes[cache.Cause(cause)]+".")
	}
	if r.Background {
		sentences = append(sentences, "This was a background request: a revalidation, or a poll for statistics.")
	}
	return strings.Join(sentences, " ")
}

// causes explains why responses are suspect.
var causes = map[cache.Cause]string{
	cache.CauseWrite:       "it was requested shortly after a write, and the upstream may show the state before the write for some time (cache.lag)",
	cache.CauseEvent:       "it was requested shortly after a webhook event, and the upstream may show the state before the event for some time (cache.lag)",
	cache.CauseFailedWrite: "it was requested shortly after a write failed because of another state of the object, and the upstream may not show that state yet (cache.lag)",
	cache.CauseLag:         "the upstream returned an earlier state than before (cache.lag)",
}

// decision explains where the response came from.
func decision(r *record.Record) string {
	s := &r.Cache
	switch {
	case r.Status == statusClientGone:
		return "The client disconnected before the response was complete."
	case s.Hit && s.Detail == "ledger":
		return "Hit: the ledger knows the rate limit status, so no request was sent."
	case s.Stale():
		return fmt.Sprintf("Stale response, expired %s ago: %s.", inWords(-s.TTL), reason(s.Detail))
	case s.Hit:
		return fmt.Sprintf("Hit: the stored response is fresh for another %s; no quota was consumed.", inWords(s.TTL))
	case byWeir(s) && r.Status >= 500:
		return "Error: " + reason(s.Detail) + "."
	case s.Detail == "key" && r.Status == http.StatusUnauthorized:
		return "Refused: the gateway does not know the key or token of the request, or the request has none (weir key new creates a key)."
	case byWeir(s):
		return "Refused: " + reason(s.Detail) + "."
	case s.Collapsed && r.Sent == 0:
		return "Coalesced: an identical request was in progress, and its response was used; no quota was consumed."
	}
	if why := limitKinds[r.Limited]; why != "" {
		return fmt.Sprintf("Refused by the API with %d: %s.", r.Status, why)
	}
	why := map[record.ForwardReason]string{
		record.ForwardMiss:    "Miss: no response was stored for this caller",
		record.ForwardStale:   "The stored response was stale or purged",
		record.ForwardRequest: "The client requested revalidation",
		record.ForwardMethod:  "A " + r.Method + " request is always forwarded",
	}[s.Forward]
	if why == "" {
		why = "Responses of this operation are not stored"
	}
	switch status := s.ForwardStatus; {
	case status == http.StatusNotModified:
		why += "; the upstream confirmed that it has not changed"
	case status == http.StatusForbidden || status == http.StatusTooManyRequests:
		why += fmt.Sprintf("; the upstream refused with %d", status)
	case status != 0:
		why += fmt.Sprintf("; the upstream responded with %d", status)
	case r.Status >= 500:
		why += fmt.Sprintf("; the request failed with %d", r.Status)
	default:
		why += "; the request was forwarded"
	}
	if s.Detail != "" && !strings.Contains(s.Detail, record.DetailSuspect) {
		why += " (" + reason(s.Detail) + ")"
	}
	return why + "."
}

// limitKinds explains the limit errors of the upstream.
var limitKinds = map[policy.LimitKind]string{
	policy.LimitPrimary:   "the primary limit of the resource is exhausted",
	policy.LimitSecondary: "a secondary limit, so Weir sends nothing for this account during a cool-down",
	policy.LimitContent:   "content was created too quickly, so Weir sends no request of this account that creates content for a while",
}

// explainWait returns a sentence with the total wait and the reason for its longest part.
func explainWait(r *record.Record) string {
	waits := map[string]time.Duration{}
	detail, shared := "", (*limits.SharedUse)(nil)
	for _, stage := range r.Stages {
		waits[stage.Name] += stage.Elapsed
		if stage.Name == record.StageQueue && stage.Elapsed >= minWait {
			detail, shared = stage.Detail, stage.Shared
		}
	}
	why := "mostly in the queue for a permit"
	switch longest := max(waits[record.StageQueue], waits[record.StageCoalesce], waits[record.StagePoll], waits[record.StageRetry]); {
	case longest == 0 && r.Cache.Collapsed:
		why = "for an identical request"
	case longest == 0:
		why = "for a permit or between polls"
	case longest == waits[record.StageCoalesce]:
		why = "mostly for an identical request"
	case longest == waits[record.StageRetry]:
		why = "mostly before a retry: the connection to the upstream broke"
	case longest == waits[record.StagePoll]:
		why = "mostly while the upstream computed the response"
	case shared != nil:
		why = "mostly in the queue for " + inUse(shared)
	case detail != "":
		why = "mostly in the queue: " + reason(detail)
	}
	return fmt.Sprintf("The request waited %s, %s.", durations.Text(r.Waited), why)
}

// inUse describes a budget that clients share, and the clients that used most of it.
func inUse(u *limits.SharedUse) string {
	kind, scope, _ := strings.Cut(u.Budget, ":")
	name, amount := "requests of "+u.Budget, func(n int64) string { return strconv.FormatInt(n, 10) }
	switch limits.Reason(kind) {
	case limits.Points:
		name = "points of " + scope
	case limits.Content:
		name = "content creation in " + scope
	case limits.Writes:
		name = "writes in " + scope
	case limits.Concurrency:
		name = "concurrent requests"
	case limits.CPU:
		name, amount = "CPU time", func(n int64) string { return durations.Seconds(time.Duration(n) * time.Millisecond) }
	}
	for i, c := range u.Clients {
		if i == 0 {
			name += fmt.Sprintf(": %s used %s of %s", c.Client, amount(c.Used), amount(u.Limit))
		} else {
			name += ", " + c.Client + " " + amount(c.Used)
		}
	}
	return name
}

// reason explains a detail of Cache-Status. docs/cache.md lists all details.
func reason(detail string) string {
	if why, ok := map[string]string{
		"":                 "the request is invalid",
		"form":             "the gateway does not forward requests of this form",
		"key":              "the request contains a key of this gateway in a place that would be forwarded",
		"refused-token":    "the upstream has refused this token with 401, and Weir does not send it again yet",
		"unverified-token": "too many tokens that the upstream has not accepted wait for their first response",
		"git":              "Weir does not forward Git over this host name",
		"graphql":          "the GraphQL call is invalid",
		"loop":             "the request has passed this gateway before",
		"webhook":          "a webhook reports changes, so the response was used after its lifetime",
		"ledger":           "the ledger knows the rate limit status",
		"preflight":        "Weir answered the CORS preflight itself",
		"internal":         "the gateway failed; the log has the cause",
		"primary":          "no quota is free in the primary budget of this resource",
		"client":           "the client has used its part of the window, or the rest is kept for other clients of the account",
		"points":           "the points of this operation are exhausted for this minute",
		"writes":           "the client or the tag has used its writes of the minute or the hour (clients[].writes), or the call has more mutations",
		"content":          "the limit for content creation is reached",
		"cpu":              "the CPU time of this account is exhausted for this minute",
		"concurrency":      "the limit for concurrent requests is reached",
		"cooldown":         "the upstream requested a pause of this account, and Weir sends nothing during a cool-down",
		"closed":           "repeated probes of this account failed, and Weir sends nothing until an operator opens the account (weir account open)",
		"queue":            "too many requests wait for this account",
		"inbound":          "this address exceeds the request rate that the gateway allows",
		"overload":         "too many requests wait in this gateway",
		"drain":            "this gateway is shutting down and could not wait for the response",
		"tag":              "the request field Weir-Tag is invalid",
		"scope":            "the client is not allowed to call this operation",
		"credential":       "the credential of this client is not usable at the moment",
		"identity":         "the issuer of the client's token does not respond",
		"store":            "the store of the budgets does not respond",
		"upstream":         "the upstream is unreachable or sent an invalid response",
		"breaker":          "the circuit breaker is open, because the upstream does not respond",
		"timeout":          "the upstream did not respond in time",
		"stale-if-error":   "the upstream failed, and the last good response was used",
		"only-if-cached":   "the client accepts only a stored response, and there is none",
		"computing":        "the upstream is still computing the response",
		"authentication":   "the upstream requires a credential for this operation, so the request was not sent",
		"query":            "the GraphQL query failed three times because of its size, so Weir does not send it again yet",
	}[detail]; ok {
		return why
	}
	return "the documents of the upstream say that it must fail (" + detail + "), so it was not sent"
}

func inWords(seconds int) string { return durations.Left(time.Duration(seconds) * time.Second) }
