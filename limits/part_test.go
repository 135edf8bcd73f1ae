package limits

import (
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

// A response about an ended window is not part of a report of the open window.
func TestLateResponsesAreNotReported(t *testing.T) {
	rules := Rules{Limits: policy.DefaultLimits()}
	part := NewPart("a", policy.User)
	budget := part.WindowBudget(policy.GraphQL)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	reset := now.Add(10 * time.Second)
	grant := func(id uint64) Permit {
		t.Helper()
		c := Claim{ID: id, Kind: policy.User, Operation: policy.GraphQL, Resource: policy.GraphQL, Points: 1, Cost: 20}
		d := part.Admit(c, &rules, now.UnixMicro())
		stopIf(t, !d.Granted, "claim %d: refused for %s", id, d.Reason)
		return Permit{Claim: c}
	}
	settle := func(name string, p Permit, used int, reset time.Time, want int64) {
		t.Helper()
		o := using(used, reset)
		part.Settle(&p, &o, &rules, now.UnixMicro())
		u := part.Use(budget, now.UnixMicro())
		failIf(t, u.Reported != want || u.Total() != 0, "%s: got %d reported and %d in use, want %d and 0", name, u.Reported, u.Total(), want)
	}
	p, late := grant(1), grant(2)
	now = now.Add(time.Second)
	o := using(20, reset)
	part.Settle(&p, &o, &rules, now.UnixMicro())
	u := part.Use(budget, now.UnixMicro())
	failIf(t, u.Reported != 20 || u.Held != 20, "before the reset: got %d reported and %d held, want 20 and 20", u.Reported, u.Held)
	now = reset.Add(5 * time.Second)
	settle("late response", late, 40, reset, 0)
	settle("response about the open window", grant(3), 20, reset.Add(time.Hour), 20)
}
