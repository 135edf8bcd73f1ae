package service

import (
	"cmp"
	"encoding/base64"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// caller is the identity of one request.
type caller struct {
	kind    policy.CallerKind
	account string // the key of the meter, which limit errors contain
	// token is the kind of the token: classic, app_user, installation, fine_grained, workflow or oauth_app. It is empty
	// without a token.
	token string
	// login is the login of the token's user. It is empty for tokens without a user.
	login string
	// scopes is set for classic tokens. grants is set for tokens with permissions.
	scopes []string
	grants grants
	// coreLimit replaces the core limit of the caller's kind, unless it is zero.
	coreLimit int
	ends      time.Time // of a token that the API minted
}

func (c caller) hasEnded(now time.Time) bool { return !c.ends.IsZero() && !now.Before(c.ends) }

// appKind is the kind of an app that sends its own assertion.
const appKind policy.CallerKind = "app"

// name returns the login of the user, or the name of the account.
func (c caller) name() string {
	return cmp.Or(c.login, c.account[strings.LastIndexAny(c.account, " /")+1:])
}

// tokens returns the callers of reference/tokens.yaml by credential.
func tokens() map[string]caller {
	all := map[string]caller{}
	for credential, d := range readReference[map[string]struct {
		Kind                  policy.CallerKind
		Account, Token, Login string
		Scopes                []string
		Grants                grants
		All                   bool
	}]("tokens.yaml") {
		c := caller{kind: d.Kind, account: d.Account, token: d.Token, login: d.Login, scopes: d.Scopes, grants: d.Grants}
		if d.All {
			c.grants = allGrants()
		}
		all[credential] = c
	}
	return all
}

// authenticate returns the caller of a request. It returns false if the credential is invalid (Document A section 5).
func (s *Service) authenticate(r *http.Request) (caller, bool) {
	value := r.Header.Get("Authorization")
	if value == "" {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			host = r.RemoteAddr
		}
		return caller{kind: policy.Unauthenticated, account: "address " + host}, true
	}
	scheme, credential, _ := strings.Cut(value, " ")
	user := ""
	switch strings.ToLower(scheme) {
	case "bearer", "token":
		if strings.Contains(credential, ":") {
			return caller{}, false
		}
	case "basic":
		pair, err := base64.StdEncoding.DecodeString(credential)
		if err != nil {
			return caller{}, false
		}
		credential = string(pair)
		// A client may send its token as the password of the token's user.
		if name, password, _ := strings.Cut(credential, ":"); strings.HasPrefix(password, "tok-") {
			user, credential = name, password
		}
	default:
		return caller{}, false
	}
	c, ok := s.world.tokens[credential]
	return c, ok && !c.hasEnded(time.Now()) && (user == "" || strings.EqualFold(user, c.login))
}

// user returns the caller's user, or nil.
func (w *world) user(c caller) *account {
	if c.login == "" {
		return nil
	}
	return w.accounts[c.login]
}

// isVisible reports whether the caller may see the repository.
func (w *world) isVisible(r *repository, c caller) bool {
	if !r.private || c.covers(r.owner, r) {
		return true
	}
	u := w.user(c)
	return u != nil && r.owner.members[u.login] != nil && c.hasScope("repo")
}
