package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

// documentedEvents holds the tables of Document B: the availability (section 6.2), and the
// required and optional members (section 6.3).
var documentedEvents = map[string]struct{ available, required, optional string }{
	"branch_protection_configuration": {"R O A", "action repository sender", "enterprise installation organization"},
	"branch_protection_rule":          {"R O A", "action repository sender rule", "enterprise installation organization"},
	"bypass_request_push_ruleset":     {"R O A", "action exemption_request sender", "enterprise installation organization repository"},
	"bypass_request_secret_scanning":  {"R O A", "action exemption_request sender", "enterprise installation organization repository"},
	"check_run":                       {"R O A", "check_run repository sender", "action installation organization"},
	"check_suite":                     {"R O A", "action check_suite repository sender", "enterprise installation organization"},
	"code_scanning_alert":             {"R O A", "action alert commit_oid:string ref:string repository sender", "enterprise installation organization"},
	"commit_comment":                  {"R O A", "action comment repository sender", "enterprise installation organization"},
	"create":                          {"R O A", "description:string? master_branch:string pusher_type:string ref:string ref_type:string repository sender", "enterprise installation organization"},
	"custom_property":                 {"O A", "action definition", "enterprise installation organization sender"},
	"project":                         {"R O A", "action project sender", "enterprise installation organization repository"},
	"project_column":                  {"R O A", "action project_column", "enterprise installation organization repository sender"},
	"projects_v2":                     {"O", "action organization projects_v2 sender", "installation"},
	"projects_v2_item":                {"O", "action changes organization projects_v2_item sender", "installation"},
	"projects_v2_status_update":       {"O", "action organization projects_v2_status_update sender", "installation"},
	"public":                          {"R O A", "repository sender", "enterprise installation organization"},
	"pull_request":                    {"R O A", "action assignee:{}? number:int pull_request repository sender", "enterprise installation organization"},
	"pull_request_review_comment":     {"R O A", "action comment pull_request repository sender", "enterprise installation organization"},
	"pull_request_review":             {"R O A", "action pull_request review repository sender", "enterprise installation organization"},
	"pull_request_review_thread":      {"R O A", "action pull_request thread repository", "enterprise installation organization sender"},
	"push": {"R O A", "after:string before:string base_ref:string? commits:[]{} compare:string created:bool deleted:bool forced:bool head_commit:{}? pusher ref:string repository",
		"enterprise installation organization sender"},
	"registry_package":    {"R O A", "action registry_package sender", "enterprise installation organization repository"},
	"release":             {"R O A", "action release repository sender", "enterprise installation organization"},
	"repository_advisory": {"R O A", "action repository", "enterprise installation organization"},
}

// eventRequestBody returns the body that creates an event in a repository. Events without
// a repository are created in the organization.
func eventRequestBody(event, repository string) string {
	documented := documentedEvents[event]
	has := func(member string) bool {
		return slices.Contains(strings.Fields(documented.required+" "+documented.optional), member)
	}
	c := `{"event": "` + event + `"`
	if has("action") {
		c += `, "action": "completed"`
	}
	if repository != "" && has("repository") {
		c += `, "repository": "` + repository + `"`
	} else {
		c += `, "organization": "acme"`
	}
	if event == "create" {
		c += `, "ref": "refs/tags/v9"`
	}
	return c + "}"
}

// targetTypes maps the letters of the documents' table to the header value that names the
// target of a webhook.
var targetTypes = map[string]string{"R": "repository", "O": "organization", "A": "integration"}

// TestEventsAreDeliveredToTheirWebhooks checks the receivers and the members of every
// event. There is no enterprise, and only apps receive their installation.
func TestEventsAreDeliveredToTheirWebhooks(t *testing.T) {
	failIf(t, len(eventKinds()) != len(documentedEvents) || len(eventKinds()) != 24, "got %d events, want 24", len(eventKinds()))
	runWithService(t, func(t *tester) {
		box := t.startReceiver(webhookOn("acme/widgets"), webhookOn("acme"), webhookOn("app"))
		for event, documented := range documentedEvents {
			t.s.world.repositoryNamed("acme/widgets").private = true // so that the event can make the repository public
			t.createEvent(eventRequestBody(event, "acme/widgets"), 202)
			got := box.take()
			stopIf(t, len(got) != len(strings.Fields(documented.available)), "%s: got %d deliveries", event, len(got))
			for i, letter := range strings.Fields(documented.available) {
				d := got[i]
				kind := d.header.Get("X-Service-Hook-Installation-Target-Type")
				failIf(t, d.header.Get("X-Service-Event") != event || kind != targetTypes[letter], "%s: got event %s for a %s webhook", event, d.header.Get("X-Service-Event"), kind)
				t.wantPayload(d.body, documented.required+" "+documented.optional, letter)
			}
		}
	})
}

// wantPayload checks the members of a payload, and the members of its objects that other records of the documents also
// have.
func (t *tester) wantPayload(text []byte, documented, letter string) {
	t.Helper()
	want := slices.DeleteFunc(strings.Fields(documented), func(m string) bool { return m == "enterprise" || m == "installation" && letter != "A" })
	t.wantRecord(text, "", strings.Join(want, " "))
	failIf(t, strings.Contains(string(text), `"node_id":"_`), "a node ID has no prefix: %s", text)
	for member, record := range map[string]string{
		"repository": testservers.RepositorySchema, "sender": testservers.UserSchema, "organization": testservers.OrganizationSchema,
		"installation": "id:int node_id:string", "pusher": "name:string email:string",
	} {
		if slices.Contains(want, member) {
			t.wantRecord(text, member, record)
		}
	}
}

// TestEventsWithoutRepositoryReachTheOrganizationOnly covers the events whose repository
// is optional.
func TestEventsWithoutRepositoryReachTheOrganizationOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		box := t.startReceiver(webhookOn("acme/widgets"), webhookOn("acme"))
		for event, documented := range documentedEvents {
			if slices.Contains(strings.Fields(documented.required), "repository") {
				continue
			}
			t.createEvent(eventRequestBody(event, ""), 202)
			got := box.take()
			stopIf(t, len(got) != 1 || got[0].header.Get("X-Service-Hook-Installation-Target-Type") != "organization", "%s: got %d deliveries, want 1 to the organization", event, len(got))
			t.wantPayload(got[0].body, strings.ReplaceAll(documented.required+" "+documented.optional, " repository", ""), "O")
		}
	})
}

// TestSomeActionsReachAppsOnly covers Document B section 6.2.
func TestSomeActionsReachAppsOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		box := t.startReceiver(webhookOn("acme/widgets"), webhookOn("acme"), webhookOn("app"))
		for _, c := range []struct {
			event, action string
			deliveries    int
		}{
			{"check_run", "created", 3}, {"check_run", "completed", 3}, {"check_run", "rerequested", 1}, {"check_run", "requested_action", 1}, {"check_run", "", 1},
			{"check_suite", "completed", 3}, {"check_suite", "requested", 1}, {"check_suite", "rerequested", 1},
			{"release", "anything", 3},
		} {
			t.createEvent(fmt.Sprintf(`{"event": %q, "action": %q, "repository": "acme/widgets"}`, c.event, c.action), 202)
			got := box.take()
			failIf(t, len(got) != c.deliveries, "%s %s: got %d deliveries, want %d", c.event, c.action, len(got), c.deliveries)
		}
	})
}

func TestWebhooksReceiveSubscribedEventsOfTheirTargetOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		box := t.startReceiver()
		releases := webhookOn("acme")
		releases.Events = []string{"release", "push"}
		t.setWebhooks(webhookOn("acme/secret"), releases)
		for body, want := range map[string]int{
			`{"event": "release", "action": "published", "repository": "acme/widgets"}`:            1,
			`{"event": "release", "action": "published", "repository": "acme/secret"}`:             2,
			`{"event": "commit_comment", "action": "created", "repository": "acme/secret"}`:        1,
			`{"event": "commit_comment", "action": "created", "repository": "acme/widgets"}`:       0,
			`{"event": "projects_v2", "action": "created", "organization": "acme"}`:                0,
			`{"event": "push", "repository": "Acme/Widgets", "organization": "ACME"}`:              1,
			`{"event": "push", "repository": "acme/widgets", "sender": "Acme-Member"}`:             1,
			`{"event": "project", "action": "closed", "repository": "acme/secret"}`:                1,
			`{"event": "repository_advisory", "action": "published", "repository": "acme/secret"}`: 1,
		} {
			t.createEvent(body, 202)
			got := box.take()
			failIf(t, len(got) != want, "%s: got %d deliveries, want %d", body, len(got), want)
		}
	})
}

// TestEventsOfManyRefsAreWithheld covers the bounds of Document B section 6.2.
func TestEventsOfManyRefsAreWithheld(t *testing.T) {
	runWithService(t, func(t *tester) {
		box := t.startReceiver(webhookOn("acme"))
		for _, c := range []struct {
			body       string
			deliveries int
		}{
			{`"event": "create", "ref": "refs/tags/a", "at_once": 3`, 1},
			{`"event": "create", "ref": "refs/tags/a", "at_once": 4`, 0},
			{`"event": "create", "ref": "refs/heads/a", "at_once": 9000`, 1},
			{`"event": "push", "ref": "refs/tags/a", "created": true, "at_once": 3`, 1},
			{`"event": "push", "ref": "refs/tags/a", "created": true, "at_once": 4`, 0},
			{`"event": "push", "ref": "refs/heads/a", "at_once": 5000`, 1},
			{`"event": "push", "ref": "refs/heads/a", "at_once": 5001`, 0},
		} {
			answer := t.createEvent(`{"repository": "acme/widgets", `+c.body+`}`, 202)
			got := box.take()
			failIf(t, len(got) != c.deliveries || (answer["withheld"] == nil) != (c.deliveries == 1) || len(answer["deliveries"].([]any)) != c.deliveries, "%s: got %d deliveries and response %v", c.body, len(got), answer)
		}
	})
}

func TestPublicEventMakesTheRepositoryPublic(t *testing.T) {
	runWithService(t, func(t *tester) {
		box := t.startReceiver(webhookOn("acme/secret"))
		t.call("outsider", "GET /repos/acme/secret/subscribers", 404, "")
		t.createEvent(`{"event": "public", "repository": "acme/secret"}`, 202)
		t.call("outsider", "GET /repos/acme/secret/subscribers", 200, "")
		r := box.takePayload(t)["repository"].(jsonObject)
		failIf(t, r["private"] != false || r["visibility"] != "public", "got repository %v, want it public", r)
		t.wantRefused(`{"event": "public", "repository": "acme/secret"}`, "repository: acme/secret is already public")
	})
}

// TestCreateEventRefusesInvalidBodies checks that the message names the invalid member. The service must deliver
// nothing.
func TestCreateEventRefusesInvalidBodies(t *testing.T) {
	runWithService(t, func(t *tester) {
		box := t.startReceiver(webhookOn("acme"))
		for _, c := range []struct{ body, wantMessage string }{
			{``, `the body is empty; send JSON`},
			{`{`, `unexpected EOF`},
			{`{} {}`, `more than one JSON value`},
			{`{"event": 3}`, `event: must be a string, not number`},
			{`{"events": "push"}`, `events: unknown member`},
			{`{"event": "team"}`, `event: "team": must be one of branch_protection_configuration, `},
			{`{"event": "push", "repository": "acme/none"}`, `repository: "acme/none" does not exist`},
			{`{"event": "push", "organization": "acme"}`, `repository: required for event push`},
			{`{"event": "push", "repository": "acme/widgets", "action": "created"}`, `action: not allowed for event push`},
			{`{"event": "push", "repository": "acme/widgets", "sender": "missing"}`, `sender: "missing" is not a user`},
			{`{"event": "push", "repository": "acme/widgets", "sender": "acme"}`, `sender: "acme" is not a user`},
			{`{"event": "push", "repository": "acme/widgets", "organization": "none"}`, `organization: "none" does not exist`},
			{`{"event": "push", "repository": "acme/widgets", "at_once": 0}`, `at_once: 0: must be 1 or more`},
			{`{"event": "push", "repository": "acme/widgets", "ref": "main"}`, `ref: "main": must be refs/heads/NAME or refs/tags/NAME`},
			{`{"event": "push", "repository": "acme/widgets", "ref": "refs/heads/a b"}`, `ref: "refs/heads/a b": must be`},
			{`{"event": "push", "repository": "acme/widgets", "commits": "2"}`, `commits: must be an integer, not string`},
			{`{"event": "release", "repository": "acme/widgets"}`, `action: required for event release`},
			{`{"event": "release", "repository": "acme/widgets", "action": "Not One"}`, `action: "Not One": must contain only lower-case letters and underscores`},
			{`{"event": "release", "repository": "acme/widgets", "action": "created", "ref": "refs/heads/x"}`, `ref: not allowed for event release`},
			{`{"event": "release", "repository": "acme/widgets", "action": "created", "commits": 1}`, `commits: not allowed for event release`},
			{`{"event": "create", "repository": "acme/widgets"}`, `ref: required; name the branch or tag to create`},
			{`{"event": "create", "repository": "acme/widgets", "ref": "refs/heads/main"}`, `ref: "refs/heads/main" is the default branch; push to create it`},
			{`{"event": "create", "repository": "acme/widgets", "ref": "refs/tags/v3", "forced": true}`, `forced: not allowed for event create`},
			{`{"event": "custom_property", "action": "created"}`, `organization: required without repository`},
			{`{"event": "custom_property", "action": "created", "repository": "acme/widgets"}`, `repository: not allowed for event custom_property`},
			{`{"event": "public", "repository": "acme/widgets"}`, `repository: acme/widgets is already public`},
		} {
			t.wantRefused(c.body, c.wantMessage)
		}
		got := box.take()
		failIf(t, len(got) > 0 || t.s.lastEvent > 0, "got %d deliveries of %d events, want none", len(got), t.s.lastEvent)
	})
}

// TestEventsOfAnotherOrganizationAreSeparate checks that the organization must own the
// repository, and that other organizations receive no delivery.
func TestEventsOfAnotherOrganizationAreSeparate(t *testing.T) {
	runWithService(t, func(t *tester) {
		other := t.s.world.addAccount("other", "Other")
		other.members = t.s.world.accounts["acme"].members
		box := t.startReceiver(webhookOn("acme"), webhookOn("other"))
		t.wantRefused(`{"event": "push", "repository": "acme/widgets", "organization": "other"}`, `organization: "other" does not own acme/widgets`)
		t.createEvent(`{"event": "custom_property", "action": "created", "organization": "other"}`, 202)
		got := box.take()
		failIf(t, len(got) != 1 || got[0].header.Get("X-Service-Hook-Installation-Target-ID") != itoa(other.id), "got %d deliveries, want 1 to other", len(got))
	})
}

func TestPullRequestNumbersGrow(t *testing.T) {
	runWithService(t, func(t *tester) {
		box := t.startReceiver(webhookOn("acme"))
		const body = `{"event": "pull_request", "action": "assigned", "repository": "acme/widgets", "sender": "acme-member"}`
		t.createEvent(body, 202)
		first := box.takePayload(t)
		t.createEvent(body, 202)
		second := box.takePayload(t)
		failIf(t, first["number"].(float64) <= 24 || second["number"].(float64) <= first["number"].(float64) || first["number"] != first["pull_request"].(jsonObject)["number"], "got number %v, then %v", first["number"], second["number"])
		failIf(t, first["assignee"].(jsonObject)["login"] != "acme-member" || first["sender"].(jsonObject)["login"] != "acme-member", "got assignee %v, want acme-member", first["assignee"])
	})
}

func TestWebhooksOfOneKindShareAPayload(t *testing.T) {
	runWithService(t, func(t *tester) {
		r := t.story.NewRequest("", "POST /_service/events")
		allocations := func(hooks int) float64 {
			t.setWebhooks(slices.Repeat([]Webhook{webhookOn("acme")}, hooks)...)
			return testing.AllocsPerRun(10, func() {
				e, err := t.s.applyEvent(r, eventBody{Event: "release", Action: "published", Repository: "acme/widgets", AtOnce: 1})
				stopIf(t, err != nil || len(e.subscribers) != hooks || len(e.payloads) != 1, "got %d subscribers, error %v", len(e.subscribers), err)
			})
		}
		one, many := allocations(1), allocations(64)
		failIf(t, many > 1.5*one, "got %v allocations for one webhook and %v for 64", one, many)
	})
}
