// Package caller describes the sender of a request, and the credential that the gateway sends upstream for it.
package caller

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/weirgate/weir/policy"
)

// Identity is the caller of a request, with the caller's upstream credential. Requests share an Identity, so it does not
// change.
type Identity struct {
	policy.Caller
	// FormerAccount is an earlier name of the caller's account, or empty. The ledger merges both accounts.
	FormerAccount string
	// Passed means that the client's own Authorization field is sent upstream, which alone can verify it. Otherwise
	// Credential is sent, which the gateway holds. Without both, no credential is sent.
	Passed     bool
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
	// TokenTag is the tag that the client's token contains. If TagFromClaim is set, TokenTag applies instead of the request
	// field Weir-Tag, which the client can choose freely.
	TokenTag     string
	TagFromClaim bool
	// Pool has the credentials of a client with several; otherwise nil.
	Pool CredentialPool
}

// CredentialPool chooses among the credentials of a client.
type CredentialPool interface {
	// Pick chooses a credential for a question. The result is nil if all suitable credentials have been tried.
	Pick(r policy.CredentialRequest, now time.Time) *Identity
	// OnHidden records that the credential of a security class got 403 or 404. visible means that another credential got a
	// better response.
	OnHidden(class string, r policy.CredentialRequest, status int, visible bool, now time.Time)
}

// HeldCredential is a credential that the gateway holds. The upstream may not accept its token yet, or not any more. One
// request at a time then tests the token.
type HeldCredential interface {
	// Await blocks until the credential can be sent, or until a time. The error is an [policy.UnusableError] or the error of the
	// context.
	Await(ctx context.Context, by time.Time, use policy.CredentialUse) error
	// Authorize sets the credential on a request that is sent now. [SentCredential.End] must be called after the request.
	// The error is an [policy.UnusableError] or [policy.ErrCredentialBusy].
	Authorize(http.Header, policy.CredentialUse) (SentCredential, error)
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

// These errors are returned for a request whose caller is not known.
var (
	// ErrUnauthenticated refuses a request with a missing or unknown credential.
	ErrUnauthenticated = errors.New("requires authentication")
	// ErrIdentityUnavailable refuses a request whose credential cannot be verified because the identity provider does
	// not respond.
	ErrIdentityUnavailable = errors.New("identity provider unavailable")
)
