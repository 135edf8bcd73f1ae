package service

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

// publishedMembers returns the members that the API's descriptions require of an event with an action, without the action.
// It returns false for an action that the event does not have.
func publishedMembers(name, action string) (members []string, known bool) {
	for _, column := range splitTable(string(testservers.Must(os.ReadFile("testdata/webhooks.tsv")))) {
		if column[0] == name && (slices.Contains(strings.Fields(column[1]), action) || action == "" && column[1] == "") {
			return strings.Fields(column[2]), true
		}
	}
	return nil, false
}

// wantPublished checks the action and the members of an event.
func wantPublished(t *testing.T, e Event, write string) {
	t.Helper()
	var payload map[string]any
	testservers.NoError(t, json.Unmarshal(e.Payload, &payload))
	action, hasAction := payload["action"].(string)
	members, known := publishedMembers(e.Name, action)
	failIf(t, !known || hasAction != (action != ""), "%s: event %s has no action %q", write, e.Name, payload["action"])
	if documented, ok := documentedEvents[e.Name]; ok {
		for member := range strings.FieldsSeq(documented.required) {
			member, _, _ = strings.Cut(member, ":")
			members = append(members, member)
		}
	}
	for _, member := range members {
		if value, ok := payload[member]; !ok || value == nil && slices.Contains([]string{"issue", "pull_request", "comment", "label", "milestone", "release", "review", "member", "team", "rule"}, member) {
			t.Errorf("%s: event %s %s lacks %s", write, e.Name, action, member)
		}
	}
	if sender, ok := payload["sender"].(map[string]any); ok && sender["id"] == nil {
		t.Errorf("%s: event %s has the sender %v", write, e.Name, payload["sender"])
	}
}

// TestWritesAnnounceEventsAsPublished sends samples of all writes. The events have published actions and the members that
// the API's descriptions require.
func TestWritesAnnounceEventsAsPublished(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	s, announced := newTester(t, Config{NoRateLimits: true}), map[string]bool{}
	wantWrite := func(write string) {
		s.Do("owner", write)
		for _, e := range s.Events() {
			announced[e.Name] = true
			wantPublished(t, e, write)
		}
	}
	wantWrite(`PATCH /repos/acme-labs/spare-1 {"private":false}`)
	for round := range 3 {
		operations := slices.DeleteFunc(s.Operations(), func(op *Operation) bool { return isRead(op.Method) })
		slices.SortStableFunc(operations, func(a, b *Operation) int { return slices.Index(methods, a.Method) - slices.Index(methods, b.Method) })
		for _, op := range operations {
			method, target, body := s.Sample(op.ID, random)
			wantWrite(method + " " + target + " " + string(body))
		}
		stopIf(t, t.Failed(), "round %d", round)
	}
	for _, e := range effects() {
		failIf(t, e.event != "" && !announced[e.event], "no sample announces %s", e.event)
	}
}

// TestEventsShowWhatChanged checks the actions and the objects of events.
func TestEventsShowWhatChanged(t *testing.T) {
	s := newTester(t, Config{})
	const root = "/repos/acme/widgets"
	for _, c := range []struct{ write, event, want string }{
		{"POST " + root + `/issues {"title":"x"}`, "issues", `{"action":"opened","issue":{"number":"$issue","title":"x"},"sender":{"login":"acme-owner","id":"*"}}`},
		{"PATCH " + root + `/issues/$issue {"title":"y"}`, "issues", `{"action":"edited","issue":{"title":"y"},"changes":{}}`},
		{"PATCH " + root + `/issues/$issue {"state":"closed"}`, "issues", `{"action":"closed","issue":{"state":"closed"}}`},
		{"PATCH " + root + `/issues/$issue {"state":"open"}`, "issues", `{"action":"reopened","issue":{"state":"open"}}`},
		{"POST " + root + `/issues/$issue/labels {"labels":["bug"]}`, "issues", `{"action":"labeled","issue":{"labels":[{"name":"bug"}]}}`},
		{"DELETE " + root + `/issues/$issue/labels/bug`, "issues", `{"action":"unlabeled","issue":{"labels":[]}}`},
		{"POST " + root + `/issues/$issue/assignees {"assignees":["acme-owner"]}`, "issues", `{"action":"assigned","issue":{"assignees":[{"login":"acme-owner"}]}}`},
		{"PUT " + root + `/issues/$issue/lock {}`, "issues", `{"action":"locked","issue":{"locked":true}}`},
		{"POST " + root + `/issues/25/labels {"labels":["bug"]}`, "pull_request", `{"action":"labeled","number":25,"pull_request":{"number":25}}`},
		{"PATCH " + root + `/pulls/25 {"title":"y"}`, "pull_request", `{"action":"edited","pull_request":{"title":"y"},"changes":{}}`},
		{"PUT " + root + `/pulls/25/merge {}`, "push", `{"ref":"refs/heads/main","before":"*","after":"*","forced":false,"pusher":{"name":"acme-owner"}}`},
		{"POST " + root + `/git/refs {"ref":"refs/heads/new","sha":"main"}`, "create", `{"action":"-","ref":"new","ref_type":"branch"}`},
		{"POST " + root + `/git/refs {"ref":"refs/tags/new","sha":"main"}`, "push", `{"ref":"refs/tags/new","created":true,"commits":[]}`},
		{"DELETE " + root + `/git/refs/tags/new`, "delete", `{"ref":"new","ref_type":"tag"}`},
		{"PUT " + root + `/pulls/26/merge {}`, "pull_request", `{"action":"closed","pull_request":{"merged":true,"state":"closed"}}`},
		{"POST " + root + `/issues/$issue/comments {"body":"x"}`, "issue_comment", `{"action":"created","issue":{"number":"$issue"},"comment":{"id":"$comment","body":"x"}}`},
		{"PATCH " + root + `/issues/comments/$comment {"body":"y"}`, "issue_comment", `{"action":"edited","issue":{"number":"$issue"},"comment":{"body":"y"}}`},
		{"DELETE " + root + `/issues/comments/$comment`, "issue_comment", `{"action":"deleted","issue":{"number":"$issue"},"comment":{"body":"y"}}`},
		{"POST " + root + `/labels {"name":"new"}`, "label", `{"action":"created","label":{"name":"new"}}`},
		{"PATCH " + root + `/labels/new {"new_name":"newer"}`, "label", `{"action":"edited","label":{"name":"newer"}}`},
		{"DELETE " + root + `/labels/newer`, "label", `{"action":"deleted","label":{"name":"newer"}}`},
		{"PATCH " + root + `/milestones/1 {"state":"closed"}`, "milestone", `{"action":"closed","milestone":{"number":1,"state":"closed"}}`},
		{"PATCH " + root + `/milestones/1 {"title":"y"}`, "milestone", `{"action":"edited","milestone":{"title":"y"}}`},
		{"POST " + root + `/statuses/main {"state":"success","context":"ci"}`, "status", `{"action":"-","state":"success","context":"ci","sha":"*"}`},
		{"PUT " + root + `/branches/main/protection {}`, "branch_protection_rule", `{"action":"created","rule":{"url":"*"}}`},
		{"PUT " + root + `/branches/main/protection {}`, "branch_protection_rule", `{"action":"edited","rule":{"url":"*"}}`},
		{"PUT /user/starred/acme/widgets", "star", `{"action":"created","starred_at":"*"}`},
		{"DELETE /user/starred/acme/widgets", "star", `{"action":"deleted","starred_at":null}`},
		{"PUT /orgs/acme/teams/coils/memberships/outsider {}", "membership", `{"action":"added","scope":"team","member":{"login":"outsider"},"team":{"slug":"coils"}}`},
		{"PUT /orgs/acme/teams/coils/repos/acme/widgets {}", "team", `{"action":"added_to_repository","team":{"slug":"coils"},"repository":{"full_name":"acme/widgets"}}`},
		{"PATCH " + root + ` {"archived":true}`, "repository", `{"action":"archived","repository":{"full_name":"acme/widgets"}}`},
		{"PATCH " + root + ` {"private":true}`, "repository", `{"action":"privatized","repository":{"private":true}}`},
	} {
		if w := s.Do("owner", c.write); w.Code >= 400 {
			t.Errorf("%s: status %d: %s", c.write, w.Code, w.Body)
		}
		var names []string
		for _, e := range s.Events() {
			wantPublished(t, e, c.write)
			if names = append(names, e.Name); e.Name == c.event {
				w := &httptest.ResponseRecorder{Code: 200, Body: bytes.NewBuffer(e.Payload)}
				differences := s.Differences(w, 200, c.want)
				failIf(t, differences != "", "%s: event %s: %s", c.write, e.Name, differences)
			}
		}
		failIf(t, !slices.Contains(names, c.event), "%s: announced %v; want %s", c.write, names, c.event)
	}
}

// TestEventsKeepTheStateOfTheirWrite reads events after a later write, which changes the object that they show.
func TestEventsKeepTheStateOfTheirWrite(t *testing.T) {
	s := newTester(t, Config{})
	s.Call(t, "owner", `POST /repos/acme/widgets/issues/3/comments {"body":"first"}`, 201, `{"id":"$id"}`)
	s.Call(t, "owner", `PATCH /repos/acme/widgets/issues/comments/$id {"body":"second"}`, 200, "")
	s.Call(t, "", "GET /_service/events", 200, `[{"Payload":{"action":"created","comment":{"body":"first"}}},{"Payload":{"action":"edited","comment":{"body":"second"}}}]`)
}
