package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/learned"
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

// lendFor returns the identity for a question: the lent credential if an anonymous client reads public data
// ([policy.Operation.Public]), otherwise the identity itself.
func (i Identity) lendFor(q *question) (Identity, error) {
	switch lent, op := i.Lent, q.match.Operation; {
	case lent != nil && op.Public() && lent.Scope.Allows(q.method, op):
		return *lent, nil
	case i.LentOnly:
		return Identity{}, ErrUnauthenticated
	}
	return i, nil
}

// chooseCredential returns the identity with a credential for a question, without regard to budgets, because a hit needs no
// budget. The list tried has the security classes of the credentials that were tried.
func (g *Gateway) chooseCredential(q *question, identity Identity, tried []string) Identity {
	if identity.Pick != nil {
		r := q.credentialRequest(tried)
		r.Resource = g.Resources.Of(q.claimScope, identity.Caller.Kind, q.match.Operation.Resource)
		if picked, ok := identity.Pick(r); ok {
			return picked
		}
	}
	return identity
}

// withCredential returns the question with another credential.
func (g *Gateway) withCredential(ex *exchange, asked *question, identity Identity) *question {
	q := *asked
	g.setCredential(ex, &q, identity)
	return &q
}

// chooseByBudget chooses the credential again before a request is forwarded, with regard to budgets. It returns the attempt with
// that credential.
func (g *Gateway) chooseByBudget(a *attempt) *attempt {
	if a.identity.Pick == nil {
		return a
	}
	identity, ok := a.identity.Pick(g.budgetedRequest(a.question, nil))
	if !ok || identity.Caller.Class == a.identity.Caller.Class {
		return a
	}
	return g.newAttempt(a.exchange, g.withCredential(a.exchange, a.question, identity))
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

// credentialRequest describes the question for the choice of a credential. The list tried has the security classes of the
// credentials that were tried.
func (q *question) credentialRequest(tried []string) CredentialRequest {
	return CredentialRequest{
		Operation: q.match.Operation, Resource: q.resource, Path: q.match.Path, Target: targetOf(q.match.Path), Except: tried,
	}
}

// budgetedRequest returns a credential request with Left set, so that the choice may depend on budgets.
func (g *Gateway) budgetedRequest(q *question, tried []string) CredentialRequest {
	r := q.credentialRequest(tried)
	r.Left = func(caller policy.Caller) (int, bool) {
		caller.Tag = g.Limiter.TagBudget(caller, q.tag)
		b, _ := g.Ledger.Budget(caller, q.resource)
		return b.Remaining - b.Held, !b.Unlimited
	}
	return r
}

// targetOf returns the part of a path that names a repository, an organization or similar, in lower case. Without such
// a part it returns the whole path.
func targetOf(path string) string {
	segments := strings.SplitN(strings.ToLower(path), "/", 5)
	names := map[string]int{"repos": 2, "repositories": 1, "orgs": 1, "organizations": 1, "users": 1, "teams": 1}[segments[1]]
	if names == 0 || len(segments) < names+2 {
		return strings.ToLower(path)
	}
	return strings.Join(segments[:names+2], "/")
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
}

// CredentialUse describes the request for which a credential is used. Safe means that the request may be repeated after any
// response, and Repeatable that it may be repeated after a 401.
type CredentialUse struct{ Safe, Repeatable bool }

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

// learnIdentity merges the account of the attempt if the response names its user or its installation. It also merges
// the account of an installation token that the response contains.
func (g *Gateway) learnIdentity(a *attempt, resp *http.Response, o limits.Outcome) {
	caller := a.identity.Caller
	account, i, ok := caller.Account, learned.Identity{}, false
	switch {
	case o.Limited != limits.NotLimited:
		i, ok = identityInMessage(a.limitError.Message)
		ok = ok && i.Kind == caller.Kind.Base() && !isWorkflowLimit(o)
	case resp.StatusCode == http.StatusOK && a.method == http.MethodGet && a.match.Path == "/user":
		if caller.Kind.Base() == policy.User {
			text := peekJSON(resp)
			id, _ := field(text, "id").(json.Number)
			if i, ok = learned.NewIdentity(string(policy.User), id.String()); ok {
				login, _ := field(text, "login").(string)
				g.Identities.LearnLogin(login, account, i.Account())
			}
		}
	case resp.StatusCode == http.StatusCreated && a.method == http.MethodPost && g.AccountOf != nil:
		if path := mintingPath.FindStringSubmatch(a.match.Path); path != nil {
			token, _ := field(peekJSON(resp), "token").(string)
			i, ok = learned.NewIdentity(string(policy.Installation), path[1])
			account, ok = g.AccountOf(token), ok && token != ""
		}
	}
	if ok && g.Identities.Learn(account, i, time.Now()) {
		g.Ledger.Merge(account, i.Account(), i.Kind)
	}
}

// mergeFormer merges what an account used under its former name.
func (g *Gateway) mergeFormer(i Identity) {
	if i.FormerAccount == "" {
		return
	}
	if known := g.Ledger.Canonical(i.FormerAccount); known != i.FormerAccount { // the upstream has named the identity
		g.Ledger.Merge(i.Caller.Account, known, i.Caller.Kind)
	} else {
		g.Ledger.Merge(i.FormerAccount, i.Caller.Account, i.Caller.Kind)
	}
}

// mintingPath is the path of the operation that makes an installation token.
var mintingPath = regexp.MustCompile(`^/app/installations/([0-9]+)/access_tokens$`)

// namedIdentity matches the identity in the message of a limit error.
var namedIdentity = regexp.MustCompile(`(?i)\b(user|installation) ID:? ([0-9]+)\b`)

func identityInMessage(message string) (learned.Identity, bool) {
	if m := namedIdentity.FindStringSubmatch(message); m != nil {
		return learned.NewIdentity(m[1], m[2])
	}
	return learned.Identity{}, false
}

// isWorkflowLimit reports whether a response has the limit of a workflow's token. Such a token looks like an installation
// token, but the upstream counts each repository separately.
func isWorkflowLimit(o limits.Outcome) bool {
	return o.Rate.Limit == policy.DefaultLimits().For(policy.Workflow, policy.Core).Max
}

// peekJSON returns the decoded beginning of a JSON body.
func peekJSON(resp *http.Response) []byte {
	if !strings.Contains(resp.Header.Get("Content-Type"), "json") {
		return nil
	}
	return peekText(resp)
}

// field returns a simple member of a JSON object, or nil. The object may be truncated after the member.
func field(object []byte, name string) any {
	d := json.NewDecoder(bytes.NewReader(object))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil
		}
		if key == name {
			value, _ := d.Token()
			return value
		}
		var skipped json.RawMessage
		if d.Decode(&skipped) != nil {
			return nil
		}
	}
	return nil
}
