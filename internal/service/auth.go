package service

import (
	"encoding/base64"
	"net"
	"net/http"
	"strings"

	"github.com/weirgate/weir/policy"
)

// caller is who sent a request.
type caller struct {
	kind    policy.CallerKind
	account string // what is counted against, and named in refusals
	// token is the token kind in the documents' words: classic, app_user,
	// installation, fine_grained, workflow, oauth_app; empty for none.
	token string
	// login is the user behind it, if there is one.
	login string
	// scopes are those of a classic token; grants what any other kind of token
	// may that goes by permissions.
	scopes []string
	grants grants
	// sees lists the private repositories of an installation or a workflow.
	canSee func(*repository) bool
	// limit is its own primary limit, where its kind's does not say.
	coreLimit int
}

// tokens are the credentials of the seed (design section 7), and beside them
// one of each other kind, and some that may less.
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
		"oauth-app:oauth-secret": {kind: policy.OAuthApp, account: "app oauth-app", token: "oauth_app"},
	}
}

// authenticate reads the Authorization of a request; false means that the
// credential is wrong (Document A section 5).
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
		// A token may stand as the password of its user.
		if name, password, _ := strings.Cut(credential, ":"); strings.HasPrefix(password, "tok-") {
			user, credential = name, password
		}
	default:
		return caller{}, false
	}
	c, ok := s.world.tokens[credential]
	return c, ok && (user == "" || strings.EqualFold(user, c.login))
}

// user is the caller's user, nil when it has none.
func (w *world) user(c caller) *account {
	if c.login == "" {
		return nil
	}
	return w.accounts[c.login]
}

// visible reports whether the caller may know that the repository exists.
func (w *world) isVisible(r *repository, c caller) bool {
	if !r.private || c.canSee != nil && c.canSee(r) {
		return true
	}
	u := w.user(c)
	return u != nil && r.owner.members[u.login] != nil && c.hasScope("repo")
}

// repository finds the repository that a request names, by name or by number,
// if its caller may see it.
func (s *Service) findRepository(req *request) *repository {
	for _, r := range s.world.repositories {
		named := strings.EqualFold(r.owner.login, req.match.Params.Get("owner")) && strings.EqualFold(r.name, req.match.Params.Get("repo"))
		if (named || itoa(r.id) == req.match.Params.Get("repository_id")) && s.world.isVisible(r, req.caller) {
			return r
		}
	}
	return nil
}

// organization finds the organization that a request names, by name or by
// number.
func (s *Service) findOrganization(req *request) *account {
	for _, a := range s.world.accounts {
		named := strings.EqualFold(a.login, req.match.Params.Get("org"))
		if a.members != nil && (named || itoa(a.id) == req.match.Params.Get("organization_id")) {
			return a
		}
	}
	return nil
}
