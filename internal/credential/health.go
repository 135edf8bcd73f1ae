package credential

import (
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
	// The first rejection quarantines a credential for firstQuarantine. Each further rejection doubles the time, up to
	// longestQuarantine.
	firstQuarantine, longestQuarantine = 10 * time.Second, 15 * time.Minute
	// hiddenFor is the time for which a target is remembered as hidden from a credential.
	hiddenFor = 5 * time.Minute
	// maxHidden bounds the number of remembered hidden targets.
	maxHidden = 10_000
)

// Health is the state of the held credentials: their standings, and the targets that are hidden from each credential. The
// state is in memory only, survives a reload of the configuration, and is safe for concurrent use. Credentials are
// identified by security class.
type Health struct {
	log *slog.Logger

	mu          sync.Mutex
	credentials map[string]*credential   // by class; without the unproven credentials
	held        map[string]policy.Caller // by class; nil before the first Keep
	changed     signal

	hidden *lru.Cache[hiddenTarget, time.Time] // end of the hidden time
}

// credential is the standing of one credential. Each token of an app has a separate standing, so the standing of an app is
// proven or rejected.
type credential struct {
	name string
	standing
}

// hiddenTarget is a path, target or operation that a credential of a class cannot see.
type hiddenTarget struct{ class, scope string }

// NewHealth returns an empty Health.
func NewHealth(log *slog.Logger) *Health {
	hidden, _ := lru.New[hiddenTarget, time.Time](maxHidden) // fails only for a size below 1
	return &Health{log: log, credentials: map[string]*credential{}, hidden: hidden}
}

// isQuarantined reports whether a credential is in quarantine, or is tested after a quarantine.
func (h *Health) isQuarantined(class string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.credentials[class]
	return c != nil && c.state == rejected && !c.opens(now).IsZero()
}

// try reports whether a request may be sent with a credential. During a quarantine, the error is an [policy.UnusableError].
// Otherwise a pause is returned while another request tests the credential. If send is set, the request is sent now.
func (h *Health) try(class string, send bool, now time.Time) (*pause, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.credentials[class]
	if c == nil {
		return nil, nil
	}
	switch until := c.opens(now); {
	case c.state == rejected && now.Before(c.next):
		return nil, &policy.UnusableError{Name: c.name, Until: c.next}
	case !until.IsZero():
		return h.changed.wait(until), nil
	}
	if send {
		c.begin(now)
	}
	return nil, nil
}

// end permits another test if the test in progress showed nothing. Other requests are ignored.
func (h *Health) end(class string, sent time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.credentials[class]; c != nil && c.end(sent) {
		h.changed.send()
	}
}

// observe records the response to a request with a credential that is not an app.
func (h *Health) observe(class, name string, a answer, sent, now time.Time) verdict {
	return h.change(class, name, func(s *standing) verdict { return s.observe(a, sent, now) })
}

// record records that the upstream accepted or rejected an app.
func (h *Health) record(class, name string, accepted bool, sent, now time.Time) {
	h.change(class, name, func(s *standing) verdict {
		switch {
		case sent.Before(s.since):
			return verdictCounts
		case accepted:
			s.accept(now)
			return verdictAccepts
		}
		s.reject(now)
		return verdictRejects
	})
}

// change applies a change to a standing and logs its effect. Credentials that are no longer held are ignored.
func (h *Health) change(class, name string, apply func(*standing) verdict) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.credentials[class]
	if c == nil {
		if _, held := h.held[class]; h.held != nil && !held {
			return verdictCounts
		}
		c = &credential{name: name}
	}
	before := c.standing
	v := apply(&c.standing)
	if c.standing == before {
		return v
	}
	h.credentials[class] = c
	h.changed.send()
	switch {
	case v == verdictRejects:
		h.log.Warn("credential quarantined after 401", "credential", c.name, "until", c.next, "times", c.refusals)
	case before.state == rejected && c.state == proven:
		h.log.Info("credential accepted again", "credential", c.name)
	}
	return v
}

// Keep discards the standings of credentials that r does not hold, and ignores later
// responses to them. Call it after a reload.
func (h *Health) Keep(r *Registry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = r.accounts
	maps.DeleteFunc(h.credentials, func(class string, _ *credential) bool {
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
	list := []Quarantined{}
	for _, c := range h.credentials {
		if c.state != rejected {
			continue
		}
		until := c.next
		if !c.tested.IsZero() {
			until = c.tested.Add(testTime)
		}
		list = append(list, Quarantined{c.name, until, c.refusals})
	}
	slices.SortFunc(list, func(a, b Quarantined) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// scopes returns the three scopes that may be hidden: the path of a request, its whole target, and its operation on the
// target. For a route outside the catalogue, the segment after the target replaces the operation.
func scopes(r policy.CredentialRequest) (path, target, operation string) {
	if !r.Operation.Known() {
		rest := strings.TrimPrefix(strings.ToLower(r.Path), r.Target)
		first, _, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
		return "path " + r.Path, "target " + r.Target, "segment " + first + " on " + r.Target
	}
	return "path " + r.Path, "target " + r.Target, "operation " + r.Operation.ID + " " + r.Operation.Path + " on " + r.Target
}

// isHidden reports whether the target of a request is presumed hidden from a credential. The record may be outdated, so
// such a credential has a lower rank but is not excluded.
func (h *Health) isHidden(class string, r policy.CredentialRequest, now time.Time) bool {
	path, target, operation := scopes(r)
	return slices.ContainsFunc([]string{path, target, operation}, func(scope string) bool {
		until, known := h.hidden.Get(hiddenTarget{class, scope})
		return known && now.Before(until)
	})
}
