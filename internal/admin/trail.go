package admin

import (
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Change is what somebody has changed, or tried to. It holds no secret.
type Change struct {
	Time time.Time `json:"time"`
	// Who is "token", "certificate SUBJECT", "loopback" (anyone on this machine), or
	// what caused a reload: "signal", "file".
	Who string `json:"who"`
	// Address is where the request came from; empty for a signal or a file.
	Address string `json:"address,omitempty"`
	What    string `json:"what"` // reload, purge, hard purge
	Target  string `json:"target"`
	// Outcome is what came of it, or "failed: " and why.
	Outcome string `json:"outcome"`
}

// Bounds of what is remembered: changes, and bytes of each text in one.
const (
	maxChanges = 200
	maxText    = 500
)

// Trail writes each change to a log, as a line with the message "audit", and
// remembers the last 200. It is safe for concurrent use. What is older is in the log
// alone.
type Trail struct {
	log *slog.Logger

	mu   sync.Mutex
	last []Change // the oldest first; guarded by mu
}

// NewTrail returns a trail that writes to log.
func NewTrail(log *slog.Logger) *Trail { return &Trail{log: log} }

// Outcome is a change's outcome: what went well, or why it did not.
func Outcome(err error, well string) string {
	if err != nil {
		return "failed: " + err.Error()
	}
	return well
}

// Record writes and remembers a change, and gives it the time.
func (t *Trail) Record(c Change) {
	c.Time = time.Now().UTC()
	for _, s := range []*string{&c.Who, &c.Target, &c.Outcome} {
		*s = (*s)[:min(len(*s), maxText)]
	}
	t.log.Info("audit", "who", c.Who, "address", c.Address, "what", c.What, "target", c.Target, "outcome", c.Outcome)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last = append(t.last, c); len(t.last) > maxChanges {
		t.last = slices.Delete(t.last, 0, 1)
	}
}

// record is Record of what a request asks for.
func (t *Trail) record(r *http.Request, what, target, outcome string) {
	who, _ := r.Context().Value(operator{}).(string)
	t.Record(Change{Who: who, Address: r.RemoteAddr, What: what, Target: target, Outcome: outcome})
}

// Last returns the changes that are remembered, the newest first.
func (t *Trail) Last() []Change {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := append([]Change{}, t.last...)
	slices.Reverse(last)
	return last
}
