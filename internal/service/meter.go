package service

import (
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

// banAfter is how many requests sent while limited lead to a ban (Document B
// section 7, retry rule 5; the number is not shown).
const banAfter = 100

// meter counts requests against the limits. It is naive on purpose: one lock,
// one counter for each caller and resource.
type meter struct {
	limits policy.Limits

	mu         sync.Mutex // guards what follows
	windows    map[windowKey]*window
	concurrent int
	seen       Violations
	sentBy     map[string]int // requests sent while limited, by account
}

type windowKey struct{ account, resource string }

// window is a fixed window, opened by the first request in it (Document B
// section 3).
type window struct {
	policy.Window
	used    int
	reset   time.Time
	refused bool // a request has been refused in it
}

func newMeter(limits policy.Limits) *meter {
	return &meter{limits: limits, windows: map[windowKey]*window{}, sentBy: map[string]int{}, seen: Violations{ByLimit: map[string]int{}}}
}

// enter counts a request in progress; the function that it returns ends it.
func (m *meter) enter() (leave func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.concurrent++
	m.seen.MaxConcurrent = max(m.seen.MaxConcurrent, m.concurrent)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.concurrent--
	}
}

// ticket is one request's place in its window.
type ticket struct {
	meter    *meter
	window   *window
	resource string
	counted  bool
	refused  bool
}

// count charges a request to its window, or refuses it. The rate limit status
// costs nothing (Document B section 4.5).
func (m *meter) count(c caller, op *policy.Operation, now time.Time) *ticket {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.window(c, op.Resource, now)
	t := &ticket{meter: m, window: w, resource: op.Resource}
	switch {
	case m.sentBy[c.account] >= banAfter:
		t.refused = true
	case op.ID == "rate-limit/get":
	case w.used >= w.Max:
		t.refused = true
		m.seen.Violations++
		m.seen.ByLimit["primary:"+op.Resource]++
		if w.refused {
			m.seen.SentWhileLimited++
			m.sentBy[c.account]++
			m.seen.Banned = m.seen.Banned || m.sentBy[c.account] >= banAfter
		}
		w.refused = true
	default:
		w.used++
		t.counted = true
	}
	return t
}

// window returns the caller's window of a resource as it stands at now.
func (m *meter) window(c caller, resource string, now time.Time) *window {
	key := windowKey{c.account, resource}
	w := m.windows[key]
	if w == nil || !now.Before(w.reset) {
		limit := m.limits.For(c.kind, resource)
		w = &window{Window: limit, reset: now.Add(limit.Window).Truncate(time.Second)}
		m.windows[key] = w
	}
	return w
}

// refund takes back a request that turned out to cost nothing: a 304 to an
// authorized caller.
func (t *ticket) refund() {
	t.meter.mu.Lock()
	defer t.meter.mu.Unlock()
	if t.counted {
		t.counted = false
		t.window.used--
	}
}

// describe writes the rate limit headers (Document B section 8.4).
func (t *ticket) describe(h http.Header) {
	t.meter.mu.Lock()
	defer t.meter.mu.Unlock()
	h.Set("X-RateLimit-Limit", strconv.Itoa(t.window.Max))
	h.Set("X-RateLimit-Remaining", strconv.Itoa(t.window.Max-t.window.used))
	h.Set("X-RateLimit-Used", strconv.Itoa(t.window.used))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(t.window.reset.Unix(), 10))
	h.Set("X-RateLimit-Resource", t.resource)
}

func (m *meter) report() Violations {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.seen
	r.ByLimit = maps.Clone(m.seen.ByLimit)
	return r
}

// rateLimit answers the rate limit status (Document B section 2.6).
func rateLimit(s *Service, req *request) response {
	type member struct {
		Limit     int   `json:"limit"`
		Used      int   `json:"used"`
		Remaining int   `json:"remaining"`
		Reset     int64 `json:"reset"`
	}
	s.meter.mu.Lock()
	defer s.meter.mu.Unlock()
	now := time.Now()
	var members object
	var core member
	for _, name := range policy.Resources() {
		w := s.meter.window(req.caller, name, now)
		m := member{w.Max, w.used, w.Max - w.used, w.reset.Unix()}
		if name == policy.Core {
			core = m
		}
		members = append(members, field{name, m})
	}
	return response{status: http.StatusOK, volatile: true, body: object{{"resources", members}, {"rate", core}}}
}
