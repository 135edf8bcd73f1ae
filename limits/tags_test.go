package limits

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// taggedCaller is a client without other clients, whose requests with one tag may use a tenth of a window.
var taggedCaller = policy.Caller{
	Account: "a", Kind: policy.User, Client: "ci", Clients: []policy.ClientBudget{{Client: "ci", Limit: 1, TagLimit: 0.1}},
}

func TestTagBudgetNamesTheClientAndTheTag(t *testing.T) {
	l := NewLimiter(NewMemory(Rules{Limits: policy.DefaultLimits()}))
	unlimited := taggedCaller
	unlimited.Clients = []policy.ClientBudget{{Client: "ci", Limit: 1}, {Client: "other", Limit: 1, TagLimit: 0.1}}
	for _, c := range []struct {
		name   string
		caller policy.Caller
		tag    string
		want   string
	}{
		{"tag", taggedCaller, "run/17", "ci/run/17"},
		{"no tag", taggedCaller, "", "ci/"},
		{"client without a limit for tags", unlimited, "run/17", ""},
		{"account of one client", policy.Caller{Client: "ci"}, "run/17", ""},
	} {
		got := l.TagBudget(c.caller, c.tag)
		failIf(t, got != c.want, "%s: got %q, want %q", c.name, got, c.want)
	}
}

func TestTagsBeyondTheBoundShareOneBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(NewMemory(Rules{Limits: policy.DefaultLimits()}))
		check := func(tag, want string) {
			t.Helper()
			got := l.TagBudget(taggedCaller, tag)
			failIf(t, got != want, "tag %q: got %q, want %q", tag, got, want)
		}
		for i := range maxTags {
			check(fmt.Sprint(i), fmt.Sprintf("ci/%d", i))
		}
		check("new", "ci/*")
		other := taggedCaller
		other.Client, other.Clients = "other", []policy.ClientBudget{{Client: "other", Limit: 1, TagLimit: 0.1}}
		if got := l.TagBudget(other, "new"); got != "other/new" {
			t.Errorf("tag of another client: %q", got)
		}
		time.Sleep(tagTime / 2)
		check("0", "ci/0")
		check("new", "ci/*")
		time.Sleep(tagTime/2 + sweepInterval)
		check("new", "ci/new")
		check("0", "ci/0")
		n := len(l.tags.clients["ci"])
		failIf(t, n != 2 || len(l.tags.clients) != 1, "%d tags of %d clients remain", n, len(l.tags.clients))
	})
}

func TestLedgerRemovesIdleTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
		caller, l := taggedCaller, NewLimiter(m)
		for i := range 5 {
			caller.Tag = l.TagBudget(caller, fmt.Sprint(i))
			p, err := l.Acquire(t.Context(), Claim{Operation: "op", Resource: policy.Core, Points: 1}, caller, time.Now())
			noError(t, err)
			_, _ = l.Settle(t.Context(), *p, Outcome{Sent: true, Answered: true, Ended: true, Rate: policy.Rate{Limit: 5000, Used: 1, Resource: policy.Core, Reset: time.Now().Add(time.Hour)}})
			time.Sleep(2 * time.Hour)
		}
		names := m.accounts["a"].Windows[policy.Core].Clients
		failIf(t, len(names) != 2, "the budgets of %d names remain, want those of the client and of its last tag", len(names))
	})
}

func TestWaitOfOneTagDelaysNoOtherTag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(NewMemory(Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"}))
		acquire := func(tag string, wait time.Duration) (*Permit, error) {
			caller := taggedCaller
			caller.Tag = l.TagBudget(caller, tag)
			return l.Acquire(t.Context(), Claim{Operation: "op", Resource: policy.Core, Points: 1}, caller, time.Now().Add(wait))
		}
		reset, used := time.Now().Add(time.Hour), 0
		for used < 10 {
			p, err := acquire("1", 0)
			noError(t, err)
			used++
			_, _ = l.Settle(t.Context(), *p, Outcome{Sent: true, Answered: true, Ended: true, Rate: policy.Rate{Limit: 100, Used: used, Resource: policy.Core, Reset: reset}})
		}
		go func() { _, _ = acquire("1", 2*time.Hour) }()
		synctest.Wait()
		began := time.Now()
		if _, err := acquire("2", time.Minute); err != nil || time.Since(began) > 0 {
			t.Errorf("a request with another tag: %v after %v", err, time.Since(began))
		}
		time.Sleep(2 * time.Hour)
	})
}
