package limits

import (
	"context"
	"time"

	"github.com/weirgate/weir/policy"
)

// Ledger holds the accounts. Implementations are safe for concurrent use and
// never block longer than their store's deadline. An error means that the
// store is lost, never that a limit is reached. Every change carries the
// permit's ID: made twice, it changes nothing the second time.
type Ledger interface {
	// Admit decides on all budgets of the claim's account at once.
	Admit(ctx context.Context, claim Claim) (Decision, error)
	// Settle charges a permit with what became of its request. Its place among
	// the concurrent requests stays taken until Release, unless the outcome
	// says that the answer has ended.
	Settle(ctx context.Context, permit Permit, outcome Outcome) error
	// Release gives that place back when the answer's body has ended, or a
	// while later when it was aborted: the upstream may still be at work.
	Release(ctx context.Context, permit Permit, aborted bool) error
	// Renew keeps permits in flight alive and raises what they hold of CPU
	// time to what they have taken. One that had expired is taken up again,
	// over the limit if need be: its request exists.
	Renew(ctx context.Context, flights []OpenPermit) error
	// Budget reports what is left of one resource for an account; an account
	// never heard of has its kind's documented budget.
	Budget(ctx context.Context, account string, kind policy.CallerKind, resource string) (Budget, error)
	// Accounts lists the accounts that are known, at most so many of them.
	Accounts(ctx context.Context, most int) ([]Account, error)
}

// Claim is what one wire attempt asks of its account's budgets.
type Claim struct {
	// ID names the claim: a second one with the same ID gets the same permit. Those of
	// 2^62 and more are the ledgers' own.
	ID      uint64
	Account string
	Kind    policy.CallerKind
	// Operation is the scope of its points.
	Operation string
	// Resource is the catalogue's guess; the answer may name another.
	Resource       string
	Points         int
	CreatesContent bool
	// CPU is how much CPU time the upstream may take.
	CPU time.Duration
	// Batch leaves the last part of a window to others.
	Batch bool
}

// Permit is a lease on the budgets of one account: taken before a request is
// sent, settled after its answer. It holds no secret.
type Permit struct {
	Claim
	// Waited is what it had to wait for; empty where it was granted at once. Nobody but
	// people need to know.
	Waited Reason
}

// OpenPermit is a permit whose request is in flight, and for how long.
type OpenPermit struct {
	Permit
	Elapsed time.Duration
}

// Decision answers a claim.
type Decision struct {
	// Granted reports whether the request may be sent.
	Granted bool
	// Until is when to ask again if not: nothing but time can help before.
	// Zero means that a permit in flight may help when it settles.
	Until  time.Time
	Reason Reason
}

// Reason names the budget that stood in the way. Its values appear in
// Cache-Status details and metrics.
type Reason string

// Reasons, in the order in which they are reported when several would do.
const (
	Cooldown    Reason = "cooldown"
	Concurrency Reason = "concurrency"
	Content     Reason = "content"
	Points      Reason = "points"
	CPU         Reason = "cpu"
	Primary     Reason = "primary"
	// Queue is the limiter's own: too many wait already.
	Queue Reason = "queue"
)

// Outcome is what became of a permitted request (limits.md section 5.5).
type Outcome struct {
	// Sent reports whether any of the request may have reached the upstream;
	// Resent how many times the transport sent it again.
	Sent   bool
	Resent int
	// Answered reports whether response headers came, Ended whether there is
	// no body to wait for.
	Answered bool
	Ended    bool
	// Failed marks an answer that tells nothing of the account's health: a 5xx,
	// 408 or 425.
	Failed bool
	// Elapsed is the time from the request being written, with its body, to the headers.
	Elapsed time.Duration
	// Rate is what the headers said about the budget; zero where they said
	// nothing.
	Rate Rate
	// Limited tells a limit error, RetryAfter how long it asked to wait (zero
	// when it did not say).
	Limited    LimitKind
	RetryAfter time.Duration
}

// Budget is what is left of one budget. Used plus Remaining is Limit.
type Budget struct {
	// Resource is the name of a resource of the API, or for the budgets that
	// the API does not show, the reason and its scope: "points:user/get".
	Resource  string    `json:"resource"`
	Limit     int       `json:"limit"`
	Used      int       `json:"used"`
	Remaining int       `json:"remaining"`
	Reset     time.Time `json:"reset"`
	// Held is what requests in flight may yet use.
	Held int `json:"held,omitempty"`
	// Window is how long the budget's window is.
	Window time.Duration `json:"-"`
}

// Account is the state of one account, for people to look at.
type Account struct {
	Name  string            `json:"account"`
	Kind  policy.CallerKind `json:"kind"`
	InUse int               `json:"in_flight"`
	// Concurrent is how many may be in flight now: the documented limit, or
	// what is left of it after limit errors.
	Concurrent int `json:"concurrent"`
	// BlockedUntil is the end of a cool-down; zero when there is none.
	BlockedUntil time.Time `json:"blocked_until,omitzero"`
	Budgets      []Budget  `json:"budgets"`
}
