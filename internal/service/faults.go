package service

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Faults configures misbehaviour of the service. Faults are set at the start with [Config], and at run time with PUT
// /_service/faults.
type Faults struct {
	// Latency is the minimum delay before a request is counted.
	Latency Duration `json:"latency"`
	// DelayBefore and DelayAfter are the maximum random delays before and after a request is counted.
	DelayBefore Duration `json:"delay_before"`
	DelayAfter  Duration `json:"delay_after"`
	// DelayIsCPU counts the delays as CPU time.
	DelayIsCPU bool `json:"delay_is_cpu"`
	// LimitStatus is the status of limit errors: 403 (the default) or 429.
	LimitStatus int `json:"limit_status"`
	// NoRetryAfter omits the Retry-After header from secondary limit errors. RemainingZero sets the remaining quota to 0
	// in secondary limit errors.
	NoRetryAfter  bool `json:"no_retry_after"`
	RemainingZero bool `json:"remaining_zero"`
	// SecondaryEvery answers every n-th request with a secondary limit error, which starts a cool-down. 0 disables the
	// fault.
	SecondaryEvery int `json:"secondary_every"`
	// ClockOffset is the time by which the clock of the service is ahead.
	ClockOffset Duration `json:"clock_offset"`
	// HeadersBehind makes the rate limit headers stale by a random number of requests, up to HeadersBehind. This fault
	// simulates responses that arrive out of order.
	HeadersBehind int `json:"headers_behind"`
	// ErrorEvery answers every n-th counted request with ErrorStatus, which is 500 to 599 (default 502). 0 disables the
	// fault.
	ErrorEvery  int `json:"error_every"`
	ErrorStatus int `json:"error_status"`
	// TruncateEvery closes the connection in the middle of the body of every n-th response. 0 disables the fault.
	TruncateEvery int `json:"truncate_every"`
	// IncompleteEvery makes every n-th search time out: the response contains a part of the results and is marked
	// incomplete. 0 disables the fault.
	IncompleteEvery int `json:"incomplete_every"`
	// Endless202 prevents statistics jobs from completing.
	Endless202 bool `json:"endless_202"`
	// ETagsPerToken makes ETags depend on the request headers that the dialect names. If the dialect names no headers,
	// ETags depend on the Authorization header.
	ETagsPerToken bool `json:"etags_per_token"`
	// LinksByName makes Link headers use the path of the request instead of a path that identifies repositories and
	// organizations by number.
	LinksByName bool `json:"links_by_name"`
}

// Duration is a time.Duration whose JSON form is a string such as "1.5s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not %s", text, durationForm)
	}
	*d = Duration(parsed)
	return nil
}

const durationForm = `a duration such as "1.5s"`

// These constants bound the values of faults.
const (
	maxFaultDelay = Duration(time.Hour)
	maxFaultEvery = 1_000_000
)

// check returns an error that names the first invalid member.
func (f Faults) check() error {
	if s := f.LimitStatus; s != 0 && s != http.StatusForbidden && s != http.StatusTooManyRequests {
		return fmt.Errorf("limit_status: %d: must be 403 or 429", s)
	}
	if s := f.ErrorStatus; s != 0 && (s < 500 || s > 599) {
		return fmt.Errorf("error_status: %d: must be 500 to 599", s)
	}
	for _, d := range []struct {
		name  string
		value Duration
	}{{"latency", f.Latency}, {"delay_before", f.DelayBefore}, {"delay_after", f.DelayAfter}} {
		if d.value < 0 || d.value > maxFaultDelay {
			return fmt.Errorf("%s: %v: must be 0s to %v", d.name, time.Duration(d.value), time.Duration(maxFaultDelay))
		}
	}
	for _, n := range []struct {
		name  string
		value int
	}{
		{"secondary_every", f.SecondaryEvery}, {"headers_behind", f.HeadersBehind}, {"error_every", f.ErrorEvery}, {"truncate_every", f.TruncateEvery},
		{"incomplete_every", f.IncompleteEvery},
	} {
		if n.value < 0 || n.value > maxFaultEvery {
			return fmt.Errorf("%s: %d: must be 0 to %d", n.name, n.value, maxFaultEvery)
		}
	}
	return nil
}

// ParseFaults reads the JSON form of faults. Members that the text omits keep the values of inForce. An error names the
// invalid member.
func ParseFaults(text []byte, inForce Faults) (Faults, error) {
	var members map[string]json.RawMessage
	if err := unmarshalStrict(text, &members); err != nil {
		return Faults{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(members)) { // one member at a time, so that the error can name the member
		member, err := json.Marshal(map[string]json.RawMessage{name: members[name]})
		if err == nil {
			err = unmarshalStrict(member, &inForce)
		}
		if err != nil && !strings.HasPrefix(err.Error(), name+":") {
			err = fmt.Errorf("%s: %w", name, err)
		}
		if err != nil {
			return Faults{}, err
		}
	}
	return inForce, inForce.check()
}

// faultState holds the current faults.
type faultState struct {
	mu      sync.Mutex // guards the fields below
	inForce Faults
	random  *rand.Rand
	// errors, bodies and searches count the candidates for the faults ErrorEvery, TruncateEvery and IncompleteEvery.
	errors, bodies, searches int
}

func (f *faultState) current() Faults {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inForce
}

// randomUpTo returns a random number from 0 to n.
func (f *faultState) randomUpTo(n int64) int64 {
	if n <= 0 {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.Int64N(n + 1)
}

// isDue increments count, and reports whether a fault that occurs every n-th time occurs now.
func (f *faultState) isDue(count *int, every int) bool {
	if every == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	*count++
	return *count%every == 0
}

// delay waits for least plus a random part of random, or until the client disconnects.
func (f *faultState) delay(r *http.Request, least, random Duration) {
	d := time.Duration(least) + time.Duration(f.randomUpTo(int64(random)))
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.Context().Done():
	case <-timer.C:
	}
}

func (s *Service) setFaults(f Faults) {
	_ = s.changeFaults(func(Faults) (Faults, error) { return f, nil })
}

// changeFaults replaces the current faults with the result of change, unless change returns an error.
func (s *Service) changeFaults(change func(Faults) (Faults, error)) error {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	f, err := change(s.faults.inForce)
	if err != nil {
		return err
	}
	s.faults.inForce = f
	s.meter.mu.Lock()
	s.meter.secondaryEvery = f.SecondaryEvery
	s.meter.mu.Unlock()
	return nil
}
