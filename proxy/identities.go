package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
)

// Identities remembers which user or installation the upstream named for each account. The upstream counts all
// credentials of a user or an installation as one account, so the ledger merges their accounts. Accounts are known by
// name, never by token. The list is bounded, and the least recently learned element is removed first. The zero value is
// empty and ready for use. Identities is safe for concurrent use and outlives a [Gateway].
type Identities struct {
	mu      sync.Mutex
	known   *simplelru.LRU[string, knownIdentity] // by account; nil before the first element
	changed map[string]identity                   // identities that are not shared yet, by account
	logins  *simplelru.LRU[string, string]        // by account; nil before the first element
}

const (
	// maxIdentities bounds the accounts with an identity.
	maxIdentities = 16384
	// renewIdentity is the interval at which an identity that responses confirm is merged and shared again.
	renewIdentity = 10 * time.Minute
)

// identity is a user or an installation of the upstream.
type identity struct {
	kind policy.CallerKind // User or Installation
	id   string            // decimal number
}

type knownIdentity struct {
	identity
	at time.Time
}

// account returns the name of the account of an identity. The tokens of an app that the gateway holds use the same name.
func (i identity) account() string { return string(i.kind) + ":" + i.id }

// newIdentity returns an identity if the kind and the number are valid.
func newIdentity(kind, id string) (identity, bool) {
	i := identity{policy.CallerKind(strings.ToLower(kind)), id}
	return i, (i.kind == policy.User || i.kind == policy.Installation) && validID.MatchString(id)
}

var validID = regexp.MustCompile(`^[1-9][0-9]{0,18}$`)

// learn records the identity of an account, and reports whether the ledger must merge the account. An account keeps its
// first identity, because merging two users by mistake would limit both.
func (s *Identities) learn(account string, i identity, now time.Time) (merge bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.addLocked(account, i, now) {
		return false
	}
	if s.changed == nil {
		s.changed = map[string]identity{}
	}
	if len(s.changed) < maxIdentities {
		s.changed[account] = i
	}
	return true
}

// addLocked adds an identity, and reports whether it is new or was not confirmed for renewIdentity. mu must be held.
func (s *Identities) addLocked(account string, i identity, now time.Time) bool {
	if s.known == nil {
		s.known, _ = simplelru.NewLRU[string, knownIdentity](maxIdentities, nil) // fails only for a size below 1
	}
	known, ok := s.known.Peek(account)
	if account == i.account() || ok && (known.identity != i || now.Sub(known.at) < renewIdentity) {
		return false
	}
	s.known.Add(account, knownIdentity{i, now})
	return true
}

// learnLogin records the login that the upstream named for an account and for its identity. A login is a name for people:
// replicas do not share it.
func (s *Identities) learnLogin(login string, accounts ...string) {
	if !validLogin.MatchString(login) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logins == nil {
		s.logins, _ = simplelru.NewLRU[string, string](maxIdentities, nil) // fails only for a size below 1
	}
	for _, account := range accounts {
		s.logins.Add(account, login)
	}
}

var validLogin = regexp.MustCompile(`^[\w.\[\]-]{1,64}$`)

// Login returns the login of an account that a response to GET /user named at this replica, or an empty string.
func (s *Identities) Login(account string) (login string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logins != nil {
		login, _ = s.logins.Peek(account)
	}
	return login
}

// Share exchanges the identities with the other replicas until ctx ends, and merges the accounts that other replicas
// learned. exchange stores the changes of this replica and returns the changes of all replicas since its last call. After
// an error, the changes are sent again.
func (s *Identities) Share(
	ctx context.Context, merge func(from, into string, kind policy.CallerKind),
	exchange func(ctx context.Context, changed []string) ([]string, error),
) {
	tick := time.NewTicker(shareInterval)
	defer tick.Stop()
	for {
		s.share(ctx, merge, exchange)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *Identities) share(
	ctx context.Context, merge func(from, into string, kind policy.CallerKind),
	exchange func(ctx context.Context, changed []string) ([]string, error),
) {
	s.mu.Lock()
	changed := s.changed
	s.changed = nil
	s.mu.Unlock()
	var texts []string
	for account, i := range changed {
		texts = append(texts, string(i.kind)+" "+i.id+" "+account)
	}
	all, err := exchange(ctx, texts)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.changed == nil {
			s.changed = map[string]identity{}
		}
		maps.Copy(s.changed, changed)
		return
	}
	for _, text := range all {
		kind, rest, _ := strings.Cut(text, " ")
		id, account, _ := strings.Cut(rest, " ")
		i, ok := newIdentity(kind, id)
		if !ok || account == "" {
			continue
		}
		s.mu.Lock()
		added := s.addLocked(account, i, time.Now())
		s.mu.Unlock()
		if added {
			merge(account, i.account(), i.kind)
		}
	}
}

// learnIdentity merges the account of the exchange if the response names its user or its installation. It also merges
// the account of an installation token that the response contains.
func (g *Gateway) learnIdentity(a *attempt, resp *http.Response, o limits.Outcome) {
	caller := a.identity.Caller
	account, i, ok := caller.Account, identity{}, false
	switch {
	case o.Limited != limits.NotLimited:
		i, ok = identityInMessage(a.limitError.Message)
		ok = ok && i.kind == caller.Kind.Base() && !isWorkflowLimit(o)
	case resp.StatusCode == http.StatusOK && a.method == http.MethodGet && a.match.Path == "/user":
		if caller.Kind.Base() == policy.User {
			text := peekJSON(resp)
			id, _ := field(text, "id").(json.Number)
			if i, ok = newIdentity(string(policy.User), id.String()); ok {
				login, _ := field(text, "login").(string)
				g.Identities.learnLogin(login, account, i.account())
			}
		}
	case resp.StatusCode == http.StatusCreated && a.method == http.MethodPost && g.AccountOf != nil:
		if path := mintingPath.FindStringSubmatch(a.match.Path); path != nil {
			token, _ := field(peekJSON(resp), "token").(string)
			i, ok = newIdentity(string(policy.Installation), path[1])
			account, ok = g.AccountOf(token), ok && token != ""
		}
	}
	if ok && g.Identities.learn(account, i, time.Now()) {
		g.Ledger.Merge(account, i.account(), i.kind)
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

func identityInMessage(message string) (identity, bool) {
	if m := namedIdentity.FindStringSubmatch(message); m != nil {
		return newIdentity(m[1], m[2])
	}
	return identity{}, false
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
