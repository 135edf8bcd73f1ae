package credential

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/weirgate/weir/policy"
)

const (
	// The first 401 quarantines a credential for firstQuarantine. Each further 401 doubles the time, up to
	// longestQuarantine.
	firstQuarantine, longestQuarantine = 10 * time.Second, 15 * time.Minute
	// probeTime is the time for which other requests wait for the result of a probe.
	probeTime = 30 * time.Second
	// hiddenFor is the time for which a target is remembered as hidden from a credential.
	hiddenFor = 5 * time.Minute
	// maxHidden bounds the number of remembered hidden targets.
	maxHidden = 10_000
)

// Health is the state of the held credentials: the quarantined credentials, and the targets that are hidden from each
// credential. The state is in memory only, survives a reload of the configuration, and is safe for concurrent use.
// Credentials are identified by security class.
type Health struct {
	log *slog.Logger

	mu          sync.Mutex
	quarantines map[string]*quarantine   // by class
	held        map[string]policy.Caller // by class; nil before the first Keep

	hidden *lru.Cache[hiddenTarget, time.Time] // end of the hidden time
}

// quarantine describes a credential that the upstream rejected and has not accepted since.
type quarantine struct {
	Quarantined
	since time.Time
	// probed is the time of the request that tests the credential. probed is zero if no test is in progress.
	probed time.Time
}

// hiddenTarget is a path, target or operation that a credential of a class cannot see.
type hiddenTarget struct{ class, scope string }

// NewHealth returns an empty Health.
func NewHealth(log *slog.Logger) *Health {
	hidden, err := lru.New[hiddenTarget, time.Time](maxHidden)
	if err != nil {
		panic(err) // maxHidden is positive
	}
	return &Health{log: log, quarantines: map[string]*quarantine{}, hidden: hidden}
}

// UnusableError reports that a credential must not be used before a time.
type UnusableError struct {
	Name  string
	Until time.Time
	// Cause is nil for a credential that the upstream rejected.
	Cause error
}

func (u *UnusableError) Error() string {
	cause := "the upstream rejected it (401)"
	if u.Cause != nil {
		cause = u.Cause.Error()
	}
	return fmt.Sprintf("credential %q is unusable until %s: %s", u.Name, u.Until.UTC().Format(time.RFC3339), cause)
}

func (u *UnusableError) Unwrap() error { return u.Cause }

// isQuarantined reports whether a credential is in quarantine.
func (h *Health) isQuarantined(class string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.quarantines[class]
	return q != nil && now.Before(q.Until)
}

// use permits one request with a credential, or returns an [UnusableError]. After a quarantine, use permits one request
// as a probe, and refuses all other requests during the probe.
func (h *Health) use(class, name string, now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.quarantines[class]
	if q == nil {
		return nil
	}
	if now.Before(q.Until) {
		return &UnusableError{Name: name, Until: q.Until}
	}
	q.probed, q.Until = now, now.Add(probeTime)
	return nil
}

// noResponse permits another probe if the current probe got no response. Requests that were sent before the probe are
// ignored.
func (h *Health) noResponse(class string, sent, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if q := h.quarantines[class]; q != nil && !q.probed.IsZero() && !sent.Before(q.probed) {
		q.probed, q.Until = time.Time{}, now
	}
}

// rejected starts or extends a quarantine. Requests from before the start of the current quarantine are ignored, and so
// are credentials that are no longer held.
func (h *Health) rejected(class, name string, sent, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.quarantines[class]
	_, held := h.held[class]
	switch {
	case h.held != nil && !held:
		return
	case q == nil:
		q = &quarantine{Quarantined: Quarantined{Name: name}}
		h.quarantines[class] = q
	case sent.Before(q.since):
		return
	}
	span := longestQuarantine
	if q.Times < 10 { // a larger shift could overflow
		span = min(span, firstQuarantine<<q.Times)
	}
	q.Times++
	q.since, q.Until, q.probed = now, now.Add(span), time.Time{}
	h.log.Warn("credential quarantined after 401", "credential", name, "until", q.Until, "times", q.Times)
}

// accepted ends a quarantine. Requests that were sent before the start of the quarantine are ignored.
func (h *Health) accepted(class string, sent time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if q := h.quarantines[class]; q != nil && !sent.Before(q.since) {
		delete(h.quarantines, class)
		h.log.Info("credential accepted again", "credential", q.Name)
	}
}

// Keep discards the quarantines of credentials that r does not hold, and ignores later
// responses to them. Call it after a reload.
func (h *Health) Keep(r *Registry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = r.accounts
	maps.DeleteFunc(h.quarantines, func(class string, _ *quarantine) bool {
		_, held := h.held[class]
		return !held
	})
}

// Quarantined is a credential in quarantine, as the admin API shows it.
type Quarantined struct {
	Name  string    `json:"credential"`
	Until time.Time `json:"until"`
	Times int       `json:"times"`
}

// Quarantined returns the credentials that the upstream rejected and has not accepted since.
func (h *Health) Quarantined() []Quarantined {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]Quarantined, 0, len(h.quarantines))
	for _, q := range h.quarantines {
		list = append(list, q.Quarantined)
	}
	slices.SortFunc(list, func(a, b Quarantined) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// scopes returns the three scopes that may be hidden: the path of a request, its whole target, and its operation on the
// target. For a route outside the catalogue, the segment after the target replaces the operation.
func (r Request) scopes() (path, target, operation string) {
	if !r.Operation.Known() {
		rest := strings.TrimPrefix(strings.ToLower(r.Path), r.Target)
		first, _, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
		return "path " + r.Path, "target " + r.Target, "segment " + first + " on " + r.Target
	}
	return "path " + r.Path, "target " + r.Target, "operation " + r.Operation.ID + " " + r.Operation.Path + " on " + r.Target
}

// isHidden reports whether the target of a request is presumed hidden from a credential. The record may be outdated, so
// such a credential has a lower rank but is not excluded.
func (h *Health) isHidden(class string, r Request, now time.Time) bool {
	path, target, operation := r.scopes()
	return slices.ContainsFunc([]string{path, target, operation}, func(scope string) bool {
		until, known := h.hidden.Get(hiddenTarget{class, scope})
		return known && now.Before(until)
	})
}
