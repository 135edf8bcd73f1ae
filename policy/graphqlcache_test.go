package policy

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Two bodies have the same Question only if the upstream reads the same query with the same variables.
func TestQuestionIdentifiesAQuery(t *testing.T) {
	question := func(query, rest string) string {
		call, _ := ParseGraphQL([]byte(`{"query":` + strconv.Quote(query) + rest + `}`))
		return call.Question
	}
	base := question("query A($x: Int, $y: Int) { a(x: $x, y: $y) { b } }", `,"variables":{"x":1,"y":{"z":[1,2]}}`)
	for _, c := range []struct {
		query, rest string
		same        bool
	}{
		{"query A($x:Int,$y:Int){a(x:$x y:$y){b}} # comment", `,"variables":{"y": {"z": [1, 2]}, "x": 1}`, true},
		{"query A($x: Int, $y: Int) { a(x: $x, y: $y) { b } }", `,"operationName":"A","variables":{"x":1,"y":{"z":[1,2]}}`, true},
		{"query B($x: Int, $y: Int) { a(x: $x, y: $y) { b } }", `,"variables":{"x":1,"y":{"z":[1,2]}}`, false},
		{"query A($x: Int, $y: Int) { a(x: $x, y: $y) { c } }", `,"variables":{"x":1,"y":{"z":[1,2]}}`, false},
		{"query A($x: Int, $y: Int) { a(x: $x, y: $y) { b } }", `,"variables":{"x":1.0,"y":{"z":[1,2]}}`, false},
		{"query A($x: Int, $y: Int) { a(x: $x, y: $y) { b } }", `,"variables":{"x":1,"y":{"z":[1,2],"z":[1,2]}}`, false},
		{"query A($x: Int, $y: Int) { a(x: $x, y: $y) { b } }", `,"variables":{"x":1}`, false},
	} {
		got := question(c.query, c.rest)
		failIf(t, got == "" || (got == base) != c.same, "%s %s: same question %v, want %v", c.query, c.rest, got == base, c.same)
	}
	for _, c := range []struct{ query, rest string }{
		{"mutation { a }", ""},
		{"subscription { a }", ""},
		{"{ a } { b }", ""},
		{"{ a", ""},
		{"{ ...missing }", ""},
		{"{ a }", `,"extensions":{}`},
		{"{ a }", `,"other":1`},
		{"{ a }", `,"Variables":{"x":1}`},
		{"{ a }", `,"variables":{"x":1,"x":2}`},
		{"{ a }", `,"variables":{"x":"` + strings.Repeat("x", maxSharedValues) + `"}`},
	} {
		wantEqual(t, c.query+c.rest, "", question(c.query, c.rest))
	}
}

// Calls with different variables never have the same Question.
func TestQuestionDependsOnEachVariable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		variables := rapid.MapOf(rapid.StringMatching(`[a-c"\\]{0,2}`), rapid.OneOf(rapid.StringMatching(`[a-c"\\,{}]{0,3}`).AsAny(), rapid.IntRange(0, 3).AsAny()))
		question := func(v map[string]any) string {
			body, err := json.Marshal(map[string]any{"query": "{a}", "variables": v})
			if err != nil {
				t.Fatal(err)
			}
			call, _ := ParseGraphQL(body)
			return call.Question
		}
		a, b := variables.Draw(t, "a"), variables.Draw(t, "b")
		if same := maps.Equal(a, b); (question(a) == question(b)) != same {
			t.Errorf("%v and %v: questions %q and %q", a, b, question(a), question(b))
		}
	})
}

func TestRuleForAQuery(t *testing.T) {
	rules := GraphQLCache{GH: true, Rules: []GraphQLCacheRule{
		{Operation: "List", TTL: time.Minute}, {Field: "viewer", TTL: 20 * time.Second}, {Field: "node", TTL: 10 * time.Second},
	}}
	names := make([]string, maxStoredNames+1)
	for i := range names {
		names[i] = strconv.Quote("ID" + strconv.Itoa(i))
	}
	for _, c := range []struct {
		query string
		ttl   time.Duration // zero without a rule
	}{
		{"query List { user(login: 1) { id } }", time.Minute},
		{"query List { viewer { id } }", time.Minute},
		{"{ viewer { id } }", 20 * time.Second},
		{"{ viewer { id } __typename }", 20 * time.Second},
		{"{ viewer { id } a: viewer { id } ...f } fragment f on Query { node(id: 1) { id } }", 10 * time.Second},
		{"{ viewer { id } user(login: 1) { id } }", 0},
		{"{ viewer { id } rateLimit { cost } }", 0},
		{"query List { rateLimit { cost } }", 0},
		{"{ __typename }", 0},
		{"mutation List { viewer { id } }", 0},
		{"query List { nodes(ids: [" + strings.Join(names[1:], ",") + "]) { id } }", time.Minute},
		{"query List { nodes(ids: [" + strings.Join(names, ",") + "]) { id } }", 0},
		{`query PullRequestList { repository(owner: "a", name: "b") { id } }`, 30 * time.Second},
		{`query PullRequestStatus { viewer { id } }`, 20 * time.Second}, // a configured rule takes precedence
		{`query Other { repository(owner: "a", name: "b") { id } }`, 0},
	} {
		body, err := json.Marshal(map[string]string{"query": c.query})
		noError(t, err)
		call, _ := ParseGraphQL(body)
		rule, ok := rules.RuleFor(call)
		failIf(t, rule.TTL != c.ttl || ok != (c.ttl > 0), "%.80s: got %v, %v; want %v", c.query, rule, ok, c.ttl)
	}
}
