package service

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const configurationsPath = "/orgs/acme/code-security/configurations"

// TestConfigurationsHaveTheDocumentedDefaults covers Document A section 4.2.
func TestConfigurationsHaveTheDocumentedDefaults(t *testing.T) {
	runWithService(t, func(t *tester) {
		w := t.do("owner", http.MethodPost, configurationsPath, `{"name":"Plain","description":"d","advanced_security":null,"unheard_of":1}`)
		t.wantStatus(w, 201)
		now := time.Now().UTC().Format(time.RFC3339)
		const self = "http://api.test/orgs/acme/code-security/configurations/4"
		want := jsonObject{
			"id": 4.0, "target_type": "organization", "name": "Plain", "description": "d",
			"advanced_security": "disabled", "dependency_graph": "enabled", "dependency_graph_autosubmit_action": "disabled",
			"dependency_graph_autosubmit_action_options": jsonObject{"labeled_runners": false},
			"depbot_alerts": "disabled", "depbot_security_updates": "disabled", "code_scanning_default_setup": "disabled",
			"secret_scanning": "disabled", "secret_scanning_push_protection": "disabled", "secret_scanning_validity_checks": "disabled",
			"private_vulnerability_reporting": "disabled", "enforcement": "enforced",
			"url": self, "html_url": "http://api.test/organizations/acme/settings/security_products/configurations/edit/4",
			"created_at": now, "updated_at": now,
		}
		if diff := cmp.Diff(want, decode[jsonObject](t, w)); diff != "" {
			t.Errorf("documents (-), service (+):\n%s", diff)
		}
		if l := w.Header().Get("Location"); l != self {
			t.Errorf("got Location %s, want %s", l, self)
		}
		if read := t.get("owner", configurationsPath+"/4"); read.Body.String() != w.Body.String() {
			t.Errorf("POST returned %s, GET returned %s", w.Body, read.Body)
		}
	})
}

func TestDialectNamesTheDependencyBot(t *testing.T) {
	runWithService(t, func(t *tester) {
		other := t.serviceInDialect("github")
		made := other.do("owner", http.MethodPost, configurationsPath, `{"name":"Bots","description":"d","dependabot_alerts":"enabled","depbot_security_updates":"enabled"}`)
		c := decode[jsonObject](t, made)
		if _, documents := c["depbot_alerts"]; documents || c["dependabot_alerts"] != "enabled" || c["dependabot_security_updates"] != "disabled" {
			t.Errorf("got %d %s", made.Code, made.Body)
		}
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
			for _, value := range strings.Fields(values) {
				w := t.do("owner", http.MethodPost, configurationsPath, `{"name":"`+name+value+`","description":"d","`+name+`":"`+value+`"}`)
				t.wantStatus(w, 201)
				if got := decode[jsonObject](t, w)[name]; got != value {
					t.Errorf("%s: got %v, want %s", name, got, value)
				}
			}
			wrong := []string{`"on"`, `""`, `"Enabled"`, `true`, `{}`}
			if values != three {
				wrong = append(wrong, `"not_set"`)
			}
			for _, value := range wrong {
				w := t.do("owner", http.MethodPost, configurationsPath, `{"name":"x","description":"d","`+name+`":`+value+`}`)
				if w.Code != 422 || !namesField(w, configurationResource, name) {
					t.Errorf("%s %s: got %d %s, want 422", name, value, w.Code, w.Body)
				}
			}
			time.Sleep(time.Minute) // stays within the limit of content creation
		}
		w := t.do("owner", http.MethodPost, configurationsPath, `{"name":"y","description":"d","dependency_graph_autosubmit_action_options":{"labeled_runners":true}}`)
		if options := decode[jsonObject](t, w)["dependency_graph_autosubmit_action_options"]; options.(jsonObject)["labeled_runners"] != true {
			t.Errorf("got options %v", options)
		}
	})
}

func TestCreateConfigurationRefusesInvalidBodies(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			body   string
			status int
			error  string
		}{
			{``, 422, `"field":"name","code":"missing_field"`},
			{`{"description":"d"}`, 422, `"field":"name","code":"missing_field"`},
			{`{"name":"","description":"d"}`, 422, `"field":"name","code":"missing_field"`},
			{`{"name":"n"}`, 422, `"field":"description","code":"missing_field"`},
			{`{"name":7,"description":"d"}`, 422, `"field":"name","code":"invalid"`},
			{`{"name":"n","description":[]}`, 422, `"field":"description","code":"invalid"`},
			{`{"name":"SECRETS","description":"d"}`, 422, `"field":"name","code":"already_exists"`},
			{`{"name":"n","description":"d","dependency_graph_autosubmit_action_options":true}`, 422, `"field":"dependency_graph_autosubmit_action_options","code":"invalid"`},
			{`{"name":"n","description":"d","dependency_graph_autosubmit_action_options":{"labeled_runners":1}}`, 422, `"field":"dependency_graph_autosubmit_action_options.labeled_runners","code":"invalid"`},
			{`[]`, 400, "Body should be a JSON object"},
			{`{`, 400, "Problems parsing JSON"},
			{`{"name":"Recommended","description":"global names do not conflict"}`, 201, ""},
			{`{"name":"n","description":"d","dependency_graph_autosubmit_action_options":{}}`, 201, ""},
		} {
			w := t.do("owner", http.MethodPost, configurationsPath, c.body)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.error) {
				t.Errorf("%s: got %d %s, want %d %s", c.body, w.Code, w.Body, c.status, c.error)
			}
		}
		if n := len(t.s.world.configurations); n != 5 {
			t.Errorf("got %d configurations, want the 3 of the seed and 2", n)
		}
	})
}

func TestGetConfigurations(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			target, want string // want lists the IDs in the response
			status       int
		}{
			{configurationsPath, "1 2 3", 200},
			{configurationsPath + "?target_type=all", "1 2 3", 200},
			{configurationsPath + "?target_type=global", "1", 200},
			{configurationsPath + "?target_type=organization", "", 422},
			{"/organizations/4/code-security/configurations", "1 2 3", 200},
			{configurationsPath + "/1", "1", 200},
			{configurationsPath + "/3", "3", 200},
			{configurationsPath + "/0", "", 404},
			{configurationsPath + "/x", "", 404},
			{"/orgs/none/code-security/configurations", "", 404},
		} {
			w := t.get("owner", c.target)
			t.wantStatus(w, c.status)
			if got := recordIDs(w.Body.String()); w.Code == 200 && got != c.want {
				t.Errorf("%s: got %s, want %s", c.target, got, c.want)
			}
		}
		global := decode[jsonObject](t, t.get("owner", configurationsPath+"/1"))
		if global["target_type"] != "global" || global["advanced_security"] != "enabled" ||
			global["html_url"] != "http://api.test/organizations/acme/settings/security_products/configurations/view" {
			t.Errorf("got global configuration %v", global)
		}
		defaults := decode[[]jsonObject](t, t.get("owner", configurationsPath+"/defaults"))
		for i, want := range []struct {
			kind string
			id   float64
		}{{"public", 1}, {"private_and_internal", 3}} {
			if d := defaults[i]; d["default_for_new_repos"] != want.kind || d["configuration"].(jsonObject)["id"] != want.id {
				t.Errorf("default %d: got %v, want %v", i, d, want)
			}
		}
	})
}

func TestOrganizationsSeeTheirOwnAndGlobalConfigurationsOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		seen := t.s.world.configurationsOf(&account{login: "other"})
		if len(seen) != 1 || seen[0].id != 1 {
			t.Errorf("another organization sees %v, want the global configuration", seen)
		}
	})
}

// recordIDs returns the IDs of the records in a list.
func recordIDs(body string) string {
	var all []string
	for _, m := range regexp.MustCompile(`[{]"id":(\d+),"(?:target_type|node_id":"M_)`).FindAllStringSubmatch(body, -1) {
		all = append(all, m[1])
	}
	return strings.Join(all, " ")
}

// linkTarget returns the path and query of a relation in a Link header, or "" if the header does not contain the
// relation.
func linkTarget(t *tester, link, rel string) string {
	t.Helper()
	m := regexp.MustCompile(`<http://api\.test(/organizations/4/code-security/configurations\?[^>]*)>; rel="` + rel + `"`).FindStringSubmatch(link)
	if m == nil {
		return ""
	}
	return m[1]
}

// TestCursorPagesCanBeWalkedInBothDirections follows the next and prev links through five
// configurations.
func TestCursorPagesCanBeWalkedInBothDirections(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, name := range []string{"a", "b"} {
			t.do("owner", http.MethodPost, configurationsPath, `{"name":"`+name+`","description":"d"}`)
		}
		target := configurationsPath + "?target_type=all&per_page=2"
		var walked []string
		for _, step := range []string{"next", "next", "", "prev", "prev", "", "next", ""} {
			w := t.get("owner", target)
			t.wantStatus(w, 200)
			walked = append(walked, recordIDs(w.Body.String()))
			link := w.Header().Get("Link")
			if step == "" { // request the same page again before the direction changes
				if len(walked) == 3 && strings.Contains(link, "next") || len(walked) == 6 && strings.Contains(link, "prev") {
					t.Errorf("Link %s leads beyond the end", link)
				}
				continue
			}
			target = linkTarget(t, link, step)
			query, _ := url.ParseQuery(strings.TrimPrefix(target, "/organizations/4/code-security/configurations?"))
			if query.Get("target_type") != "all" || query.Get("per_page") != "2" || query.Has("after") == query.Has("before") {
				t.Fatalf("page %d leads to %q", len(walked), target)
			}
		}
		want := []string{"1 2", "3 4", "5", "5", "3 4", "1 2", "1 2", "3 4"}
		if diff := cmp.Diff(want, walked); diff != "" {
			t.Errorf("want (-), got (+):\n%s", diff)
		}
	})
}

func TestCursorsSelectPages(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			query  string
			want   string
			status int
		}{
			{"after=" + cursor(1), "2 3", 200},
			{"after=" + cursor(0), "1 2 3", 200}, // no item has the ID of the cursor
			{"after=" + cursor(3), "", 200},
			{"before=" + cursor(3), "1 2", 200},
			{"before=" + cursor(3) + "&per_page=1", "2", 200},
			{"before=" + cursor(1), "", 200},
			{"before=" + cursor(4), "1 2 3", 200},
			{"after=" + cursor(1) + "&before=" + cursor(3), "2", 200},
			{"after=" + cursor(0) + "&before=" + cursor(3) + "&per_page=1", "1", 200},
			{"after=" + cursor(3) + "&before=" + cursor(1), "", 200},
			{"after=" + cursor(9223372036854775807), "", 200},
			{"after=&before=", "1 2 3", 200},
			{"after=1", "after", 422},
			{"after=" + cursor(1) + "!", "after", 422},
			{"before=Y3Vyc29yOnYxOjAx", "before", 422}, // cursor:v1:01
			{"before=MQ", "before", 422},               // 1
		} {
			w := t.get("owner", configurationsPath+"?"+c.query)
			t.wantStatus(w, c.status)
			if c.status == 422 && !namesField(w, configurationResource, c.want) || c.status == 200 && recordIDs(w.Body.String()) != c.want {
				t.Errorf("%s: got %s, want %s", c.query, recordIDs(w.Body.String())+" "+w.Body.String(), c.want)
			}
			if c.want == "" && (w.Body.String() != "[]" || w.Header().Get("Link") != "") {
				t.Errorf("%s: got %s and Link %q, want an empty page", c.query, w.Body, w.Header().Get("Link"))
			}
		}
	})
}

// TestDetachedRepositoriesKeepTheirSettings covers Document A section 4.2.
func TestDetachedRepositoriesKeepTheirSettings(t *testing.T) {
	const path = configurationsPath + "/detach"
	runWithService(t, func(t *tester) {
		attached := func() (n int) {
			for _, r := range t.s.world.repositories {
				if r.configuration != nil {
					n++
				}
			}
			return n
		}
		t.do("owner", http.MethodPut, "/repos/acme/widgets/subscription", `{"subscribed":true}`)
		before := t.get("owner", "/user/subscriptions").Body.String()
		t.s.world.repositories[3].locked = true
		stranger := &repository{id: 2001, owner: &account{login: "other"}}
		t.s.world.repositories = append(t.s.world.repositories, stranger)
		for _, c := range []struct {
			body   string
			status int
			left   int
		}{
			{``, 400, 2},
			{`{}`, 400, 2},
			{`{"selected_repository_ids":[]}`, 400, 2},
			{`{"selected_repository_ids":1001}`, 400, 2},
			{`{"selected_repository_ids":["1001"]}`, 400, 2},
			{`{"selected_repository_ids":[10.5]}`, 400, 2},
			{`{`, 400, 2},
			{`{"selected_repository_ids":[1001,9999]}`, 404, 2},
			{`{"selected_repository_ids":[1001,2001]}`, 404, 2}, // a repository of another organization
			{`{"selected_repository_ids":[1001,1004]}`, 409, 2},
			{`{"selected_repository_ids":[1003]}`, 204, 2}, // a repository without a configuration
			{`{"selected_repository_ids":[1001,1001]}`, 204, 1},
			{`{"selected_repository_ids":[1001]}`, 204, 1},
			{`{"selected_repository_ids":[1001,1002]}`, 204, 0},
		} {
			w := t.do("owner", http.MethodDelete, path, c.body)
			if w.Code != c.status || attached() != c.left {
				t.Errorf("%s: got %d %s and %d attached, want %d and %d", c.body, w.Code, w.Body, attached(), c.status, c.left)
			}
			if c.status == 400 && c.body != "{" && !namesField(w, configurationResource, "selected_repository_ids") {
				t.Errorf("%s: got %s, want an error of selected_repository_ids", c.body, w.Body)
			}
		}
		if after := t.get("owner", "/user/subscriptions").Body.String(); after != before {
			t.Errorf("the settings changed from %s to %s", before, after)
		}
	})
}
