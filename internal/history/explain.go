package history

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/proxy"
)

// Result is what a request came to, for people: the outcome of its record, with waits and
// errors apart. Its values are the names of series.
type Result string

// Results, in the order in which they are drawn.
const (
	Hit       Result = "hit"       // from the cache, fresh
	Stale     Result = "stale"     // from the cache, stale
	Validated Result = "validated" // the API said that what is held has not changed
	Miss      Result = "miss"      // asked of the API
	Waited    Result = "waited"    // asked, after a wait; or another's answer was waited for
	Refused   Result = "refused"   // by Weir itself
	Failed    Result = "error"     // 5xx, or the client left
)

// results are all of them.
func results() []Result { return []Result{Hit, Stale, Validated, Miss, Waited, Refused, Failed} }

// noticed is the shortest wait that counts as one: to be let go takes a moment always.
const noticed = 10 * time.Millisecond

// statusClientGone is what proxy notes where the client did not wait for its answer.
const statusClientGone = 499

// status is a Cache-Status of Weir's, taken apart (RFC 9211).
type status struct {
	hit, collapsed, stored bool
	fwd, detail            string
	fwdStatus, ttl         int
	timed                  bool // ttl was said
}

// parse reads what proxy has written; nobody else writes into a record.
func parse(cache string) (s status) {
	for part := range strings.SplitSeq(cache, "; ") {
		name, value, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(value)
		switch name {
		case "hit":
			s.hit = true
		case "collapsed":
			s.collapsed = true
		case "stored":
			s.stored = true
		case "fwd":
			s.fwd = value
		case "detail":
			s.detail = value
		case "fwd-status":
			s.fwdStatus = n
		case "ttl":
			s.ttl, s.timed = n, err == nil
		}
	}
	return s
}

// stale reports whether what was given away was; what is kept stale is another matter.
func (s status) stale() bool { return s.timed && s.ttl < 0 && !s.stored }

// left is how long what was given away is fresh; below zero for how long it is not.
func (s status) left() time.Duration { return time.Duration(s.ttl) * time.Second }

// own reports whether Weir answered by itself, and not from the cache.
func (s status) own() bool { return !s.hit && s.fwd == "" }

// resultOf is what a request came to.
func resultOf(r *proxy.Record) Result {
	switch {
	case r.Status == statusClientGone, r.Status >= 500 && !parse(r.Cache).refuses():
		return Failed
	case r.Outcome == "hit": // nearly all are
		return Hit
	case r.Outcome == "refused", r.Outcome == "own" && !parse(r.Cache).hit:
		return Refused
	case r.Outcome == "stale":
		return Stale
	case r.Outcome == "own":
		return Hit
	case r.Outcome == "collapsed", r.Waited >= noticed:
		return Waited
	case r.Outcome == "validated":
		return Validated
	}
	return Miss
}

// refuses reports whether it says for what Weir refuses, with 5xx too.
func (s status) refuses() bool {
	switch s.detail {
	case "", "upstream", "timeout":
		return false
	}
	return s.own()
}

// explain tells an operator in words why a request got what it got. It is a function of
// the record alone, so what it says is what the headers, the log and the series say.
func explain(r *proxy.Record) string {
	s := parse(r.Cache)
	said := []string{s.decision(r)}
	if w := waits(r, s); w != "" {
		said = append(said, w)
	}
	if r.Attempts > 1 {
		said = append(said, fmt.Sprintf("The API was asked %d times.", r.Attempts))
	}
	if s.stored && s.ttl > 0 {
		said = append(said, fmt.Sprintf("The answer was kept, fresh for %s.", inWords(s.left())))
	}
	if r.Background {
		said = append(said, "No client waited for this: Weir asked by itself, to validate what is held or to poll for what is computed.")
	}
	return strings.Join(said, " ")
}

// decision says where the answer came from, and why.
func (s status) decision(r *proxy.Record) string {
	switch {
	case r.Status == statusClientGone:
		return "The client left before it had its answer."
	case s.hit && s.detail == "ledger":
		return "A hit: the ledger knows what is left, so the API was not asked."
	case s.stale():
		return fmt.Sprintf("A stale answer, %s past its time, was given: %s.", inWords(-s.left()), because(s.detail))
	case s.hit:
		return fmt.Sprintf("A hit: the answer was held, and fresh for another %s. It cost nothing.", inWords(s.left()))
	case s.own() && r.Status >= 500:
		return "An error: " + because(s.detail) + "."
	case s.own():
		return "A refusal: " + because(s.detail) + "."
	}
	return s.forwarded(r)
}

// forwarded says why the API was asked, and what came of it.
func (s status) forwarded(r *proxy.Record) string {
	if s.collapsed && r.Attempts == 0 {
		return "Another request was asking for the same, so this one took its answer and cost nothing."
	}
	var why string
	switch s.fwd {
	case "uri-miss":
		why = "A miss: nothing was held for this caller"
	case "vary-miss":
		why = "A miss: what is held is another representation"
	case "stale":
		why = "What was held was stale, or purged"
	case "request":
		why = "The client wanted it validated"
	case "method":
		why = "A " + r.Method + " is always sent"
	default:
		why = "Nothing of this kind is kept, so it is always sent"
	}
	switch {
	case s.fwdStatus == 304:
		why += ", so the API was asked whether it has changed: it has not"
	case s.fwdStatus == http.StatusForbidden || s.fwdStatus == http.StatusTooManyRequests:
		why += fmt.Sprintf(", so the API was asked; the %d is its own answer", s.fwdStatus)
	case s.fwdStatus != 0:
		why += fmt.Sprintf(", so the API was asked; it answered %d", s.fwdStatus)
	case r.Status >= 500:
		why += fmt.Sprintf("; it ended with %d", r.Status)
	default:
		why += ", so the API was asked"
	}
	if s.detail != "" {
		why += " (" + because(s.detail) + ")"
	}
	return why + "."
}

// waits says what the request waited for, as far as the record knows.
func waits(r *proxy.Record, s status) string {
	if r.Waited < noticed {
		return ""
	}
	total := inWords(r.Waited)
	var queue, flight, poll, retry time.Duration
	var detail string
	for _, stage := range r.Stages {
		switch stage.Name {
		case "queue":
			queue += stage.Elapsed
			if stage.Elapsed >= noticed {
				detail = stage.Detail
			}
		case "flight":
			flight += stage.Elapsed
		case "poll":
			poll += stage.Elapsed
		case "retry":
			retry += stage.Elapsed
		}
	}
	switch longest := max(queue, flight, poll, retry); {
	case longest == 0 && s.collapsed:
		return fmt.Sprintf("It waited %s for what another had asked.", total)
	case longest == 0:
		return fmt.Sprintf("It waited %s, for a permit or between polls.", total)
	case longest == flight:
		return fmt.Sprintf("It waited %s, most of it for what another had asked.", total)
	case longest == retry:
		return fmt.Sprintf("It waited %s, most of it before it was sent again: the connection to the API had broken.", total)
	case longest == poll:
		return fmt.Sprintf("It waited %s, most of it while the API computed the answer.", total)
	case detail != "":
		return fmt.Sprintf("It waited %s, most of it in the queue: %s.", total, because(detail))
	}
	return fmt.Sprintf("It waited %s, most of it in the queue for a permit.", total)
}

// because is a detail of Cache-Status in words (docs/cache.md has the list).
func because(detail string) string {
	if why, ok := map[string]string{
		"":               "the request cannot be answered as it is",
		"primary":        "the primary budget of this resource is spent until its reset, or what is left of it is in flight, set aside, or not known yet",
		"points":         "the points of this operation for this minute are spent",
		"content":        "as much content as the API allows has been created",
		"cpu":            "the API's time for this account is spent for this minute",
		"concurrency":    "as many requests as the API allows are in flight",
		"cooldown":       "the API has told this account to pause, and nothing is sent into a cool-down",
		"queue":          "too many already wait for this account",
		"inbound":        "this address sends faster than the gateway allows",
		"overload":       "too many requests wait in this gateway",
		"drain":          "this gateway stops, and could not wait for the answer",
		"scope":          "the client may not call this operation",
		"credential":     "the credential that would pay cannot be used now",
		"identity":       "the issuer of the client's token does not answer",
		"store":          "the store of the budgets is away",
		"upstream":       "the API cannot be reached, or gave no valid answer",
		"breaker":        "the API answers nobody at the moment, and is not asked",
		"timeout":        "the API did not answer in time",
		"stale-if-error": "the API erred, and the last good answer stands in",
		"only-if-cached": "the client wants it from the cache only, and it is not held",
		"computing":      "the API still computes the answer",
		"authentication": "the API answers this to nobody without a credential, so it was not sent",
	}[detail]; ok {
		return why
	}
	return "by the API's own documents it must fail (" + detail + "), so it was not sent"
}

// inWords is a length of time for people.
func inWords(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", max(0, d).Milliseconds())
	case d < 10*time.Second && d%time.Second != 0:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.0f h", d.Hours())
}
