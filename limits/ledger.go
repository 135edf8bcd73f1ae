package limits

import (
	"context"
	"time"

	"github.com/weirgate/weir/policy"
)

// Ledger holds the accounts. Implementations are safe for concurrent use and
// never block longer than their store's deadline. An error means that the
// store is lost, never that a limit is reached.
type Ledger interface {
	// Admit decides on all budgets of the claim's account at once.
	Admit(ctx context.Context, claim Claim) (Decision, error)
	// Settle ends a permit. Settling a permit again changes nothing.
	Settle(ctx context.Context, permit Permit, outcome Outcome) error
	// Budget reports what is left of one resource for an account; an account
	// never heard of has its kind's documented budget.
	Budget(ctx context.Context, account string, kind policy.CallerKind, resource string) (Budget, error)
	// Accounts lists the accounts that are known, at most so many of them.
	Accounts(ctx context.Context, most int) ([]Account, error)
}

// Claim is what one wire attempt asks of its account's budgets.
type Claim struct {
	Account string
	Kind    policy.CallerKind
	// Resource is the catalogue's guess; the answer may name another.
	Resource string
}

// Decision answers a claim: a permit, or when and why not.
type Decision struct {
	// Permit is non-nil when the request may be sent.
	Permit *Permit
	// Until is when to ask again: nothing but time can help before. Zero
	// means that a permit in flight may help when it settles.
	Until  time.Time
	Reason Reason
}

// Permit is a lease on the budgets of one account: taken before a request is
// sent, settled after its answer. It holds no secret.
type Permit struct {
	ID       uint64
	Account  string
	Resource string
}

// Reason names the budget that stood in the way. Its values appear in
// Cache-Status details and metrics.
type Reason string

// Reasons.
const (
	Primary  Reason = "primary"
	Cooldown Reason = "cooldown"
	Queue    Reason = "queue"
)

// Outcome is what became of a permitted request.
type Outcome struct {
	// Sent reports whether any of the request may have reached the upstream.
	Sent bool
	// Answered reports whether response headers came.
	Answered bool
	// Rate is what they said about the budget; zero where they said nothing.
	Rate Rate
	// Limited tells a limit error, RetryAfter how long it asked to wait (zero
	// when it did not say).
	Limited    Limited
	RetryAfter time.Duration
}

// Budget is what is left of one resource. Used plus Remaining is Limit.
type Budget struct {
	Resource  string    `json:"resource"`
	Limit     int       `json:"limit"`
	Used      int       `json:"used"`
	Remaining int       `json:"remaining"`
	Reset     time.Time `json:"reset"`
}

// Account is the state of one account, for people to look at.
type Account struct {
	Name     string            `json:"account"`
	Kind     policy.CallerKind `json:"kind"`
	InFlight int               `json:"in_flight"`
	// BlockedUntil is the end of a cool-down; zero when there is none.
	BlockedUntil time.Time `json:"blocked_until,omitzero"`
	Budgets      []Budget  `json:"budgets"`
}
