package policy

import (
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// wantEqual compares two values.
func wantEqual(t testing.TB, name string, want, got any, options ...cmp.Option) {
	t.Helper()
	diff := cmp.Diff(want, got, options...)
	failIf(t, diff != "", "%s: want (-), got (+):\n%s", name, diff)
}

// catalogue returns a catalogue with the given operations and one alias.
func catalogue(operations string) (*Catalogue, error) {
	return load(fstest.MapFS{
		"operations/x.yaml": {Data: []byte("section: X 1\ntitle: Test\noperations:\n" + operations)},
		"aliases.yaml":      {Data: []byte(`[{prefix: "/repositories/{repository_id}", documented: "/repos/{owner}/{repo}"}]`)},
	})
}

func TestLoadAddsDefaults(t *testing.T) {
	c, err := catalogue(`
  - {id: a, method: GET, path: "/repos/{owner}/{repo}/a", paged: true, query: [{name: q, required: true}]}
  - {id: b, method: PUT, path: /b, success: [204], auth: optional}
  - {id: c, method: POST, path: /c, points: 1, resource: graphql, cache: {class: never}}
  - {id: d, method: GET, path: /d, cache: {class: shared, ttl: 90m}}
`)
	noError(t, err)
	want := []*Operation{
		{
			ID: "a", Section: "X 1", Method: "GET", Path: "/repos/{owner}/{repo}/a", Resource: Core, Points: 1, Cache: CacheRule{Class: PerCaller}, Auth: "required",
			Query: []Parameter{{Name: "q", Required: true}, {Name: "per_page", Default: "30"}, {Name: "page", Default: "1"}},
		},
		{ID: "b", Section: "X 1", Method: "PUT", Path: "/b", Success: []int{204}, Resource: Core, Points: 5, Cache: CacheRule{Class: Never}, Auth: "optional"},
		{ID: "c", Section: "X 1", Method: "POST", Path: "/c", Resource: "graphql", Points: 1, Cache: CacheRule{Class: Never}, Auth: "required"},
		{ID: "d", Section: "X 1", Method: "GET", Path: "/d", Resource: Core, Points: 1, Cache: CacheRule{Class: Shared, TTL: 90 * time.Minute}, Auth: "required"},
	}
	wantEqual(t, "operations", want, c.Operations())
	m, err := c.Classify("GET", "/repositories/7/a", "")
	failIf(t, err != nil || m.Operation != c.Operation("a") || m.Params.Get("repository_id") != "7", "path of an alias: got %+v (%v)", m, err)
}

func TestLoadReportsErrors(t *testing.T) {
	for _, c := range []struct{ name, operations, want string }{
		{"unknown key", "  - {id: a, method: GET, path: /a, pints: 3}", "pints"},
		{"no ID", "  - {method: GET, path: /a}", `operation without id, method or path: "" "GET" "/a"`},
		{"no method", "  - {id: a, path: /a}", "operation without id, method or path"},
		{"path without a slash", "  - {id: a, method: GET, path: a}", "operation without id, method or path"},
		{"duplicate ID", "  - {id: a, method: GET, path: /a}\n  - {id: a, method: GET, path: /b}", `operation "a" is defined twice`},
		{"duplicate route", "  - {id: a, method: GET, path: /a}\n  - {id: b, method: GET, path: /a}", `"a" and "b" have the same method and path`},
		{"tail parameter before the end", "  - {id: a, method: GET, path: \"/{branch}/a\"}", `operation "a": {branch} takes the rest of the path and must be last`},
		{"unknown invalidation", "  - {id: a, method: PUT, path: /a, invalidates: [b]}", `operation "a" invalidates unknown operation "b"`},
		{"unknown resource", "  - {id: a, method: GET, path: /a, resource: gold}", `operation "a": unknown resource "gold"`},
		{"unknown check", "  - {id: a, method: GET, path: /a, checks: [mate]}", `operation "a": unknown check "mate"`},
	} {
		loaded, err := catalogue(c.operations)
		if err == nil {
			err = problems(loaded)
		}
		failIf(t, err == nil || !strings.Contains(err.Error(), c.want), "%s: got %v, want %s", c.name, err, c.want)
	}
	loaded, err := catalogue("  - {id: a, method: GET, path: /a, checks: [mate], resource: gold}\n  - {id: b, path: /b}")
	noError(t, err)
	err = problems(loaded)
	failIf(t, err == nil || len(strings.Split(err.Error(), "\n")) != 3, "got %v, want three errors", err)
	if _, err := load(fstest.MapFS{}); err == nil || !strings.Contains(err.Error(), "aliases.yaml") {
		t.Errorf("got %v, want an error about aliases.yaml", err)
	}
}

func TestWithCacheRulesChangesTheCopyOnly(t *testing.T) {
	c, err := Embedded().WithCacheRules(map[string]CacheOverride{"gitignore/get-template": {TTL: time.Minute, Coalesce: true}})
	noError(t, err)
	for target, want := range map[string]time.Duration{"/gitignore/templates/Go": time.Minute, "/gitignore/templates": 24 * time.Hour} {
		m, err := c.Classify("GET", target, "")
		failIf(t, err != nil || m.Operation.Cache != (CacheRule{Class: Shared, TTL: want}), "%s: got %+v (%v), want %s", target, m.Operation, err, want)
	}
	m := classify(t, "GET", "/repositories/7/subscribers")
	failIf(t, m.Operation.ID != "watching/list-subscribers", "the copy has no aliases: got %s", m.Operation.ID)
	ttl := Embedded().Operation("gitignore/get-template").Cache.TTL
	failIf(t, ttl != 24*time.Hour, "the embedded catalogue has changed: the TTL is %s", ttl)
	if same, err := Embedded().WithCacheRules(nil); same != Embedded() || err != nil {
		t.Errorf("without overrides: got %v (%v), want the same catalogue", same, err)
	}
}

func TestWithCacheRulesReportsAllErrors(t *testing.T) {
	_, err := Embedded().WithCacheRules(map[string]CacheOverride{"gitignore/get-template": {}, "none": {}, "rate-limit/get": {}})
	want := `cache.operations: operation "rate-limit/get" is never stored; remove it
cache.operations: unknown operation "none"`
	failIf(t, err == nil || err.Error() != want, "got %v\nwant %s", err, want)
}
