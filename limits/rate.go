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
	Limit    int
	Used     int
	Reset    time.Time // on our clock
	Resource string
}

// ReadRate reads the x-ratelimit headers of an answer that came at now. It
// reports false when limit or reset is missing or not a number: a part tells
// nothing. Where used is missing, limit less remaining stands for it. A reset
// is given on the upstream's clock; the Date header says how far that is from
// ours.
func ReadRate(h http.Header, now time.Time) (Rate, bool) {
	limit, okLimit := number(h, "X-Ratelimit-Limit")
	reset, okReset := number(h, "X-Ratelimit-Reset")
	used, okUsed := number(h, "X-Ratelimit-Used")
	if remaining, ok := number(h, "X-Ratelimit-Remaining"); ok && !okUsed {
		used, okUsed = max(0, limit-remaining), true
	}
	if !okLimit || !okReset || !okUsed {
		return Rate{}, false
	}
	at := time.Unix(int64(reset), 0)
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		if skew := now.Sub(date); skew.Abs() > 2*time.Second {
			at = at.Add(skew.Truncate(time.Second))
		}
	}
	return Rate{Limit: limit, Used: used, Reset: at, Resource: h.Get("X-Ratelimit-Resource")}, true
}

func number(h http.Header, name string) (int, bool) {
	n, err := strconv.Atoi(h.Get(name))
	return n, err == nil && n >= 0
}

// Limited says whether an answer is a limit error, and of which kind.
type Limited int

// Kinds of limit error.
const (
	NotLimited Limited = iota
	PrimaryLimit
	SecondaryLimit
)

// secondaryTexts are how the upstream words a secondary limit, in lower case.
var secondaryTexts = []string{"secondary rate limit", "abuse detection", "temporarily blocked from content creation"}

// Recognize tells limit errors from other refusals (Document B section 7,
// design section 5.4). The body decides first, because a secondary error may
// carry any x-ratelimit-remaining; then remaining 0 means primary; then
// retry-after, or status 429, means secondary. Any other 403 is a real one.
// Of the body its beginning is enough.
func Recognize(status int, h http.Header, body []byte) Limited {
	if status != http.StatusForbidden && status != http.StatusTooManyRequests {
		return NotLimited
	}
	var told struct {
		Message       string `json:"message"`
		Documentation string `json:"documentation_url"`
	}
	text := string(body)
	if json.NewDecoder(bytes.NewReader(body)).Decode(&told) == nil {
		text = told.Message
	}
	text = strings.ToLower(text)
	for _, s := range secondaryTexts {
		if strings.Contains(text, s) {
			return SecondaryLimit
		}
	}
	if strings.HasSuffix(told.Documentation, "secondary-rate-limits") || strings.HasSuffix(told.Documentation, "abuse-rate-limits") {
		return SecondaryLimit
	}
	if strings.Contains(text, "rate limit exceeded") || h.Get("X-Ratelimit-Remaining") == "0" {
		return PrimaryLimit
	}
	if h.Get("Retry-After") != "" || status == http.StatusTooManyRequests {
		return SecondaryLimit
	}
	return NotLimited
}

// RetryAfter reads a Retry-After header, in either of its forms (RFC 9110
// section 10.2.3); zero when there is none.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.Atoi(value); err == nil {
		return max(0, time.Duration(seconds)*time.Second)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
