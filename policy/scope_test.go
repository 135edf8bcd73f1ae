package policy

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestScopeAllowsListedMethodsAndOperations(t *testing.T) {
	reads := &Scope{Methods: []string{"GET"}}
	issues := &Scope{Operations: []string{"issues/*", "search/code"}}
	both := &Scope{Methods: []string{"GET", "POST"}, Operations: []string{"issues/*"}}
	for _, c := range []struct {
		name       string
		scope      *Scope
		method, id string
		want       bool
	}{
		{"no scope", nil, "DELETE", "repos/delete", true},
		{"an empty scope", &Scope{}, "DELETE", "repos/delete", true},
		{"a listed method", reads, "GET", "repos/get", true},
		{"HEAD with GET listed", reads, "HEAD", "repos/get", true},
		{"a method that is not listed", reads, "POST", "issues/create", false},
		{"a method in lower case", reads, "get", "unknown", false},
		{"an operation that matches a pattern", issues, "POST", "issues/create", true},
		{"a listed operation", issues, "GET", "search/code", true},
		{"a name with a listed operation as prefix", issues, "GET", "search/code-owners", false},
		{"an unknown route", issues, "GET", "unknown", false},
		{"an unknown route with the pattern *", &Scope{Operations: []string{"*"}}, "GET", "unknown", true},
		{"listed method and operation", both, "POST", "issues/create", true},
		{"listed method only", both, "POST", "gists/create", false},
		{"listed operation only", both, "PATCH", "issues/update", false},
		{"HEAD listed, but not GET", &Scope{Methods: []string{"POST", "HEAD"}}, "HEAD", "repos/get", false},
	} {
		wantEqual(t, c.name, c.want, c.scope.Allows(c.method, &Operation{ID: c.id}))
	}
}

func TestGlobMatchesAsterisk(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "a/b", true}, {"a*", "a", true}, {"a*a", "a", false}, {"a*a", "aa", true},
		{"*/get", "gists/get", true}, {"*/get", "gists/get-star", false}, {"a*b*c", "abc", true}, {"a*b*c", "acb", false}, {"a**c", "ac", true},
		{"a?", "ab", false}, {"[a]", "a", false}, {"A", "a", false}, {"*b*b", "ab", false},
	} {
		wantEqual(t, c.pattern+" and "+c.name, c.want, Glob(c.pattern, c.name))
	}
}

func TestGlobEqualsRegularExpression(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*]{0,6}`).Draw(t, "pattern")
		name := rapid.StringMatching(`[ab]{0,8}`).Draw(t, "name")
		want := regexp.MustCompile("^" + strings.ReplaceAll(pattern, "*", ".*") + "$").MatchString(name)
		if got := Glob(pattern, name); got != want {
			t.Fatalf("Glob(%q, %q): got %t, want %t", pattern, name, got, want)
		}
	})
}
