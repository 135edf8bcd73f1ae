package service

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/weirgate/weir/policy"
)

// grants are the permissions of a token that has such, by their names in the
// documents, "Members (organization)", each "read" or "write". Every token has
// "Metadata (repository)".
type grants map[string]string

// everything grants each permission that an operation asks for.
func allGrants() grants {
	g := grants{}
	for _, op := range policy.Embedded().Operations() {
		if name, level, named := strings.Cut(op.Permission, ": "); named && g[name] != "write" {
			g[name] = level
		}
	}
	return g
}

// may reports whether a permission, "Members (organization): read", is granted.
// Tokens that go by scopes, and no token, have no permissions to lack.
func (c caller) hasPermission(permission string) bool {
	name, level, named := strings.Cut(permission, ": ")
	granted := c.grants[name]
	return c.grants == nil || !named || name == "Metadata (repository)" || granted == "write" || granted == level
}

// wider names the scope that includes another.
var widerScopes = map[string]string{"read:org": "write:org", "write:org": "admin:org"}

// scoped reports whether a token that goes by scopes has one, or a wider one.
func (c caller) hasScope(scope string) bool {
	for s := scope; s != ""; s = widerScopes[s] {
		if slices.Contains(c.scopes, s) {
			return true
		}
	}
	return scope == "" || c.token != "classic"
}

// scopes are those that a classic token needs where the documents leave the column
// blank: by the permission that stands beside it or, without one, by the role.
var impliedScopes = map[string]string{
	"Members (organization): read": "read:org", "Members (organization): write": "admin:org", "Administration (organization): write": "admin:org",
	"Administration (repository): write": "repo", "Contents (repository): write": "repo",
	"organization owner": "admin:org",
}

// scopeOf is the scope that an operation needs, empty for none.
func requiredScope(op *policy.Operation) string {
	return cmp.Or(op.Scope, impliedScopes[op.Permission], impliedScopes[op.Role])
}

// place is what the path of a request names: a repository and its owner, an
// organization, or nothing.
type pathTarget struct {
	repository   *repository
	organization *account
}

// place finds it; false where it does not exist for this caller.
func (s *Service) findPathTarget(req *request) (target pathTarget, found bool) {
	names := func(parameters ...string) bool {
		return slices.ContainsFunc(parameters, func(p string) bool { return req.match.Params.Get(p) != "" })
	}
	switch {
	case names("repo", "repository_id"):
		if target.repository = s.findRepository(req); target.repository != nil {
			target.organization = target.repository.owner
		}
		return target, target.repository != nil
	case names("org", "organization_id"):
		target.organization = s.findOrganization(req)
		return target, target.organization != nil
	}
	return target, true
}

// covered reports whether it belongs to what a token without a user was made for.
func (target pathTarget) coveredBy(c caller) bool {
	if target.repository != nil {
		return c.canSee != nil && c.canSee(target.repository)
	}
	return target.organization != nil && c.account == "installation "+target.organization.login
}

// open reports whether only public resources are asked for, in an operation
// that then needs no authentication.
func (target pathTarget) allowsAnonymous(op *policy.Operation) bool {
	return op.Auth == "optional" && (target.repository == nil || !target.repository.private)
}

// right is what the user behind a token must be, whatever the token may.
type userRequirement struct {
	isMet   func(pathTarget, *account) bool
	refusal string
}

// rights are what the catalogue's roles mean and, of operations without a role,
// what a user must be to make use of the permission (Document A section 5.4, B
// section 5.5).
var userRequirements = map[string]userRequirement{
	"organization owner":         {isOwner, "Must be an organization owner"},
	"organization administrator": {isOwner, "Must have admin rights to the organization"},
	"organization administrator, or holder of read_organization_custom_org_role": {func(target pathTarget, u *account) bool {
		return isOwner(target, u) || isMember(target, u) && target.organization.hasPermission(u.login, "read_organization_custom_org_role")
	}, "Must have admin rights to the organization, or a role that may read roles"},
	"organization administrator or security manager": {func(target pathTarget, u *account) bool {
		return isOwner(target, u) || isMember(target, u) && target.organization.members[u.login].securityManager
	}, "Must be an administrator or a security manager of the organization"},
	"account owner":                 {anyUser, "Must be a user"},
	"read access to the repository": {anyUser, "Must have read access to the repository"}, // it has been found

	"Members (organization): read":         {isMember, "Must be a member of the organization"},
	"Administration (organization): write": {isOwner, "Must have admin rights to the organization"},
	"Administration (repository): write":   {isOwner, "Must have admin rights to the repository"},
	"Contents (repository): write":         {isMember, "Must have push access to the repository"},
}

func anyUser(pathTarget, *account) bool { return true }

// belongs reports whether the user is a member of the organization, or the owner of
// a personal repository.
func isMember(target pathTarget, u *account) bool {
	return target.organization == u || target.organization.members[u.login] != nil
}

func isOwner(target pathTarget, u *account) bool {
	return target.organization == u || isMember(target, u) && target.organization.members[u.login].admin
}

// permit answers who may not call the operation: the token is of a kind that
// does not work, or lacks the permission or the scope, or the user behind it
// has not the right (Document A section 5, B section 5). It runs with
// Service.mu held.
func (s *Service) authorize(req *request) *response {
	op, c := req.match.Operation, req.caller
	target, found := s.findPathTarget(req)
	req.target = target
	var p response
	switch {
	case slices.Contains(op.Refuses, c.token):
		p = s.problem(http.StatusForbidden, "Resource not accessible by this kind of token")
	case !found:
		p = s.notFound()
	case target.allowsAnonymous(op):
		return nil
	case !c.hasPermission(op.Permission):
		p = s.problem(http.StatusForbidden, "Resource not accessible by this token: it needs "+op.Permission)
	case !c.hasScope(requiredScope(op)):
		p = s.problem(http.StatusForbidden, "Resource not accessible by this token: it needs the scope "+requiredScope(op))
	default:
		return s.authorizeUser(req, target)
	}
	return &p
}

// entitle looks at who is behind the token. Where the documents list 404 for the
// operation, what somebody has no right to does not exist for them; members are
// told, where 403 is listed, too.
func (s *Service) authorizeUser(req *request, target pathTarget) *response {
	op, c := req.match.Operation, req.caller
	requirement, named := userRequirements[cmp.Or(op.Role, op.Permission)]
	user := s.world.user(c)
	member := user != nil && target.organization != nil && isMember(target, user)
	switch {
	case !named, user != nil && requirement.isMet(target, user), target.coveredBy(c):
		return nil
	case slices.Contains(op.Errors, http.StatusNotFound) && (!member || !slices.Contains(op.Errors, http.StatusForbidden)):
		p := s.notFound()
		return &p
	}
	p := s.problem(http.StatusForbidden, requirement.refusal)
	return &p
}
