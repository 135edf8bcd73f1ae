package limits

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/weirgate/weir/policy"
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

// RemoveRate removes the x-ratelimit headers.
func RemoveRate(h http.Header) {
	for _, name := range rateHeaders {
		h.Del(name)
	}
	h.Del("X-Ratelimit-Resource")
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
	// PrimaryLimit closes the window of the resource until its reset.
	PrimaryLimit
	// SecondaryLimit starts a cool-down of the account.
	SecondaryLimit
	// ContentLimit pauses the requests of the account that create content.
	ContentLimit
)

var kindNames = map[LimitKind]policy.LimitKind{
	PrimaryLimit: policy.LimitPrimary, SecondaryLimit: policy.LimitSecondary, ContentLimit: policy.LimitContent,
}

// String returns the name of the kind, or "none".
func (k LimitKind) String() string { return string(cmp.Or(kindNames[k], policy.LimitNone)) }

// MarshalText implements [encoding.TextMarshaler].
func (k LimitKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// LimitError describes the limit error of a response. The zero value represents a response without a limit error.
type LimitError struct {
	Kind LimitKind
	// Name is the row of policy/limitanswers.yaml that decided.
	Name    string
	Message string
	// Repeated is the number of such responses in a row that make a limit error, or zero if one response suffices.
	Repeated int
}

// ReadLimitError returns the limit error that a response reports. [Limiter.ReadLimitError] also counts repeated responses.
func ReadLimitError(a policy.UpstreamAnswer) LimitError {
	row, message := policy.RecognizeLimit(a)
	if row == nil || row.Kind == policy.LimitNone {
		return LimitError{}
	}
	e := LimitError{Name: row.Name, Message: message, Repeated: row.Repeated}
	for kind, name := range kindNames {
		if name == row.Kind {
			e.Kind = kind
		}
	}
	return e
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
