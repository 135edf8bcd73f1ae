package limits

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Rate is what the x-ratelimit headers of an answer say (Document B section
// 8.4). The zero value says nothing.
type Rate struct {
	Limit int
	Used  int
	// Reset is on the upstream's clock, in whole seconds.
	Reset time.Time
	// Date is when the upstream made the answer, on the same clock; zero when
	// it did not say. Only the time from Date to Reset can be compared with
	// another clock's.
	Date     time.Time
	Resource string
}

// ReadRate reads the x-ratelimit headers of an answer. It reports false when
// limit or reset is missing or not a number: a part tells nothing. Where used
// is missing, limit less remaining stands for it.
func ReadRate(h http.Header) (Rate, bool) {
	limit, okLimit := number(h, "X-Ratelimit-Limit")
	reset, okReset := number(h, "X-Ratelimit-Reset")
	used, okUsed := number(h, "X-Ratelimit-Used")
	if remaining, ok := number(h, "X-Ratelimit-Remaining"); ok && !okUsed {
		used, okUsed = max(0, limit-remaining), true
	}
	if !okLimit || !okReset || !okUsed || reset > latestReset {
		return Rate{}, false
	}
	r := Rate{Limit: limit, Used: used, Reset: time.Unix(int64(reset), 0), Resource: h.Get("X-Ratelimit-Resource")}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		r.Date = date
	}
	return r, true
}

// latestReset keeps arithmetic on microseconds within 53 bits: the year 2255.
const latestReset = 9_000_000_000

func number(h http.Header, name string) (int, bool) {
	values := h[name]
	if len(values) == 0 {
		return 0, false
	}
	n, err := strconv.Atoi(values[0])
	return n, err == nil && n >= 0
}

// LimitKind says whether an answer is a limit error, and of which kind.
type LimitKind int

// Kinds of limit error.
const (
	NotLimited LimitKind = iota
	PrimaryLimit
	SecondaryLimit
)

// secondaryTexts are how the upstream words a secondary limit, in lower case.
var secondaryTexts = []string{"secondary rate limit", "abuse detection", "temporarily blocked from content creation"}

// ClassifyLimit tells limit errors from other refusals (Document B section 7,
// design section 5.4). The body decides first, because a secondary error may
// carry any x-ratelimit-remaining; then remaining 0 means primary; then
// retry-after, or status 429, means secondary. Any other 403 is a real one.
// GraphQL tells a limit in an answer of 200, by the type of an error. Of the
// body its beginning is enough.
func ClassifyLimit(status int, h http.Header, body []byte) LimitKind {
	var told struct {
		Message       string `json:"message"`
		Documentation string `json:"documentation_url"`
		Errors        []struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"errors"`
	}
	switch status {
	case http.StatusForbidden, http.StatusTooManyRequests:
	case http.StatusOK:
		if !bytes.Contains(body, []byte("RATE_LIMITED")) || json.Unmarshal(body, &told) != nil {
			return NotLimited
		}
		for _, e := range told.Errors {
			if e.Type == "RATE_LIMITED" {
				return byText(strings.ToLower(e.Message), "", h)
			}
		}
		return NotLimited
	default:
		return NotLimited
	}
	text := string(body)
	if json.NewDecoder(bytes.NewReader(body)).Decode(&told) == nil {
		text = told.Message
	}
	if kind := byText(strings.ToLower(text), told.Documentation, h); kind != NotLimited {
		return kind
	}
	if h.Get("Retry-After") != "" || status == http.StatusTooManyRequests {
		return SecondaryLimit
	}
	return NotLimited
}

// byText tells the kind by the words, in lower case, then by remaining.
func byText(text, documentation string, h http.Header) LimitKind {
	for _, s := range secondaryTexts {
		if strings.Contains(text, s) {
			return SecondaryLimit
		}
	}
	if strings.HasSuffix(documentation, "secondary-rate-limits") || strings.HasSuffix(documentation, "abuse-rate-limits") {
		return SecondaryLimit
	}
	if strings.Contains(text, "rate limit exceeded") || h.Get("X-Ratelimit-Remaining") == "0" {
		return PrimaryLimit
	}
	return NotLimited
}

// ReadRetryAfter reads a Retry-After header, in either of its forms (RFC 9110
// section 10.2.3); zero when there is none.
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
