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
func everything() grants {
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
func (c caller) may(permission string) bool {
	name, level, named := strings.Cut(permission, ": ")
	granted := c.grants[name]
	return c.grants == nil || !named || name == "Metadata (repository)" || granted == "write" || granted == level
}

// wider names the scope that includes another.
var wider = map[string]string{"read:org": "write:org", "write:org": "admin:org"}

// scoped reports whether a token that goes by scopes has one, or a wider one.
func (c caller) scoped(scope string) bool {
	for s := scope; s != ""; s = wider[s] {
		if slices.Contains(c.scopes, s) {
			return true
		}
	}
	return scope == "" || c.token != "classic"
}

// scopes are those that a classic token needs where the documents leave the column
// blank: by the permission that stands beside it or, without one, by the role.
var scopes = map[string]string{
	"Members (organization): read": "read:org", "Members (organization): write": "admin:org", "Administration (organization): write": "admin:org",
	"Administration (repository): write": "repo", "Contents (repository): write": "repo",
	"organization owner": "admin:org",
}

// scopeOf is the scope that an operation needs, empty for none.
func scopeOf(op *policy.Operation) string {
	return cmp.Or(op.Scope, scopes[op.Permission], scopes[op.Role])
}

// place is what the path of a request names: a repository and its owner, an
// organization, or nothing.
type place struct {
	repository   *repository
	organization *account
}

// place finds it; false where it does not exist for this caller.
func (s *Service) place(req *request) (in place, found bool) {
	names := func(parameters ...string) bool {
		return slices.ContainsFunc(parameters, func(p string) bool { return req.match.Params.Get(p) != "" })
	}
	switch {
	case names("repo", "repository_id"):
		if in.repository = s.repository(req); in.repository != nil {
			in.organization = in.repository.owner
		}
		return in, in.repository != nil
	case names("org", "organization_id"):
		in.organization = s.organization(req)
		return in, in.organization != nil
	}
	return in, true
}

// covered reports whether it belongs to what a token without a user was made for.
func (in place) covered(c caller) bool {
	if in.repository != nil {
		return c.sees != nil && c.sees(in.repository)
	}
	return in.organization != nil && c.account == "installation "+in.organization.login
}

// open reports whether only public resources are asked for, in an operation
// that then needs no authentication.
func (in place) open(op *policy.Operation) bool {
	return op.Auth == "optional" && (in.repository == nil || !in.repository.private)
}

// right is what the user behind a token must be, whatever the token may.
type right struct {
	holds   func(place, *account) bool
	refusal string
}

// rights are what the catalogue's roles mean and, of operations without a role,
// what a user must be to make use of the permission (Document A section 5.4, B
// section 5.5).
var rights = map[string]right{
	"organization owner":         {owns, "Must be an organization owner"},
	"organization administrator": {owns, "Must have admin rights to the organization"},
	"organization administrator, or holder of read_organization_custom_org_role": {func(in place, u *account) bool {
		return owns(in, u) || belongs(in, u) && in.organization.hasPermission(u.login, "read_organization_custom_org_role")
	}, "Must have admin rights to the organization, or a role that may read roles"},
	"organization administrator or security manager": {func(in place, u *account) bool {
		return owns(in, u) || belongs(in, u) && in.organization.members[u.login].securityManager
	}, "Must be an administrator or a security manager of the organization"},
	"account owner":                 {anyone, "Must be a user"},
	"read access to the repository": {anyone, "Must have read access to the repository"}, // it has been found

	"Members (organization): read":         {belongs, "Must be a member of the organization"},
	"Administration (organization): write": {owns, "Must have admin rights to the organization"},
	"Administration (repository): write":   {owns, "Must have admin rights to the repository"},
	"Contents (repository): write":         {belongs, "Must have push access to the repository"},
}

func anyone(place, *account) bool { return true }

// belongs reports whether the user is a member of the organization, or the owner of
// a personal repository.
func belongs(in place, u *account) bool {
	return in.organization == u || in.organization.members[u.login] != nil
}

func owns(in place, u *account) bool {
	return in.organization == u || belongs(in, u) && in.organization.members[u.login].admin
}

// permit answers who may not call the operation: the token is of a kind that
// does not work, or lacks the permission or the scope, or the user behind it
// has not the right (Document A section 5, B section 5). It runs with
// Service.mu held.
func (s *Service) permit(req *request) *response {
	op, c := req.match.Operation, req.caller
	in, found := s.place(req)
	req.in = in
	var p response
	switch {
	case slices.Contains(op.Refuses, c.token):
		p = s.problem(http.StatusForbidden, "Resource not accessible by this kind of token")
	case !found:
		p = s.notFound()
	case in.open(op):
		return nil
	case !c.may(op.Permission):
		p = s.problem(http.StatusForbidden, "Resource not accessible by this token: it needs "+op.Permission)
	case !c.scoped(scopeOf(op)):
		p = s.problem(http.StatusForbidden, "Resource not accessible by this token: it needs the scope "+scopeOf(op))
	default:
		return s.entitle(req, in)
	}
	return &p
}

// entitle looks at who is behind the token. Where the documents list 404 for the
// operation, what somebody has no right to does not exist for them; members are
// told, where 403 is listed, too.
func (s *Service) entitle(req *request, in place) *response {
	op, c := req.match.Operation, req.caller
	needed, named := rights[cmp.Or(op.Role, op.Permission)]
	user := s.world.user(c)
	member := user != nil && in.organization != nil && belongs(in, user)
	switch {
	case !named, user != nil && needed.holds(in, user), in.covered(c):
		return nil
	case slices.Contains(op.Errors, http.StatusNotFound) && (!member || !slices.Contains(op.Errors, http.StatusForbidden)):
		p := s.notFound()
		return &p
	}
	p := s.problem(http.StatusForbidden, needed.refusal)
	return &p
}
