package policy

import (
	"errors"
	"fmt"
	"time"
)

// CredentialRequest describes the question for which a credential of a client is chosen.
type CredentialRequest struct {
	Operation *Operation
	// Resource is the rate limit resource that the question counts against.
	Resource string
	// Path is the path of the question. Target is the part of Path that names a repository, an organization or similar.
	Path, Target string
	// Left returns the remaining budget of a caller's account for the resource. Left is nil if the choice must not
	// depend on budgets.
	Left func(Caller) (remaining int, known bool)
	// Except lists the security classes of the credentials that were tried. Limited is set if the latest of these
	// credentials is at a limit.
	Except  []string
	Limited bool
}

// CredentialUse describes the request for which a credential is used. Safe means that the request may be repeated after any
// response, and Repeatable that it may be repeated after a 401.
//
// Denied means that the request was denied with the credential before its renewal.
type CredentialUse struct{ Safe, Repeatable, Denied bool }

// ErrCredentialBusy means that another request tests the credential, so the credential must be awaited again.
var ErrCredentialBusy = errors.New("another request tests the credential")

// UnusableError means that a credential must not be sent before a time.
type UnusableError struct {
	Name  string
	Until time.Time
	// Cause is nil for a credential that the upstream rejected.
	Cause error
}

func (u *UnusableError) Error() string {
	cause := "the upstream rejected it (401)"
	if u.Cause != nil {
		cause = u.Cause.Error()
	}
	return fmt.Sprintf("credential %q is unusable until %s: %s", u.Name, u.Until.UTC().Format(time.RFC3339), cause)
}

func (u *UnusableError) Unwrap() error { return u.Cause }
