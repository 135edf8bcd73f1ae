package service

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// documentedRules holds every rule type of Document A section 4.8 with all parameters.
// Optional parameters have a question mark.
var documentedRules = map[string]string{
	"creation":                `{}`,
	"update":                  `{"update_allows_fetch_and_merge": true}`,
	"deletion":                `{}`,
	"required_linear_history": `{}`,
	"merge_queue": `{"check_response_timeout_minutes": 60, "grouping_strategy": "HEADGREEN", "max_entries_to_build": 5, "max_entries_to_merge": 5,
		"merge_method": "SQUASH", "min_entries_to_merge": 0, "min_entries_to_merge_wait_minutes": 5}`,
	"required_deployments": `{"required_deployment_environments": ["staging"]}`,
	"required_signatures":  `{}`,
	"pull_request": `{"dismiss_stale_reviews_on_push": true, "require_code_owner_review": true, "require_last_push_approval": true,
		"required_approving_review_count": 2, "required_review_thread_resolution": true}`,
	"required_status_checks": `{"required_status_checks": [{"context": "build", "integration_id?": 3}], "strict_required_status_checks_policy": true,
		"do_not_enforce_on_create?": true}`,
	"non_fast_forward":            `{}`,
	"commit_message_pattern":      pattern,
	"commit_author_email_pattern": pattern,
	"committer_email_pattern":     pattern,
	"branch_name_pattern":         pattern,
	"tag_name_pattern":            pattern,
	"file_path_restriction":       `{"restricted_file_paths": ["vault/**"]}`,
	"max_file_path_length":        `{"max_file_path_length": 200}`,
	"file_extension_restriction":  `{"restricted_file_extensions": ["*.exe"]}`,
	"max_file_size":               `{"max_file_size": 10}`,
	"workflows":                   `{"workflows": [{"path": "ci.yaml", "ref?": "main", "repository_id": 1001, "sha?": "0a"}], "do_not_enforce_on_create?": true}`,
}

const pattern = `{"name?": "n", "negate?": true, "operator": "regex", "pattern": "^fix: .+$"}`

// choices lists the allowed values of each choice parameter.
var choices = map[string]string{
	"grouping_strategy": "ALLGREEN HEADGREEN", "merge_method": "MERGE SQUASH REBASE", "operator": "starts_with ends_with contains regex",
}

// TestRuleParametersAreValidated creates a rule of each type with all parameters. Then it omits each parameter, sets it
// to invalid values, and sets it to each choice.
func TestRuleParametersAreValidated(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, kind := range slices.Sorted(maps.Keys(documentedRules)) {
			var parameters any
			testservers.NoError(t, json.Unmarshal([]byte(documentedRules[kind]), &parameters))
			c := &ruleCase{tester: t, kind: kind, parameters: parameters}
			c.create("", "")
			if want := withoutMarks(parameters); len(want.(jsonObject)) > 0 {
				t.wantEqual(kind, want, c.lastParameters())
			}
			c.varyMembers(parameters, "rules[0].parameters")
			time.Sleep(time.Hour) // stay within the limits of content creation
		}
		want := append(slices.Collect(maps.Keys(documentedRules)), "code_scanning")
		for _, m := range bodySchemas()["Ruleset"].members {
			if m.name == "rules" {
				t.wantEqual("types of the documents", sorted(want), sorted(slices.Clone(m.schema.element.choices)))
			}
		}
	})
}

// ruleCase tests one rule type. The test changes the parameters in place.
type ruleCase struct {
	*tester
	kind       string
	parameters any
	count      int
	lastBody   string
}

// create posts a ruleset with the current parameters and checks the field error.
func (c *ruleCase) create(field, code string) {
	c.Helper()
	c.count++
	body := jsonObject{
		"name": fmt.Sprint(c.kind, c.count), "enforcement": "active", "conditions": jsonObject{"ref_name": jsonObject{"include": []string{"~ALL"}}},
		"rules": []any{jsonObject{"type": c.kind, "parameters": withoutMarks(c.parameters)}},
	}
	status, want := 201, ""
	if field != "" {
		status, want = 422, fmt.Sprintf(`{"errors":[{"resource":"Ruleset","field":%q,"code":%q}]}`, field, code)
	}
	w := c.call("owner", "POST "+widgetsRulesets+" "+string(encode(body)), status, want)
	c.lastBody = w.Body.String()
}

// lastParameters returns the parameters of the newest ruleset.
func (c *ruleCase) lastParameters() any {
	var count struct {
		Rules []struct{ Parameters any }
	}
	noError(c, json.Unmarshal([]byte(c.lastBody), &count))
	return count.Rules[0].Parameters
}

// varyMembers varies each member of the value at path, and nested members.
func (c *ruleCase) varyMembers(value any, path string) {
	switch value := value.(type) {
	case []any:
		c.varyMembers(value[0], path+"[0]")
	case jsonObject:
		for name, was := range value {
			plainName, optional := strings.CutSuffix(name, "?")
			at := path + "." + plainName
			c.varyMembers(was, at)
			for _, invalid := range invalidValues(was, choices[plainName] != "") {
				value[name] = invalid
				c.create(at, "invalid")
			}
			for choice := range strings.FieldsSeq(choices[plainName]) {
				value[name] = choice
				c.create("", "")
			}
			delete(value, name)
			if optional {
				c.create("", "")
			} else {
				c.create(at, "missing_field")
			}
			value[name] = was
		}
	}
}

// invalidValues returns values of other types and, for a choice, other strings.
func invalidValues(right any, isChoice bool) []any {
	switch right.(type) {
	case bool:
		return []any{"true", 1, []any{}}
	case float64:
		return []any{"1", -1, 1.5, true, 1e30}
	case []any:
		return []any{"a", 1, jsonObject{}}
	case string:
		if isChoice {
			return []any{1, true, []any{"a"}, "other", "Contains"}
		}
		return []any{1, true, []any{"a"}}
	}
	return nil
}

// withoutMarks returns a copy of a value without the question marks of its member names.
func withoutMarks(value any) any {
	switch value := value.(type) {
	case []any:
		all := slices.Clone(value)
		for i, v := range all {
			all[i] = withoutMarks(v)
		}
		return all
	case jsonObject:
		o := jsonObject{}
		for name, v := range value {
			o[strings.TrimSuffix(name, "?")] = withoutMarks(v)
		}
		return o
	}
	return value
}

func TestUnusualRulesAreAcceptedOrRefused(t *testing.T) {
	runWithService(t, func(t *tester) {
		for i, c := range []struct{ rules, wantRules, field string }{
			{`[{"type":"branch_name_pattern","parameters":{"operator":"contains","pattern":"("}}]`, "", ""},
			{`[{"type":"required_deployments","parameters":{"required_deployment_environments":[]}}]`, "", ""},
			{`[{"type":"code_scanning"}]`, "", ""},
			{`[{"type":"code_scanning","parameters":{"code_scanning_tools":[{"tool":"t"}]}}]`, "", ""},
			{`[{"type":"creation","parameters":{"a":1}}]`, `[{"type":"creation"}]`, ""},
			{`[{"type":"max_file_size","parameters":{"max_file_size":0,"a":1}}]`, `[{"type":"max_file_size","parameters":{"max_file_size":0}}]`, ""},
			{
				`[{"type":"tag_name_pattern","parameters":{"pattern":"x","name":"","negate":null,"operator":"contains"}}]`,
				`[{"type":"tag_name_pattern","parameters":{"operator":"contains","pattern":"x"}}]`, "",
			},
			{`[{"type":"deletion"},{"type":"branch_name_pattern","parameters":{"operator":"regex","pattern":"("}}]`, "", "rules[1].parameters.pattern"},
			{`[{"type":"branch_name_pattern","parameters":{"operator":"regex","pattern":"(?=x)"}}]`, "", "rules[0].parameters.pattern"},
			{`[{"type":"required_deployments","parameters":{"required_deployment_environments":["a",3]}}]`, "", "rules[0].parameters.required_deployment_environments[1]"},
			{
				`[{"type":"required_status_checks","parameters":{"strict_required_status_checks_policy":true,"required_status_checks":[{"context":"a"},"b"]}}]`,
				"", "rules[0].parameters.required_status_checks[1]",
			},
			{`[{"type":"code_scanning","parameters":3}]`, "", "rules[0].parameters"},
		} {
			request := fmt.Sprintf(`POST %s {"name":"n%d","enforcement":"active","rules":%s}`, widgetsRulesets, i, c.rules)
			if c.field != "" {
				t.call("owner", request, 422, fmt.Sprintf(`{"errors":[{"resource":"Ruleset","field":%q,"code":"invalid"}]}`, c.field))
				continue
			}
			t.call("owner", request, 201, `"rules":`+cmp.Or(c.wantRules, c.rules))
		}
	})
}
