package limits

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rate contains the x-ratelimit headers of one response. The zero value represents a response without these headers.
type Rate struct {
	// Invalid means that the response has x-ratelimit headers that Weir cannot use. The other fields are then zero.
	Invalid bool
	Limit   int
	Used    int
	// Reset is in whole seconds of the upstream's clock.
	Reset time.Time
	// Date is the time of the response on the upstream's clock, or zero. Only the difference between Reset and Date is
	// comparable with another clock.
	Date     time.Time
	Resource string
}

// latestReset is the latest reset that ReadRate accepts, in Unix seconds (year 2255). With this bound, times in
// microseconds fit into 53 bits.
const latestReset = 9_000_000_000

// rateHeaders are the x-ratelimit headers with a number.
var rateHeaders = []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Used", "X-Ratelimit-Reset"}

// ReadRate parses the x-ratelimit headers. It returns false if the limit or the reset is missing or invalid. If the
// used number is missing, ReadRate computes that number from the limit and the remaining number.
func ReadRate(h http.Header) (Rate, bool) {
	limit, okLimit := number(h, "X-Ratelimit-Limit")
	reset, okReset := number(h, "X-Ratelimit-Reset")
	used, okUsed := number(h, "X-Ratelimit-Used")
	if remaining, ok := number(h, "X-Ratelimit-Remaining"); ok && !okUsed {
		used, okUsed = max(0, limit-remaining), true
	}
	if !okLimit || !okReset || !okUsed || reset > latestReset {
		present := func(name string) bool { return len(h[name]) > 0 }
		return Rate{Invalid: slices.ContainsFunc(rateHeaders, present)}, false
	}
	r := Rate{Limit: limit, Used: used, Reset: time.Unix(int64(reset), 0), Resource: h.Get("X-Ratelimit-Resource")}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		r.Date = date
	}
	return r, true
}

// number parses a header field as a number of zero or more.
func number(h http.Header, name string) (int, bool) {
	n, err := strconv.Atoi(h.Get(name))
	return n, err == nil && n >= 0
}

// LimitKind is the kind of limit error that a response reports.
type LimitKind int

// Kinds of limit errors.
const (
	NotLimited LimitKind = iota
	PrimaryLimit
	SecondaryLimit
)

// secondaryTexts are parts of the upstream's messages for secondary limits, in lower case.
var secondaryTexts = []string{"secondary rate limit", "abuse detection", "temporarily blocked from content creation"}

// ClassifyLimit returns the kind of limit error that a response reports. The text of the body takes precedence, because
// a secondary limit error may have any number of remaining requests. Otherwise, remaining 0 is a primary limit error,
// and Retry-After or status 429 is a secondary limit error. A GraphQL limit error has status 200 and an error of type
// RATE_LIMITED. The body may be truncated.
func ClassifyLimit(status int, h http.Header, body []byte) LimitKind {
	kind, _ := ReadLimitError(status, h, body)
	return kind
}

// ReadLimitError returns the result of [ClassifyLimit], and the message of the limit error.
func ReadLimitError(status int, h http.Header, body []byte) (kind LimitKind, message string) {
	type graphQLError struct{ Type, Message string }
	var parsed struct {
		Message       string
		Documentation string `json:"documentation_url"`
		Errors        []graphQLError
	}
	text, graphQL := string(body), status == http.StatusOK
	if json.NewDecoder(bytes.NewReader(body)).Decode(&parsed) == nil {
		text = parsed.Message
	}
	switch {
	case graphQL:
		i := slices.IndexFunc(parsed.Errors, func(e graphQLError) bool { return e.Type == "RATE_LIMITED" })
		if i < 0 {
			return NotLimited, ""
		}
		text = parsed.Errors[i].Message
	case status != http.StatusForbidden && status != http.StatusTooManyRequests:
		return NotLimited, ""
	}
	message, text = text, strings.ToLower(text)
	secondary := func(s string) bool { return strings.Contains(text, s) }
	switch {
	case slices.ContainsFunc(secondaryTexts, secondary), strings.HasSuffix(parsed.Documentation, "secondary-rate-limits"),
		strings.HasSuffix(parsed.Documentation, "abuse-rate-limits"):
		return SecondaryLimit, message
	case strings.Contains(text, "rate limit exceeded"), h.Get("X-Ratelimit-Remaining") == "0":
		return PrimaryLimit, message
	case !graphQL && (h.Get("Retry-After") != "" || status == http.StatusTooManyRequests):
		return SecondaryLimit, message
	}
	return NotLimited, ""
}

// ReadCost returns the cost that a response to a GraphQL call has at data.rateLimit.cost, or zero. executed is false if the
// response has only errors, so the cost may be lower than the cost of the query. The body may be truncated: the cost is then
// zero, and executed is true, because errors are short.
func ReadCost(body []byte) (cost int, executed bool) {
	// Maps, because the names of members of a struct ignore case, and a client chooses aliases.
	var parsed, data, rate map[string]json.RawMessage
	if json.Unmarshal(body, &parsed) != nil {
		return 0, true
	}
	if json.Unmarshal(parsed["data"], &data) != nil || data == nil {
		return 0, false
	}
	if json.Unmarshal(data["rateLimit"], &rate) != nil || json.Unmarshal(rate["cost"], &cost) != nil {
		return 0, true
	}
	return max(0, cost), true
}

// ReadRetryAfter parses a Retry-After header, which is a number of seconds or a date (RFC 9110 section 10.2.3). It
// returns zero if the header is missing or invalid, and for zero, a negative number or a past date.
func ReadRetryAfter(h http.Header, now time.Time) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.Atoi(value); err == nil {
		return max(0, time.Duration(seconds)*time.Second)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
