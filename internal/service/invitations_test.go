package service

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

const acmeInvitations, acmeFailed = "/orgs/acme/invitations", "/orgs/acme/failed_invitations"

func TestSeedHasInvitationsOfEachRoleAndSource(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, target := range []string{acmeInvitations, acmeFailed} {
			var want, got []string
			for role := range strings.FieldsSeq("admin direct_member billing_manager hiring_manager") {
				want = append(want, role+" member", role+" scim")
			}
			for _, i := range t.list(target) {
				got = append(got, fmt.Sprint(i["role"], " ", i["invitation_source"]))
			}
			t.wantEqual(target, sorted(want), sorted(got))
		}
		t.call("owner", "GET /orgs/acme-labs/invitations", 200, "[]")
		t.call("owner", "GET /orgs/acme-labs/failed_invitations", 200, "[]")
	})
}

func TestInvitationsArePendingOrFailed(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, i := range t.list(acmeInvitations) {
			failIf(t, i["failed_at"] != "" || i["failed_reason"] != "" || (i["login"] == nil) != (i["invitation_source"] == "scim"), "got pending invitation %v", i)
		}
		for _, i := range t.list(acmeFailed) {
			made, failed := i["created_at"].(string), i["failed_at"].(string)
			_, err := time.Parse(time.RFC3339, failed)
			failIf(t, err != nil || made >= failed || failed > timestamp(time.Now()) || i["failed_reason"] == "", "got failed invitation %v", i)
		}
		t.call("owner", "GET /organizations/4/failed_invitations?per_page=5&page=2", 200, "#3")
	})
}

func TestInvitationsCanBeFiltered(t *testing.T) {
	runCalls(t, []call{
		{"owner", "GET " + acmeInvitations + "?role=all&invitation_source=all", 200, "#8"},
		{"owner", "GET " + acmeInvitations + "?role=&invitation_source=", 200, "#8"},
		{"owner", "GET " + acmeInvitations + "?role=admin", 200, "each role: admin admin"},
		{"owner", "GET " + acmeInvitations + "?role=hiring_manager", 200, "each role: hiring_manager hiring_manager"},
		{"owner", "GET " + acmeInvitations + "?invitation_source=scim", 200, "each invitation_source: scim scim scim scim"},
		{"owner", "GET " + acmeInvitations + "?role=direct_member&invitation_source=member", 200, "#1"},
		{"owner", "GET " + acmeInvitations + "?per_page=3&page=3", 200, "#2"},
		{"owner", "GET " + acmeInvitations + "?role=owner", 422, `"field":"role"`},
		{"owner", "GET " + acmeInvitations + "?role=reinstate", 422, `"field":"role"`},
		{"owner", "GET " + acmeInvitations + "?role=admin&invitation_source=mail", 422, `"resource":"OrganizationInvitation","field":"invitation_source"`},
		{"owner", "GET " + acmeInvitations + "?role=admin&per_page=1", 200,
			`Link: <http://api.test/organizations/4/invitations?per_page=1&role=admin&page=2>; rel="next"...`},
	})
}

func TestInvitationIsCreatedAndCancelled(t *testing.T) {
	runWithService(t, func(t *tester) {
		const self, listed = acmeInvitations + "/17", `"id":17,`
		outsider := t.s.world.accounts["outsider"]
		w := t.call("owner", fmt.Sprintf(`POST %s {"invitee_id":%d,"role":"admin","team_ids":[204,201,204,203]}`, acmeInvitations, outsider.id), 201,
			fmt.Sprintf(`Location: http://api.test`+self+`
				{"id":17,"login":"outsider","email":%q,"role":"admin","created_at":%q,"team_count":3,"invitation_source":"member",
				"invitation_teams_url":"http://api.test/organizations/4/invitations/17/teams","inviter":{"login":"acme-owner"}}`,
				outsider.email, timestamp(time.Now())))
		t.wantRecord(w.Body.Bytes(), "", testservers.NewInvitationSchema)
		t.calls([]call{
			{"owner", "GET " + self + "/teams", 200, "each slug: release builders coils"},
			{"owner", "GET /organizations/4/invitations/17/teams?per_page=2&page=2", 200, "each slug: coils"},
			{"owner", "GET " + acmeInvitations + "?role=admin", 200, listed},
			{"owner", "DELETE " + self, 204, ""},
			{"owner", "GET " + acmeInvitations, 200, "!" + listed},
			{"owner", "GET " + acmeFailed, 200, "!" + listed},
			{"owner", "DELETE " + self, 404, ""},
			{"owner", "GET " + self + "/teams", 404, ""},
			{"owner", "POST " + acmeInvitations + ` {"email":"OUTSIDER@example.com"}`, 201,
				`{"id":18,"login":"outsider","email":"OUTSIDER@example.com","role":"direct_member","team_count":0}`},
		})
	})
}

func TestInvitationFollowsTheBody(t *testing.T) {
	runWithService(t, func(t *tester) {
		accounts := t.s.world.accounts
		accounts["acme"].formerMembers["watcher-64"] = &membership{user: accounts["watcher-64"]}
		id := func(login string) string { return `{"invitee_id":` + itoa(accounts[login].id) }
		for _, c := range []struct {
			name, as, body string
			login, email   string
			role, inviter  string
		}{
			{"unknown address", "owner", `{"email":"new@example.com"}`, "", "new@example.com", "direct_member", "acme-owner"},
			{"null counts as absent", "owner", `{"invitee_id":null,"email":"null@example.com","role":null,"team_ids":null}`,
				"", "null@example.com", "direct_member", "acme-owner"},
			{"invitee_id takes precedence over email", "owner", id("outsider") + `,"email":"other@example.com"}`,
				"outsider", accounts["outsider"].email, "direct_member", "acme-owner"},
			{"address of an ignored email member", "owner", `{"email":"other@example.com","role":"billing_manager"}`,
				"", "other@example.com", "billing_manager", "acme-owner"},
			{"reinstate a former owner", "owner", id("leaver") + `,"role":"reinstate"}`, "leaver", "leaver@example.com", "admin", "acme-owner"},
			{"reinstate a former member", "owner", `{"email":"watcher-64@example.com","role":"reinstate"}`,
				"watcher-64", "watcher-64@example.com", "direct_member", "acme-owner"},
			{"user with a failed invitation", "owner", id("watcher-09") + `}`, "watcher-09", "watcher-09@example.com", "direct_member", "acme-owner"},
			{"invited by an app", "app", id("watcher-20") + `}`, "watcher-20", "watcher-20@example.com", "direct_member", "acme"},
		} {
			login := "null"
			if c.login != "" {
				login = `"` + c.login + `"`
			}
			t.call(c.as, "POST "+acmeInvitations+" "+c.body, 201,
				fmt.Sprintf(`{"login":%s,"email":%q,"role":%q,"inviter":{"login":%q}}`, login, c.email, c.role, c.inviter))
		}
		t.call("owner", "GET "+acmeFailed, 200, "#8")
	})
}

func TestCreateInvitationRefusesInvalidBodies(t *testing.T) {
	runWithService(t, func(t *tester) {
		id := func(login string) string { return `{"invitee_id":` + itoa(t.s.world.accounts[login].id) }
		t.wantErrors("OrganizationInvitation", "POST "+acmeInvitations, []invalidBody{
			{``, "invitee_id", "missing_field"},
			{`{"role":"admin"}`, "invitee_id", "missing_field"},
			{`{"invitee_id":99999}`, "invitee_id", "invalid"},
			{`{"invitee_id":0}`, "invitee_id", "invalid"},
			{id("acme-labs") + `}`, "invitee_id", "invalid"}, // an organization
			{`{"invitee_id":"outsider"}`, "invitee_id", "invalid"},
			{`{"invitee_id":1.5}`, "invitee_id", "invalid"},
			{`{"email":"outsider"}`, "email", "invalid"},
			{`{"email":""}`, "invitee_id", "missing_field"},
			{`{"email":"Ann <ann@example.com>"}`, "email", "invalid"},
			{`{"email":7}`, "email", "invalid"},
			{id("acme-member") + `}`, "invitee_id", "already_exists"},
			{`{"email":"Acme-Member@example.com"}`, "email", "already_exists"},
			{id("watcher-01") + `}`, "invitee_id", "already_exists"},              // invited
			{`{"email":"watcher-01@example.com"}`, "email", "already_exists"},     // the address of an invited user
			{`{"email":"Newcomer-02@example.com"}`, "email", "already_exists"},    // an invited address
			{id("outsider") + `,"role":"boss"}`, "role", "invalid"},               // unknown
			{id("outsider") + `,"role":""}`, "role", "invalid"},                   // empty
			{id("outsider") + `,"role":"hiring_manager"}`, "role", "invalid"},     // a role that the API does not create
			{id("outsider") + `,"role":"reinstate"}`, "role", "invalid"},          // was never a member
			{`{"email":"new@example.com","role":"reinstate"}`, "role", "invalid"}, // unknown address
			{id("outsider") + `,"team_ids":[201,299]}`, "team_ids[1]", "invalid"},
			{id("outsider") + `,"team_ids":["release"]}`, "team_ids[0]", "invalid"},
			{id("outsider") + `,"team_ids":201}`, "team_ids", "invalid"},
		})
		t.call("owner", "POST "+acmeInvitations+" {", 400, "")
		t.call("owner", "POST /orgs/none/invitations {}", 404, "")
		t.call("owner", "GET "+acmeInvitations, 200, "#8")
		t.call("owner", "GET "+acmeFailed, 200, "#8")
	})
}

func TestInvitationsBelongToOneOrganization(t *testing.T) {
	runWithService(t, func(t *tester) {
		const labs = "/orgs/acme-labs/invitations"
		t.wantErrors("OrganizationInvitation", "POST "+labs, []invalidBody{{`{"email":"new@example.com","team_ids":[201]}`, "team_ids[0]", "invalid"}})
		t.calls([]call{
			// Membership and invitations of acme do not count in acme-labs.
			{"owner", "POST " + labs + ` {"email":"builder-01@example.com"}`, 201, ""},
			{"owner", "POST " + labs + ` {"email":"watcher-01@example.com"}`, 201, ""},
			{"owner", "DELETE " + labs + "/1", 404, ""},
			{"owner", "GET " + labs + "/1/teams", 404, ""},
			{"owner", "GET /orgs/none/invitations", 404, ""},
			{"owner", "GET /orgs/none/failed_invitations", 404, ""},
			{"owner", "DELETE " + acmeInvitations + "/9", 422, `"resource":"OrganizationInvitation","field":"invitation_id"`}, // has failed
			{"owner", "GET " + acmeInvitations + "/15/teams", 200, "each slug: builders springs-levers coils release"},
		})
	})
}
