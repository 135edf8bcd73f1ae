package limits

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// Ledger decides about the requests of accounts. Implementations are safe for concurrent use. An error means that Redis is
// unavailable. A repeated change with the same permit ID has no further effect.
type Ledger interface {
	// Admit checks a claim against all budgets of its account. It reserves from all of these budgets, or from no
	// budget.
	Admit(ctx context.Context, claim Claim) Decision
	// Settle charges a permit for its outcome. It frees the concurrency slot immediately if the response has ended or
	// the request was not sent. Without a response, the slot is freed ten seconds later.
	Settle(ctx context.Context, permit Permit, outcome Outcome) error
	// Release frees the concurrency slot of a settled permit. After an abort the slot is freed ten seconds later,
	// because the upstream may still be working on the request.
	Release(ctx context.Context, permit Permit, aborted bool)
	// Renew extends permits in use, and raises their CPU time to the elapsed time. An expired permit is reserved again,
	// even beyond a limit, because its request is open. Renew changes only the memory of this process.
	Renew(permits []OpenPermit)
	// Budget returns what a caller may use of one resource of its account, from the memory of this process. Budget has no
	// context, because it never waits for Redis. If this process knows nothing about the resource, known is false, and
	// b is the documented budget of the kind.
	Budget(caller policy.Caller, resource string) (b Budget, known bool)
	// Resources returns the resources that have a window in an account, ordered as [policy.CompareResources] does.
	Resources(ctx context.Context, account string) ([]string, error)
	// Alone reports whether, as far as this process knows, no other process has used a resource of an account since a time.
	Alone(account, resource string, since time.Time) bool
	// WriteLimits returns the limits of the writes of a client, without waiting for Redis.
	WriteLimits(client string) policy.ClientWrites
	// Merge makes the account from another name of the account into, because the upstream counts both as one account.
	// All later calls with one of the names use the merged account, also calls about earlier permits. The merged account
	// has what both accounts spent and hold, the reports of both, and the stricter cool-down. Repeated calls have no
	// further effect. The ledger keeps a bounded number of names, and forgets a name that is unused for a day.
	Merge(from, into string, kind policy.CallerKind)
	// Canonical returns the name of the account to which a name belongs: the name itself, unless the account was merged.
	Canonical(name string) string
}

// Operator shows accounts to people, and ends their states.
type Operator interface {
	// Accounts returns at most the given number of known accounts.
	Accounts(ctx context.Context, most int) ([]Account, error)
	// Open opens a closed account. Of another account, Open ends the cool-down and the pause of content creation; the next permit
	// is a probe. Open also forgets the reports of exhausted primary windows, which then begin with a slow start. If the account
	// has none of these states, Open returns [ErrNotClosed].
	Open(ctx context.Context, account string) error
}

// ErrNotClosed is the error of [Operator.Open] for an account without a state that an operator can end.
var ErrNotClosed = errors.New("the account is not closed, is in no cool-down, and no primary window is exhausted")

// Claim is a request for one permit.
type Claim struct {
	// ID identifies the claim and its permit. A repeated claim gets the same permit. Ledgers use the IDs from 2^62.
	ID      uint64
	Account string
	Kind    policy.CallerKind
	// Operation is the scope of the points budget.
	Operation string
	// Resource is predicted from the catalogue. The response may name another resource. The caller bounds the number of
	// names, for example with [Limiter.ReadRate].
	Resource       string
	Points         int
	CreatesContent bool
	// Writes is the number of changes that the request may make, such as the mutations of a GraphQL call. WriteTag is the name of
	// the budget for its tag ([Limiter.TagName]).
	Writes   int
	WriteTag string
	// Cost is the quota that the request needs in the primary window of Resource. Zero counts as 1, the cost of a request
	// that is no GraphQL call.
	Cost int
	// Query is the hash of the GraphQL query without its variables, or empty if the query is unknown. UpperEstimate is the
	// unrounded upper estimate of its cost. If UpperEstimate is set, [Limiter.Acquire] sets Cost.
	Query         string
	UpperEstimate float64
	// CPU is the CPU time that the upstream is expected to need.
	CPU time.Duration
	// Client is the name of the client, Group is the name of its group or empty, and Clients divides the budgets among the
	// clients and groups of the account. If Clients is empty, the budgets are not divided. Tag is the name of the budget for
	// the tag of the request (see [Limiter.TagBudget]), or empty. Share is the weight of the client; zero counts as 1.
	Client, Group, Tag string
	Clients            []policy.ClientBudget
	Share              int
	// Waiting is the number of claims of the client that wait at this replica, including this claim. Zero counts as 1.
	Waiting int
	// Batch marks a claim that leaves the last part of a primary window to other claims. Paced marks a claim that waits
	// for the even pace of sliding windows.
	Batch, Paced bool
}

// cost returns the cost of a claim in its primary window.
func (c *Claim) cost() int64 { return int64(min(max(1, c.Cost), costCeiling)) }

// Permit allows one request to be sent. It reserves quota, points, CPU time and one slot. It contains no secret.
type Permit struct {
	Claim
	// Waited is the budget for which the claim waited, if any. Shared is the use of this budget at the last refusal. Both
	// are only recorded.
	Waited Reason
	Shared *SharedUse
}

// OpenPermit is a permit in use, with the elapsed time of its request.
type OpenPermit struct {
	Permit
	Elapsed time.Duration
}

// Decision is the result of a claim.
type Decision struct {
	Granted bool
	// Wait is the time after which a refused claim may be repeated. If Wait is zero, the claim may be repeated after another
	// permit of the account is settled or released.
	Wait time.Duration
	// Early means that the claim may fit before the end of Wait, because other replicas may return tokens, or because the client may use
	// less than its nominal part by then.
	Early  bool
	Reason Reason
	// Shared is the use of the budget that refused the claim, or nil if clients do not share the budget.
	Shared *SharedUse
}

// Reason names the budget that refused a claim, in Cache-Status and in metrics.
type Reason string

// Reasons, in the order in which they are checked. A ledger may have further reasons.
const (
	// Closed means that repeated probes failed. Only an operator or the success of an earlier request ends it, so the
	// time of its end is unknown. Decision.Wait is then at least one hour.
	Closed      Reason = "closed"
	Cooldown    Reason = "cooldown"
	Concurrency Reason = "concurrency"
	Content     Reason = "content"
	// Writes means that the client or the tag has used its writes.
	Writes  Reason = "writes"
	Points  Reason = "points"
	CPU     Reason = "cpu"
	Primary Reason = "primary"
	// ClientBudget means that the client or the tag has used its part of a budget, and the rest is for other clients or
	// tags.
	ClientBudget Reason = "client"
	// Queue means that too many requests of the account are already waiting, or that the limiter ended the wait.
	Queue Reason = "queue"
)

// Outcome describes what happened to a permit's request.
type Outcome struct {
	// Sent reports whether any byte of the request may have reached the upstream.
	Sent     bool
	Resent   int  // earlier copies of the request that the transport sent
	Answered bool // response headers arrived
	Ended    bool // the response is complete; no Release follows
	Failed   bool // a 5xx, 408 or 425; the account may still be limited
	// Uncounted means that the upstream does not count the request in a primary window: a 304 to a caller with a credential, or
	// the rate limit status.
	Uncounted bool
	// Succeeded means that the status is below 400, and that the response to a GraphQL call has data.
	Succeeded bool
	// Unauthorized means that the upstream does not accept the credential (401). Such a request costs no quota, and its rate
	// headers are about another budget, usually that of the address. The ledger ignores them, unless the caller has no credential.
	Unauthorized bool
	// Elapsed is the time from the end of the request body to the response headers.
	Elapsed    time.Duration
	Rate       policy.Rate // zero without rate headers
	Limited    policy.LimitKind
	RetryAfter time.Duration // zero without the header
	// Outside is the name of a number of the response outside its range, or empty. It is only recorded.
	Outside string
	// Cost is the true cost of the request in its primary window, or zero if the cost is unknown. It replaces the estimate
	// of the claim.
	Cost int
}

// Enforces reports whether a response shows that the upstream limits the account: the response has rate headers, even
// headers that Weir cannot use, or is a limit error.
func (o *Outcome) Enforces() bool {
	return o.Answered && (o.Rate.Invalid || o.Rate.Limit != 0 || !o.Rate.Reset.IsZero() || o.Limited != policy.NotLimited)
}

// Silent reports whether a response suggests that the upstream has no limits: a success without rate headers.
func (o *Outcome) Silent() bool { return o.Answered && o.Succeeded && !o.Enforces() }

// Budget is the state of one budget. Used plus Remaining equals Limit.
type Budget struct {
	// Unlimited means that the upstream seems to have no limit (docs/internals/upstream.md). Only Resource is then valid. Accounts
	// do not contain such budgets.
	Unlimited bool `json:"-"`
	// Resource is the name of the upstream's resource. For a budget that the upstream does not report, Resource
	// consists of the reason and the scope, for example "points:user/get".
	Resource  string    `json:"resource"`
	Limit     int       `json:"limit"`
	Used      int       `json:"used"`
	Remaining int       `json:"remaining"`
	Reset     time.Time `json:"reset"`
	Held      int       `json:"held,omitempty"` // reserved by permits in use
	// Allowance is the fraction that Limit is of the documented limit, because another program seems to use the rest. It is
	// zero if Limit is the documented limit.
	Allowance float64       `json:"allowance,omitempty"`
	Window    time.Duration `json:"-"` // length
	// Client is the client or group in the budget of a client, otherwise "". Guarantee is the part of the window that is kept
	// for the client.
	Client    string `json:"client,omitempty"`
	Guarantee int    `json:"guarantee,omitempty"`
	// Nominal is the part of the window that a client has by its share, or zero for a group. Borrowed is the use beyond
	// Nominal. Lent is the unused part of Nominal that other clients have borrowed.
	Nominal  int `json:"nominal,omitempty"`
	Borrowed int `json:"borrowed,omitempty"`
	Lent     int `json:"lent,omitempty"`
	// Upper is Limit without the pace, in the budget of a client or group.
	Upper int `json:"-"`
}

// OfClient reports whether a budget counts the requests of a client, group or tag, and returns the resource of the
// requests.
func (b Budget) OfClient() (resource string, ok bool) {
	scope, ok := strings.CutPrefix(b.Resource, clientPrefix)
	resource, _, _ = strings.Cut(scope, ":")
	return resource, ok
}

// Account is the state of one account, for operators.
type Account struct {
	Name string            `json:"account"`
	Kind policy.CallerKind `json:"kind"`
	// InUse counts the permits that occupy a concurrency slot.
	InUse int `json:"in_flight"`
	// Concurrent is the number of concurrency slots, which limit errors lower.
	Concurrent int `json:"concurrent"`
	// BlockedUntil is the end of a cool-down, or zero.
	BlockedUntil time.Time `json:"blocked_until,omitzero"`
	// ClosedSince is the time at which repeated failed probes closed the account, or zero. An operator must open the
	// account.
	ClosedSince time.Time `json:"closed_since,omitzero"`
	Budgets     []Budget  `json:"budgets"`
}
