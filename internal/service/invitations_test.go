package service

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/testservers"
)

const acmeInvitations = "/orgs/acme/invitations"

// listInvitations returns a list of invitations.
func (t *tester) listInvitations(target string) []jsonObject {
	t.Helper()
	w := t.get("owner", target)
	t.wantStatus(w, http.StatusOK)
	return decode[[]jsonObject](t, w)
}

func TestSeedHasInvitationsOfEachRoleAndSource(t *testing.T) {
	runWithService(t, func(t *tester) {
		kinds := func(all []jsonObject) []string {
			var kinds []string
			for _, i := range all {
				kinds = append(kinds, i["role"].(string)+" "+i["invitation_source"].(string))
			}
			return sorted(kinds)
		}
		var want []string
		for role := range strings.FieldsSeq("admin direct_member billing_manager hiring_manager") {
			want = append(want, role+" member", role+" scim")
		}
		for _, target := range []string{acmeInvitations, "/orgs/acme/failed_invitations"} {
			if diff := cmp.Diff(sorted(want), kinds(t.listInvitations(target))); diff != "" {
				t.Errorf("%s: want (-), got (+):\n%s", target, diff)
			}
		}
		if n := len(t.listInvitations("/orgs/acme-labs/invitations")) + len(t.listInvitations("/orgs/acme-labs/failed_invitations")); n != 0 {
			t.Errorf("acme-labs has %d invitations, want none", n)
		}
	})
}

func TestInvitationsArePendingOrFailed(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, i := range t.listInvitations(acmeInvitations) {
			if i["failed_at"] != "" || i["failed_reason"] != "" || (i["login"] == nil) != (i["invitation_source"] == "scim") {
				t.Errorf("got pending invitation %v", i)
			}
		}
		for _, i := range t.listInvitations("/orgs/acme/failed_invitations") {
			made, failed := i["created_at"].(string), i["failed_at"].(string)
			if _, err := time.Parse(time.RFC3339, failed); err != nil || made >= failed || failed > timestamp(time.Now()) || i["failed_reason"] == "" {
				t.Errorf("got failed invitation %v", i)
			}
		}
		if n := len(t.listInvitations("/organizations/4/failed_invitations?per_page=5&page=2")); n != 3 {
			t.Errorf("the second page of failed invitations has %d, want 3", n)
		}
	})
}

func TestInvitationsCanBeFiltered(t *testing.T) {
	runWithService(t, func(t *tester) {
		for query, want := range map[string]int{
			"?role=all&invitation_source=all": 8, "?role=&invitation_source=": 8, "?role=admin": 2, "?role=hiring_manager": 2, "?invitation_source=scim": 4,
			"?role=direct_member&invitation_source=member": 1, "?per_page=3&page=3": 2,
		} {
			all := t.listInvitations(acmeInvitations + query)
			if len(all) != want {
				t.Errorf("%s: got %d invitations, want %d", query, len(all), want)
			}
			for _, i := range all {
				if strings.Contains(query, "role=admin") && i["role"] != "admin" || strings.Contains(query, "scim") && i["invitation_source"] != "scim" {
					t.Errorf("%s: got invitation %v", query, i)
				}
			}
		}
		for query, field := range map[string]string{"?role=owner": "role", "?role=reinstate": "role", "?role=admin&invitation_source=mail": "invitation_source"} {
			if w := t.get("owner", acmeInvitations+query); w.Code != 422 || !namesField(w, invitationResource, field) {
				t.Errorf("%s: got %d %s, want 422", query, w.Code, w.Body)
			}
		}
		if link := t.get("owner", acmeInvitations+"?role=admin&per_page=1").Header().Get("Link"); !strings.HasPrefix(link, `<http://api.test/organizations/4/invitations?per_page=1&role=admin&page=2>; rel="next"`) {
			t.Errorf("got Link %s", link)
		}
	})
}

func TestInvitationIsCreatedAndCancelled(t *testing.T) {
	runWithService(t, func(t *tester) {
		outsider := t.s.world.accounts["outsider"]
		w := t.do("owner", http.MethodPost, acmeInvitations, `{"invitee_id":`+itoa(outsider.id)+`,"role":"admin","team_ids":[204,201,204,203]}`)
		t.wantStatus(w, 201)
		t.wantRecord(w.Body.Bytes(), "", testservers.NewInvitationSchema)
		made := decode[jsonObject](t, w)
		self := acmeInvitations + "/" + itoa(int(made["id"].(float64)))
		if got := w.Header().Get("Location"); got != "http://api.test"+self {
			t.Errorf("got Location %s", got)
		}
		for field, want := range map[string]any{
			"id": 17.0, "login": "outsider", "email": outsider.email, "role": "admin", "created_at": timestamp(time.Now()), "team_count": 3.0,
			"invitation_source": "member", "invitation_teams_url": "http://api.test/organizations/4/invitations/17/teams",
		} {
			if made[field] != want {
				t.Errorf("%s: got %v, want %v", field, made[field], want)
			}
		}
		if inviter := made["inviter"].(jsonObject); inviter["login"] != "acme-owner" {
			t.Errorf("got inviter %v", inviter)
		}
		if got := t.teamSlugs("owner", self+"/teams"); got != "release builders coils" {
			t.Errorf("got teams %s", got)
		}
		if got := t.teamSlugs("owner", "/organizations/4/invitations/17/teams?per_page=2&page=2"); got != "coils" {
			t.Errorf("got %s on the second page of teams", got)
		}
		listed := func(i jsonObject) bool { return i["id"] == made["id"] }
		if !slices.ContainsFunc(t.listInvitations(acmeInvitations+"?role=admin"), listed) {
			t.Error("the invitation is not listed as pending")
		}
		t.wantStatus(t.do("owner", http.MethodDelete, self, ""), 204)
		if slices.ContainsFunc(t.listInvitations(acmeInvitations), listed) || slices.ContainsFunc(t.listInvitations("/orgs/acme/failed_invitations"), listed) {
			t.Error("the cancelled invitation is still listed")
		}
		t.wantStatus(t.do("owner", http.MethodDelete, self, ""), 404)
		t.wantStatus(t.get("owner", self+"/teams"), 404)
		again := decode[jsonObject](t, t.do("owner", http.MethodPost, acmeInvitations, `{"email":"OUTSIDER@example.com"}`))
		if again["id"] != 18.0 || again["login"] != "outsider" || again["email"] != "OUTSIDER@example.com" || again["role"] != "direct_member" || again["team_count"] != 0.0 {
			t.Errorf("got invitation by e-mail %v", again)
		}
	})
}

func TestInvitationFollowsTheBody(t *testing.T) {
	runWithService(t, func(t *tester) {
		acme := t.s.world.accounts["acme"]
		outsider := t.s.world.accounts["outsider"]
		acme.formerMembers["watcher-64"] = &membership{user: t.s.world.accounts["watcher-64"]}
		id := func(login string) string { return `{"invitee_id":` + itoa(t.s.world.accounts[login].id) }
		for _, c := range []struct {
			name, credential, body string
			login, email, role     any
			inviter                string
		}{
			{"unknown address", "owner", `{"email":"new@example.com"}`, nil, "new@example.com", "direct_member", "acme-owner"},
			{"null counts as absent", "owner", `{"invitee_id":null,"email":"null@example.com","role":null,"team_ids":null}`, nil, "null@example.com", "direct_member", "acme-owner"},
			{"invitee_id takes precedence over email", "owner", id("outsider") + `,"email":"other@example.com"}`, "outsider", outsider.email, "direct_member", "acme-owner"},
			{"address of an ignored email member", "owner", `{"email":"other@example.com","role":"billing_manager"}`, nil, "other@example.com", "billing_manager", "acme-owner"},
			{"reinstate a former owner", "owner", id("leaver") + `,"role":"reinstate"}`, "leaver", "leaver@example.com", "admin", "acme-owner"},
			{"reinstate a former member", "owner", `{"email":"watcher-64@example.com","role":"reinstate"}`, "watcher-64", "watcher-64@example.com", "direct_member", "acme-owner"},
			{"user with a failed invitation", "owner", id("watcher-09") + `}`, "watcher-09", "watcher-09@example.com", "direct_member", "acme-owner"},
			{"invited by an app", "app", id("watcher-20") + `}`, "watcher-20", "watcher-20@example.com", "direct_member", "acme"},
		} {
			w := t.do(c.credential, http.MethodPost, acmeInvitations, c.body)
			t.wantStatus(w, 201)
			i := decode[jsonObject](t, w)
			if i["login"] != c.login || i["email"] != c.email || i["role"] != c.role || i["inviter"].(jsonObject)["login"] != c.inviter {
				t.Errorf("%s: got %s", c.name, w.Body)
			}
		}
		if n := len(t.listInvitations("/orgs/acme/failed_invitations")); n != 8 {
			t.Errorf("got %d failed invitations, want 8", n)
		}
	})
}

func TestCreateInvitationRefusesInvalidBodies(t *testing.T) {
	runWithService(t, func(t *tester) {
		id := func(login string) string { return `{"invitee_id":` + itoa(t.s.world.accounts[login].id) }
		for _, c := range []struct{ name, body, field, code string }{
			{"empty body", ``, "invitee_id", "missing_field"},
			{"role only", `{"role":"admin"}`, "invitee_id", "missing_field"},
			{"unknown user", `{"invitee_id":99999}`, "invitee_id", "invalid"},
			{"user ID 0", `{"invitee_id":0}`, "invitee_id", "invalid"},
			{"organization ID", id("acme-labs") + `}`, "invitee_id", "invalid"},
			{"login as invitee_id", `{"invitee_id":"outsider"}`, "invitee_id", "invalid"},
			{"fractional user ID", `{"invitee_id":1.5}`, "invitee_id", "invalid"},
			{"invalid address", `{"email":"outsider"}`, "email", "invalid"},
			{"empty address", `{"email":""}`, "email", "invalid"},
			{"address with a name", `{"email":"Ann <ann@example.com>"}`, "email", "invalid"},
			{"number as address", `{"email":7}`, "email", "invalid"},
			{"member", id("acme-member") + `}`, "invitee_id", "already_exists"},
			{"address of a member", `{"email":"Acme-Member@example.com"}`, "email", "already_exists"},
			{"invited user", id("watcher-01") + `}`, "invitee_id", "already_exists"},
			{"address of an invited user", `{"email":"watcher-01@example.com"}`, "email", "already_exists"},
			{"invited address", `{"email":"Newcomer-02@example.com"}`, "email", "already_exists"},
			{"unknown role", id("outsider") + `,"role":"boss"}`, "role", "invalid"},
			{"empty role", id("outsider") + `,"role":""}`, "role", "invalid"},
			{"role that the API does not create", id("outsider") + `,"role":"hiring_manager"}`, "role", "invalid"},
			{"reinstate a user that was never a member", id("outsider") + `,"role":"reinstate"}`, "role", "invalid"},
			{"reinstate an unknown address", `{"email":"new@example.com","role":"reinstate"}`, "role", "invalid"},
			{"unknown team", id("outsider") + `,"team_ids":[201,299]}`, "team_ids[1]", "invalid"},
			{"team slug as ID", id("outsider") + `,"team_ids":["release"]}`, "team_ids", "invalid"},
			{"team_ids is not an array", id("outsider") + `,"team_ids":201}`, "team_ids", "invalid"},
		} {
			w := t.do("owner", http.MethodPost, acmeInvitations, c.body)
			want := `"errors":[{"resource":"OrganizationInvitation","field":"` + c.field + `","code":"` + c.code + `"}]`
			if w.Code != 422 || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s: got %d %s, want %s", c.name, w.Code, w.Body, want)
			}
		}
		t.wantStatus(t.do("owner", http.MethodPost, acmeInvitations, `{`), 400)
		t.wantStatus(t.do("owner", http.MethodPost, "/orgs/none/invitations", `{}`), 404)
		if n := len(t.s.world.accounts["acme"].invitations); n != 16 {
			t.Errorf("got %d invitations, want 16", n)
		}
	})
}

func TestInvitationsBelongToOneOrganization(t *testing.T) {
	runWithService(t, func(t *tester) {
		const labs = "/orgs/acme-labs/invitations"
		w := t.do("owner", http.MethodPost, labs, `{"email":"new@example.com","team_ids":[201]}`)
		if w.Code != 422 || !namesField(w, invitationResource, "team_ids[0]") {
			t.Errorf("got %d %s, want an error of team_ids[0]", w.Code, w.Body)
		}
		// Membership and invitations of acme do not count in acme-labs.
		for _, email := range []string{"builder-01@example.com", "watcher-01@example.com"} {
			t.wantStatus(t.do("owner", http.MethodPost, labs, `{"email":"`+email+`"}`), 201)
		}
		t.wantStatus(t.do("owner", http.MethodDelete, labs+"/1", ""), 404)
		t.wantStatus(t.get("owner", labs+"/1/teams"), 404)
		t.wantStatus(t.get("owner", "/orgs/none/invitations"), 404)
		t.wantStatus(t.get("owner", "/orgs/none/failed_invitations"), 404)
		if w := t.do("owner", http.MethodDelete, acmeInvitations+"/9", ""); w.Code != 422 || !namesField(w, invitationResource, "invitation_id") {
			t.Errorf("cancelling a failed invitation: got %d %s", w.Code, w.Body)
		}
		if got := t.teamSlugs("owner", acmeInvitations+"/15/teams"); got != "builders springs-levers coils release" {
			t.Errorf("got teams %s of a failed invitation", got)
		}
	})
}
