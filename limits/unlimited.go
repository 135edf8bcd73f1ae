package limits

import (
	"context"
	"time"

	"github.com/weirgate/weir/policy"
)

// Unlimited is a [Ledger] and an [Operator] for an upstream whose limits are not enforced. It grants every claim, and has no accounts.
type Unlimited struct{}

// Admit implements [Ledger].
func (Unlimited) Admit(context.Context, Claim) Decision { return Decision{Granted: true} }

// Settle implements [Ledger].
func (Unlimited) Settle(context.Context, Permit, Outcome) error { return nil }

// Release implements [Ledger].
func (Unlimited) Release(context.Context, Permit, bool) {}

// Renew implements [Ledger].
func (Unlimited) Renew([]OpenPermit) {}

// Budget implements [Ledger].
func (Unlimited) Budget(_ policy.Caller, resource string) (b Budget, known bool) {
	return Budget{Resource: resource, Unlimited: true}, true
}

// Alone implements [Ledger].
func (Unlimited) Alone(string, string, time.Time) bool { return true }

// WriteLimits implements [Ledger].
func (Unlimited) WriteLimits(string) policy.ClientWrites { return policy.ClientWrites{} }

// Resources implements [Ledger].
func (Unlimited) Resources(context.Context, string) ([]string, error) { return nil, nil }

// Merge implements [Ledger].
func (Unlimited) Merge(string, string, policy.CallerKind) {}

// Canonical implements [Ledger].
func (Unlimited) Canonical(name string) string { return name }

// Accounts implements [Operator].
func (Unlimited) Accounts(context.Context, int) ([]Account, error) { return nil, nil }

// Open implements [Operator].
func (Unlimited) Open(context.Context, string) error { return ErrNotClosed }
