package limits

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
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

// readRate parses the x-ratelimit headers of a response that arrived at now. It returns false if the limit or the reset is
// missing, or if a number is invalid, outside its range or contradicts the others (policy/numbers.go). If the used number is
// missing, readRate computes that number from the limit and the remaining number.
func readRate(h http.Header, now time.Time) (r Rate, ok bool) {
	present, ignored := false, ""
	read := func(name string, n policy.Number) (value int64, ok bool) {
		if len(h[name]) == 0 {
			return 0, false
		}
		present = true
		value, v := n.Parse(h.Get(name))
		if v == policy.Ignored {
			ignored = cmp.Or(ignored, n.Name)
		}
		return value, v != policy.Ignored
	}
	limit, ok := read("X-Ratelimit-Limit", policy.RateLimit)
	remaining, okRemaining := read("X-Ratelimit-Remaining", policy.RateRemaining)
	used, okUsed := read("X-Ratelimit-Used", policy.RateUsed)
	date, v := policy.ReadDate(h, now)
	from, reset := date, policy.RateReset
	if date.IsZero() {
		from, reset = now, policy.UndatedReset
	}
	okReset := false
	if text := h["X-Ratelimit-Reset"]; len(text) > 0 {
		present = true
		if v == policy.Ignored {
			ignored = cmp.Or(ignored, policy.ResponseDate.Name)
		}
		if r.Reset, v = reset.ParseUnix(text[0], from); v == policy.Ignored {
			ignored = cmp.Or(ignored, reset.Name)
		}
		okReset = v != policy.Ignored
	}
	if !okUsed {
		used = max(0, limit-remaining)
	} else if okRemaining {
		if _, v := policy.RateDifference.Check(remaining - max(0, limit-used)); v == policy.Ignored {
			ignored = cmp.Or(ignored, policy.RateDifference.Name)
		}
	}
	if !ok || !okReset || !okUsed && !okRemaining || ignored != "" {
		return Rate{Invalid: present, Ignored: ignored}, false
	}
	r.Limit, r.Used, r.Date, r.Resource = int(limit), int(used), date, h.Get("X-Ratelimit-Resource")
	return r, true
}

// ReadRate parses the x-ratelimit headers of a response, like readRate. If the headers name a resource
// that may not have a window, the result is invalid: the response counts like a response without headers. The ledger
// then charges the window of the claim, and not the window of another resource.
func (l *Limiter) ReadRate(h http.Header) Rate {
	r, ok := readRate(h, l.now())
	if ok && r.Resource != "" && !l.resources.accept(r.Resource) {
		return Rate{Invalid: true}
	}
	return r
}

// RemoveRate removes the x-ratelimit headers.
func RemoveRate(h http.Header) {
	for _, name := range rateHeaders {
		h.Del(name)
	}
	h.Del("X-Ratelimit-Resource")
}

// LimitKind is the kind of limit error that a response reports.
type LimitKind = policy.LimitKind

// Kinds of limit errors.
const (
	NotLimited LimitKind = ""
	// PrimaryLimit closes the window of the resource until its reset.
	PrimaryLimit = policy.LimitPrimary
	// SecondaryLimit starts a cool-down of the account.
	SecondaryLimit = policy.LimitSecondary
	// ContentLimit pauses the requests of the account that create content.
	ContentLimit = policy.LimitContent
)

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
	return LimitError{Kind: row.Kind, Name: row.Name, Message: message, Repeated: row.Repeated}
}

// ReadLimitError returns the limit error of a response to a request of an account. It must be called for every response. If
// the response may be a limit error, but further such responses must confirm it, Repeated is not zero.
func (l *Limiter) ReadLimitError(account string, a policy.UpstreamAnswer) LimitError {
	e, of := ReadLimitError(a), suspect{account, a.GraphQL}
	if e.Repeated == 0 {
		l.suspicions.remove(of)
	} else if l.suspicions.add(of, l.now()) >= e.Repeated {
		e.Repeated = 0
	}
	return e
}

// ReadCost returns the cost that a response to a GraphQL call has at data.rateLimit.cost, or zero. executed is false if the
// response has only errors, so the cost may be lower than the cost of the query. The body may be truncated: the cost is then
// zero, and executed is true, because errors are short. outside reports whether the cost is outside its range, and ignored.
func ReadCost(body []byte) (cost int, executed, outside bool) {
	// Maps, because the names of members of a struct ignore case, and a client chooses aliases.
	var parsed, data, rate map[string]json.RawMessage
	if json.Unmarshal(body, &parsed) != nil {
		return 0, true, false
	}
	if json.Unmarshal(parsed["data"], &data) != nil || data == nil {
		return 0, false, false
	}
	if json.Unmarshal(data["rateLimit"], &rate) != nil || rate["cost"] == nil {
		return 0, true, false
	}
	value, v := policy.GraphQLCost.Parse(string(rate["cost"]))
	return int(value), true, v == policy.Ignored
}

// ReadRetryAfter parses the Retry-After of a response that arrived at now. It returns the longest of several values, because a
// proxy may repeat the header or join its values. The result is zero if the header is missing or ignored, and for zero, a negative
// number or a past date.
func ReadRetryAfter(h http.Header, now time.Time) (wait time.Duration, v policy.Verdict) {
	if len(h["Retry-After"]) == 0 {
		return 0, policy.InRange
	}
	for _, value := range h["Retry-After"] {
		if w, verdict := readRetryAfter(value, h, now); verdict != policy.Ignored && (v == policy.Ignored || w > wait) {
			wait, v = w, verdict
		}
	}
	return wait, v
}

// readRetryAfter parses a line of Retry-After: a date (RFC 9110 section 10.2.3) on the clock of the response's Date, or numbers of
// seconds, which are rounded up.
func readRetryAfter(line string, h http.Header, now time.Time) (wait time.Duration, v policy.Verdict) {
	if at, err := http.ParseTime(line); err == nil {
		if date, _ := policy.ReadDate(h, now); !date.IsZero() {
			now = date
		}
		end, v := policy.RetryAfter.Date(at, now)
		return end.Sub(now), v
	}
	for value := range strings.SplitSeq(line, ",") {
		whole, fraction, _ := strings.Cut(strings.TrimSpace(value), ".")
		seconds, verdict := policy.RetryAfter.Parse(whole)
		if verdict == policy.Ignored || strings.Trim(fraction, "0123456789") != "" {
			continue
		}
		if verdict == policy.InRange && strings.Trim(fraction, "0") != "" {
			seconds, verdict = policy.RetryAfter.Check(seconds + 1)
		}
		if w := time.Duration(seconds) * time.Second; v == policy.Ignored || w > wait {
			wait, v = w, verdict
		}
	}
	return wait, v
}
