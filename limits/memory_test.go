package limits

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

// book is a ledger of one account with a clock of the test's own.
type book struct {
	*testing.T
	m   *Memory
	now time.Time
}

func newBook(t *testing.T) *book {
	return &book{t, NewMemory(policy.DefaultLimits()), time.Unix(1_000_000, 0)}
}

func (b *book) passes(d time.Duration) { b.now = b.now.Add(d) }

func (b *book) ask(resource string) Decision {
	return b.m.admit(Claim{Account: "a", Kind: policy.User, Resource: resource}, b.now)
}

func (b *book) admitted(resource string) Permit {
	b.Helper()
	d := b.ask(resource)
	if d.Permit == nil {
		b.Fatalf("not admitted: %s until %v", d.Reason, d.Until.Sub(b.now))
	}
	return *d.Permit
}

// refused checks that nothing is admitted, and until when; zero means that a
// permit in flight may help.
func (b *book) refused(resource string, reason Reason, until time.Duration) {
	b.Helper()
	d := b.ask(resource)
	if d.Permit != nil {
		b.Fatal("admitted")
	}
	got := time.Duration(0)
	if !d.Until.IsZero() {
		got = d.Until.Sub(b.now)
	}
	if d.Reason != reason || got != until {
		b.Errorf("refused (%s) for %v, want (%s) for %v", d.Reason, got, reason, until)
	}
}

// answered settles a permit with what the upstream told.
func (b *book) answered(p Permit, used, limit int, reset time.Time) {
	b.m.settle(p, Outcome{Sent: true, Answered: true, Rate: Rate{Limit: limit, Used: used, Reset: reset, Resource: p.Resource}}, b.now)
}

func (b *book) spend(resource string, used, limit int, reset time.Time) {
	b.Helper()
	b.answered(b.admitted(resource), used, limit, reset)
}

func TestWindowIsClosedWhenTheUpstreamSaysThatItIsUsedUp(t *testing.T) {
	b := newBook(t)
	reset := b.now.Add(10 * time.Minute)
	b.spend("core", 4999, 5000, reset)
	b.spend("core", 5000, 5000, reset)
	b.refused("core", Primary, 10*time.Minute+resetMargin)
	b.passes(10*time.Minute + resetMargin - time.Nanosecond)
	b.refused("core", Primary, time.Nanosecond)
	b.passes(time.Nanosecond)
	b.admitted("core")
}

func TestRequestsInFlightCount(t *testing.T) {
	b := newBook(t)
	reset := b.now.Add(time.Hour)
	b.spend("core", 4998, 5000, reset)
	first, second := b.admitted("core"), b.admitted("core")
	b.refused("core", Primary, 0)
	b.answered(second, 4998, 5000, reset) // a 304 that was not counted
	third := b.admitted("core")
	b.refused("core", Primary, 0)
	b.m.settle(first, Outcome{}, b.now) // never sent: costs nothing
	b.admitted("core")
	b.m.settle(third, Outcome{Sent: true}, b.now) // no answer: may have been counted
	b.refused("core", Primary, 0)
}

func TestOnlyAFewGoBeforeTheFirstAnswer(t *testing.T) {
	b := newBook(t)
	var flying []Permit
	for range slowStart {
		flying = append(flying, b.admitted("core"))
	}
	b.refused("core", Primary, 0)
	b.answered(flying[0], 1, 1000, b.now.Add(time.Hour))
	for range 100 {
		b.admitted("core")
	}
}

func TestAnswersInAnyOrderTeachTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000_000, 0)
		reset := now.Add(time.Hour)
		told := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Rate {
			return Rate{
				Limit: 5000, Used: rapid.IntRange(0, 5000).Draw(t, "used"),
				Reset: reset.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "jitter")) * time.Second),
			}
		}), 1, 20).Draw(t, "told")
		highest := 0
		w := newWindow(policy.Window{Max: 5000, Window: time.Hour})
		for _, r := range told {
			highest = max(highest, r.Used)
			w.learn(r, now, now)
		}
		if w.used != highest {
			t.Fatalf("used %d, highest told %d", w.used, highest)
		}
		// A late answer of an older window changes nothing.
		w.learn(Rate{Limit: 60, Used: 60, Reset: reset.Add(-time.Hour)}, now, now)
		if w.used != highest || w.limit != 5000 {
			t.Fatalf("an older window was believed: %+v", w)
		}
		// A newer one opens a new window.
		w.learn(Rate{Limit: 5000, Used: 1, Reset: reset.Add(time.Hour)}, now, now)
		if w.used != 1 {
			t.Fatalf("a newer window was not opened: %+v", w)
		}
	})
}

func TestLateAnswerOfAWindowThatHasEnded(t *testing.T) {
	b := newBook(t)
	old := b.now.Add(time.Minute)
	late := b.admitted("core")
	b.spend("core", 4999, 5000, old)
	b.passes(time.Minute + resetMargin)
	b.m.settle(b.admitted("core"), Outcome{Sent: true}, b.now) // lost, in the new window
	b.answered(late, 5000, 5000, old)
	if w := b.m.accounts["a"].windows["core"]; w.used != 0 || len(w.ghosts) != 1 {
		t.Errorf("%+v", w)
	}
	b.admitted("core")
}

func TestClockThatIsWrongDoesNotOpenTheWindow(t *testing.T) {
	b := newBook(t)
	b.spend("core", 5000, 5000, b.now.Add(-24*time.Hour))
	b.refused("core", Primary, time.Hour+resetMargin)
}

func TestHeadroomIsLeftToOthers(t *testing.T) {
	b := newBook(t)
	b.m.Configure(policy.DefaultLimits(), 0.1)
	b.spend("core", 4499, 5000, b.now.Add(time.Hour))
	b.spend("core", 4500, 5000, b.now.Add(time.Hour))
	b.refused("core", Primary, time.Hour+resetMargin)
	for i := range 27 {
		b.spend("search", i+1, 30, b.now.Add(time.Minute))
	}
	b.refused("search", Primary, time.Minute+resetMargin)
}

func TestNothingIsAdmittedWhereNothingIsAllowed(t *testing.T) {
	b := newBook(t)
	d := b.m.admit(Claim{Account: "egress", Kind: policy.Unauthenticated, Resource: "code_search"}, b.now)
	if d.Permit != nil || d.Until.Sub(b.now) != time.Minute {
		t.Errorf("%+v", d)
	}
}

func TestGhostIsForgottenWhenALaterRequestTellsTheCount(t *testing.T) {
	b := newBook(t)
	reset := b.now.Add(time.Hour)
	b.spend("core", 4998, 5000, reset)
	lost := b.admitted("core")
	b.passes(time.Second)
	b.m.settle(lost, Outcome{Sent: true}, b.now)
	b.passes(time.Second)
	b.spend("core", 4999, 5000, reset) // so the lost one had not been counted
	b.admitted("core")
}

func TestSearchTokensReturnOneWindowAfterTheirAnswers(t *testing.T) {
	b := newBook(t)
	for i := range 30 {
		b.spend("search", i+1, 30, b.now.Add(time.Minute-time.Duration(i)*time.Second))
		b.passes(time.Second)
	}
	// The upstream's window ends after 60 s, and all of it returns at once; the
	// exact log lets one through for each second that has passed.
	b.passes(31 * time.Second)
	b.spend("search", 1, 30, b.now.Add(time.Minute))
	for i := range 5 {
		p := b.admitted("search")
		b.refused("search", Primary, 0)
		b.answered(p, i+2, 30, b.now.Add(time.Minute))
		b.refused("search", Primary, time.Second)
		b.passes(time.Second)
	}
}

func TestResourceThatTheUpstreamNames(t *testing.T) {
	b := newBook(t)
	reset := b.now.Add(time.Hour)
	p := b.admitted("core")
	b.m.settle(p, Outcome{Sent: true, Answered: true, Rate: Rate{Limit: 30, Used: 30, Reset: reset, Resource: "search"}}, b.now)
	b.refused("search", Primary, time.Hour+resetMargin)
	b.admitted("core")
}

func TestInventedResourcesCountAsCore(t *testing.T) {
	b := newBook(t)
	for i := range 100 {
		b.m.settle(b.admitted(fmt.Sprintf("made-up-%d", i)), Outcome{Sent: true, Answered: true, Rate: Rate{Limit: 5000, Used: i, Reset: b.now.Add(time.Hour), Resource: fmt.Sprintf("other-%d", i)}}, b.now)
	}
	if n := len(b.m.accounts["a"].windows); n != 1 {
		t.Errorf("%d windows", n)
	}
}

func TestPrimaryLimitErrorClosesTheResourceOnly(t *testing.T) {
	b := newBook(t)
	p := b.admitted("core")
	b.m.settle(p, Outcome{Sent: true, Answered: true, Limited: PrimaryLimit, Rate: Rate{Limit: 5000, Used: 4000, Reset: b.now.Add(time.Minute), Resource: "core"}}, b.now)
	b.refused("core", Primary, time.Minute+resetMargin)
	b.admitted("search")
}

func TestCooldown(t *testing.T) {
	rate := func(used int, reset time.Duration) Rate {
		return Rate{Limit: 5000, Used: used, Reset: time.Unix(1_000_000, 0).Add(reset), Resource: "core"}
	}
	for _, c := range []struct {
		name    string
		outcome Outcome
		wait    time.Duration
	}{
		{"retry-after is kept", Outcome{RetryAfter: 17 * time.Second, Rate: rate(1, time.Hour)}, 17 * time.Second},
		{"remaining 0 waits for the reset", Outcome{Rate: rate(5000, 5*time.Minute)}, 5*time.Minute + resetMargin},
		{"otherwise a minute", Outcome{Rate: rate(1, time.Hour)}, time.Minute},
		{"without any header a minute", Outcome{}, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBook(t)
			c.outcome.Sent, c.outcome.Answered, c.outcome.Limited = true, true, SecondaryLimit
			b.m.settle(b.admitted("core"), c.outcome, b.now)
			b.refused("search", Cooldown, c.wait)
		})
	}
}

func TestCooldownDoublesWhileErrorsRepeat(t *testing.T) {
	b := newBook(t)
	for i := range 3 {
		b.m.settle(b.admitted("core"), Outcome{Sent: true, Answered: true, Limited: SecondaryLimit}, b.now)
		wait := time.Minute << i
		b.refused("core", Cooldown, wait)
		b.passes(wait)
	}
	b.spend("core", 1, 5000, b.now.Add(time.Hour))
	b.m.settle(b.admitted("core"), Outcome{Sent: true, Answered: true, Limited: SecondaryLimit}, b.now)
	b.refused("core", Cooldown, time.Minute)
}

func TestSettlingTwiceChangesNothing(t *testing.T) {
	b := newBook(t)
	p := b.admitted("core")
	b.m.settle(p, Outcome{}, b.now)
	b.m.settle(p, Outcome{Sent: true}, b.now)
	if w := b.m.accounts["a"].windows["core"]; w.inFlight != 0 || len(w.ghosts) != 0 {
		t.Errorf("%+v", w)
	}
}

func TestIdleAccountsAreForgotten(t *testing.T) {
	b := newBook(t)
	flying := b.admitted("core")
	for i := range 3 * sweepEvery {
		d := b.m.admit(Claim{Account: fmt.Sprint(i), Kind: policy.User, Resource: "search"}, b.now)
		b.m.settle(*d.Permit, Outcome{Sent: true, Answered: true}, b.now)
		b.passes(time.Second)
	}
	if n := len(b.m.accounts); n > sweepEvery+100 {
		t.Errorf("%d accounts", n)
	}
	b.m.settle(flying, Outcome{}, b.now)
}

// upstreamWindow is the upstream's own counting, as naive as can be: a fixed
// window opened by the first request in it.
type upstreamWindow struct {
	limit       int
	span        time.Duration
	used, worst int
	reset       time.Time
}

func (u *upstreamWindow) count(now time.Time) (used int, reset time.Time) {
	if !now.Before(u.reset) {
		// Told in whole seconds, the window ends with its second.
		u.used, u.reset = 0, now.Add(u.span).Truncate(time.Second)
	}
	u.used++
	u.worst = max(u.worst, u.used)
	return u.used, u.reset
}

// TestUpstreamNeverSeesMoreThanTheLimit: whatever the delays before and after
// the moment at which the upstream counts, whichever answers are lost, no
// window of its own holds more than the limit while we alone spend.
func TestUpstreamNeverSeesMoreThanTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		resource := rapid.SampledFrom([]string{"core", "search", "code_search"}).Draw(t, "resource")
		documented := policy.DefaultLimits().For(policy.User, resource)
		if resource == "core" {
			documented = policy.Window{Max: rapid.IntRange(1, 50).Draw(t, "limit"), Window: time.Minute}
		}
		limits := policy.DefaultLimits()
		if resource == "core" {
			limits.Primary.User, limits.Primary.Window = documented.Max, documented.Window
		}
		m := NewMemory(limits)
		up := &upstreamWindow{limit: documented.Max, span: documented.Window}
		now := time.Unix(1_000_000, int64(rapid.IntRange(0, 999).Draw(t, "offset"))*1e6)

		type flight struct {
			permit  Permit
			counted time.Time
			lands   time.Time
			used    int
			reset   time.Time
			isDone  bool
		}
		var flying []*flight
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if d := m.admit(Claim{Account: "a", Kind: policy.User, Resource: resource}, now); d.Permit != nil {
				counts := now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "before")) * time.Millisecond)
				lands := counts.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "after")) * time.Millisecond)
				flying = append(flying, &flight{permit: *d.Permit, counted: counts, lands: lands})
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "pause")) * time.Millisecond)
			advance(flying, func(f *flight) (time.Time, bool) { return f.counted, f.used == 0 }, now, func(f *flight) {
				f.used, f.reset = up.count(f.counted)
			})
			advance(flying, func(f *flight) (time.Time, bool) { return f.lands, !f.isDone }, now, func(f *flight) {
				f.isDone = true
				if rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
					m.settle(f.permit, Outcome{Sent: true}, f.lands)
					return
				}
				m.settle(f.permit, Outcome{Sent: true, Answered: true, Rate: Rate{Limit: documented.Max, Used: f.used, Reset: f.reset, Resource: resource}}, f.lands)
			})
		}
		if up.worst > documented.Max {
			t.Fatalf("the upstream counted %d of %d", up.worst, documented.Max)
		}
	})
}

// advance does what is due until now, in the order of time.
func advance[F any](all []*F, due func(*F) (time.Time, bool), now time.Time, do func(*F)) {
	for {
		var next *F
		var at time.Time
		for _, f := range all {
			if when, open := due(f); open && !when.After(now) && (next == nil || when.Before(at)) {
				next, at = f, when
			}
		}
		if next == nil {
			return
		}
		do(next)
	}
}

func BenchmarkAdmitAndSettle(b *testing.B) {
	m := NewMemory(policy.DefaultLimits())
	claim := Claim{Account: "a", Kind: policy.User, Resource: "core"}
	outcome := Outcome{Sent: true, Answered: true, Rate: Rate{Limit: 1 << 30, Used: 1, Reset: time.Now().Add(time.Hour), Resource: "core"}}
	b.ReportAllocs()
	for b.Loop() {
		d, _ := m.Admit(context.Background(), claim)
		_ = m.Settle(context.Background(), *d.Permit, outcome)
	}
}
