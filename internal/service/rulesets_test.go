package service

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

const (
	widgetsRulesets = "/repos/acme/widgets/rulesets"
	acmeRulesets    = "/orgs/acme/rulesets"
)

// completeRuleset is a request body with every member of Document A section 4.9.
const completeRuleset = `{
	"name": "all of it", "target": "branch", "enforcement": "active",
	"bypass_actors": [
		{"actor_id": 1, "actor_type": "OrganizationAdmin", "bypass_mode": "always"},
		{"actor_id": null, "actor_type": "DeployKey", "bypass_mode": "always"},
		{"actor_id": 7, "actor_type": "Team", "bypass_mode": "pull_request"},
		{"actor_id": 8, "actor_type": "Integration", "bypass_mode": "always"},
		{"actor_id": 9, "actor_type": "RepositoryRole", "bypass_mode": "always"}
	],
	"conditions": {"ref_name": {"include": ["~DEFAULT_BRANCH"], "exclude": ["refs/heads/x"]}},
	"rules": [{"type": "update", "parameters": {"update_allows_fetch_and_merge": true}}, {"type": "deletion"}]
}`

func TestSeededRulesetsAndRules(t *testing.T) {
	const branches = "/repos/acme/widgets/rules/branches/"
	runCalls(t, []call{
		{"owner", "GET " + widgetsRulesets, 200, "#5"},
		{"owner", "GET " + widgetsRulesets + "?includes_parents=false", 200, "#3"},
		{"owner", "GET " + acmeRulesets, 200, "#2"},
		{"", "GET " + branches + "main", 200,
			`[{"type":"pull_request","parameters":"*"},{"type":"required_signatures","ruleset_source_type":"Organization"}]`},
		{"owner", "GET " + branches + "release/1.x/fix", 200, "each type: deletion non_fast_forward required_signatures"},
		{"owner", "GET " + branches + "release%2F1.x%2Ffix", 200, "#3"},
		{"owner", "GET " + branches + "release/old/1", 200, "#1"},
		{"owner", "GET " + branches + "not/there?per_page=5", 200, "#1"},
	})
}

func TestCreateRulesetReturnsAllMembers(t *testing.T) {
	runWithService(t, func(t *tester) {
		time.Sleep(time.Minute)
		w := t.call("owner", "POST "+widgetsRulesets+" "+completeRuleset, 201, "Location: http://api.test/repos/acme/widgets/rulesets/604")
		t.wantRecord(w.Body.Bytes(), "", testservers.NewRulesetSchema)
		want := jsonObject{}
		testservers.NoError(t, json.Unmarshal([]byte(completeRuleset), &want))
		maps.Copy(want, jsonObject{
			"id": 604.0, "source_type": "Repository", "source": "acme/widgets", "node_id": "RRS_604",
			"_links": jsonObject{
				"self": jsonObject{"href": "http://api.test/repos/acme/widgets/rulesets/604"},
				"html": jsonObject{"href": "http://api.test/acme/widgets/rules/604"},
			},
			"created_at": timestamp(time.Now()), "updated_at": timestamp(time.Now()),
		})
		t.wantEqual("ruleset", want, decode[jsonObject](t, w))
		const conditions = `{"repository_id":{"repository_ids":[1001]},"ref_name":{}}`
		t.call("owner", "POST "+acmeRulesets+` {"name":"n","enforcement":"disabled","conditions":`+conditions+`}`, 201,
			`Location: http://api.test/orgs/acme/rulesets/605
			{"id":605,"source_type":"Organization","source":"acme"}`)
	})
}

// TestCreateRulesetAddsDefaults covers the defaults of Document A section 4.9.
func TestCreateRulesetAddsDefaults(t *testing.T) {
	runWithService(t, func(t *tester) {
		for i, c := range []struct{ body, want string }{
			{`{"enforcement":"disabled"`, `"target":"branch","bypass_actors":[],"conditions":{},"rules":[]`},
			{`{"enforcement":"disabled","target":null,"conditions":null,"rules":null`, `"target":"branch","bypass_actors":[],"conditions":{},"rules":[]`},
			{`{"enforcement":"disabled","target":"tag","conditions":{"ref_name":{"include":["~ALL"]}}`, `"target":"tag","bypass_actors":[],"conditions":{"ref_name":{"include":["~ALL"],"exclude":[]}},"rules":[]`},
			{`{"enforcement":"disabled","target":"push","id":7,"source":"other"`, `"target":"push","bypass_actors":[],"conditions":{},"rules":[]`},
			{`{"enforcement":"evaluate","rules":[{"type":"creation","parameters":{}},{"type":"deletion","parameters":null}]`, `"rules":[{"type":"creation"},{"type":"deletion"}]`},
			{`{"enforcement":"evaluate","bypass_actors":[{"actor_type":"DeployKey","bypass_mode":"always"}]`, `"bypass_actors":[{"actor_id":null,"actor_type":"DeployKey","bypass_mode":"always"}]`},
		} {
			t.call("owner", fmt.Sprintf(`POST %s %s,"name":"n%d"}`, widgetsRulesets, c.body, i), 201, c.want)
		}
		t.call("owner", "POST "+acmeRulesets+` {"name":"n","enforcement":"active","conditions":{"ref_name":{},
			"repository_property":{"include":[{"name":"team","property_values":["parts"]}]}}}`, 201,
			`"conditions":{"ref_name":{"include":[],"exclude":[]},"repository_property":{`+
				`"include":[{"name":"team","property_values":["parts"],"source":"custom"}],"exclude":[]}}`)
	})
}

func TestCreateRulesetReportsTheFirstInvalidField(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct{ from, to, field, code string }{
			{`"name": "all of it"`, `"name": ""`, "name", "missing_field"},
			{`"name": "all of it", `, ``, "name", "missing_field"},
			{`"name": "all of it"`, `"name": null`, "name", "missing_field"},
			{`"name": "all of it"`, `"name": 1`, "name", "invalid"},
			{`"name": "all of it"`, `"name": "switched off"`, "name", "already_exists"},
			{`"target": "branch"`, `"target": "tree"`, "target", "invalid"},
			{`"enforcement": "active"`, `"enforcement": "enabled"`, "enforcement", "invalid"},
			{`"enforcement": "active"`, `"enforcement": ["active"]`, "enforcement", "invalid"},
			{`"enforcement": "active",`, ``, "enforcement", "missing_field"},
			{`"bypass_actors": [`, `"bypass_actors": [3,`, "bypass_actors[0]", "invalid"},
			{`{"actor_id": 1,`, `{`, "bypass_actors[0].actor_id", "missing_field"},
			{`"actor_id": 1,`, `"actor_id": 2,`, "bypass_actors[0].actor_id", "invalid"},
			{`"actor_id": null,`, `"actor_id": 1,`, "bypass_actors[1].actor_id", "invalid"},
			{`"DeployKey", "bypass_mode": "always"`, `"DeployKey", "bypass_mode": "pull_request"`, "bypass_actors[1].bypass_mode", "invalid"},
			{`"actor_id": 7,`, `"actor_id": "7",`, "bypass_actors[2].actor_id", "invalid"},
			{`"actor_id": 7,`, `"actor_id": null,`, "bypass_actors[2].actor_id", "missing_field"},
			{`"actor_id": 7,`, `"actor_id": -7,`, "bypass_actors[2].actor_id", "invalid"},
			{`"actor_id": 7,`, `"actor_id": 7.5,`, "bypass_actors[2].actor_id", "invalid"},
			{`"Integration"`, `"App"`, "bypass_actors[3].actor_type", "invalid"},
			{`"actor_type": "Integration", `, ``, "bypass_actors[3].actor_type", "missing_field"},
			{`"RepositoryRole", "bypass_mode": "always"`, `"RepositoryRole"`, "bypass_actors[4].bypass_mode", "missing_field"},
			{`"RepositoryRole", "bypass_mode": "always"`, `"RepositoryRole", "bypass_mode": "never"`, "bypass_actors[4].bypass_mode", "invalid"},
			{`"conditions": {`, `"conditions": [], "more": {`, "conditions", "invalid"},
			{`"ref_name": {`, `"ref_name": "main", "more": {`, "conditions.ref_name", "invalid"},
			{`["~DEFAULT_BRANCH"]`, `"~DEFAULT_BRANCH"`, "conditions.ref_name.include", "invalid"},
			{`["~DEFAULT_BRANCH"]`, `["~ALL", 5]`, "conditions.ref_name.include[1]", "invalid"},
			{`["refs/heads/x"]`, `[""]`, "conditions.ref_name.exclude[0]", "invalid"},
			{`"ref_name": {`, `"repository_id": {"repository_ids": [1]}, "ref_name": {`, "conditions.repository_id", "invalid"},
			{`"rules": [`, `"rules": {}, "more": [`, "rules", "invalid"},
			{`"rules": [`, `"rules": [null,`, "rules[0]", "invalid"},
			{`{"type": "deletion"}`, `{}`, "rules[1].type", "missing_field"},
			{`{"type": "deletion"}`, `{"type": "demolition"}`, "rules[1].type", "invalid"},
			{`{"type": "deletion"}`, `{"type": 3}`, "rules[1].type", "invalid"},
			{`, "parameters": {"update_allows_fetch_and_merge": true}`, ``, "rules[0].parameters", "missing_field"},
			{`{"update_allows_fetch_and_merge": true}`, `true`, "rules[0].parameters", "invalid"},
		} {
			t.wantErrors("Ruleset", "POST "+widgetsRulesets, []invalidBody{{strings.Replace(completeRuleset, c.from, c.to, 1), c.field, c.code}})
		}
		t.call("owner", "POST "+widgetsRulesets+" "+completeRuleset, 201, "")
		t.wantErrors("Ruleset", "POST "+widgetsRulesets, []invalidBody{{completeRuleset, "name", "already_exists"}, {"", "name", "missing_field"}})
		t.calls([]call{
			{"owner", "POST " + widgetsRulesets + " {", 400, ""},
			{"owner", "POST " + widgetsRulesets + " []", 400, ""},
			{"owner", "POST /repos/acme/none/rulesets " + completeRuleset, 404, ""},
			{"owner", "POST /orgs/none/rulesets " + completeRuleset, 404, ""},
			{"owner", "GET " + widgetsRulesets + "?includes_parents=false", 200, "#4"}, // no refused ruleset was stored
		})
	})
}

func TestConditionsOfOrganizationRulesetsAreValidated(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct{ conditions, field, code string }{
			{``, "conditions", "missing_field"},
			{`,"conditions":{}`, "conditions", "missing_field"},
			{`,"conditions":{"ref_name":{"include":["~ALL"]}}`, "conditions", "missing_field"},
			{`,"conditions":{"repository_id":{"repository_ids":[]}}`, "conditions.ref_name", "missing_field"},
			{`,"conditions":{"ref_name":{},"repository_id":{"repository_ids":[]},"repository_name":{}}`, "conditions", "invalid"},
			{`,"conditions":{"ref_name":{},"repository_name":{},"repository_property":{}}`, "conditions", "invalid"},
			{`,"conditions":{"ref_name":{},"repository_id":{}}`, "conditions.repository_id.repository_ids", "missing_field"},
			{`,"conditions":{"ref_name":{},"repository_id":{"repository_ids":[1,null]}}`, "conditions.repository_id.repository_ids[1]", "invalid"},
			{`,"conditions":{"ref_name":{},"repository_name":{"include":[1]}}`, "conditions.repository_name.include[0]", "invalid"},
			{`,"conditions":{"ref_name":{},"repository_name":{"protected":"yes"}}`, "conditions.repository_name.protected", "invalid"},
			{`,"conditions":{"ref_name":{},"repository_property":{"include":[{}]}}`, "conditions.repository_property.include[0].name", "missing_field"},
			{`,"conditions":{"ref_name":{},"repository_property":{"exclude":[{"name":"x"}]}}`, "conditions.repository_property.exclude[0].property_values", "missing_field"},
			{`,"conditions":{"ref_name":{},"repository_property":{"exclude":[{"name":"x","property_values":[2]}]}}`, "conditions.repository_property.exclude[0].property_values[0]", "invalid"},
			{`,"conditions":{"ref_name":{},"repository_property":{"include":[{"name":"x","property_values":[],"source":"else"}]}}`, "conditions.repository_property.include[0].source", "invalid"},
		} {
			body := `{"name":"n","enforcement":"active"` + c.conditions + `}`
			t.wantErrors("Ruleset", "POST "+acmeRulesets, []invalidBody{{body, c.field, c.code}})
		}
		t.call("owner", "POST "+acmeRulesets+` {"name":"n","enforcement":"active","conditions":{"ref_name":{},
			"repository_name":{"include":["~ALL"],"exclude":[],"protected":true}}}`, 201, "")
	})
}

func TestListBranchRulesRefusesPatterns(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, branch := range []string{"*", "%2A", "release/*", "v%3F", "%5Ba-z]"} {
			t.wantErrors("Ruleset", "GET /repos/acme/widgets/rules/branches/"+branch, []invalidBody{{"", "branch", "invalid"}})
		}
		t.call("", "GET /repos/acme/none/rules/branches/*", 404, "")
	})
}

// TestPersonalRepositoriesRefuseOrganizationFeatures checks the actor OrganizationAdmin
// and the enforcement "evaluate".
func TestPersonalRepositoriesRefuseOrganizationFeatures(t *testing.T) {
	home := &repository{name: "home", owner: &account{login: "outsider"}}
	for _, c := range []struct{ body, field string }{
		{completeRuleset, "bypass_actors[0].actor_type"},
		{`{"name":"n","enforcement":"evaluate"}`, "enforcement"},
		{`{"name":"n","enforcement":"active","bypass_actors":[{"actor_type":"DeployKey","bypass_mode":"always"}]}`, ""},
	} {
		set := ruleset{owner: home.owner, repository: home}
		if problem := readBody([]byte(c.body), "Ruleset", &set); problem != nil {
			t.Fatalf("%s: %v", c.body, problem.body)
		}
		fieldErr := set.validate(nil)
		failIf(t, fieldErr == nil && c.field != "" || fieldErr != nil && *fieldErr != *invalidAt(c.field), "%s: got %v, want %q", c.body, fieldErr, c.field)
	}
}

// TestNewRulesetsApplyToTheirBranches checks the list of rulesets and the rules of two
// branches.
func TestNewRulesetsApplyToTheirBranches(t *testing.T) {
	runWithService(t, func(t *tester) {
		count := func(target string) int { return len(t.list(target)) }
		const main, tip = "/repos/acme/widgets/rules/branches/main", "/repos/acme/widgets/rules/branches/tip"
		for _, c := range []struct {
			name, target, enforcement, conditions string
			main, tip                             int // additional rules of the branch
		}{
			{"default branch", "branch", "active", `{"ref_name":{"include":["~DEFAULT_BRANCH"]}}`, 1, 0},
			{"all branches except main", "branch", "active", `{"ref_name":{"include":["~ALL"],"exclude":["refs/heads/main"]}}`, 0, 1},
			{"no conditions", "branch", "active", `{}`, 0, 0},
			{"no included pattern", "branch", "active", `{"ref_name":{"exclude":["refs/heads/x"]}}`, 0, 0},
			{"tags", "tag", "active", `{"ref_name":{"include":["~ALL"]}}`, 0, 0},
			{"pushes", "push", "active", `{"ref_name":{"include":["~ALL"]}}`, 0, 0},
			{"evaluated only", "branch", "evaluate", `{"ref_name":{"include":["~ALL"]}}`, 0, 0},
			{"disabled", "branch", "disabled", `{"ref_name":{"include":["~ALL"]}}`, 0, 0},
		} {
			listed, inMain, inTip := count(widgetsRulesets), count(main), count(tip)
			t.call("owner", fmt.Sprintf(`POST %s {"name":%q,"target":%q,"enforcement":%q,"conditions":%s,
				"rules":[{"type":"max_file_size","parameters":{"max_file_size":5}}]}`, widgetsRulesets, c.name, c.target, c.enforcement, c.conditions), 201, "")
			t.wantEqual(c.name, [3]int{1, c.main, c.tip}, [3]int{count(widgetsRulesets) - listed, count(main) - inMain, count(tip) - inTip})
		}
		t.wantEqual("new rule", jsonObject{
			"type": "max_file_size", "parameters": jsonObject{"max_file_size": 5.0},
			"ruleset_source_type": "Repository", "ruleset_source": "acme/widgets", "ruleset_id": 604.0,
		}, t.list(main)[1])
	})
}

// TestOrganizationRulesetsSelectRepositories selects by name, ID and property.
func TestOrganizationRulesetsSelectRepositories(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct{ conditions, want string }{
			{`"repository_name":{"include":["~ALL"]}`, "widgets secret empty monolith"},
			{`"repository_name":{"include":["~ALL"],"exclude":["m*","SECRET"]}`, "widgets empty"},
			{`"repository_name":{"include":["Wid?ets","em*"]}`, "widgets empty"},
			{`"repository_name":{"exclude":["empty"]}`, ""},
			{`"repository_name":{"include":["acme/widgets"]}`, ""},
			{`"repository_id":{"repository_ids":[1004,1001,7]}`, "widgets monolith"},
			{`"repository_id":{"repository_ids":[]}`, ""},
			{`"repository_property":{"include":[{"name":"team","property_values":["parts","legal"]}]}`, "widgets empty monolith"},
			{`"repository_property":{"include":[{"name":"team","property_values":["parts"]},{"name":"stage","property_values":["plan"]}]}`, "empty"},
			{`"repository_property":{"exclude":[{"name":"stage","property_values":["plan"]},{"name":"team","property_values":["security"]}]}`, "widgets monolith"},
			{`"repository_property":{"include":[{"name":"visibility","source":"system","property_values":["private"]}]}`, "secret"},
			{`"repository_property":{"include":[{"name":"language","source":"system","property_values":["Go"]}],"exclude":[{"name":"visibility","source":"system","property_values":["private"]}]}`, "widgets monolith"},
			{`"repository_property":{"include":[{"name":"visibility","property_values":["private"]}]}`, ""},
		} {
			w := t.call("owner", fmt.Sprintf(`POST %s {"name":%s,"enforcement":"active","rules":[{"type":"creation"}],
				"conditions":{"ref_name":{"include":["refs/heads/*"]},%s}}`, acmeRulesets, encode(c.conditions), c.conditions), 201, "")
			id := decode[jsonObject](t, w)["id"]
			for member, target := range map[string]string{"id": "/rulesets?per_page=100", "ruleset_id": "/rules/branches/x?per_page=100"} {
				var got []string
				for _, r := range t.s.world.repositories {
					if slices.ContainsFunc(t.list("/repos/"+r.fullName()+target), func(o jsonObject) bool { return o[member] == id }) {
						got = append(got, r.name)
					}
				}
				t.wantEqual(c.conditions+" "+target, c.want, strings.Join(got, " "))
			}
		}
		t.call("owner", "GET "+acmeRulesets, 200, "#15")
	})
}

func TestRefPatternsSelectBranches(t *testing.T) {
	for _, c := range []struct {
		include, exclude, branch string
		want                     bool
	}{
		{"~ALL", "", "anything", true},
		{"~DEFAULT_BRANCH", "", "main", true},
		{"~DEFAULT_BRANCH", "", "other", false},
		{"", "", "main", false},
		{"refs/heads/release/*", "", "release/1", true},
		{"refs/heads/release/*", "", "release/1/fix", false},
		{"refs/heads/release/**", "", "release/1/fix", true},
		{"refs/heads/v?", "", "v1", true},
		{"refs/heads/v?", "", "v10", false},
		{"refs/heads/a.b", "", "axb", false},
		{"refs/heads/(x", "", "(x", true},
		{"~ALL", "refs/heads/wip/**", "wip/x", false},
		{"~ALL", "~DEFAULT_BRANCH", "main", false},
	} {
		set := ruleset{Target: "branch", Conditions: conditions{RefName: &patterns{strings.Fields(c.include), strings.Fields(c.exclude)}}}
		testservers.Equal(t, fmt.Sprint(c), set.appliesToBranch(c.branch, "main"), c.want)
	}
}

func TestLongPatternsAreMatchedFast(t *testing.T) {
	failIf(t, matchRef(strings.Repeat("*?", 100_000), "refs/heads/main") || !matchRef(strings.Repeat("*", 100_000), "refs/heads/main"), "a long pattern has the wrong result")
}
