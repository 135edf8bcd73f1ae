package service

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
)

// sortedMembers are the logins of an organization's members in order.
func sortedMembers(org *account) []string { return slices.Sorted(maps.Keys(org.members)) }

// inside reports whether the caller belongs to the organization, and its token
// may know who does: a member, or an installation on it.
func canListMembers(org *account, c caller) bool {
	return (org.members[c.login] != nil || c.account == "installation "+org.login) && c.hasPermission("Members (organization): read") && c.hasScope("read:org")
}

// listMembers shows concealed members to members only (Document A section 4.3).
func listMembers(s *Service, req *request) response {
	org := req.target.organization
	filter, role := req.query.Get("filter"), req.query.Get("role")
	if !slices.Contains([]string{"", "all", "2fa_disabled"}, filter) {
		return s.invalid("OrganizationMember", "filter")
	}
	if !slices.Contains([]string{"", "all", "admin", "member"}, role) {
		return s.invalid("OrganizationMember", "role")
	}
	caller := org.members[req.caller.login]
	if filter == "2fa_disabled" && (caller == nil || !caller.admin) {
		return s.problem(http.StatusUnprocessableEntity, "Only owners can use this filter", problemField{"OrganizationMember", "filter", "invalid"})
	}
	var shown []*account
	for _, login := range sortedMembers(org) {
		m := org.members[login]
		hidden := !m.public && !canListMembers(org, req.caller)
		wrongRole := role == "admin" && !m.admin || role == "member" && m.admin
		if hidden || wrongRole || filter == "2fa_disabled" && m.twoFactor {
			continue
		}
		shown = append(shown, m.user)
	}
	return list(req, "/organizations/"+itoa(org.id)+"/members", shown, func(a *account) object { return userObject(req, a) })
}

// checkMember sends who does not belong to the organization to the public
// members (Document A section 4.3).
func checkMember(s *Service, req *request) response {
	org := req.target.organization
	switch {
	case org == nil:
		return s.notFound()
	case !canListMembers(org, req.caller):
		return response{status: http.StatusFound, location: req.base + "/orgs/" + org.login + "/public_members/" + url.PathEscape(req.match.Params.Get("username"))}
	case org.members[req.match.Params.Get("username")] == nil:
		return s.notFound()
	}
	return response{status: http.StatusNoContent}
}

func checkPublicMember(s *Service, req *request) response {
	org := req.target.organization
	if m := org.members[req.match.Params.Get("username")]; m == nil || !m.public {
		return s.notFound()
	}
	return response{status: http.StatusNoContent}
}
