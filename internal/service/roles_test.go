package service

import (
	"net/http"
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
		all := decode[struct {
			Total int `json:"total_count"`
			Roles []jsonObject
		}](t, t.get("owner", acmeRoles))
		if all.Total != 3 || len(all.Roles) != all.Total {
			t.Fatalf("got total_count %d and roles %v", all.Total, all.Roles)
		}
		for _, r := range all.Roles {
			for _, p := range r["permissions"].([]any) {
				if !slices.Contains(strings.Fields(permissionsOfRoles), p.(string)) {
					t.Errorf("%s has the undocumented permission %s", r["name"], p)
				}
			}
			if o := r["organization"].(jsonObject); o["type"] != "Organization" || o["login"] != "acme" {
				t.Errorf("got organization %v", o)
			}
		}
		one := decode[jsonObject](t, t.get("owner", acmeRoles+"/3"))
		if one["name"] != all.Roles[2]["name"] || one["created_at"] != all.Roles[2]["created_at"] {
			t.Errorf("the list has %v, the single role is %v", all.Roles[2], one)
		}
		summary := one["organization"].(jsonObject)
		if summary["url"] != "http://api.test/orgs/acme" || summary["description"] != "Widgets, and the parts that fit" || summary["type"] != nil {
			t.Errorf("got organization summary %v", summary)
		}
	})
}

func TestRolesAreAssignedToTeamsAndRevoked(t *testing.T) {
	runWithService(t, func(t *tester) {
		put := func(slug string) {
			t.Helper()
			w := t.do("owner", http.MethodPut, acmeRoles+"/teams/"+slug+"/1", "")
			t.wantStatus(w, 204)
			if w.Body.Len() > 0 {
				t.Errorf("got body %s, want none", w.Body)
			}
		}
		want := func(teamSlugs string) {
			t.Helper()
			if got := t.teamSlugs("owner", acmeRoles+"/1/teams"); got != teamSlugs {
				t.Errorf("got %q, want %q", got, teamSlugs)
			}
		}
		want("")
		put("release")
		put("builders")
		put("builders") // the second assignment has no effect
		put("coils")
		want("builders coils release") // springs-levers has the role through its parent only
		if got := t.teamSlugs("owner", "/organizations/4/organization-roles/1/teams?per_page=2&page=2"); got != "release" {
			t.Errorf("got %s on the second page", got)
		}
		link := t.get("owner", acmeRoles+"/1/teams?per_page=2").Header().Get("Link")
		if !strings.HasPrefix(link, `<http://api.test/organizations/4/organization-roles/1/teams?per_page=2&page=2>; rel="next"`) {
			t.Errorf("got Link %s", link)
		}
		t.wantStatus(t.do("owner", http.MethodDelete, acmeRoles+"/teams/coils/1", ""), 204)
		t.wantStatus(t.do("owner", http.MethodDelete, acmeRoles+"/teams/coils/1", ""), 204) // the second removal has no effect
		want("builders release")
		t.wantStatus(t.do("owner", http.MethodDelete, acmeRoles+"/teams/release", ""), 204)
		want("builders")
		if got := t.teamSlugs("owner", acmeRoles+"/2/teams"); got != "" {
			t.Errorf("role 2 is still assigned to %s", got)
		}
		if got := t.teamSlugs("owner", acmeRoles+"/3/teams"); got != "audit" {
			t.Errorf("got teams %q of role 3, want audit", got)
		}
	})
}

func TestPermissionsFollowRolesOfUsersAndTeams(t *testing.T) {
	runWithService(t, func(t *tester) {
		acme := t.s.world.accounts["acme"]
		want := func(login, permission string, holds bool) {
			t.Helper()
			if got := acme.hasPermission(login, permission); got != holds {
				t.Errorf("%s has %s: got %v", login, permission, got)
			}
		}
		const reads, writes, audits = "read_organization_custom_org_role", "write_organization_custom_org_role", "read_audit_logs"
		want("builder-08", writes, true) // through a role of the user
		want("builder-08", audits, false)
		want("builder-06", reads, true) // through the team release
		want("builder-06", writes, false)
		want("acme-member", reads, false)
		want("outsider", reads, false)
		want("", reads, false)

		t.do("owner", http.MethodPut, acmeRoles+"/teams/builders/2", "")
		want("acme-member", reads, true) // springs-levers is nested in builders
		t.do("owner", http.MethodDelete, acmeRoles+"/teams/builders", "")
		want("acme-member", reads, false)

		t.do("owner", http.MethodPut, acmeRoles+"/teams/coils/2", "")
		want("acme-member", reads, false) // coils is nested in springs-levers, so its roles do not apply

		t.do("owner", http.MethodPut, acmeRoles+"/users/acme-member/2", "")
		t.do("owner", http.MethodPut, acmeRoles+"/users/acme-member/3", "")
		want("acme-member", reads, true)
		t.do("owner", http.MethodDelete, acmeRoles+"/users/acme-member/2", "")
		want("acme-member", reads, false)
		want("acme-member", audits, true)
		t.do("owner", http.MethodDelete, acmeRoles+"/users/acme-member", "")
		want("acme-member", audits, false)
		want("builder-09", audits, true) // the role has not changed
	})
}

func TestRoleOperationsRefuseMissingObjects(t *testing.T) {
	runWithService(t, func(t *tester) {
		const labs = "/orgs/acme-labs/organization-roles"
		for _, c := range []struct {
			name, method, target string
			status               int
		}{
			{"unknown organization", "GET", "/orgs/none/organization-roles", 404},
			{"user instead of organization", "GET", "/orgs/acme-owner/organization-roles", 404},
			{"read an unknown role", "GET", acmeRoles + "/99", 404},
			{"list the teams of an unknown role", "GET", acmeRoles + "/99/teams", 404},
			{"assign an unknown role to a team", "PUT", acmeRoles + "/teams/release/99", 404},
			{"assign to an unknown team", "PUT", acmeRoles + "/teams/none/1", 404},
			{"assign an unknown role to a user", "PUT", acmeRoles + "/users/acme-member/99", 404},
			{"assign to an unknown user", "PUT", acmeRoles + "/users/none/1", 404},
			{"assign to an organization", "PUT", acmeRoles + "/users/acme/1", 404},
			{"revoke an unknown role from a team", "DELETE", acmeRoles + "/teams/release/99", 404},
			{"revoke from an unknown team", "DELETE", acmeRoles + "/teams/none/1", 404},
			{"revoke all from an unknown team", "DELETE", acmeRoles + "/teams/none", 404},
			{"revoke an unknown role from a user", "DELETE", acmeRoles + "/users/acme-member/99", 404},
			{"revoke from an unknown user", "DELETE", acmeRoles + "/users/none/1", 404},
			{"revoke all from an unknown user", "DELETE", acmeRoles + "/users/none", 404},
			{"revoke all from a user that is no member", "DELETE", acmeRoles + "/users/outsider", 204},
			{"not enabled: list", "GET", labs, 422},
			{"not enabled: read", "GET", labs + "/1", 422},
			{"not enabled: teams", "GET", labs + "/1/teams", 422},
			{"not enabled: assign to a team", "PUT", labs + "/teams/release/1", 422},
			{"not enabled: assign to a user", "PUT", labs + "/users/acme-member/1", 422},
			{"not enabled: revoke from a team", "DELETE", labs + "/teams/release/1", 422},
			{"not enabled: revoke all from a team", "DELETE", labs + "/teams/release", 422},
			{"not enabled: revoke from a user", "DELETE", labs + "/users/acme-member/1", 422},
			{"not enabled: revoke all from a user", "DELETE", labs + "/users/acme-member", 422},
		} {
			if w := t.do("owner", c.method, c.target, ""); w.Code != c.status {
				t.Errorf("%s: got %d %s, want %d", c.name, w.Code, w.Body, c.status)
			}
		}
		for _, login := range []string{"outsider", "leaver"} {
			w := t.do("owner", http.MethodPut, acmeRoles+"/users/"+login+"/1", "")
			if w.Code != 422 || !namesField(w, "OrganizationRole", "username") || t.s.world.accounts["acme"].hasPermission(login, "read_organization_custom_org_role") {
				t.Errorf("%s is no member: got %d %s, want 422", login, w.Code, w.Body)
			}
		}
	})
}
