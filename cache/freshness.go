package cache

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Rule is the part of the storing decision that does not depend on the response.
type Rule struct {
	// OneCaller is set if private responses may be stored, as in a private cache: only one caller gets the responses under
	// the key, or they are reference data and are stored without the fields that identify a caller.
	OneCaller bool
	// TTL, if positive, is the minimum lifetime of a storable response. A positive TTL is
	// for reference data, which is the same for every caller even if Cache-Control is private, and for immutable
	// responses, whose key contains the caller.
	TTL time.Duration
	// Heuristic gives a response without freshness information a tenth of the time since its
	// last modification (RFC 9111 section 4.2.2).
	Heuristic bool
	// DefaultLifetime, if positive, is the lifetime of a response without freshness information.
	// DefaultLifetime is for responses that were expensive to compute. With a positive
	// DefaultLifetime, status 422 is also storable.
	DefaultLifetime time.Duration
	// AnyStatus allows to store every final status with explicit freshness.
	AnyStatus bool
	// Partial is set for a range request. A 206 with explicit freshness may then be stored.
	Partial bool
}

// storableStatus contains the statuses that are stored without [Rule.AnyStatus].
var storableStatus = map[int]bool{
	http.StatusOK: true, http.StatusNonAuthoritativeInfo: true, http.StatusNoContent: true,
	http.StatusMovedPermanently: true, http.StatusPermanentRedirect: true,
	http.StatusNotFound: true, http.StatusGone: true,
}

// heuristicStatus contains the other statuses that allow a heuristic lifetime (RFC 9110 section 15.1).
var heuristicStatus = map[int]bool{
	http.StatusMultipleChoices: true, http.StatusMethodNotAllowed: true,
	http.StatusRequestURITooLong: true, http.StatusNotImplemented: true,
}

// unstorableStatus contains the statuses that are never stored:
//   - 202 says that the response is not ready.
//   - 304 has no body.
//   - 401 and 407 concern the credential, which can be renewed.
//   - RFC 6585 forbids to store 428, 429, 431 and 511.
var unstorableStatus = map[int]bool{
	http.StatusAccepted: true, http.StatusNotModified: true,
	http.StatusUnauthorized: true, http.StatusProxyAuthRequired: true,
	http.StatusPreconditionRequired: true, http.StatusTooManyRequests: true,
	http.StatusRequestHeaderFieldsTooLarge: true, http.StatusNetworkAuthenticationRequired: true,
}

// mayBeStored reports whether a rule can allow to store a response with this status. The status must
// be final.
func mayBeStored(status int) bool {
	return http.StatusOK <= status && status <= 599 && !unstorableStatus[status]
}

// allows reports whether the rule allows to store a response with this status.
func (r Rule) allows(status int) bool {
	switch {
	case storableStatus[status]:
		return true
	case status == http.StatusUnprocessableEntity && r.DefaultLifetime > 0:
		return true
	case status == http.StatusPartialContent:
		return r.Partial
	}
	return r.AnyStatus && mayBeStored(status)
}

// Storable reports whether a response to a GET may be stored (RFC 9111 section 3), and returns its
// lifetime. A response that is never fresh is stored only if it can be revalidated, which an error cannot. Weir understands
// the registered statuses, so must-understand overrides no-store for these statuses (section 5.2.2.3).
// Limit errors must be excluded by the caller.
func Storable(r Response, request Directives, rule Rule) (lifetime time.Duration, ok bool) {
	response, targeted := governing(r.Header)
	reference := rule.TTL > 0
	usual := storableStatus[r.Status] || rule.DefaultLifetime > 0 // needs no explicit freshness in the future
	switch {
	case !rule.allows(r.Status), request.Has("no-store"),
		response.Has("no-store") && !response.Has("must-understand"),
		response.Has("must-understand") && http.StatusText(r.Status) == "",
		response.Has("private") && !rule.OneCaller && !reference,
		len(r.Header["Set-Cookie"]) > 0,
		r.Header.Get("Vary") == "*":
		return 0, false
	}
	lifetime, explicit := freshness(r, response, targeted, rule)
	if reference && r.Status == http.StatusOK && !response.Has("no-cache") {
		return max(lifetime, rule.TTL), true
	}
	if !explicit && rule.Heuristic && (usual || heuristicStatus[r.Status] || response.Has("public")) {
		lifetime = heuristic(r)
		explicit = lifetime > 0
	}
	if !explicit && rule.DefaultLifetime > 0 {
		lifetime, explicit = rule.DefaultLifetime, true
	}
	if response.Has("no-cache") {
		lifetime = 0
	}
	if lifetime <= 0 && (r.Status >= http.StatusBadRequest || !isETag(r.Header.Get("Etag")) && r.Header.Get("Last-Modified") == "") {
		return 0, false
	}
	return lifetime, explicit && (usual || lifetime > 0) || r.Status == http.StatusOK
}

// maxHeuristic bounds a heuristic lifetime.
const maxHeuristic = time.Hour

// heuristic returns a tenth of the time since the last modification, at most maxHeuristic.
func heuristic(r Response) time.Duration {
	modified, err := parseDate(r.Header.Get("Last-Modified"))
	if err != nil {
		return 0
	}
	return min(max(0, dateOf(r.Header, r.Answered).Sub(modified)/10), maxHeuristic)
}

// freshness returns the explicit lifetime (RFC 9111 section 4.2.1). Expires is ignored if the
// directives are from a targeted field (RFC 9213 section 2.2).
func freshness(r Response, response Directives, targeted bool, rule Rule) (lifetime time.Duration, explicit bool) {
	if !rule.OneCaller {
		if s, ok := response.Seconds("s-maxage"); ok {
			return s, true
		}
	}
	if s, ok := response.Seconds("max-age"); ok {
		return s, true
	}
	values := r.Header["Expires"]
	if len(values) == 0 || targeted {
		return 0, false
	}
	expires, err := parseDate(values[0])
	if err != nil || len(values) > 1 {
		return 0, true
	}
	return between(dateOf(r.Header, r.Answered), expires), true
}

// dateOf returns the Date of a response. Without a valid Date, dateOf returns the time of arrival.
func dateOf(h http.Header, answered time.Time) time.Time {
	if d, err := parseDate(h.Get("Date")); err == nil {
		return d
	}
	return answered
}

// dateFormats contains the three formats of an HTTP-date (RFC 9110 section 5.6.7).
var dateFormats = []string{http.TimeFormat, "Monday, 02-Jan-06 15:04:05 GMT", time.ANSIC}

// parseDate parses an HTTP-date. The comparison ignores case (RFC 9111 section 4.2) and the name of the
// weekday. Otherwise the date must have one of the formats exactly.
func parseDate(value string) (time.Time, error) {
	if zone := len(value) - len("GMT"); zone > 0 && strings.EqualFold(value[zone:], "GMT") {
		value = value[:zone] + "GMT"
	}
	for _, format := range dateFormats {
		t, err := time.Parse(format, value) // accepts several spaces and hours with one digit
		if err == nil && strings.EqualFold(afterSpace(t.Format(format)), afterSpace(value)) {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not an HTTP date", value)
}

func afterSpace(s string) string {
	_, rest, _ := strings.Cut(s, " ")
	return rest
}

// between returns the time from earlier to later, or zero if later precedes earlier. A bound prevents
// overflows in later calculations (RFC 9111 section 1.2.2).
func between(earlier, later time.Time) time.Duration {
	return min(max(0, later.Sub(earlier)), longestTime)
}

// initialAge returns the corrected initial age (RFC 9111 section 4.2.3). The first member of Age counts,
// and an invalid Age is ignored (section 5.1).
func initialAge(r Response) time.Duration {
	apparent := between(dateOf(r.Header, r.Answered), r.Answered)
	first, _, _ := strings.Cut(r.Header.Get("Age"), ",")
	return max(apparent, parseSeconds(strings.TrimSpace(first))+r.Answered.Sub(r.Requested))
}

// Age returns the current age (RFC 9111 section 4.2.3).
func (e *Entry) Age(now time.Time) time.Duration { return e.InitialAge + max(0, now.Sub(e.Answered)) }

// date returns the entry's Date, but at most the time of arrival.
func (e *Entry) date() time.Time {
	if d := dateOf(e.Header, e.Answered); d.Before(e.Answered) {
		return d
	}
	return e.Answered.Truncate(time.Second) // the precision of Date
}

// Fresh reports whether the entry may be used at now without revalidation. Fresh does not consider
// purges and request directives.
func (e *Entry) Fresh(now time.Time) bool { return e.Age(now) < e.Lifetime }

// Staleness returns the time since the entry became stale, which is negative for a fresh entry.
func (e *Entry) Staleness(now time.Time) time.Duration { return e.Age(now) - e.Lifetime }

// NeverStale reports whether must-revalidate or no-cache forbids stale use of the entry (RFC 9111
// section 4.2.4). If several callers share the entry, proxy-revalidate and s-maxage have the same
// effect (sections 5.2.2.8 and 5.2.2.10).
func (e *Entry) NeverStale(rule Rule) bool {
	d, _ := governing(e.Header)
	return d.Has("must-revalidate") || d.Has("no-cache") || !rule.OneCaller && (d.Has("proxy-revalidate") || d.Has("s-maxage"))
}

// SingleUse reports whether each further request must revalidate the entry, including followers of
// its coalesced call. The reason is no-cache, or a response that was stale on arrival (RFC 9111
// sections 4 and 5.2.2.4).
func (e *Entry) SingleUse(rule Rule) bool {
	d, targeted := governing(e.Header)
	_, explicit := freshness(Response{Header: e.Header, Answered: e.Answered}, d, targeted, rule)
	return d.Has("no-cache") || explicit && !e.Fresh(e.Answered)
}

// UsableOnError reports whether stale-if-error of the response or the request allows the entry to
// replace an error of the upstream (RFC 5861 section 4).
func (e *Entry) UsableOnError(now time.Time, request Directives) bool {
	d, _ := governing(e.Header)
	for _, directives := range []Directives{d, request} {
		if most, ok := directives.Seconds("stale-if-error"); ok && e.Staleness(now) <= most {
			return true
		}
	}
	return false
}

// UsableWhileRevalidating reports whether stale-while-revalidate allows use of the entry during its
// revalidation (RFC 5861 section 3).
func (e *Entry) UsableWhileRevalidating(now time.Time) bool {
	d, _ := governing(e.Header)
	most, ok := d.Seconds("stale-while-revalidate")
	return ok && e.Staleness(now) <= most
}

// AllowedByMaxStale reports whether max-stale of the request allows the entry (RFC 9111 section
// 5.2.1.2).
func (e *Entry) AllowedByMaxStale(now time.Time, request Directives) bool {
	argument, ok := request.argument("max-stale")
	if !ok {
		return false
	}
	most, _ := request.Seconds("max-stale")
	return argument == "" || e.Staleness(now) <= most
}
