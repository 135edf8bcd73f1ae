package service

import (
	"cmp"
	"net"
	"net/http"
	"slices"
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
	}]("tokens.yaml")() {
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
	user, password, isBasic := r.BasicAuth()
	switch isToken := strings.EqualFold(scheme, "bearer") || strings.EqualFold(scheme, "token"); {
	case strings.HasPrefix(password, "tok-"): // the token as the password of its user
		credential = password
	case isBasic:
		user, credential = "", user+":"+password
	case !isToken || strings.Contains(credential, ":"):
		return caller{}, false
	}
	c, ok := s.world.tokens[credential]
	return c, ok && !c.hasEnded(time.Now()) && (user == "" || strings.EqualFold(user, c.login))
}

// user returns the caller's user, or nil.
func (w *world) user(c caller) *account { return w.accounts[c.login] }

// isVisible reports whether the caller may see the repository.
func (w *world) isVisible(r *repository, c caller) bool {
	isMember := r.owner.members[c.login] != nil && c.hasScope("repo")
	return !r.gone && (!r.private || isMember || c.covers(r.owner, r))
}

// visible returns the repositories that the caller may see.
func (w *world) visible(c caller) []*repository {
	return slices.DeleteFunc(slices.Clone(w.repositories), func(r *repository) bool { return !w.isVisible(r, c) })
}

// grants holds the permissions of a token. The keys are the names in the documents, such as "Members (organization)".
// The values are "read" or "write". Every token also has "Metadata (repository)".
type grants map[string]string

// allGrants returns every permission of the catalogue, each at its highest level.
func allGrants() grants {
	g := grants{}
	for _, op := range policy.Embedded().Operations() {
		if name, level, named := strings.Cut(op.Permission, ": "); named && g[name] != "write" {
			g[name] = level
		}
	}
	return g
}

// hasPermission reports whether the token has a permission, such as "Members (organization): read". Callers whose token
// has scopes, and callers without a token, have every permission.
func (c caller) hasPermission(permission string) bool {
	name, level, named := strings.Cut(permission, ": ")
	granted := c.grants[name]
	return c.grants == nil || !named || name == "Metadata (repository)" || granted == "write" || granted == level
}

// widerScopes maps each scope to the next wider scope.
var widerScopes = map[string]string{"read:org": "write:org", "write:org": "admin:org"}

// hasScope reports whether a classic token has the scope or a wider scope. Other tokens have no scopes and pass the
// check.
func (c caller) hasScope(scope string) bool {
	for s := scope; s != ""; s = widerScopes[s] {
		if slices.Contains(c.scopes, s) {
			return true
		}
	}
	return scope == "" || c.token != "classic"
}

// impliedScopes maps a permission or a role to the scope that a classic token needs. It applies to operations for which
// the documents name no scope.
var impliedScopes = map[string]string{
	"Members (organization): read": "read:org", "Members (organization): write": "admin:org", "Administration (organization): write": "admin:org",
	"Administration (repository): write": "repo", "Contents (repository): write": "repo",
	"organization owner": "admin:org",
}

// requiredScope returns the scope that an operation needs, or an empty string.
func (o *Operation) requiredScope() string {
	if o == nil || o.documented == nil {
		return ""
	}
	op := o.documented
	return cmp.Or(op.Scope, impliedScopes[op.Permission], impliedScopes[op.Role])
}

// covers reports whether a token without a user was issued for a repository or its owner. The repository may be nil.
func (c caller) covers(owner *account, r *repository) bool {
	return c.account == "installation "+owner.login || r != nil && c.account == "repository "+r.fullName()
}

// userRequirement is a condition on the user of a token. It applies in addition to the permissions and scopes of the
// token.
type userRequirement struct {
	isMet   func(org, user *account) bool
	refusal string
}

// userRequirements maps the catalogue's roles to requirements. For operations without a role, it maps the permission
// (Document A section 5.4, B section 5.5).
var userRequirements = map[string]userRequirement{
	"organization owner":         {isOwner, "Must be an organization owner"},
	"organization administrator": {isOwner, "Must have admin rights to the organization"},
	"organization administrator, or holder of read_organization_custom_org_role": {func(org, user *account) bool {
		return isOwner(org, user) || isMember(org, user) && org.hasPermission(user.login, "read_organization_custom_org_role")
	}, "Must have admin rights to the organization, or a role that may read roles"},
	"organization administrator or security manager": {func(org, user *account) bool {
		return isOwner(org, user) || isMember(org, user) && org.members[user.login].securityManager
	}, "Must be an administrator or a security manager of the organization"},
	"account owner":                 {anyUser, "Must be a user"},
	"read access to the repository": {anyUser, "Must have read access to the repository"}, // the search returns only repositories that the caller may read

	"Members (organization): read":         {isMember, "Must be a member of the organization"},
	"Administration (organization): write": {isOwner, "Must have admin rights to the organization"},
	"Administration (repository): write":   {isOwner, "Must have admin rights to the repository"},
	"Contents (repository): write":         {isMember, "Must have push access to the repository"},
}

func anyUser(_, _ *account) bool { return true }

// isMember reports whether a user is a member of the organization, or the owner itself.
func isMember(owner, user *account) bool { return owner == user || owner.members[user.login] != nil }

func isOwner(owner, user *account) bool {
	return owner == user || isMember(owner, user) && owner.members[user.login].admin
}

// authorize returns an error response if the caller may not call the operation, else nil. It checks the kind of the
// token, the permission, the scope and the user (Document A section 5, B section 5). Service.mu must be held.
func (s *Service) authorize(req *request, found bool) *response {
	op, c := req.op.documented, req.caller
	switch {
	case slices.Contains(op.Refuses, c.token):
		return refuse(http.StatusForbidden, "Resource not accessible by this kind of token")
	case !found:
		return refuse(http.StatusNotFound, notFoundText)
	case op.Auth == "optional" && (req.repo == nil || !req.repo.private): // public data
		return nil
	case !c.hasPermission(op.Permission):
		return refuse(http.StatusForbidden, "Resource not accessible by this token: it needs "+op.Permission)
	case !c.hasScope(req.op.requiredScope()):
		return refuse(http.StatusForbidden, "Resource not accessible by this token: it needs the scope "+req.op.requiredScope())
	}
	return s.authorizeUser(req)
}

// authorizeUser checks the user of the token. A refused caller gets 404 if the documents list 404 for the operation,
// else 403. Members get 403 if the documents list both.
func (s *Service) authorizeUser(req *request) *response {
	op, c := req.op.documented, req.caller
	requirement, named := userRequirements[cmp.Or(op.Role, op.Permission)]
	user := s.world.user(c)
	isMember := user != nil && req.org != nil && isMember(req.org, user)
	switch {
	case !named, user != nil && requirement.isMet(req.org, user), req.org != nil && c.covers(req.org, req.repo):
		return nil
	case slices.Contains(op.Errors, http.StatusNotFound) && (!isMember || !slices.Contains(op.Errors, http.StatusForbidden)):
		return refuse(http.StatusNotFound, notFoundText)
	}
	return refuse(http.StatusForbidden, requirement.refusal)
}

// findTarget sets the role and the invitation that a request names. It returns the error response for a target that does
// not exist or whose state does not allow the operation.
func (s *Service) findTarget(r *request) *response {
	op := r.op.documented
	switch {
	case op.Personal && op.Auth != "optional" && s.world.user(r.caller) == nil:
		return refuse(http.StatusForbidden, "Only users have this resource")
	case r.repo != nil && r.repo.head() == "" && slices.Contains(op.Errors, http.StatusConflict):
		return refuse(http.StatusConflict, "Git Repository is empty.")
	case r.repo != nil && r.repo.locked && strings.HasSuffix(op.Permission, "(repository): write"):
		return refuse(http.StatusForbidden, lockedForMigration)
	}
	if r.org == nil {
		return nil
	}
	if r.org.roles == nil && strings.HasPrefix(r.op.documented.ID, "organization-roles/") {
		return refuse(http.StatusUnprocessableEntity, "Organization roles are not enabled for this organization")
	}
	roleID, ofRole := r.params["role_id"]
	invitationID, ofInvitation := r.params["invitation_id"]
	r.role = first(r.org.roles, func(o *role) bool { return itoa(o.id) == roleID })
	r.invitation = first(r.org.invitations, func(i *invitation) bool { return itoa(i.id) == invitationID })
	if ofRole && r.role == nil || ofInvitation && r.invitation == nil {
		return refuse(http.StatusNotFound, notFoundText)
	}
	return nil
}

// convertManifest creates an app from a manifest's code (Document B section 2.6). Repeated requests with one code
// return the same app.
func convertManifest(s *Service, req *request) response {
	code := req.params["code"]
	if s.world.apps[code] == 0 {
		s.world.apps[code] = len(s.world.apps) + 1
	}
	id := s.world.apps[code]
	return response{status: http.StatusCreated, volatile: true, body: object{
		{"id", id}, {"slug", "app-" + code}, {"name", "App " + code},
		{"client_id", "client-" + code}, {"client_secret", shaOf(id, 1)},
		{"webhook_secret", shaOf(id, 2)},
		{"html_url", req.base + "/apps/app-" + code},
	}}
}
