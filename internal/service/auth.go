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
	// canSee reports whether an installation or a workflow may see a private repository.
	canSee func(*repository) bool
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

// tokens returns the credentials that the service accepts and their callers. The credentials include each kind of
// token, and tokens with reduced permissions.
func tokens() map[string]caller {
	classic := func(login string, scopes ...string) caller {
		return caller{kind: policy.User, account: "user " + login, token: "classic", login: login, scopes: scopes}
	}
	granted := func(token string, g grants) caller {
		return caller{kind: policy.User, account: "user acme-owner", token: token, login: "acme-owner", grants: g}
	}
	all := []string{"admin:org", "repo", "user"}
	return map[string]caller{
		"tok-owner":            classic("acme-owner", all...),
		"tok-owner-2":          classic("acme-owner", all...),
		"tok-member":           classic("acme-member", all...),
		"tok-outsider":         classic("outsider", all...),
		"tok-security-manager": classic("builder-01", all...),
		"tok-org-admin":        classic("acme-owner", "admin:org"),
		"tok-public":           classic("acme-owner"),

		"tok-enterprise": {kind: policy.Enterprise, account: "user builder-02", token: "classic", login: "builder-02", scopes: all},

		"tok-fine-grained": granted("fine_grained", allGrants()),
		"tok-read-only":    granted("fine_grained", grants{"Contents (repository)": "read", "Members (organization)": "read"}),
		"tok-app-user":     granted("app_user", allGrants()),
		"tok-app": {
			kind: policy.Installation, account: "installation acme", token: "installation", grants: allGrants(),
			canSee: func(r *repository) bool { return r.owner.login == "acme" },
		},
		"tok-workflow": {
			kind: policy.Workflow, account: "repository acme/widgets", token: "workflow", grants: grants{"Contents (repository)": "write"},
			canSee: func(r *repository) bool { return r.fullName() == "acme/widgets" },
		},
		"tok-enterprise-app": {
			kind: policy.EnterpriseInstallation, account: "installation acme-labs", token: "installation", grants: allGrants(),
			canSee: func(r *repository) bool { return r.owner.login == "acme-labs" },
		},
		"tok-enterprise-workflow": {
			kind: policy.EnterpriseWorkflow, account: "repository acme/monolith", token: "workflow", grants: grants{"Contents (repository)": "write"},
			canSee: func(r *repository) bool { return r.fullName() == "acme/monolith" },
		},
		"enterprise-app:enterprise-secret": {kind: policy.EnterpriseOAuthApp, account: "app enterprise-app", token: "oauth_app"},

		"tok-jwt": {kind: appKind, account: "app builder", token: "app", canSee: func(*repository) bool { return false }},

		"oauth-app:oauth-secret": {kind: policy.OAuthApp, account: "app oauth-app", token: "oauth_app"},
	}
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
	if !r.private || c.canSee != nil && c.canSee(r) {
		return true
	}
	u := w.user(c)
	return u != nil && r.owner.members[u.login] != nil && c.hasScope("repo")
}
