package service

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// Faults make the service a worse one (design section 7). They are set at the
// start, and at run time by PUT /_service/faults.
type Faults struct {
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
	// for no reason; 0 none.
	SecondaryEvery int `json:"secondary_every"`
	// ClockOffset is how far the service's clock is ahead.
	ClockOffset Duration `json:"clock_offset"`
}

// Duration is written as Go writes it: "1.5s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// faulty holds the faults in force.
type faulty struct {
	mu     sync.Mutex // guards what follows
	faults Faults
	random *rand.Rand
}

func (f *faulty) now() Faults {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.faults
}

// delay waits for a random part of longest, or until the client has gone.
func (f *faulty) delay(r *http.Request, longest Duration) {
	if longest <= 0 {
		return
	}
	f.mu.Lock()
	d := time.Duration(f.random.Int64N(int64(longest)))
	f.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.Context().Done():
	case <-timer.C:
	}
}

// serveFaults shows the faults, and sets those that are named.
func (s *Service) serveFaults(w http.ResponseWriter, r *http.Request) {
	faults := s.faulty.now()
	if r.Method == http.MethodPut {
		var body bytes.Buffer
		if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
			writeJSON(w, http.StatusBadRequest, problemBody{Message: err.Error()})
			return
		}
		decoder := json.NewDecoder(&body)
		decoder.DisallowUnknownFields()
		err := decoder.Decode(&faults)
		if status := faults.LimitStatus; err == nil && status != 0 && status != http.StatusForbidden && status != http.StatusTooManyRequests {
			err = fmt.Errorf("limit_status: %d: must be 403 or 429", status)
		}
		if err != nil {
			writeJSON(w, http.StatusBadRequest, problemBody{Message: err.Error()})
			return
		}
		s.setFaults(faults)
	}
	writeJSON(w, http.StatusOK, faults)
}

func (s *Service) setFaults(f Faults) {
	s.faulty.mu.Lock()
	s.faulty.faults = f
	s.faulty.mu.Unlock()
	s.meter.mu.Lock()
	s.meter.secondly = f.SecondaryEvery
	s.meter.mu.Unlock()
}
