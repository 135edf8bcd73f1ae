package proxy

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/learned"
)

// learnIdentity merges the account of the exchange if the response names its user or its installation. It also merges
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
