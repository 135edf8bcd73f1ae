package service

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
