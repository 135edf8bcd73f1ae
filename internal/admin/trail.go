package admin

import (
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Change is an attempt of an operator to change the gateway. A Change contains no secret.
type Change struct {
	Time time.Time `json:"time"`
	// Operator is "token", "session", "certificate SUBJECT", "loopback" (any process of this machine), or the cause of a
	// reload: "signal" or "file".
	Operator string `json:"operator"`
	// Address is the client address, or empty for a signal or a file.
	Address string `json:"address,omitempty"`
	Action  string `json:"action"` // reload, purge, hard purge, open account
	Target  string `json:"target"`
	// Outcome is the result, or "failed: " with the error.
	Outcome string `json:"outcome"`
}

const (
	maxChanges = 200
	maxText    = 500 // bytes of one field
)

// Trail logs each change with the message "audit" and remembers the last 200 changes. A Trail is safe for concurrent
// use.
type Trail struct {
	log *slog.Logger

	mu       sync.Mutex
	last     []Change // oldest first
	onChange func(Change)
}

// OnChange sets a function that receives each later change.
func (t *Trail) OnChange(f func(Change)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onChange = f
}

// NewTrail returns an empty trail that logs to log.
func NewTrail(log *slog.Logger) *Trail { return &Trail{log: log} }

// Outcome returns the outcome of a change: success, or the text of the error.
func Outcome(err error, success string) string {
	if err != nil {
		return "failed: " + err.Error()
	}
	return success
}

// Record logs and remembers a change, with the current time.
func (t *Trail) Record(c Change) {
	c.Time = time.Now().UTC()
	for _, s := range []*string{&c.Operator, &c.Target, &c.Outcome} {
		*s = (*s)[:min(len(*s), maxText)]
	}
	t.log.Info("audit", "operator", c.Operator, "address", c.Address, "action", c.Action, "target", c.Target, "outcome", c.Outcome)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last = append(t.last, c); len(t.last) > maxChanges {
		t.last = slices.Delete(t.last, 0, 1)
	}
	if t.onChange != nil {
		t.onChange(c)
	}
}

// record records a change by a request.
func (t *Trail) record(r *http.Request, action, target, outcome string) {
	operator, _ := r.Context().Value(operatorKey{}).(string)
	t.Record(Change{Operator: operator, Address: r.RemoteAddr, Action: action, Target: target, Outcome: outcome})
}

// Last returns the remembered changes, newest first.
func (t *Trail) Last() []Change {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := append([]Change{}, t.last...)
	slices.Reverse(last)
	return last
}
