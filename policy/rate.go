package policy

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Rate contains the x-ratelimit headers of one response. The zero value represents a response without these headers.
type Rate struct {
	// Invalid means that the response has x-ratelimit headers that Weir cannot use. The other fields are then zero.
	Invalid bool
	// Ignored is the name of the first number outside its range, or empty. Invalid is then set.
	Ignored string
	Limit   int
	Used    int
	// Reset is in whole seconds of the upstream's clock.
	Reset time.Time
	// Date is the time of the response on the upstream's clock, or zero. Only the difference between Reset and Date is
	// comparable with another clock.
	Date     time.Time
	Resource string
}

// rateHeaders are the x-ratelimit headers with a number.
var rateHeaders = []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Used", "X-Ratelimit-Reset"}

// ReadRate parses the x-ratelimit headers of a response that arrived at now. It returns false if the limit or the reset is
// missing, or if a number is invalid, outside its range or contradicts the others (numbers.go). A repeated header must have one
// value. If the used number is missing, ReadRate computes that number from the limit and the remaining number.
func ReadRate(h http.Header, now time.Time) (r Rate, ok bool) {
	present, ignored := false, ""
	read := func(name string, n Number) (value int64, ok bool) {
		if len(h[name]) == 0 {
			return 0, false
		}
		present = true
		value, v := n.Parse(h.Get(name))
		if v == Ignored || differ(h[name]) {
			ignored = cmp.Or(ignored, n.Name)
		}
		return value, v != Ignored
	}
	limit, ok := read("X-Ratelimit-Limit", RateLimit)
	remaining, okRemaining := read("X-Ratelimit-Remaining", RateRemaining)
	used, okUsed := read("X-Ratelimit-Used", RateUsed)
	date, v := ReadDate(h, now)
	from, reset := date, RateReset
	if date.IsZero() {
		from, reset = now, UndatedReset
	}
	okReset := false
	if text := h["X-Ratelimit-Reset"]; len(text) > 0 {
		present = true
		if v == Ignored {
			ignored = cmp.Or(ignored, ResponseDate.Name)
		}
		if r.Reset, v = reset.ParseUnix(text[0], from); v == Ignored || differ(text) {
			ignored = cmp.Or(ignored, reset.Name)
		}
		okReset = v != Ignored
	}
	if !okUsed {
		used = max(0, limit-remaining)
	} else if okRemaining {
		if _, v := RateDifference.Check(remaining - max(0, limit-used)); v == Ignored {
			ignored = cmp.Or(ignored, RateDifference.Name)
		}
	}
	if !ok || !okReset || !okUsed && !okRemaining || ignored != "" {
		return Rate{Invalid: present, Ignored: ignored}, false
	}
	r.Limit, r.Used, r.Date, r.Resource = int(limit), int(used), date, h.Get("X-Ratelimit-Resource")
	return r, true
}

// differ reports whether the lines of a repeated header have different values.
func differ(lines []string) bool {
	return slices.ContainsFunc(lines, func(line string) bool { return line != lines[0] })
}

// RemoveRate removes the x-ratelimit headers.
func RemoveRate(h http.Header) {
	for _, name := range rateHeaders {
		h.Del(name)
	}
	h.Del("X-Ratelimit-Resource")
}

// ReadRetryAfter parses the Retry-After of a response that arrived at now. It returns the longest of several values, because a
// proxy may repeat the header or join its values. The result is zero if the header is missing or ignored, and for zero, a negative
// number or a past date.
func ReadRetryAfter(h http.Header, now time.Time) (wait time.Duration, v Verdict) {
	if len(h["Retry-After"]) == 0 {
		return 0, InRange
	}
	for _, value := range h["Retry-After"] {
		if w, verdict := readRetryAfter(value, h, now); verdict != Ignored && (v == Ignored || w > wait) {
			wait, v = w, verdict
		}
	}
	return wait, v
}

// readRetryAfter parses a line of Retry-After: a date (RFC 9110 section 10.2.3) on the clock of the response's Date, or numbers of
// seconds, which are rounded up.
func readRetryAfter(line string, h http.Header, now time.Time) (wait time.Duration, v Verdict) {
	if at, err := http.ParseTime(line); err == nil {
		if date, _ := ReadDate(h, now); !date.IsZero() {
			now = date
		}
		end, v := RetryAfter.Date(at, now)
		return end.Sub(now), v
	}
	for value := range strings.SplitSeq(line, ",") {
		whole, fraction, _ := strings.Cut(strings.TrimSpace(value), ".")
		seconds, verdict := RetryAfter.Parse(whole)
		if verdict == Ignored || strings.Trim(fraction, "0123456789") != "" {
			continue
		}
		if verdict == InRange && strings.Trim(fraction, "0") != "" {
			seconds, verdict = RetryAfter.Check(seconds + 1)
		}
		if w := time.Duration(seconds) * time.Second; v == Ignored || w > wait {
			wait, v = w, verdict
		}
	}
	return wait, v
}
