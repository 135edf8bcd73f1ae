package service

import (
	"net/http"
	"strings"
	"testing"
)

// teamSlugs returns the slugs of a list of teams, in its order.
func (t *tester) teamSlugs(credential, target string) string {
	t.Helper()
	w := t.get(credential, target)
	t.wantStatus(w, http.StatusOK)
	var all []string
	for _, o := range decode[[]jsonObject](t, w) {
		all = append(all, o["slug"].(string))
	}
	return strings.Join(all, " ")
}

func TestTeamsContainTheirParents(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.wantStatus(t.do("owner", http.MethodPut, "/orgs/acme/organization-roles/teams/coils/3", ""), 204)
		coils := decode[[]jsonObject](t, t.get("owner", "/orgs/acme/organization-roles/3/teams"))[0]
		for field, want := range map[string]any{
			"id": 203.0, "node_id": "T_203", "name": "Coils", "url": "http://api.test/teams/203", "html_url": "http://api.test/orgs/acme/teams/coils",
			"privacy": "closed", "members_url": "http://api.test/teams/203/members{/member}", "repositories_url": "http://api.test/teams/203/repos",
		} {
			if coils[field] != want {
				t.Errorf("%s: got %v, want %v", field, coils[field], want)
			}
		}
		springs := coils["parent"].(jsonObject)
		builders := springs["parent"].(jsonObject)
		if springs["slug"] != "springs-levers" || springs["name"] != "Springs & Levers" || builders["slug"] != "builders" || builders["parent"] != nil {
			t.Errorf("got team %v in %v in %v", coils["slug"], springs["slug"], builders)
		}
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
			if got := acme.teams[c.team].hasMember(acme, c.login); got != c.want {
				t.Errorf("%s in team %s: got %v", c.login, acme.teams[c.team].slug, got)
			}
		}
	})
}
