package limits

import (
	"context"
	"time"

	"github.com/weirgate/weir/policy"
)

// Ledger stores the accounts. Implementations are safe for concurrent use and
// return within their store's deadline. An error means that the store is
// unavailable; a refusal is not an error. Every change carries the ID of its
// permit, and a repeated change has no further effect.
type Ledger interface {
	// Admit checks a claim against all budgets of its account. It reserves from
	// all of them, or from none.
	Admit(ctx context.Context, claim Claim) (Decision, error)
	// Settle charges a permit for the outcome of its request. The permit keeps
	// its concurrency slot until Release, unless the response has ended.
	Settle(ctx context.Context, permit Permit, outcome Outcome) error
	// Release frees the concurrency slot of a settled permit. The slot of an
	// aborted response is freed later, because the upstream may still be working.
	Release(ctx context.Context, permit Permit, aborted bool) error
	// Renew extends permits in use, and raises the CPU time that they reserve to
	// the elapsed time. An expired permit is reserved again, even if that exceeds
	// a limit, because its request is still open.
	Renew(ctx context.Context, permits []OpenPermit) error
	// Budget returns the state of one resource of an account. An unknown account
	// has the documented budget of its kind.
	Budget(ctx context.Context, account string, kind policy.CallerKind, resource string) (Budget, error)
	// Accounts returns known accounts, at most so many of them.
	Accounts(ctx context.Context, most int) ([]Account, error)
}

// Claim is a request for one permit. It becomes one request to the upstream.
type Claim struct {
	// ID identifies the claim. A repeated claim gets the same permit. Values of
	// 2^62 and above are reserved for ledgers.
	ID      uint64
	Account string
	Kind    policy.CallerKind
	// Operation is the scope of the points budget.
	Operation string
	// Resource is predicted from the catalogue. The response may name another one.
	Resource       string
	Points         int
	CreatesContent bool
	// CPU is the CPU time that the upstream is expected to need.
	CPU time.Duration
	// Batch marks a claim that leaves the last part of a window to other claims.
	Batch bool
}

// Permit allows one request to be sent, and reserves its cost in every budget
// of its account. It contains no secret.
type Permit struct {
	Claim
	// Waited is the budget that the claim waited for. It is empty if the permit
	// was granted immediately, and is used for logs and metrics only.
	Waited Reason
}

// OpenPermit is a permit in use, with the time that its request has taken so far.
type OpenPermit struct {
	Permit
	Elapsed time.Duration
}

// Decision is the result of a claim.
type Decision struct {
	Granted bool
	// Until is when to repeat a refused claim. Zero means that the claim may
	// succeed as soon as another permit of the account is settled.
	Until  time.Time
	Reason Reason
}

// Reason names the budget that refused a claim. The values appear in the detail
// of Cache-Status and in metrics.
type Reason string

// Reasons, in the order in which they are checked.
const (
	Cooldown    Reason = "cooldown"
	Concurrency Reason = "concurrency"
	Content     Reason = "content"
	Points      Reason = "points"
	CPU         Reason = "cpu"
	Primary     Reason = "primary"
	// Queue means that too many requests of the account are waiting already.
	Queue Reason = "queue"
)

// Outcome describes what happened to a permit's request (docs/limits.md).
type Outcome struct {
	// Sent reports whether any byte of the request may have reached the upstream.
	Sent bool
	// Resent counts the copies that the transport sent before the last one.
	Resent int
	// Answered reports whether response headers arrived.
	Answered bool
	// Ended reports whether the response is complete, so that no Release follows.
	Ended bool
	// Failed marks a 5xx, 408 or 425, which proves nothing about the account.
	Failed bool
	// Elapsed is the time from the end of the request body to the response headers.
	Elapsed time.Duration
	// Rate contains the rate headers. It is zero if the response had none.
	Rate Rate
	// Limited is the kind of limit error, if the response is one.
	Limited LimitKind
	// RetryAfter is the value of the Retry-After header, or zero.
	RetryAfter time.Duration
}

// Budget is the state of one budget. Used plus Remaining equals Limit.
type Budget struct {
	// Resource is the upstream's name of the resource. A budget that the upstream
	// does not show is named by its reason and scope: "points:user/get".
	Resource  string    `json:"resource"`
	Limit     int       `json:"limit"`
	Used      int       `json:"used"`
	Remaining int       `json:"remaining"`
	Reset     time.Time `json:"reset"`
	// Held is the amount that permits in use reserve.
	Held int `json:"held,omitempty"`
	// Window is the length of the budget's window.
	Window time.Duration `json:"-"`
}

// Account is the state of one account, for operators.
type Account struct {
	Name string            `json:"account"`
	Kind policy.CallerKind `json:"kind"`
	// InUse counts the permits that occupy a concurrency slot.
	InUse int `json:"in_flight"`
	// Concurrent is the number of concurrency slots. Limit errors lower it.
	Concurrent int `json:"concurrent"`
	// BlockedUntil is the end of a cool-down, or zero.
	BlockedUntil time.Time `json:"blocked_until,omitzero"`
	Budgets      []Budget  `json:"budgets"`
}
