package proxy

import (
	"context"
	"errors"
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
	// Pool has the credentials of a client with several; otherwise nil.
	Pool CredentialPool
}

// CredentialPool chooses among the credentials of a client.
type CredentialPool interface {
	// Pick chooses a credential for a question. The result is false if all suitable credentials have been tried.
	Pick(policy.CredentialRequest) (Identity, bool)
	// OnHidden records that the credential of the identity got 403 or 404. visible means that another credential got a better
	// response.
	OnHidden(r policy.CredentialRequest, status int, visible bool)
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

// These errors are returned by Config.Identify.
var (
	// ErrUnauthenticated refuses a request with a missing or unknown credential.
	ErrUnauthenticated = errors.New("requires authentication")
	// ErrIdentityUnavailable refuses a request whose credential cannot be verified because the identity provider does
	// not respond.
	ErrIdentityUnavailable = errors.New("identity provider unavailable")
)
