package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// CredentialRequest is what a client's credential is wanted for.
type CredentialRequest struct {
	Operation *policy.Operation
	// Resource is the budget that the question counts against.
	Resource string
	// Path is what is asked for, Target the repository, organization or the like that it
	// is part of.
	Path, Target string
	// Left tells what a caller's account has left of the resource. Nil where nothing is
	// going to be spent.
	Left func(policy.Caller) (remaining int, known bool)
	// Except are the classes of those that have been tried, Limited whether they were
	// refused for a limit.
	Except  []string
	Limited bool
}

// UnusableError says that a client's credential cannot be sent before a time.
type UnusableError struct {
	Until time.Time
	Cause error // for the operator
}

func (u *UnusableError) Error() string { return fmt.Sprintf("no usable credential: %v", u.Cause) }

func (u *UnusableError) Unwrap() error { return u.Cause }

// wanted is what a credential is wanted for that pays for the question.
func (g *Gateway) wanted(ex *exchange) CredentialRequest {
	return CredentialRequest{
		Operation: ex.match.Operation, Resource: ex.match.Operation.Resource,
		Path: ex.match.Path, Target: targetOf(ex.match.Path), Except: ex.tried,
	}
}

// targetOf is the repository, the organization or the like that a path is about; the
// whole path where it is about none. Names are compared in lower case.
func targetOf(path string) string {
	segments := strings.SplitN(strings.ToLower(path), "/", 5)
	names := map[string]int{"repos": 2, "repositories": 1, "orgs": 1, "organizations": 1, "users": 1, "teams": 1}[segments[1]]
	if names == 0 || len(segments) < names+2 {
		return strings.ToLower(path)
	}
	return strings.Join(segments[:names+2], "/")
}

// left tells what an account has left of the question's resource.
func (g *Gateway) left(ex *exchange) func(policy.Caller) (int, bool) {
	return func(who policy.Caller) (int, bool) {
		b, err := g.Ledger.Budget(ex.detach(), who.Account, who.Kind, ex.match.Operation.Resource)
		return b.Remaining - b.Held, err == nil
	}
}

// firstPayer decides who pays as far as that can be told without looking at budgets:
// where the answer is in the cache none is touched.
func (g *Gateway) firstPayer(ex *exchange) {
	if ex.identity.Pick != nil {
		if who, ok := ex.identity.Pick(g.wanted(ex)); ok {
			ex.identity = who
		}
	}
	g.charge(ex, ex.identity)
}

// charge lets a credential pay for the question. Whose answers it may be given from
// the cache hangs on that.
func (g *Gateway) charge(ex *exchange, who Identity) {
	ex.identity = who
	ex.record.Account = who.Caller.Account
	ex.stale, ex.fallback, ex.denial = nil, nil, nil
	ex.cacheable, ex.ranged = false, false
	if len(ex.header) > 0 || ex.header == nil {
		ex.header = make(http.Header, 8) // its own: a refresh behind another's turn may read that one's
	}
	g.outbound(ex.header, ex.in.Header, ex.match.Operation.Known())
	g.keyed(ex)
}

// reconsider looks at the budgets before something is sent, and reports whether another
// credential pays from here on.
func (g *Gateway) reconsider(ex *exchange) bool {
	if ex.identity.Pick == nil {
		return false
	}
	w := g.wanted(ex)
	w.Left = g.left(ex)
	who, ok := ex.identity.Pick(w)
	if !ok || who.Caller.Class == ex.identity.Caller.Class {
		return false
	}
	g.charge(ex, who)
	return true
}

// showCredential puts the credential on a request that is let go.
func (g *Gateway) showCredential(ex *exchange, out *http.Request) error {
	switch {
	case ex.identity.Authorize == nil:
		return nil
	case ex.identity.AuthorizeIsLocal:
		return ex.identity.Authorize(out.Context(), out.Header)
	}
	until := ex.until(g.Wait)
	if soon := time.Now().Add(leastPatience); until.Before(soon) {
		until = soon
	}
	ctx, cancel := context.WithDeadlineCause(out.Context(), until, errNotYet)
	defer cancel()
	err := ex.identity.Authorize(ctx, out.Header)
	if err != nil && errors.Is(context.Cause(ctx), errNotYet) {
		return &UnusableError{Until: time.Now().Add(leastPatience), Cause: errNotYet}
	}
	return err
}

// errNotYet is why a credential cannot be used that one client has not waited for any
// longer: others may.
var errNotYet = errors.New("its token has not come in time")

const (
	// leastPatience is how long a token may take to come, however little its client waits.
	leastPatience = 2 * time.Second
	// aside is how long a request waits for a permit of one credential while it could turn
	// to another: so long that it does not for a moment's congestion.
	aside = 200 * time.Millisecond
)

// admitBefore is until when a request waits for a permit.
func (g *Gateway) admitBefore(ex *exchange, now time.Time) time.Time {
	until := ex.until(g.Wait)
	if soon := now.Add(aside); ex.hasAlternative && soon.Before(until) {
		return soon
	}
	return until
}

// heard passes on what the upstream said to a credential.
func (g *Gateway) heard(ex *exchange, status int) {
	if ex.identity.OnResponse != nil {
		ex.identity.OnResponse(ex.match.Operation, status, ex.sent)
	}
}
