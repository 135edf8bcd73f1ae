package service

import (
	"net/http"
	"slices"
	"time"
)

// role is an organization role (Document A section 2.2).
type role struct {
	id          int
	name        string
	description string
	permissions []string
	created     time.Time
	assigned    map[assignee]bool
}

// assignee identifies the team or the user that has a role. Exactly one field is set.
type assignee struct {
	team string // slug
	user string // login
}

// hasPermission reports whether a user has a permission through an assigned role. The role may be assigned to the user,
// to a team of the user, or to a parent of that team.
func (org *account) hasPermission(login, permission string) bool {
	return slices.ContainsFunc(org.roles, func(r *role) bool {
		return slices.Contains(r.permissions, permission) && (r.assigned[assignee{user: login}] || org.assignedThroughTeam(r, login))
	})
}

// assignedThroughTeam reports whether a role is assigned to a team that has the user as a member.
func (org *account) assignedThroughTeam(r *role, login string) bool {
	return slices.ContainsFunc(org.teams, func(t *team) bool { return r.assigned[assignee{team: t.slug}] && t.hasMember(org, login) })
}

// organizationWithRoles returns the organization of a role operation. It returns a 422 when organization roles are not
// enabled.
func (s *Service) organizationWithRoles(req *request) (*account, *response) {
	org := req.org
	if org.roles == nil {
		return nil, refuse(http.StatusUnprocessableEntity, "Organization roles are not enabled for this organization")
	}
	return org, nil
}

// findRole returns the organization and the role that a request names.
func (s *Service) findRole(req *request) (*account, *role, *response) {
	org, problem := s.organizationWithRoles(req)
	if problem != nil {
		return nil, nil, problem
	}
	at := slices.IndexFunc(org.roles, func(r *role) bool { return itoa(r.id) == req.params["role_id"] })
	if at < 0 {
		return nil, nil, refuse(http.StatusNotFound, notFoundText)
	}
	return org, org.roles[at], nil
}

// findAssignee returns the team or the user that a request names. The boolean reports whether the team or the user
// exists.
func (s *Service) findAssignee(req *request, org *account) (assignee, bool) {
	slug, login := req.params["team_slug"], req.params["username"]
	if slug != "" {
		return assignee{team: slug}, slices.ContainsFunc(org.teams, func(t *team) bool { return t.slug == slug })
	}
	u := s.world.accounts[login]
	return assignee{user: login}, u != nil && u.members == nil
}

// roleObject returns the JSON object of a role (Document A section 2.2). Lists contain the organization as an account
// object, and a single role contains its summary.
func roleObject(r *role, organization object) object {
	return object{
		{"id", r.id}, {"name", r.name}, {"description", r.description}, {"permissions", r.permissions},
		{"organization", organization}, {"created_at", timestamp(r.created)}, {"updated_at", timestamp(r.created)},
	}
}

// organizationSummary returns the organization object within a single role.
func organizationSummary(req *request, org *account) object {
	api := req.base + "/orgs/" + org.login
	return object{
		{"login", org.login}, {"id", org.id}, {"node_id", nodeID("Organization", org.id)}, {"url", api},
		{"repos_url", api + "/repos"}, {"events_url", api + "/events"}, {"hooks_url", api + "/hooks"},
		{"issues_url", api + "/issues"}, {"members_url", api + "/members{/member}"},
		{"public_members_url", api + "/public_members{/member}"},
		{"avatar_url", req.base + "/avatars/" + itoa(org.id)}, {"description", org.description},
	}
}

func listRoles(s *Service, req *request) response {
	org, problem := s.organizationWithRoles(req)
	if problem != nil {
		return *problem
	}
	shown := make([]object, 0, len(org.roles))
	for _, r := range org.roles {
		shown = append(shown, roleObject(r, userObject(req, org)))
	}
	return response{status: http.StatusOK, body: object{{"total_count", len(shown)}, {"roles", shown}}}
}

func getRole(s *Service, req *request) response {
	org, r, problem := s.findRole(req)
	if problem != nil {
		return *problem
	}
	return response{status: http.StatusOK, modified: r.created, body: roleObject(r, organizationSummary(req, org))}
}

// listTeamsOfRole lists the teams that the role is assigned to. It does not list their child teams.
func listTeamsOfRole(s *Service, req *request) response {
	org, r, problem := s.findRole(req)
	if problem != nil {
		return *problem
	}
	var teams []*team
	for _, t := range org.teams {
		if r.assigned[assignee{team: t.slug}] {
			teams = append(teams, t)
		}
	}
	return listTeams(req, org, "/organization-roles/"+itoa(r.id)+"/teams", teams)
}

// assignRole assigns a role to a team or a member. Assigning a role again has no effect (Document A section 3).
func assignRole(s *Service, req *request) response {
	org, r, problem := s.findRole(req)
	if problem != nil {
		return *problem
	}
	to, ok := s.findAssignee(req, org)
	switch {
	case !ok:
		return notFound()
	case to.user != "" && org.members[to.user] == nil:
		return fail(http.StatusUnprocessableEntity, "The user is not a member of the organization", problemField{"OrganizationRole", "username", "invalid"})
	}
	r.assigned[to] = true
	return response{status: http.StatusNoContent}
}

func revokeRole(s *Service, req *request) response {
	org, r, problem := s.findRole(req)
	if problem != nil {
		return *problem
	}
	return s.revoke(req, org, r)
}

func revokeAllRoles(s *Service, req *request) response {
	org, problem := s.organizationWithRoles(req)
	if problem != nil {
		return *problem
	}
	return s.revoke(req, org, org.roles...)
}

// revoke removes roles from the team or the user that a request names. It ignores roles that are not assigned.
func (s *Service) revoke(req *request, org *account, roles ...*role) response {
	from, ok := s.findAssignee(req, org)
	if !ok {
		return notFound()
	}
	for _, r := range roles {
		delete(r.assigned, from)
	}
	return response{status: http.StatusNoContent}
}
