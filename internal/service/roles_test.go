package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const acmeRoles = "/orgs/acme/organization-roles"

// permissionsOfRoles lists the permission names of Document A section 2.2.
const permissionsOfRoles = `write_organization_custom_repo_role write_organization_custom_org_role
	read_organization_custom_repo_role read_organization_custom_org_role read_audit_logs`

func TestRolesAreListedAndRead(t *testing.T) {
	runWithService(t, func(t *tester) {
		const organization = `{"organization":{"type":"Organization","login":"acme"}}`
		all := decode[struct{ Roles []jsonObject }](t, t.call("owner", "GET "+acmeRoles, 200,
			`{"total_count":3,"roles":[`+organization+","+organization+","+organization+"]}")).Roles
		for _, r := range all {
			for _, p := range r["permissions"].([]any) {
				failIf(t, !slices.Contains(strings.Fields(permissionsOfRoles), p.(string)), "%s has the undocumented permission %s", r["name"], p)
			}
		}
		one := decode[jsonObject](t, t.call("owner", "GET "+acmeRoles+"/3", 200,
			`{"organization":{"url":"http://api.test/orgs/acme","description":"Widgets, and the parts that fit","type":"-"}}`))
		failIf(t, one["name"] != all[2]["name"] || one["created_at"] != all[2]["created_at"], "the list has %v, the single role is %v", all[2], one)
	})
}

func TestRolesAreAssignedToTeamsAndRevoked(t *testing.T) {
	runCalls(t, []call{
		{"owner", "GET " + acmeRoles + "/1/teams", 200, "[]"},
		{"owner", "PUT " + acmeRoles + "/teams/release/1", 204, "="},
		{"owner", "PUT " + acmeRoles + "/teams/builders/1", 204, "="},
		{"owner", "PUT " + acmeRoles + "/teams/builders/1", 204, "="}, // the second assignment has no effect
		{"owner", "PUT " + acmeRoles + "/teams/coils/1", 204, "="},
		{"owner", "GET " + acmeRoles + "/1/teams", 200, "each slug: builders coils release"}, // springs-levers has the role through its parent only
		{"owner", "GET /organizations/4/organization-roles/1/teams?per_page=2&page=2", 200, "each slug: release"},
		{"owner", "GET " + acmeRoles + "/1/teams?per_page=2", 200,
			`Link: <http://api.test/organizations/4/organization-roles/1/teams?per_page=2&page=2>; rel="next"...`},
		{"owner", "DELETE " + acmeRoles + "/teams/coils/1", 204, ""},
		{"owner", "DELETE " + acmeRoles + "/teams/coils/1", 204, ""}, // the second removal has no effect
		{"owner", "GET " + acmeRoles + "/1/teams", 200, "each slug: builders release"},
		{"owner", "DELETE " + acmeRoles + "/teams/release", 204, ""},
		{"owner", "GET " + acmeRoles + "/1/teams", 200, "each slug: builders"},
		{"owner", "GET " + acmeRoles + "/2/teams", 200, "[]"},
		{"owner", "GET " + acmeRoles + "/3/teams", 200, "each slug: audit"},
	})
}

func TestPermissionsFollowRolesOfUsersAndTeams(t *testing.T) {
	runWithService(t, func(t *tester) {
		const reads, writes, audits = "read_organization_custom_org_role", "write_organization_custom_org_role", "read_audit_logs"
		for _, c := range []struct {
			request           string // changes the roles before the check, unless it is empty
			login, permission string
			holds             bool
		}{
			{"", "builder-08", writes, true}, // through a role of the user
			{"", "builder-08", audits, false},
			{"", "builder-06", reads, true}, // through the team release
			{"", "builder-06", writes, false},
			{"", "acme-member", reads, false},
			{"", "outsider", reads, false},
			{"", "", reads, false},
			{"PUT /teams/builders/2", "acme-member", reads, true}, // springs-levers is nested in builders
			{"DELETE /teams/builders", "acme-member", reads, false},
			{"PUT /teams/coils/2", "acme-member", reads, false}, // coils is nested in springs-levers, so its roles do not apply
			{"PUT /users/acme-member/3", "acme-member", reads, false},
			{"PUT /users/acme-member/2", "acme-member", reads, true},
			{"DELETE /users/acme-member/2", "acme-member", reads, false},
			{"", "acme-member", audits, true},
			{"DELETE /users/acme-member", "acme-member", audits, false},
			{"", "builder-09", audits, true}, // the role has not changed
		} {
			if method, target, change := strings.Cut(c.request, " "); change {
				t.call("owner", method+" "+acmeRoles+target, 204, "")
			}
			t.wantEqual(fmt.Sprint(c), c.holds, t.s.world.accounts["acme"].hasPermission(c.login, c.permission))
		}
	})
}

func TestRoleOperationsRefuseMissingObjects(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.call("owner", "GET /orgs/none/organization-roles", 404, "")
		t.call("owner", "GET /orgs/acme-owner/organization-roles", 404, "")
		for _, request := range []string{ // acme is an organization and no user
			"GET /99", "GET /99/teams", "PUT /teams/release/99", "PUT /teams/none/1", "PUT /users/acme-member/99", "PUT /users/none/1", "PUT /users/acme/1",
			"DELETE /teams/release/99", "DELETE /teams/none/1", "DELETE /teams/none", "DELETE /users/acme-member/99", "DELETE /users/none/1", "DELETE /users/none",
		} {
			t.call("owner", strings.Replace(request, "/", acmeRoles+"/", 1), 404, "")
		}
		t.call("owner", "DELETE "+acmeRoles+"/users/outsider", 204, "") // no member
		for _, request := range []string{                               // acme-labs has no custom roles
			"GET /", "GET /1", "GET /1/teams", "PUT /teams/release/1", "PUT /users/acme-member/1", "DELETE /teams/release/1", "DELETE /teams/release",
			"DELETE /users/acme-member/1", "DELETE /users/acme-member",
		} {
			t.call("owner", strings.TrimSuffix(strings.Replace(request, "/", "/orgs/acme-labs/organization-roles/", 1), "/"), 422, "")
		}
		for _, login := range []string{"outsider", "leaver"} { // no members
			t.call("owner", "PUT "+acmeRoles+"/users/"+login+"/1", 422, `"resource":"OrganizationRole","field":"username"`)
			failIf(t, t.s.world.accounts["acme"].hasPermission(login, "read_organization_custom_org_role"), "the refused role was assigned to %s", login)
		}
	})
}

func TestTeamsContainTheirParents(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.call("owner", "PUT "+acmeRoles+"/teams/coils/3", 204, "")
		t.call("owner", "GET "+acmeRoles+"/3/teams", 200, `[{"id":203,"node_id":"T_203","name":"Coils","url":"http://api.test/teams/203",
			"html_url":"http://api.test/orgs/acme/teams/coils","privacy":"closed","members_url":"http://api.test/teams/203/members{/member}",
			"repositories_url":"http://api.test/teams/203/repos",
			"parent":{"slug":"springs-levers","name":"Springs & Levers","parent":{"slug":"builders","parent":null}}},"..."]`)
	})
}

func TestMembersOfNestedTeamsBelongToTheParents(t *testing.T) {
	runWithService(t, func(t *tester) {
		acme := t.s.world.accounts["acme"]
		for _, c := range []struct {
			team  int
			login string
			want  bool
		}{
			{0, "builder-01", true},
			{0, "acme-member", true}, // through springs-levers
			{0, "builder-05", true},  // through coils, two levels below
			{1, "builder-05", true},
			{2, "builder-05", true},
			{2, "acme-member", false}, // a member of the parent team
			{3, "builder-05", false},
			{0, "acme-owner", false},
		} {
			t.wantEqual(fmt.Sprint(c), c.want, acme.teams[c.team].hasMember(acme, c.login))
		}
	})
}
