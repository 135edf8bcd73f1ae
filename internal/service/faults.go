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

// Faults make the service a worse one (design section 7). They are set at the
// start, and at run time by PUT /_service/faults.
type Faults struct {
	// Latency is how long each request takes before it is counted, at least.
	Latency Duration `json:"latency"`
	// DelayBefore and DelayAfter are the longest delays before and after the
	// moment at which a request is counted; each delay is random.
	DelayBefore Duration `json:"delay_before"`
	DelayAfter  Duration `json:"delay_after"`
	// DelayIsCPU counts the delays as CPU time.
	DelayIsCPU bool `json:"delay_is_cpu"`
	// LimitStatus is that of limit errors: 403 (also when zero) or 429.
	LimitStatus int `json:"limit_status"`
	// NoRetryAfter leaves retry-after out of secondary limit errors;
	// RemainingZero lets them say that the window is used up.
	NoRetryAfter  bool `json:"no_retry_after"`
	RemainingZero bool `json:"remaining_zero"`
	// SecondaryEvery answers every so many requests with a secondary limit error
	// for no reason, which then holds for its minute; 0 none.
	SecondaryEvery int `json:"secondary_every"`
	// ClockOffset is how far the service's clock is ahead.
	ClockOffset Duration `json:"clock_offset"`
	// HeadersBehind lets the rate limit headers of an answer be those of a
	// request up to so many earlier, as if they came out of order.
	HeadersBehind int `json:"headers_behind"`
	// ErrorEvery answers every so many requests with ErrorStatus, 500 to 599 (502
	// when zero), after they have been counted; 0 none.
	ErrorEvery  int `json:"error_every"`
	ErrorStatus int `json:"error_status"`
	// TruncateEvery breaks off every so many answers in the middle of their body;
	// 0 none.
	TruncateEvery int `json:"truncate_every"`
	// IncompleteEvery lets every so many searches run out of time: they answer with a
	// part of what matches, and say so; 0 none.
	IncompleteEvery int `json:"incomplete_every"`
	// Endless202 lets no statistics ever be done.
	Endless202 bool `json:"endless_202"`
	// ETagsPerToken makes ETags hang on the request as the dialect says or, where
	// it says nothing, on its Authorization.
	ETagsPerToken bool `json:"etags_per_token"`
	// LinksByName makes Link name repositories and organizations as they were asked
	// for, and not by number.
	LinksByName bool `json:"links_by_name"`
}

// Duration is written as Go writes it: "1.5s".
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

// Bounds of faults.
const (
	maxFaultDelay = Duration(time.Hour)
	maxFaultEvery = 1_000_000
)

// check says what is wrong with the faults.
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

// ParseFaults reads the JSON form of faults on top of those in force: what it does not
// name stays. An error says which member is wrong.
func ParseFaults(text []byte, inForce Faults) (Faults, error) {
	var members map[string]json.RawMessage
	if err := unmarshalStrict(text, &members); err != nil {
		return Faults{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(members)) { // one by one, so that the error can name it
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

// faulty holds the faults in force.
type faultState struct {
	mu      sync.Mutex // guards what follows
	inForce Faults
	random  *rand.Rand
	// errors, bodies and searches count what could have been an error, broken off, or
	// out of time.
	errors, bodies, searches int
}

func (f *faultState) current() Faults {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inForce
}

// upTo is a random number from 0 to n.
func (f *faultState) randomUpTo(n int64) int64 {
	if n <= 0 {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.Int64N(n + 1)
}

// turn counts, and reports whether it is the turn of what happens every so many
// times.
func (f *faultState) isDue(count *int, every int) bool {
	if every == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	*count++
	return *count%every == 0
}

// delay waits for at least a time and a random part of another, or until the
// client has gone.
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

// changeFaults changes those in force, unless it gets an error.
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
