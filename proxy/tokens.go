package proxy

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/learned"
)

// errRefusedToken is the cause of a 401 without a request upstream.
var errRefusedToken = errors.New("the upstream refused this token a short time ago")

// sendsClientToken reports whether the request is sent with a credential of the client, which only the upstream can
// verify.
func (q *question) sendsClientToken() bool {
	return !q.identity.Held && q.identity.Authorize != nil && q.identity.Caller.Kind != policy.Unauthenticated
}

// checkToken refuses a token that the upstream refused a short time ago. Operations for the credentials of apps are an
// exception, because a token that other operations refuse may be such a credential.
func (g *Gateway) checkToken(ex *exchange, q *question) error {
	if !q.sendsClientToken() || q.match.Operation.Auth == "app" || !g.tokens.IsRefused(q.identity.Caller.Class, ex.record.Start) {
		return nil
	}
	ex.record.Account = "" // as in beginToken
	return &failure{status: http.StatusUnauthorized, message: "Bad credentials", detail: "refused-token", cause: errRefusedToken}
}

// beginToken permits an attempt with the credential of the exchange. end must be called as in [learned.ClientTokens.Begin], and
// has no effect after an error.
func (g *Gateway) beginToken(a *attempt) (end func(status int), err error) {
	if !a.sendsClientToken() {
		return func(int) {}, nil
	}
	began := time.Now()
	end, err = g.tokens.Begin(a.ctx, g.TrustedProxies.ClientAddress(a.in), a.identity.Caller.Class, a.deadline(g.Wait))
	a.record.Waited += time.Since(began)
	if err != nil {
		if a.record.Attempts == 0 {
			a.result.account = "" // made-up tokens must not displace accounts in the history
		}
		return func(int) {}, err
	}
	return end, nil
}

// observeToken records the response to a request with the credential of the exchange. A redirect proves the credential
// only if the operation is documented to redirect, such as to an archive.
func (g *Gateway) observeToken(a *attempt, status int) {
	op, caller := a.match.Operation, a.identity.Caller
	redirects := status == http.StatusFound && slices.Contains(slices.Concat(op.Success, op.Errors), status)
	if status < http.StatusBadRequest && !learned.IsSuccess(status) && !redirects {
		return
	}
	conclusive := op.Accepts(caller.Kind) && !isFeed(a.match.Path)
	known := a.identity.Held || a.last != nil // another replica may have seen that the upstream accepted the credential
	if g.tokens.Observe(caller.Class, status, conclusive, time.Now()) || conclusive && known && status == http.StatusUnauthorized {
		g.Cache.Purge(a.detach(), credentialTag(caller.Class)) // on all replicas
	}
}
