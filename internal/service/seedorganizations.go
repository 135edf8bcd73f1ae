package service

import (
	"fmt"
	"slices"
	"time"
)

// organizations creates acme-labs, a small organization without organization roles. It also adds a former owner to
// acme.
func (s *seeder) organizations(w *world, acme *account) {
	leaver := w.addAccount("leaver", "Leaver")
	acme.formerMembers = map[string]*membership{leaver.login: {user: leaver, admin: true, twoFactor: true}}
	acme.description = "Widgets, and the parts that fit"
	labs := w.addAccount("acme-labs", "Acme Labs")
	labs.description = "Experiments with widgets"
	labs.members = map[string]*membership{}
	for _, login := range []string{"acme-owner", "acme-member", "builder-02"} {
		labs.members[login] = &membership{user: w.accounts[login], admin: login == "acme-owner", public: true, twoFactor: true}
	}
}

// teams creates the teams of acme. Coils is nested in springs-levers, which is nested in builders.
func (s *seeder) teams(w *world, acme *account) {
	add := func(name, description, privacy string, parent *team, logins ...string) *team {
		t := w.addTeam(acme, name, description, privacy, parent)
		for _, login := range logins {
			t.members[login] = true
		}
		return t
	}
	builders := add("Builders", "Makes the parts", "closed", nil, "builder-01", "builder-02", "builder-03")
	springs := add("Springs & Levers", "Makes moving parts", "closed", builders, "acme-member", "builder-04")
	add("Coils", "Winds the springs", "closed", springs, "builder-05")
	add("Release", "Ships the parts", "closed", nil, "builder-06", "builder-10")
	add("Audit", "Audits the releases", "secret", nil, "builder-07")
}

// roles creates the organization roles of acme. No user of a seeded token has a role.
func (s *seeder) roles(acme *account) {
	add := func(name, description string, permissions []string, holders ...assignee) {
		r := &role{
			id: len(acme.roles) + 1, name: name, description: description, permissions: permissions,
			created: s.now.AddDate(-1, 0, 0), assigned: map[assignee]bool{},
		}
		for _, h := range holders {
			r.assigned[h] = true
		}
		acme.roles = append(acme.roles, r)
	}
	add("Custom Role Manager", "Manages custom roles within the organization", []string{
		"write_organization_custom_repo_role", "write_organization_custom_org_role",
		"read_organization_custom_repo_role", "read_organization_custom_org_role",
	}, assignee{user: "builder-08"})
	add("Custom Role Reader", "Sees custom roles within the organization", []string{
		"read_organization_custom_repo_role", "read_organization_custom_org_role",
	}, assignee{team: "release"})
	add("Auditor", "Reads the audit log of the organization", []string{"read_audit_logs"}, assignee{team: "audit"}, assignee{user: "builder-09"})
}

// invitations creates one pending and one failed invitation for each role and source. Members invite existing users and
// add them to teams. SCIM invites e-mail addresses without an account.
func (s *seeder) invitations(w *world, acme *account) {
	for _, failed := range []bool{false, true} {
		for n, role := range invitationRoles {
			for _, source := range invitationSources {
				i := &invitation{
					email: fmt.Sprintf("newcomer-%02d@example.com", w.invitations+1), role: role, source: source,
					inviter: w.accounts["acme-owner"], created: s.now.Add(time.Duration(w.invitations-24) * time.Hour),
				}
				if source == "member" {
					i.user = w.accounts[fmt.Sprintf("watcher-%02d", w.invitations+1)]
					i.email, i.teams = i.user.email, slices.Clone(acme.teams[:n+1])
				}
				if failed {
					i.failedAt, i.failedReason = i.created.Add(time.Hour), "The email could not be delivered"
				}
				w.invite(acme, i)
			}
		}
	}
}
