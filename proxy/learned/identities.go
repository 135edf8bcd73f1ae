package learned

import (
	"context"
	"maps"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

// Identities remembers which user or installation the upstream named for each account. The upstream counts all
// credentials of a user or an installation as one account, so the ledger merges their accounts. Accounts are known by
// name, never by token. The list is bounded, and the least recently learned element is removed first. The zero value is
// empty and ready for use. Identities is safe for concurrent use and outlives a gateway.
type Identities struct {
	mu      sync.Mutex
	known   bounded[string, knownIdentity] // by account
	changed map[string]Identity            // identities that are not shared yet, by account
	logins  bounded[string, string]        // by account
}

const (
	// maxIdentities bounds the accounts with an identity.
	maxIdentities = 16384
	// renewIdentity is the interval at which an identity that responses confirm is merged and shared again.
	renewIdentity = 10 * time.Minute
)

// Identity is a user or an installation of the upstream.
type Identity struct {
	Kind policy.CallerKind // User or Installation
	id   string            // decimal number
}

type knownIdentity struct {
	Identity
	at time.Time
}

// Account returns the name of the account of an identity. The tokens of an app that the gateway holds use the same name.
func (i Identity) Account() string { return string(i.Kind) + ":" + i.id }

// NewIdentity returns an identity if the kind and the number are valid.
func NewIdentity(kind, id string) (Identity, bool) {
	i := Identity{policy.CallerKind(strings.ToLower(kind)), id}
	return i, (i.Kind == policy.User || i.Kind == policy.Installation) && validID.MatchString(id)
}

// namedIdentity matches the identity in the message of a limit error.
var namedIdentity = regexp.MustCompile(`(?i)\b(user|installation) ID:? ([0-9]+)\b`)

// IdentityIn returns the identity that the message of a limit error names.
func IdentityIn(message string) (Identity, bool) {
	if m := namedIdentity.FindStringSubmatch(message); m != nil {
		return NewIdentity(m[1], m[2])
	}
	return Identity{}, false
}

var validID = regexp.MustCompile(`^[1-9][0-9]{0,18}$`)

// Learn records the identity of an account, and reports whether the ledger must merge the account. An account keeps its
// first identity, because merging two users by mistake would limit both.
func (s *Identities) Learn(account string, i Identity, now time.Time) (merge bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.addLocked(account, i, now) {
		return false
	}
	if s.changed == nil {
		s.changed = map[string]Identity{}
	}
	if len(s.changed) < maxIdentities {
		s.changed[account] = i
	}
	return true
}

// addLocked adds an identity, and reports whether it is new or was not confirmed for renewIdentity. mu must be held.
func (s *Identities) addLocked(account string, i Identity, now time.Time) bool {
	list := s.known.list(maxIdentities)
	known, ok := list.Peek(account)
	if account == i.Account() || ok && (known.Identity != i || now.Sub(known.at) < renewIdentity) {
		return false
	}
	list.Add(account, knownIdentity{i, now})
	return true
}

// LearnLogin records the login that the upstream named for an account and for its identity. A login is a name for people:
// replicas do not share it.
func (s *Identities) LearnLogin(login string, accounts ...string) {
	if !validLogin.MatchString(login) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, account := range accounts {
		s.logins.list(maxIdentities).Add(account, login)
	}
}

var validLogin = regexp.MustCompile(`^[\w.\[\]-]{1,64}$`)

// Login returns the login of an account that a response to GET /user named at this replica, or an empty string.
func (s *Identities) Login(account string) (login string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	login, _ = s.logins.list(maxIdentities).Peek(account)
	return login
}

// Share exchanges the identities with the other replicas, and merges the accounts that other replicas
// learned. exchange stores the changes of this replica and returns the changes of all replicas since its last call. After
// an error, the changes are sent again.
func (s *Identities) Share(
	ctx context.Context, merge func(from, into string, kind policy.CallerKind),
	exchange func(ctx context.Context, changed []string) ([]string, error),
) {
	s.mu.Lock()
	changed := s.changed
	s.changed = map[string]Identity{}
	s.mu.Unlock()
	var texts []string
	for account, i := range changed {
		texts = append(texts, string(i.Kind)+" "+i.id+" "+account)
	}
	all, err := exchange(ctx, texts)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		maps.Copy(s.changed, changed)
		return
	}
	for _, text := range all {
		kind, rest, _ := strings.Cut(text, " ")
		id, account, _ := strings.Cut(rest, " ")
		i, ok := NewIdentity(kind, id)
		if !ok || account == "" {
			continue
		}
		s.mu.Lock()
		added := s.addLocked(account, i, time.Now())
		s.mu.Unlock()
		if added {
			merge(account, i.Account(), i.Kind)
		}
	}
}
