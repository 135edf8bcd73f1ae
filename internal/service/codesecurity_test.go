package service

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

const configurationsPath = "/orgs/acme/code-security/configurations"

// TestConfigurationsHaveTheDocumentedDefaults covers Document A section 4.2.
func TestConfigurationsHaveTheDocumentedDefaults(t *testing.T) {
	runWithService(t, func(t *tester) {
		const self = "http://api.test/orgs/acme/code-security/configurations/4"
		now := time.Now().UTC().Format(time.RFC3339)
		w := t.call("owner", "POST "+configurationsPath+` {"name":"Plain","description":"d","advanced_security":null,"unheard_of":1}`, 201, "Location: "+self)
		t.wantEqual("configuration", jsonObject{
			"id": 4.0, "target_type": "organization", "name": "Plain", "description": "d",
			"advanced_security": "disabled", "dependency_graph": "enabled", "dependency_graph_autosubmit_action": "disabled",
			"dependency_graph_autosubmit_action_options": jsonObject{"labeled_runners": false},
			"depbot_alerts": "disabled", "depbot_security_updates": "disabled", "code_scanning_default_setup": "disabled",
			"secret_scanning": "disabled", "secret_scanning_push_protection": "disabled", "secret_scanning_validity_checks": "disabled",
			"private_vulnerability_reporting": "disabled", "enforcement": "enforced",
			"url": self, "html_url": "http://api.test/organizations/acme/settings/security_products/configurations/edit/4",
			"created_at": now, "updated_at": now,
		}, decode[jsonObject](t, w))
		t.call("owner", "GET "+configurationsPath+"/4", 200, "="+w.Body.String())
	})
}

// TestConfigurationFieldsAcceptTheirValuesOnly covers every allowed value of every field,
// and invalid values.
func TestConfigurationFieldsAcceptTheirValuesOnly(t *testing.T) {
	const three = "enabled disabled not_set"
	runWithService(t, func(t *tester) {
		for name, values := range map[string]string{
			"advanced_security": "enabled disabled", "dependency_graph": three, "dependency_graph_autosubmit_action": three,
			"depbot_alerts": three, "depbot_security_updates": three, "code_scanning_default_setup": three, "secret_scanning": three,
			"secret_scanning_push_protection": three, "secret_scanning_validity_checks": three, "private_vulnerability_reporting": three,
			"enforcement": "enforced unenforced",
		} {
			for value := range strings.FieldsSeq(values) {
				field := fmt.Sprintf("%q:%q", name, value)
				t.call("owner", "POST "+configurationsPath+` {"name":"`+name+value+`","description":"d",`+field+`}`, 201, "{"+field+"}")
			}
			wrong := []string{`"on"`, `""`, `"Enabled"`, `true`, `{}`}
			if values != three {
				wrong = append(wrong, `"not_set"`)
			}
			for _, value := range wrong {
				t.call("owner", "POST "+configurationsPath+` {"name":"x","description":"d","`+name+`":`+value+`}`, 422,
					fmt.Sprintf(`"resource":%q,"field":%q`, configurationResource, name))
			}
			time.Sleep(time.Minute) // stays within the limit of content creation
		}
		const options = `"dependency_graph_autosubmit_action_options":{"labeled_runners":true}`
		t.call("owner", "POST "+configurationsPath+` {"name":"y","description":"d",`+options+`}`, 201, "{"+options+"}")
	})
}

func TestCreateConfigurationRefusesInvalidBodies(t *testing.T) {
	const options = "dependency_graph_autosubmit_action_options"
	runWithService(t, func(t *tester) {
		t.wantErrors(configurationResource, "POST "+configurationsPath, []invalidBody{
			{``, "name", "missing_field"},
			{`{"description":"d"}`, "name", "missing_field"},
			{`{"name":"","description":"d"}`, "name", "missing_field"},
			{`{"name":"n"}`, "description", "missing_field"},
			{`{"name":7,"description":"d"}`, "name", "invalid"},
			{`{"name":"n","description":[]}`, "description", "invalid"},
			{`{"name":"SECRETS","description":"d"}`, "name", "already_exists"},
			{`{"name":"n","description":"d","` + options + `":true}`, options, "invalid"},
			{`{"name":"n","description":"d","` + options + `":{"labeled_runners":1}}`, options + ".labeled_runners", "invalid"},
		})
		t.calls([]call{
			{"owner", "POST " + configurationsPath + ` []`, 400, "Body should be a JSON object"},
			{"owner", "POST " + configurationsPath + ` {`, 400, "Problems parsing JSON"},
			{"owner", "POST " + configurationsPath + ` {"name":"Recommended","description":"global names do not conflict"}`, 201, ""},
			{"owner", "POST " + configurationsPath + ` {"name":"n","description":"d","` + options + `":{}}`, 201, ""},
			{"owner", "GET " + configurationsPath, 200, "#5"}, // the 3 of the seed and 2
		})
	})
}

func TestGetConfigurations(t *testing.T) {
	runCalls(t, []call{
		{"owner", "GET " + configurationsPath, 200, "each id: 1 2 3"},
		{"owner", "GET " + configurationsPath + "?target_type=all", 200, "each id: 1 2 3"},
		{"owner", "GET " + configurationsPath + "?target_type=global", 200, "each id: 1"},
		{"owner", "GET " + configurationsPath + "?target_type=organization", 422, ""},
		{"owner", "GET /organizations/4/code-security/configurations", 200, "each id: 1 2 3"},
		{"owner", "GET " + configurationsPath + "/1", 200, `{"id":1,"target_type":"global","advanced_security":"enabled",
			"html_url":"http://api.test/organizations/acme/settings/security_products/configurations/view"}`},
		{"owner", "GET " + configurationsPath + "/3", 200, `{"id":3}`},
		{"owner", "GET " + configurationsPath + "/0", 404, ""},
		{"owner", "GET " + configurationsPath + "/x", 404, ""},
		{"owner", "GET /orgs/none/code-security/configurations", 404, ""},
		{"owner", "GET " + configurationsPath + "/defaults", 200, `[{"default_for_new_repos":"public","configuration":{"id":1}},
			{"default_for_new_repos":"private_and_internal","configuration":{"id":3}}]`},
	})
}

func TestOrganizationsSeeTheirOwnAndGlobalConfigurationsOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		seen := t.s.world.configurationsOf(&account{login: "other"})
		failIf(t, len(seen) != 1 || seen[0].id != 1, "another organization sees %v, want the global configuration", seen)
	})
}

// TestCursorPagesCanBeWalkedInBothDirections follows the next and prev links through five
// configurations.
func TestCursorPagesCanBeWalkedInBothDirections(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, name := range []string{"a", "b"} {
			t.call("owner", "POST "+configurationsPath+` {"name":"`+name+`","description":"d"}`, 201, "")
		}
		target := configurationsPath + "?target_type=all&per_page=2"
		for i, c := range []struct{ ids, follow, absent string }{
			{"1 2", "next", ""}, {"3 4", "next", ""},
			{"5", "", "next"}, {"5", "prev", ""}, // requests the same page again before the direction changes
			{"3 4", "prev", ""}, {"1 2", "", "prev"}, {"1 2", "next", ""}, {"3 4", "", ""},
		} {
			link := t.call("owner", "GET "+target, 200, "each id: "+c.ids).Header().Get("Link")
			failIf(t, c.absent != "" && strings.Contains(link, c.absent), "Link %s leads beyond the end", link)
			if c.follow == "" {
				continue
			}
			m := regexp.MustCompile(`<http://api\.test(/organizations/4/code-security/configurations\?([^>]*))>; rel="` + c.follow + `"`).FindStringSubmatch(link)
			stopIf(t, m == nil, "page %d has no link to %s: %s", i+1, c.follow, link)
			query, _ := url.ParseQuery(m[2])
			stopIf(t, query.Get("target_type") != "all" || query.Get("per_page") != "2" || query.Has("after") == query.Has("before"), "page %d leads to %q", i+1, m[1])
			target = m[1]
		}
	})
}

func TestCursorsSelectPages(t *testing.T) {
	runWithService(t, func(t *tester) {
		const empty = "=[]\nLink:"
		for _, c := range []struct{ query, want string }{
			{"after=" + cursor(1), "each id: 2 3"},
			{"after=" + cursor(0), "each id: 1 2 3"}, // no item has the ID of the cursor
			{"after=" + cursor(3), empty},
			{"before=" + cursor(3), "each id: 1 2"},
			{"before=" + cursor(3) + "&per_page=1", "each id: 2"},
			{"before=" + cursor(1), empty},
			{"before=" + cursor(4), "each id: 1 2 3"},
			{"after=" + cursor(1) + "&before=" + cursor(3), "each id: 2"},
			{"after=" + cursor(0) + "&before=" + cursor(3) + "&per_page=1", "each id: 1"},
			{"after=" + cursor(3) + "&before=" + cursor(1), empty},
			{"after=" + cursor(9223372036854775807), empty},
			{"after=&before=", "each id: 1 2 3"},
		} {
			t.call("owner", "GET "+configurationsPath+"?"+c.query, 200, c.want)
		}
		for query, field := range map[string]string{
			"after=1": "after", "after=" + cursor(1) + "!": "after", "before=Y3Vyc29yOnYyOjAxOg": "before" /* cursor:v2:01: */, "before=MQ": "before", /* 1 */
		} {
			t.call("owner", "GET "+configurationsPath+"?"+query, 422, fmt.Sprintf(`"resource":%q,"field":%q`, configurationResource, field))
		}
	})
}

// TestDetachedRepositoriesKeepTheirSettings covers Document A section 4.2.
func TestDetachedRepositoriesKeepTheirSettings(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.call("owner", `PUT /repos/acme/widgets/subscription {"subscribed":true}`, 200, "")
		before := t.get("owner", "/user/subscriptions").Body.String()
		t.s.world.repositories[3].locked = true
		stranger := &repository{id: 2001, owner: &account{login: "other"}}
		t.s.world.repositories = append(t.s.world.repositories, stranger)
		noField := fmt.Sprintf(`"resource":%q,"field":"selected_repository_ids"`, configurationResource)
		for _, c := range []struct {
			body   string
			status int
			want   string
			left   int
		}{
			{``, 400, noField, 2},
			{`{}`, 400, noField, 2},
			{`{"selected_repository_ids":[]}`, 400, noField, 2},
			{`{"selected_repository_ids":1001}`, 400, noField, 2},
			{`{"selected_repository_ids":["1001"]}`, 400, strings.Replace(noField, `ids"`, `ids[0]"`, 1), 2},
			{`{"selected_repository_ids":[10.5]}`, 400, strings.Replace(noField, `ids"`, `ids[0]"`, 1), 2},
			{`{`, 400, "", 2},
			{`{"selected_repository_ids":[1001,9999]}`, 404, "", 2},
			{`{"selected_repository_ids":[1001,2001]}`, 404, "", 2}, // a repository of another organization
			{`{"selected_repository_ids":[1001,1004]}`, 409, "", 2},
			{`{"selected_repository_ids":[1003]}`, 204, "", 2}, // a repository without a configuration
			{`{"selected_repository_ids":[1001,1001]}`, 204, "", 1},
			{`{"selected_repository_ids":[1001]}`, 204, "", 1},
			{`{"selected_repository_ids":[1001,1002]}`, 204, "", 0},
		} {
			t.call("owner", "DELETE "+configurationsPath+"/detach "+c.body, c.status, c.want)
			attached := 0
			for _, r := range t.s.world.repositories {
				if r.configuration != nil {
					attached++
				}
			}
			failIf(t, attached != c.left, "%s: %d are attached, want %d", c.body, attached, c.left)
		}
		t.call("owner", "GET /user/subscriptions", 200, "="+before)
	})
}

func cursor(id int) string { return item{id: id}.cursor() }
