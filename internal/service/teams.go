package service

import (
	"net/http"
	"slices"
	"strings"
)

// team is a team of an organization (Document A section 2.5).
type team struct {
	id          int
	name        string
	slug        string // unique within the organization
	description string
	privacy     string          // secret or closed; only closed teams may be nested
	parent      *team           // nil for a top-level team
	members     map[string]bool // direct members, by login
}

// hasMember reports whether a user is a member of the team or of a team nested in it.
func (t *team) hasMember(org *account, login string) bool {
	for _, own := range org.teams {
		if !own.members[login] {
			continue
		}
		for at := own; at != nil; at = at.parent {
			if at == t {
				return true
			}
		}
	}
	return false
}

// teamObject returns the JSON object of a team (Document A section 2.5). The object contains the parent teams.
func teamObject(req *request, org *account, t *team) object {
	api := req.base + "/teams/" + itoa(t.id)
	var parent any
	if t.parent != nil {
		parent = teamObject(req, org, t.parent)
	}
	return object{
		{"id", t.id}, {"node_id", nodeID("Team", t.id)}, {"url", api},
		{"html_url", req.base + "/orgs/" + org.login + "/teams/" + t.slug},
		{"name", t.name}, {"slug", t.slug}, {"description", t.description}, {"privacy", t.privacy},
		{"notification_setting", "notifications_enabled"}, {"permission", "pull"},
		{"members_url", api + "/members{/member}"}, {"repositories_url", api + "/repos"}, {"parent", parent},
	}
}

// listTeams returns one page of teams of an organization.
func listTeams(req *request, org *account, path string, teams []*team) response {
	return list(req, "/organizations/"+itoa(org.id)+path, teams, func(t *team) object { return teamObject(req, org, t) })
}

// teamNamed returns the team with a slug, or nil.
func (org *account) teamNamed(slug string) *team {
	if at := slices.IndexFunc(org.teams, func(t *team) bool { return t.slug == slug }); at >= 0 {
		return org.teams[at]
	}
	return nil
}

// teamWithID returns a team and its organization, or nil.
func (w *world) teamWithID(id string) (*account, *team) {
	for _, org := range w.byID {
		for _, t := range org.teams {
			if itoa(t.id) == id {
				return org, t
			}
		}
	}
	return nil, nil
}

// addTeam adds a team to an organization.
func (w *world) addTeam(org *account, name, description, privacy string, parent *team) *team {
	slug := strings.Join(strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == ' ' || r == '&' }), "-")
	w.lastTeam++
	t := &team{id: 200 + w.lastTeam, name: name, slug: slug, description: description, privacy: privacy, parent: parent, members: map[string]bool{}}
	org.teams = append(org.teams, t)
	return t
}

func listAllTeams(_ *Service, r *request) response { return listTeams(r, r.org, "/teams", r.org.teams) }

func listChildTeams(_ *Service, r *request) response {
	children := slices.DeleteFunc(slices.Clone(r.org.teams), func(t *team) bool { return t.parent != r.team })
	return listTeams(r, r.org, "/team/"+itoa(r.team.id)+"/teams", children)
}

func getTeam(_ *Service, r *request) response {
	return response{status: http.StatusOK, body: teamObject(r, r.org, r.team)}
}

func createTeam(s *Service, r *request) response {
	t := s.world.addTeam(r.org, r.text("name"), r.text("description"), "closed", nil)
	if t.slug == "" || r.org.teamNamed(t.slug) != t {
		r.org.teams = r.org.teams[:len(r.org.teams)-1]
		return fail(http.StatusUnprocessableEntity, "Validation Failed")
	}
	r.team = t
	if login := r.caller.login; login != "" {
		t.members[login] = true
	}
	r.touch(r.path + "/" + escape(t.slug))
	return response{status: http.StatusCreated, body: updateTeam(s, r).body}
}

func updateTeam(s *Service, r *request) response {
	for name, value := range map[string]*string{"name": &r.team.name, "description": &r.team.description, "privacy": &r.team.privacy} {
		if text := r.text(name); text != "" {
			*value = text
		}
	}
	for _, t := range r.org.teams { // a team shows its parents
		r.touch("/orgs/"+r.org.login+"/teams/"+escape(t.slug), "/orgs/"+r.org.login+"/teams/"+escape(t.slug)+"/teams")
	}
	return response{status: r.op.created(), body: teamObject(r, r.org, r.team)}
}

func deleteTeam(_ *Service, r *request) response {
	r.org.teams = slices.DeleteFunc(r.org.teams, func(t *team) bool { return t == r.team || t.parent == r.team })
	r.touch("/orgs/"+r.org.login+"/teams/**", "/teams/"+itoa(r.team.id)+"/**")
	return response{status: http.StatusNoContent}
}

func listTeamMembers(s *Service, r *request) response {
	return s.listSelected(r, func(m *membership) bool { return r.team.hasMember(r.org, m.user.login) })
}

// changeTeamMember adds a member to a team, or removes it. A new member joins the organization, too.
func changeTeamMember(s *Service, r *request) response {
	login := keyOf(r.path)
	delete(r.team.members, login)
	for t := r.team; t != nil; t = t.parent {
		r.touch("/orgs/" + r.org.login + "/teams/" + escape(t.slug) + "/**")
	}
	if r.Method == http.MethodDelete {
		return response{status: http.StatusNoContent}
	}
	r.team.members[login] = true
	s.join(r, login)
	if r.op.lists(http.StatusNoContent) {
		return response{status: http.StatusNoContent}
	}
	return getTeamMember(s, r)
}

// getTeamMember returns the membership of a team, or checks it without a body.
func getTeamMember(_ *Service, r *request) response {
	login := keyOf(r.path)
	switch {
	case !r.team.hasMember(r.org, login):
		return notFound()
	case r.op.isCheck():
		return response{status: http.StatusNoContent}
	}
	return response{status: http.StatusOK, body: object{{"url", r.base + r.path}, {"role", "member"}, {"state", "active"}}}
}
