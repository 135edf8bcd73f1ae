package limits

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// testFile is a ledger file on a disk that may be full. A full disk still writes a part of a line.
type testFile struct {
	bytes.Buffer
	full bool
	part int
}

func (f *testFile) Write(line []byte) (int, error) {
	if f.full {
		n, _ := f.Buffer.Write(line[:len(line)*f.part/100])
		return n, errors.New("no space left on device")
	}
	return f.Buffer.Write(line)
}

func (f *testFile) Truncate(size int64) error {
	f.Buffer.Truncate(int(size))
	return nil
}

// fileRig is a ledger with a file.
type fileRig struct {
	*testing.T
	*Memory
	file  *testFile
	start string        // Rules.ColdStart
	step  time.Duration // of the wall clock
	limit int
	reset time.Time
	used  int
	id    uint64
}

// withFile runs a test with a new ledger.
func withFile(t *testing.T, coldStart string, test func(r *fileRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &fileRig{T: t, start: coldStart, limit: 5000, reset: time.Now().Add(time.Hour)}
		r.open(nil)
		test(r)
	})
}

// open starts a process with the file of another process.
func (r *fileRig) open(text []byte) (s Saved) {
	r.Helper()
	r.Memory = newMemoryAt(Rules{Limits: policy.DefaultLimits(), ColdStart: r.start}, NewClock().Stepped(func() time.Duration { return r.step }))
	if text != nil {
		var err error
		s, err = r.Load(bytes.NewReader(text))
		noError(r, err)
	}
	r.file = &testFile{}
	r.rotate(r.file, nil)
	return s
}

// stopped returns the file after a stop.
func (r *fileRig) stopped(clean bool) []byte {
	r.Helper()
	if !clean {
		return r.file.Bytes()
	}
	var text bytes.Buffer
	noError(r, r.Save(&text, nil))
	return text.Bytes()
}

func (r *fileRig) rotate(file *testFile, err error) {
	r.Helper()
	got := r.Rotate(file, nil, func() error { return err })
	stopIf(r, !errors.Is(got, err), "%v", got)
}

// killed returns the ledger that the next process loads after a kill.
func (r *fileRig) killed() *Memory {
	r.Helper()
	next := *r
	next.open(r.file.Bytes())
	return next.Memory
}

// try returns how many of 100 requests of three operations are granted at once. They stay in progress.
func (r *fileRig) try(creates bool) (granted int) {
	for i := range 100 {
		c := r.claim("a", creates)
		c.Operation = fmt.Sprint("op ", i%3)
		if d := r.Admit(r.Context(), c); d.Granted {
			granted++
		}
	}
	return granted
}

func (r *fileRig) claim(account string, creates bool) Claim {
	r.id++
	c := claim(r.id, policy.Core)
	c.Account, c.CPU = account, 10*time.Millisecond
	if creates {
		c.CreatesContent, c.Points = true, 5
	}
	return c
}

// send sends one request, and checks before and after its response that a kill would lose nothing.
func (r *fileRig) send(account string, creates bool) {
	r.Helper()
	c := r.claim(account, creates)
	r.spend(r.T, c, Outcome{})
	r.losesNothing()
	r.used++
	o := answer(policy.Core, r.used)
	o.Rate.Limit, o.Rate.Reset, o.Elapsed, o.Succeeded = r.limit, r.reset, 10*time.Millisecond, true
	_ = r.Settle(r.Context(), Permit{Claim: c}, o)
	r.losesNothing()
	time.Sleep(time.Second)
}

// spent returns the tokens that a log has at a later time, if nothing else is spent.
func (l *slidingLog) spent(at int64) (tokens int64) {
	for _, e := range l.Entries {
		if e.At > at-l.Window {
			tokens += e.Cost
		}
	}
	return tokens + l.held
}

// losesNothing checks that a kill would lose no spending.
func (r *fileRig) losesNothing() {
	r.Helper()
	next := r.killed()
	for name, a := range r.accounts {
		b := next.accounts[name]
		stopIf(r, b == nil, "after a kill the account %s is unknown", name)
		for _, later := range []int64{0, 1800 * second, 3580 * second} {
			at, merged := r.now()+later, 15*second // real spends merge, so they return up to 15 s later
			for key, l := range a.Logs {
				if got := b.Logs[key]; l.isSaved() && (got == nil || got.spent(at-merged) < l.spent(at)) {
					r.Fatalf("after a kill: %s has %+v, want at least %d tokens in %d s", key, got, l.spent(at), later/second)
				}
			}
			for resource, w := range a.Windows {
				got, want := b.Windows[resource], w.Unconfirmed.spent(at)+w.inUse
				stopIf(r, len(w.Reports) == 0 && got.Unconfirmed.spent(at-merged) < want, "after a kill: %s has %+v, want at least %d tokens in %d s", resource, got, want, later/second)
			}
		}
		for resource, w := range a.Windows {
			got, want := b.Windows[resource].key(), w.key()
			stopIf(r, len(w.Reports) > 0 && (got.use < want.use || got.reset < want.reset), "after a kill: %s has %+v, want at least %+v", resource, got, want)
		}
		stopIf(r, b.Cooldown.key() != a.Cooldown.key() && b.Cooldown.Until <= a.Cooldown.Until, "after a kill: cool-down %+v, want %+v", b.Cooldown, a.Cooldown)
	}
}

func TestKilledProcessLosesNothing(t *testing.T) {
	for name, test := range map[string]func(r *fileRig){
		"creations after a read": func(r *fileRig) {
			r.send("a", false)
			for range 60 {
				r.send("a", true)
				time.Sleep(30 * time.Second)
			}
		},
		"during a rotation": func(r *fileRig) {
			for range 9 {
				r.send("a", true)
			}
			next := &testFile{}
			_ = r.Rotate(next, nil, func() error {
				for range 60 {
					r.send("a", true)
				}
				r.file = next // as it is after the rename
				r.losesNothing()
				return nil
			})
			r.send("a", true)
		},
		"failed rotations": func(r *fileRig) {
			for i := range 400 {
				if r.send("a", false); i%50 == 10 {
					r.rotate(&testFile{}, errors.New("not renamed"))
				}
			}
			err := r.Rotate(&testFile{full: true}, nil, func() error { return nil })
			failIf(r, err == nil, "a rotation succeeded on a full disk")
			r.send("a", false)
		},
		"copies of requests": func(r *fileRig) {
			for range 3 {
				c := r.claim("a", true)
				r.spend(r.T, c, Outcome{Sent: true, Answered: true, Resent: 7})
				r.losesNothing()
			}
		},
		"spending of other programs": func(r *fileRig) {
			for range 5 {
				r.send("a", false)
				r.used += 700
			}
		},
		"estimates above the cost": func(r *fileRig) {
			r.send("a", false)
			c := r.claim("a", false)
			c.Cost = 70
			r.spend(r.T, c, Outcome{})
			o := answer(policy.Core, 2)
			o.Rate.Reset, o.Cost = r.reset, 1
			_ = r.Settle(r.Context(), Permit{Claim: c}, o)
			next := &testFile{}
			r.rotate(next, nil)
			r.file, r.used = next, 65
			r.send("a", false)
		},
		"no reports": func(r *fileRig) {
			for range 300 {
				r.spend(r.T, r.claim("a", false), Outcome{Sent: true, Answered: true, Ended: true, Failed: true})
				r.losesNothing()
				time.Sleep(30 * time.Second)
			}
		},
		"a cool-down": func(r *fileRig) {
			r.spend(r.T, r.claim("a", false), Outcome{Sent: true, Answered: true, Limited: policy.LimitSecondary, RetryAfter: time.Minute})
			r.losesNothing()
		},
		"an account with two names": func(r *fileRig) {
			r.send("token", true)
			r.send("user:1", true)
			r.Merge("token", "user:1", policy.User)
			r.losesNothing()
			r.send("token", true)
		},
		"two names that become one after a kill": func(r *fileRig) {
			for range 20 {
				r.send("token", true)
				r.send("user:1", true)
			}
			r.open(r.file.Bytes())
			r.Merge("token", "user:1", policy.User)
			key := logKey(Content, time.Hour.String())
			got := r.accounts["user:1"].Logs[key].Total
			failIf(r, got < 40+2*aheadCreates-8, "%d creations, want 40 and the bounds of both accounts", got)
		},
		"a step of the wall clock": func(r *fileRig) {
			for range 30 {
				r.send("a", true)
			}
			r.step = 90 * time.Minute
			due, err := r.RotationDue()
			failIf(r, due || err != nil, "%v %v", due, err)
			r.losesNothing()
		},
	} {
		t.Run(name, func(t *testing.T) { withFile(t, "trust", test) })
	}
}

func TestNamesSurviveKillsAndSteps(t *testing.T) {
	for name, test := range map[string]func(r *fileRig){
		"a token without requests": func(*fileRig) {},
		"a name in use for two days": func(r *fileRig) {
			for range 48 {
				time.Sleep(time.Hour)
				r.reset = time.Now().Add(time.Hour)
				r.send("token", false)
			}
		},
		"a step of the clock after the start": func(r *fileRig) {
			r.open(r.file.Bytes())
			r.step = 48 * time.Hour
			got := r.Canonical("token")
			failIf(r, got != "user:1", "before the kill token is %s", got)
		},
	} {
		t.Run(name, func(t *testing.T) {
			withFile(t, "trust", func(r *fileRig) {
				r.Merge("token", "user:1", policy.User)
				test(r)
				got := r.killed().Canonical("token")
				failIf(r, got != "user:1", "after a kill token is %s, want user:1", got)
			})
		})
	}
}

// A missing line marks the file, so the next process counts everything as spent.
func TestFullDiskIsKnownToTheNextProcess(t *testing.T) {
	for _, part := range []int{0, 50, 99} {
		withFile(t, "trust", func(r *fileRig) {
			r.send("a", true)
			r.file.full, r.file.part = true, part
			for range 60 {
				r.spend(t, r.claim("a", true), Outcome{Sent: true, Answered: true, Ended: true})
				time.Sleep(time.Second)
			}
			r.file.full = false
			r.Merge("b", "a", policy.User) // the disk has room again, but a line is missing
			due, err := r.RotationDue()
			failIf(t, !due || err == nil, "the missing line is not reported")
			s := r.open(r.file.Bytes())
			failIf(t, !s.Incomplete || r.Canonical("b") == "a", "%d %% of a line: %+v", part, s)
			time.Sleep(2 * time.Minute)
			creations, reads := r.try(true), r.try(false)
			failIf(t, creations > 0 || reads != slowStartBurst, "%d %% of a line: %d creations and %d reads at once, want 0 and %d", part, creations, reads, slowStartBurst)
		})
	}
}

// What a ledger assumes about the time before its cold start is in force after the next restart, too.
func TestColdStartSurvivesRestarts(t *testing.T) {
	for _, strict := range []bool{false, true} {
		for _, clean := range []bool{false, true} {
			withFile(t, "ramp", func(r *fileRig) {
				if strict {
					r.AssumeSpent()
					r.file = &testFile{}
					r.rotate(r.file, nil)
				}
				time.Sleep(10 * time.Second)
				before, text := *r, r.stopped(clean)
				r.open(text)
				if got, want := r.ColdStart(), before.ColdStart(); got != want || want == "" {
					t.Errorf("strict %v, clean stop %v: %q, want %q", strict, clean, got, want)
				}
				got, want := r.try(true), before.try(true)
				failIf(t, got != want, "strict %v, clean stop %v: %d creations after the restart, %d without it", strict, clean, got, want)
			})
		}
	}
}

func TestManyKillsLeaveTheWindowUsable(t *testing.T) {
	for _, requests := range []int{0, 1} {
		withFile(t, "trust", func(r *fileRig) {
			r.limit = 80
			r.send("a", false)
			for range 45 {
				r.open(r.file.Bytes())
				time.Sleep(61 * time.Second)
				for range requests {
					r.send("a", false)
				}
			}
			time.Sleep(time.Minute)
			d := r.Admit(t.Context(), r.claim("a", false))
			failIf(t, !d.Granted, "%d requests after each kill: refused (%s) for %v", requests, d.Reason, d.Wait)
		})
	}
}

// After a stop, the upstream may still work on the requests that were in progress.
func TestRestartKeepsTheSlotsOfAbortedRequests(t *testing.T) {
	for _, clean := range []bool{false, true} {
		withFile(t, "trust", func(r *fileRig) {
			r.send("a", false)
			before, text := r.try(false), r.stopped(clean)
			time.Sleep(time.Second)
			r.open(text)
			after := r.try(false)
			failIf(t, before == 0 || before+after > 100, "clean stop %v: %d requests were in progress, and %d are sent a second later", clean, before, after)
			time.Sleep(time.Minute)
			failIf(t, r.try(false) == 0, "clean stop %v: no request after a minute", clean)
		})
	}
}
