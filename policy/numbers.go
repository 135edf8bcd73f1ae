package policy

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Number is a number that the upstream sends. A value outside the range is ignored or clamped, so that no response can
// block, blind or corrupt an account. All readers of such numbers use this type. docs/internals/upstream.md contains the ranges.
type Number struct {
	Name string // in logs
	// Least and Most are the bounds of the range. Those of a date are seconds after the Date of the response, or after its arrival.
	Least, Most int64
	// Clamp replaces a value outside the range by the nearest bound. Otherwise the value is ignored.
	Clamp bool
}

// LongestWait bounds each wait that one response can cause. It is the longest window of a limit that the upstream reports.
const LongestWait = time.Hour

const (
	waitSeconds = int64(LongestWait / time.Second)
	// dateSlack allows for a Date and a reset that different servers of the upstream have written.
	dateSlack = 60
	day       = 24 * 3600
)

// Numbers that the upstream sends. If one rate header or the Date is ignored, the whole report is ignored.
var (
	RateLimit     = Number{Name: "x-ratelimit-limit", Most: 1e9}
	RateRemaining = Number{Name: "x-ratelimit-remaining", Most: 1e9}
	RateUsed      = Number{Name: "x-ratelimit-used", Most: 1e9}
	// RateDifference is the remaining number minus the rest of the limit, which is at least zero. The rest is the limit minus the
	// used number. Any difference is a contradiction.
	RateDifference = Number{Name: "x-ratelimit-used+remaining"}
	RateReset      = Number{Name: "x-ratelimit-reset", Least: -waitSeconds, Most: waitSeconds + dateSlack}
	// UndatedReset is the range of a reset without a Date, in seconds after the arrival of the response. The clocks may differ.
	UndatedReset = Number{Name: "x-ratelimit-reset without date", Least: -day, Most: day}
	// ResponseDate is the range of the Date of a response, in seconds after its arrival. The clocks may differ.
	ResponseDate = Number{Name: "date", Least: -day, Most: day}
	RetryAfter   = Number{Name: "retry-after", Most: waitSeconds, Clamp: true}
	// GraphQLCost has the cost of a query of 500,000 nodes as its bound, which is the largest query.
	GraphQLCost = Number{Name: "rateLimit.cost", Most: 5000}
	TokenExpiry = Number{Name: "expires_at", Least: 1, Most: waitSeconds, Clamp: true}
	// Status is the range of the status of a final response. A response with another status is an error of the upstream.
	Status = Number{Name: "status", Least: 200, Most: 999}
	// CacheSeconds is the range of Age, max-age and similar numbers (RFC 9111 section 1.2.2).
	CacheSeconds = Number{Name: "age, max-age", Most: 1 << 31, Clamp: true}
)

// Numbers returns the table of all numbers.
func Numbers() []Number {
	return []Number{
		RateLimit, RateRemaining, RateUsed, RateDifference, RateReset, UndatedReset, ResponseDate, RetryAfter, GraphQLCost, TokenExpiry, Status, CacheSeconds,
	}
}

// Verdict is the result of reading a number.
type Verdict int

// Verdicts.
const (
	Ignored Verdict = iota // the text is no number, or the number is outside its range; the value is zero
	Clamped                // the value is the nearest bound of the range
	InRange
)

// Parse reads a decimal text.
func (n Number) Parse(text string) (int64, Verdict) {
	value, err := strconv.ParseInt(text, 10, 64) // of a number that is too large: the largest number
	if err != nil && !errors.Is(err, strconv.ErrRange) || strings.HasPrefix(text, "+") {
		return 0, Ignored
	}
	return n.Check(value)
}

// Check applies the range to a value.
func (n Number) Check(value int64) (int64, Verdict) {
	switch bounded := min(max(value, n.Least), n.Most); {
	case bounded == value:
		return value, InRange
	case n.Clamp:
		return bounded, Clamped
	}
	return 0, Ignored
}

// IsOutside reports whether a value is outside the range.
func (n Number) IsOutside(value int64) bool {
	_, verdict := n.Check(value)
	return verdict != InRange
}

// ParseUnix reads a time in seconds since 1970. from is the Date of the response, or its arrival.
func (n Number) ParseUnix(text string, from time.Time) (time.Time, Verdict) {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, Ignored
	}
	return n.Date(time.Unix(seconds, 0), from)
}

// Date applies the range to a date.
func (n Number) Date(at, from time.Time) (time.Time, Verdict) {
	seconds, v := n.Check(at.Unix() - from.Unix())
	switch v {
	case Ignored:
		return time.Time{}, v
	case Clamped:
		at = from.Add(time.Duration(seconds) * time.Second)
	}
	return at, v
}

// ReadDate reads the Date of a response that arrived at now. Without a valid Date, it returns the zero time. v is then Ignored if the
// Date is outside its range.
func ReadDate(h http.Header, now time.Time) (date time.Time, v Verdict) {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return time.Time{}, InRange
	}
	return ResponseDate.Date(date, now)
}
