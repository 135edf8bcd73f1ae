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

// findAssignee returns the team or the user that a request names, and whether it exists.
func (s *Service) findAssignee(req *request) (assignee, bool) {
	if slug, ok := req.params["team_slug"]; ok {
		return assignee{team: slug}, req.org.teamNamed(slug) != nil
	}
	u := s.world.accounts[req.params["username"]]
	return assignee{user: req.params["username"]}, u != nil && u.members == nil
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

func listRoles(_ *Service, req *request) response {
	shown := renderAll(req.org.roles, func(r *role) object { return roleObject(r, userObject(req, req.org)) })
	return response{status: http.StatusOK, body: object{{"total_count", len(shown)}, {"roles", shown}}}
}

func getRole(_ *Service, req *request) response {
	return response{status: http.StatusOK, modified: req.role.created, body: roleObject(req.role, organizationSummary(req, req.org))}
}

// listTeamsOfRole lists the teams that the role is assigned to. It does not list their child teams.
func listTeamsOfRole(_ *Service, req *request) response {
	teams := slices.DeleteFunc(slices.Clone(req.org.teams), func(t *team) bool { return !req.role.assigned[assignee{team: t.slug}] })
	return listTeams(req, req.org, "/organization-roles/"+itoa(req.role.id)+"/teams", teams)
}

// changeAssignment assigns a role to a team or a member, or removes the role or all roles. Assigning an assigned role and
// removing another one have no effect (Document A section 3).
func changeAssignment(s *Service, req *request) response {
	to, exists := s.findAssignee(req)
	assigns := req.Method == http.MethodPut
	switch {
	case !exists:
		return notFound()
	case assigns && to.user != "" && req.org.members[to.user] == nil:
		return fail(http.StatusUnprocessableEntity, "The user is not a member of the organization", problemField{"OrganizationRole", "username", "invalid"})
	case assigns:
		req.role.assigned[to] = true
	case req.role != nil:
		delete(req.role.assigned, to)
	default:
		for _, r := range req.org.roles {
			delete(r.assigned, to)
		}
	}
	return response{status: http.StatusNoContent}
}
