package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/weirgate/weir/policy"
)

// Identity is the caller of a request, with the functions for the caller's upstream credential.
type Identity struct {
	Caller policy.Caller
	// FormerAccount is an earlier name of the caller's account, or empty. The ledger merges both accounts.
	FormerAccount string
	// Authorize sets the client's credential on a request to the upstream. If both Authorize and Credential are nil, no
	// credential is sent.
	Authorize func(context.Context, http.Header) error
	// Held marks a credential that the gateway holds. Otherwise the client sent its own credential, which only the
	// upstream can verify.
	Held bool
	// Credential is the credential that the gateway holds, otherwise nil.
	Credential HeldCredential
	// Scope selects the requests that the client may send; nil permits all requests.
	Scope *policy.Scope
	// Lent is the identity for the reads of public data by an anonymous client that its Scope allows; nil lends no
	// credential. If LentOnly is set, all other requests of the client are refused with ErrUnauthenticated.
	Lent     *Identity
	LentOnly bool
	// Debug permits the request field Weir-Debug.
	Debug bool
	// RefusalStatus is the status of limit refusals for the client, or zero for that of the gateway.
	RefusalStatus int
	// Tag is the tag that the client's token contains. If TagFromClaim is set, Tag applies instead of the request field
	// Weir-Tag, which the client can choose freely.
	Tag          string
	TagFromClaim bool
	// Pick chooses a credential of the client for a question. The result is false if all suitable credentials have been
	// tried. Pick is nil if the client has only one credential.
	Pick func(CredentialRequest) (Identity, bool)
	// OnHidden is called after the credential got 403 or 404. visible means that another credential of the client got a
	// better response. OnHidden is set if Pick is set.
	OnHidden func(r CredentialRequest, status int, visible bool)
}

// CredentialRequest describes the question for which a credential is chosen.
type CredentialRequest struct {
	Operation *policy.Operation
	// Resource is the rate limit resource that the question counts against.
	Resource string
	// Path is the path of the question. Target is the part of Path that names a repository, an organization or similar.
	Path, Target string
	// Left returns the remaining budget of a caller's account for the resource. Left is nil if the choice must not
	// depend on budgets.
	Left func(policy.Caller) (remaining int, known bool)
	// Except lists the security classes of the credentials that were tried. Limited is set if the latest of these
	// credentials is at a limit.
	Except  []string
	Limited bool
}

// HeldCredential is a credential that the gateway holds. The upstream may not accept its token yet, or not any more. One
// request at a time then tests the token.
type HeldCredential interface {
	// Await blocks until the credential can be sent, or until a time. The error is an [UnusableError] or the error of the
	// context.
	Await(ctx context.Context, by time.Time, use CredentialUse) error
	// Authorize sets the credential on a request that is sent now. [SentCredential.End] must be called after the request.
	// The error is an [UnusableError] or [ErrCredentialBusy].
	Authorize(http.Header, CredentialUse) (SentCredential, error)
}

// SentCredential is a held credential in a request that was sent.
type SentCredential interface {
	// IsUnproven reports whether the upstream may not have known the credential when the request was sent.
	IsUnproven() bool
	// End records the response, with status 0 if the request got none. If End returns true, the response shows nothing about
	// the request, which should be repeated.
	End(op *policy.Operation, status int, limited bool) (repeat bool)
	// Denied records that the response denied a permission, which the credential may get later. It is called before End.
	Denied()
	// Renewed waits for the renewal that Denied has started, and reports whether a newer credential replaces the one that was
	// sent.
	Renewed(ctx context.Context, by time.Time) bool
}

// CredentialUse describes the request for which a credential is used. Safe means that the request may be repeated after any
// response, and Repeatable that it may be repeated after a 401.
//
// Denied means that the request was denied with the credential before its renewal.
type CredentialUse struct{ Safe, Repeatable, Denied bool }

// ErrCredentialBusy means that another request tests the credential, so the credential must be awaited again.
var ErrCredentialBusy = errors.New("the credential must be awaited")

// These errors are returned by Config.Identify.
var (
	// ErrUnauthenticated refuses a request with a missing or unknown credential.
	ErrUnauthenticated = errors.New("requires authentication")
	// ErrIdentityUnavailable refuses a request whose credential cannot be verified because the identity provider does
	// not respond.
	ErrIdentityUnavailable = errors.New("identity provider unavailable")
)

// UnusableError means that a credential cannot be sent before Until.
type UnusableError struct {
	Until time.Time
	Cause error // reason in the log
}

func (u *UnusableError) Error() string { return fmt.Sprintf("no usable credential: %v", u.Cause) }

func (u *UnusableError) Unwrap() error { return u.Cause }
