package service

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
)

// sortedMembers returns the sorted logins of an organization's members.
func sortedMembers(org *account) []string { return slices.Sorted(maps.Keys(org.members)) }

// canSeeConcealedMembers reports whether the caller may see concealed members. The caller must be a member or an
// installation of the organization, and its token must allow the read.
func canSeeConcealedMembers(org *account, c caller) bool {
	return (org.members[c.login] != nil || c.covers(org, nil)) && c.hasPermission("Members (organization): read") && c.hasScope("read:org")
}

// listMembers lists members. Only members of the organization see concealed members (Document A section 4.3).
func listMembers(s *Service, req *request) response {
	org := req.org
	filter, role := req.query.Get("filter"), req.query.Get("role")
	if !isFilter(filter, "2fa_disabled") {
		return invalid("OrganizationMember", "filter")
	}
	if !isFilter(role, "admin", "member") {
		return invalid("OrganizationMember", "role")
	}
	caller := org.members[req.caller.login]
	if filter == "2fa_disabled" && (caller == nil || !caller.admin) {
		return fail(http.StatusUnprocessableEntity, "Only owners can use this filter", problemField{"OrganizationMember", "filter", "invalid"})
	}
	seesAll := canSeeConcealedMembers(org, req.caller)
	return s.listSelected(req, func(m *membership) bool {
		hasRole := role != "admin" && role != "member" || m.admin == (role == "admin")
		return (m.public || seesAll) && hasRole && (filter != "2fa_disabled" || !m.twoFactor)
	})
}

// listSelected returns one page of the selected members of the organization.
func (s *Service) listSelected(req *request, selects func(*membership) bool) response {
	logins := slices.DeleteFunc(sortedMembers(req.org), func(login string) bool { return !selects(req.org.members[login]) })
	return list(req, s.world.byNumber(req.path), logins, func(login string) object { return userObject(req, req.org.members[login].user) })
}

// checkMember reports whether a user is a member. It redirects callers outside the organization to the check of public
// members (Document A section 4.3).
func checkMember(s *Service, req *request) response {
	org := req.org
	switch {
	case org == nil:
		return notFound()
	case !canSeeConcealedMembers(org, req.caller):
		return response{status: http.StatusFound, location: req.base + "/orgs/" + org.login + "/public_members/" + url.PathEscape(req.params["username"])}
	case org.members[req.params["username"]] == nil:
		return notFound()
	}
	return response{status: http.StatusNoContent}
}

func checkPublicMember(s *Service, req *request) response {
	org := req.org
	if m := org.members[req.params["username"]]; m == nil || !m.public {
		return notFound()
	}
	return response{status: http.StatusNoContent}
}

// join makes a user a member of the organization in the path.
func (s *Service) join(r *request, login string) *membership {
	m := r.org.members[login]
	if m == nil {
		m = &membership{user: s.world.accounts[login], twoFactor: true}
		r.org.members[login] = m
	}
	s.touchMember(r, login)
	return m
}

// touchMember touches what shows a membership besides the paths of the table of effects.
func (s *Service) touchMember(r *request, login string) {
	org := "/orgs/" + r.org.login
	r.touch("/@"+login+"/user/orgs", "/@"+login+"/user/memberships/orgs", "/@"+login+"/user/memberships"+org, "/users/"+login+"/orgs", org+"/members", org+"/memberships/"+login)
}

// setMembership handles PUT of a membership.
func setMembership(s *Service, r *request) response {
	m := s.join(r, keyOf(r.path))
	m.admin = r.text("role") == "admin"
	return response{status: http.StatusOK, body: membershipObject(r, r.org, m)}
}

// removeMember removes a member from the organization and from its teams.
func removeMember(s *Service, r *request) response {
	login := keyOf(r.path)
	if m := r.org.members[login]; m != nil && m.user != s.world.ownerOf(r.org) {
		delete(r.org.members, login)
		for _, t := range r.org.teams {
			delete(t.members, login)
		}
	}
	s.touchMember(r, login)
	r.touch("/orgs/" + r.org.login + "/teams/**")
	return response{status: http.StatusNoContent}
}

// ownerOf returns the first owner of an organization, who cannot leave it.
func (w *world) ownerOf(org *account) *account {
	for _, login := range sortedMembers(org) {
		if m := org.members[login]; m.admin {
			return m.user
		}
	}
	panic("organization " + org.login + " has no owner") // every seeded organization has an owner
}

func getMembership(s *Service, r *request) response {
	login := keyOf(r.path)
	if r.op.view == "/user/memberships/orgs/{}" {
		login = r.caller.login
		r.org = s.world.accountNamed(true, keyOf(r.path))
	}
	m := r.org.members[login]
	if m == nil {
		return notFound()
	}
	return response{status: http.StatusOK, body: membershipObject(r, r.org, m)}
}

func membershipObject(r *request, org *account, m *membership) object {
	role, url := "member", r.base+"/orgs/"+org.login
	if m.admin {
		role = "admin"
	}
	return object{
		{"url", url + "/memberships/" + m.user.login}, {"state", "active"}, {"role", role}, {"organization_url", url},
		{"user", userObject(r, m.user)}, {"organization", organizationSummary(r, org)},
	}
}

func listPublicMembers(s *Service, r *request) response {
	return s.listSelected(r, func(m *membership) bool { return m.public })
}

// publicizeMember shows or conceals a membership.
func publicizeMember(_ *Service, r *request) response {
	m := r.org.members[keyOf(r.path)]
	if m == nil {
		return fail(http.StatusForbidden, "Only members can be shown")
	}
	m.public = r.Method == http.MethodPut
	r.touch("/orgs/"+r.org.login+"/members", "/orgs/"+r.org.login+"/public_members", "/users/"+m.user.login+"/orgs")
	return response{status: http.StatusNoContent}
}

// listOrganizations lists the organizations of the caller, their memberships, or the public ones of a user.
func listOrganizations(s *Service, r *request) response {
	login := r.caller.login
	if r.op.view == "/users/{}/orgs" {
		login = keyOf(parentOf(r.path))
	}
	shown := []any{}
	for _, org := range s.world.byID {
		switch m := org.members[login]; {
		case m == nil, !m.public && login != r.caller.login:
		case r.op.view == "/user/memberships/orgs":
			shown = append(shown, membershipObject(r, org, m))
		default:
			shown = append(shown, organizationSummary(r, org))
		}
	}
	return response{status: http.StatusOK, list: shown}
}
