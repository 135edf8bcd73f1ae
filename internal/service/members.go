package service

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
)

// sortedMembers returns the sorted logins of an organization's members.
func sortedMembers(org *account) []string { return slices.Sorted(maps.Keys(org.members)) }

// canSeeConcealedMembers reports whether the caller may see concealed members. The caller
// must be a member or an installation of the organization, and its token must allow the
// read.
func canSeeConcealedMembers(org *account, c caller) bool {
	return (org.members[c.login] != nil || c.account == "installation "+org.login) && c.hasPermission("Members (organization): read") && c.hasScope("read:org")
}

// listMembers lists members. Only members of the organization see concealed members
// (Document A section 4.3).
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
		hidden := !m.public && !canSeeConcealedMembers(org, req.caller)
		wrongRole := role == "admin" && !m.admin || role == "member" && m.admin
		if hidden || wrongRole || filter == "2fa_disabled" && m.twoFactor {
			continue
		}
		shown = append(shown, m.user)
	}
	return list(req, "/organizations/"+itoa(org.id)+"/members", shown, func(a *account) object { return userObject(req, a) })
}

// checkMember reports whether a user is a member. It redirects callers outside the
// organization to the check of public members (Document A section 4.3).
func checkMember(s *Service, req *request) response {
	org := req.target.organization
	switch {
	case org == nil:
		return s.notFound()
	case !canSeeConcealedMembers(org, req.caller):
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
