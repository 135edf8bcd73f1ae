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

// assignee is a team or a user: team != "" if and only if user == "".
type assignee struct {
	team string // slug
	user string // login
}

// holds reports whether a user has a permission by a role of their own or of a
// team that they belong to; a nested team has what its parents have.
func (org *account) hasPermission(login, permission string) bool {
	return slices.ContainsFunc(org.roles, func(r *role) bool {
		return slices.Contains(r.permissions, permission) && (r.assigned[assignee{user: login}] || org.assignedThroughTeam(r, login))
	})
}

// reaches reports whether a role comes to a user by a team.
func (org *account) assignedThroughTeam(r *role, login string) bool {
	return slices.ContainsFunc(org.teams, func(t *team) bool { return r.assigned[assignee{team: t.slug}] && t.hasMember(org, login) })
}

// roled finds the organization of a role operation; one on which the feature is
// not enabled has none of them (422).
func (s *Service) organizationWithRoles(req *request) (*account, *response) {
	org := req.in.organization
	if org.roles == nil {
		p := s.problem(http.StatusUnprocessableEntity, "Organization roles are not enabled for this organization")
		return nil, &p
	}
	return org, nil
}

// namedRole finds the organization and the role that a request names.
func (s *Service) findRole(req *request) (*account, *role, *response) {
	org, problem := s.organizationWithRoles(req)
	if problem != nil {
		return nil, nil, problem
	}
	at := slices.IndexFunc(org.roles, func(r *role) bool { return itoa(r.id) == req.match.Params.Get("role_id") })
	if at < 0 {
		p := s.notFound()
		return nil, nil, &p
	}
	return org, org.roles[at], nil
}

// assignee finds the team of the organization, or the user, that a request
// names; false where there is none.
func (s *Service) findAssignee(req *request, org *account) (assignee, bool) {
	slug, login := req.match.Params.Get("team_slug"), req.match.Params.Get("username")
	if slug != "" {
		return assignee{team: slug}, slices.ContainsFunc(org.teams, func(t *team) bool { return t.slug == slug })
	}
	u := s.world.accounts[login]
	return assignee{user: login}, u != nil && u.members == nil
}

// roleObject is Document A section 2.2. What stands for the organization
// differs: a list shows it as an account, a single role by its summary.
func roleObject(r *role, organization object) object {
	return object{
		{"id", r.id}, {"name", r.name}, {"description", r.description}, {"permissions", r.permissions},
		{"organization", organization}, {"created_at", timestamp(r.created)}, {"updated_at", timestamp(r.created)},
	}
}

// organizationSummary is the organization of a single role.
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

// listTeamsOfRole lists the teams that the role is assigned to; those within
// them are not shown for that.
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

// assignRole gives a role to a team or to a member; who has it keeps it
// (Document A section 3).
func assignRole(s *Service, req *request) response {
	org, r, problem := s.findRole(req)
	if problem != nil {
		return *problem
	}
	to, ok := s.findAssignee(req, org)
	switch {
	case !ok:
		return s.notFound()
	case to.user != "" && org.members[to.user] == nil:
		return s.problem(http.StatusUnprocessableEntity, "The user is not a member of the organization", problemField{"OrganizationRole", "username", "invalid"})
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

// revoke takes roles from the team or the user that a request names; one that
// they do not have is gone already.
func (s *Service) revoke(req *request, org *account, roles ...*role) response {
	from, ok := s.findAssignee(req, org)
	if !ok {
		return s.notFound()
	}
	for _, r := range roles {
		delete(r.assigned, from)
	}
	return response{status: http.StatusNoContent}
}
