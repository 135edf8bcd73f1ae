package service

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/weirgate/weir/policy"
)

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

// pathTarget holds the repository or the organization that the path of a request names. For a repository, organization
// is the owner, which may be a user.
type pathTarget struct {
	repository   *repository
	organization *account
}

// coveredBy reports whether a token without a user was issued for this target.
func (target pathTarget) coveredBy(c caller) bool {
	if target.repository != nil {
		return c.canSee != nil && c.canSee(target.repository)
	}
	return target.organization != nil && c.account == "installation "+target.organization.login
}

// allowsAnonymous reports whether the operation needs no authentication for this target: authentication is optional,
// and the target is not a private repository.
func (target pathTarget) allowsAnonymous(op *policy.Operation) bool {
	return op.Auth == "optional" && (target.repository == nil || !target.repository.private)
}

// userRequirement is a condition on the user of a token. It applies in addition to the permissions and scopes of the
// token.
type userRequirement struct {
	isMet   func(pathTarget, *account) bool
	refusal string
}

// userRequirements maps the catalogue's roles to requirements. For operations without a role, it maps the permission
// (Document A section 5.4, B section 5.5).
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
	"read access to the repository": {anyUser, "Must have read access to the repository"}, // the search returns only repositories that the caller may read

	"Members (organization): read":         {isMember, "Must be a member of the organization"},
	"Administration (organization): write": {isOwner, "Must have admin rights to the organization"},
	"Administration (repository): write":   {isOwner, "Must have admin rights to the repository"},
	"Contents (repository): write":         {isMember, "Must have push access to the repository"},
}

func anyUser(pathTarget, *account) bool { return true }

// isMember reports whether the user is a member of the organization, or the owner of the personal repository.
func isMember(target pathTarget, u *account) bool {
	return target.organization == u || target.organization.members[u.login] != nil
}

func isOwner(target pathTarget, u *account) bool {
	return target.organization == u || isMember(target, u) && target.organization.members[u.login].admin
}

// authorize returns an error response if the caller may not call the operation, else nil. It checks the kind of the
// token, the permission, the scope and the user (Document A section 5, B section 5). Service.mu must be held.
func (s *Service) authorize(req *request, found bool) *response {
	op, c := req.op.documented, req.caller
	target := pathTarget{req.repo, req.org}
	var p response
	switch {
	case slices.Contains(op.Refuses, c.token):
		p = fail(http.StatusForbidden, "Resource not accessible by this kind of token")
	case !found:
		p = notFound()
	case target.allowsAnonymous(op):
		return nil
	case !c.hasPermission(op.Permission):
		p = fail(http.StatusForbidden, "Resource not accessible by this token: it needs "+op.Permission)
	case !c.hasScope(req.op.requiredScope()):
		p = fail(http.StatusForbidden, "Resource not accessible by this token: it needs the scope "+req.op.requiredScope())
	default:
		return s.authorizeUser(req, target)
	}
	return &p
}

// authorizeUser checks the user of the token. A refused caller gets 404 if the documents list 404 for the operation,
// else 403. Members get 403 if the documents list both.
func (s *Service) authorizeUser(req *request, target pathTarget) *response {
	op, c := req.op.documented, req.caller
	requirement, named := userRequirements[cmp.Or(op.Role, op.Permission)]
	user := s.world.user(c)
	member := user != nil && target.organization != nil && isMember(target, user)
	switch {
	case !named, user != nil && requirement.isMet(target, user), target.coveredBy(c):
		return nil
	case slices.Contains(op.Errors, http.StatusNotFound) && (!member || !slices.Contains(op.Errors, http.StatusForbidden)):
		return refuse(http.StatusNotFound, notFoundText)
	}
	return refuse(http.StatusForbidden, requirement.refusal)
}

// findInOrganization sets the role and the invitation that a request names. Without organization roles, their operations
// are a 422.
func (r *request) findInOrganization() *response {
	if r.org.roles == nil && strings.HasPrefix(r.op.documented.ID, "organization-roles/") {
		return refuse(http.StatusUnprocessableEntity, "Organization roles are not enabled for this organization")
	}
	roleID, ofRole := r.params["role_id"]
	invitationID, ofInvitation := r.params["invitation_id"]
	if at := slices.IndexFunc(r.org.roles, func(o *role) bool { return itoa(o.id) == roleID }); at >= 0 {
		r.role = r.org.roles[at]
	}
	if at := slices.IndexFunc(r.org.invitations, func(i *invitation) bool { return itoa(i.id) == invitationID }); at >= 0 {
		r.invitation = r.org.invitations[at]
	}
	if ofRole && r.role == nil || ofInvitation && r.invitation == nil {
		return refuse(http.StatusNotFound, notFoundText)
	}
	return nil
}
