package credential

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// firstQuarantine is how long a credential is not used that the upstream has refused
	// for the first time; each time that follows on the last takes twice as long,
	// longestQuarantine at most.
	firstQuarantine, longestQuarantine = 10 * time.Second, 15 * time.Minute
	// probing is how long one request has to find out whether it is accepted again.
	probing = 30 * time.Second
	// forgotten is how long after its end a quarantine is remembered of one that is not
	// sent any more.
	forgotten = time.Hour
)

// Health is what has been learned of the credentials that the gateway holds. It
// outlives a [Registry], is in memory only, and knows credentials by their class. It is
// safe for concurrent use.
type Health struct {
	log *slog.Logger

	mu      sync.Mutex
	refusal map[string]*refusals // by class
	held    map[string]account   // by class; nil before it is known
	sight   sight
}

// refusals is a credential in quarantine.
type refusals struct {
	name         string
	since, until time.Time
	// probed is when the request was let go that finds out whether it is over; zero while
	// there is none.
	probed time.Time
	count  int
}

// NewHealth returns one that knows nothing yet.
func NewHealth(log *slog.Logger) *Health {
	return &Health{log: log, refusal: map[string]*refusals{}, sight: newSight()}
}

// UnusableError is an error: a credential must not be sent before a time.
type UnusableError struct {
	Name  string
	Until time.Time
	// Cause is nil for one that the upstream has refused.
	Cause error
}

func (u *UnusableError) Error() string {
	why := "the API has refused it (401)"
	if u.Cause != nil {
		why = u.Cause.Error()
	}
	return fmt.Sprintf("credential %q is not used until %s: %s", u.Name, u.Until.UTC().Format(time.RFC3339), why)
}

func (u *UnusableError) Unwrap() error { return u.Cause }

// confined reports whether a credential is in quarantine.
func (c *Health) confined(class string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.refusal[class]
	return r != nil && now.Before(r.until)
}

// spend lets a credential be sent, or returns [UnusableError]. When a quarantine is over
// one request goes, and all others wait for what becomes of it.
func (c *Health) spend(class, name string, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.refusal[class]
	if r == nil {
		return nil
	}
	if now.Before(r.until) {
		return &UnusableError{Name: name, Until: r.until}
	}
	r.probed, r.until = now, now.Add(probing)
	return nil
}

// unanswered lets another request find out whether a quarantine is over, where the one
// that was let go, and sent at some time or not at all, has found out nothing.
func (c *Health) unanswered(class string, sent, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.refusal[class]; r != nil && !r.probed.IsZero() && !sent.Before(r.probed) {
		r.probed, r.until = time.Time{}, now
	}
}

// refused begins a quarantine, or a longer one. What was sent before the last began
// tells nothing new.
func (c *Health) refused(class, name string, sent, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, r := range c.refusal {
		if now.Sub(r.until) > forgotten {
			delete(c.refusal, other)
		}
	}
	r := c.refusal[class]
	_, held := c.held[class]
	switch {
	case c.held != nil && !held:
		return
	case r == nil:
		r = &refusals{name: name}
		c.refusal[class] = r
	case sent.Before(r.since):
		return
	}
	span := longestQuarantine
	if r.count < 10 {
		span = min(span, firstQuarantine<<r.count)
	}
	r.count++
	r.since, r.until, r.probed = now, now.Add(span), time.Time{}
	c.log.Warn("the API refuses a credential (401): it is not used for a while", "credential", name, "until", r.until, "times", r.count)
}

// Keep forgets what was refused and is held no more, as a book that is in force has it: its
// token has been replaced. What the API still says of it tells nothing.
func (c *Health) Keep(b *Registry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = b.accounts
	for class := range c.refusal {
		if _, ok := c.held[class]; !ok {
			delete(c.refusal, class)
		}
	}
}

// accepted ends a quarantine.
func (c *Health) accepted(class string, sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.refusal[class]; r != nil && !sent.Before(r.since) {
		delete(c.refusal, class)
		c.log.Info("the API accepts a credential again", "credential", r.name)
	}
}

// Quarantined is a credential that the upstream refuses, for people to look at.
type Quarantined struct {
	Name  string    `json:"credential"`
	Until time.Time `json:"until"`
	Times int       `json:"times"`
}

// Quarantined lists the credentials that the upstream has refused and not accepted
// since.
func (c *Health) Quarantined() []Quarantined {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]Quarantined, 0, len(c.refusal))
	for _, r := range c.refusal {
		list = append(list, Quarantined{r.name, r.until, r.count})
	}
	slices.SortFunc(list, func(a, b Quarantined) int { return strings.Compare(a.Name, b.Name) })
	return list
}
