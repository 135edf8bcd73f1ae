package limitstest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Ledger is a ledger with its accounts.
type Ledger interface {
	limits.Ledger
	limits.Operator
}

// Open returns an empty ledger with the given rules, and closes the ledger when the test ends. RunSuite calls Open
// inside the bubble of virtual time.
type Open func(t *testing.T, rules limits.Rules) Ledger

// RunSuite tests a ledger: fixed cases, random histories compared with the model, and the invariants. They run at the
// same time, and each calls store for a separate store.
func RunSuite(t *testing.T, store func(testing.TB) Open) {
	runCase := func(name string, test func(*testing.T, Open)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, store(t))
		})
	}
	run := func(rules limits.Rules, cases []testCase) {
		for _, c := range cases {
			runCase(c.name, func(t *testing.T, open Open) {
				synctest.Test(t, func(t *testing.T) { c.run(newHarness(t, open, rules)) })
			})
		}
	}
	rules := limits.Rules{Limits: policy.DefaultLimits()}
	for _, group := range [][]testCase{windowCases, unlimitedCases, logCases, permitCases, cooldownCases, shareCases, clientCases, costCases, doubtCases} {
		run(rules, group)
	}
	rules.Writes = writeRules
	run(rules, writeCases)
	rules.Probes = 3
	run(rules, closedCases)
	runHistories(runCase)
	runInvariants(runCase)
	runBatchReserve(runCase)
}

// testCase is a short history of one account.
type testCase struct {
	name string
	run  func(*harness)
}

// harness applies steps to one account of a ledger, and checks the results.
type harness struct {
	*testing.T
	Ledger
	lastID uint64
}

func newHarness(t *testing.T, open Open, rules limits.Rules) *harness {
	return &harness{T: t, Ledger: open(t, rules)}
}

const second = time.Second

func get(resource string) limits.Claim {
	return limits.Claim{Account: "a", Kind: policy.User, Operation: "op", Resource: resource, Points: 1}
}

// admit sends a claim to the ledger. A claim without an ID gets the next ID.
func (h *harness) admit(c limits.Claim) (limits.Permit, limits.Decision) {
	h.Helper()
	if c.ID == 0 {
		h.lastID++
		c.ID = h.lastID
	}
	return limits.Permit{Claim: c}, h.Admit(context.Background(), c)
}

func (h *harness) granted(c limits.Claim) limits.Permit {
	h.Helper()
	p, d := h.admit(c)
	if !d.Granted {
		h.Fatalf("refused: %s for %v", d.Reason, d.Wait)
	}
	return p
}

// untilSettled is the wait of a refusal that ends when a permit is settled.
const untilSettled = time.Duration(0)

// refused checks that a claim is refused with the given reason and wait.
func (h *harness) refused(c limits.Claim, reason limits.Reason, wait time.Duration) {
	h.Helper()
	_, d := h.admit(c)
	if d.Granted || d.Reason != reason || d.Wait != wait {
		h.Errorf("granted %v, reason %s for %v; want a refusal, reason %s for %v", d.Granted, d.Reason, d.Wait, reason, wait)
	}
}

func (h *harness) settled(p limits.Permit, o limits.Outcome) {
	h.Helper()
	if err := h.Settle(context.Background(), p, o); err != nil {
		h.Fatal(err)
	}
}

// reported returns the outcome of a complete response with rate headers.
func reported(resource string, used, limit int, reset time.Time) limits.Outcome {
	return limits.Outcome{Sent: true, Answered: true, Ended: true, Rate: policy.Rate{
		Limit: limit, Used: used, Reset: reset, Date: time.Now().Truncate(second), Resource: resource,
	}}
}

// answered returns the outcome of a complete response from a nearly unused window.
func answered() limits.Outcome { return reported("core", 1, 5000, time.Now().Add(time.Hour)) }

// silent returns the outcome of a complete, successful response without rate headers.
func silent() limits.Outcome {
	return limits.Outcome{Sent: true, Answered: true, Ended: true, Succeeded: true}
}

// spend admits a claim and settles the permit immediately.
func (h *harness) spend(c limits.Claim, o limits.Outcome) {
	h.Helper()
	h.settled(h.granted(c), o)
}

func (h *harness) released(p limits.Permit, aborted bool) {
	h.Helper()
	h.Release(context.Background(), p, aborted)
}

func (h *harness) renewed(elapsed time.Duration, permits ...limits.Permit) {
	h.Helper()
	var open []limits.OpenPermit
	for _, p := range permits {
		open = append(open, limits.OpenPermit{Permit: p, Elapsed: elapsed})
	}
	h.Renew(open)
}

// opened opens the account, and checks that the account was closed.
func (h *harness) opened() {
	h.Helper()
	if err := h.Open(context.Background(), "a"); err != nil {
		h.Fatal(err)
	}
}

// account returns the account from the ledger, or an empty account if the ledger has no account.
func (h *harness) account() limits.Account {
	h.Helper()
	list, err := h.Accounts(context.Background(), 10)
	if err != nil {
		h.Fatal(err)
	}
	for _, a := range list {
		if a.Name == "a" {
			return a
		}
	}
	return limits.Account{}
}

// budget returns the budget of that name.
func (h *harness) budget(name string) limits.Budget {
	h.Helper()
	for _, budget := range h.account().Budgets {
		if budget.Resource == name {
			return budget
		}
	}
	return limits.Budget{}
}

// unlimited reports whether the account has no limit of a resource.
func (h *harness) unlimited(resource string) bool {
	h.Helper()
	b, _ := h.Budget(policy.Caller{Account: "a", Kind: policy.User}, resource)
	return b.Unlimited
}

// resources returns the resources with a window.
func (h *harness) resources() []string {
	h.Helper()
	names, err := h.Resources(context.Background(), "a")
	if err != nil {
		h.Fatal(err)
	}
	return names
}

func (h *harness) check(name string, got, want any) {
	h.Helper()
	if got != want {
		h.Errorf("%s: got %v, want %v", name, got, want)
	}
}
