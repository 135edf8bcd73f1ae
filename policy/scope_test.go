package policy

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAScopeAllowsWhatItNames(t *testing.T) {
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
		{"a scope that names nothing", &Scope{}, "DELETE", "repos/delete", true},
		{"a method that it names", reads, "GET", "repos/get", true},
		{"HEAD is GET without a body", reads, "HEAD", "repos/get", true},
		{"a method that it does not name", reads, "POST", "issues/create", false},
		{"a method in lower case is another one", reads, "get", "unknown", false},
		{"an operation by a pattern", issues, "POST", "issues/create", true},
		{"an operation by its name", issues, "GET", "search/code", true},
		{"a name that begins like an operation's", issues, "GET", "search/code-owners", false},
		{"a route that the documents do not show", issues, "GET", "unknown", false},
		{"such a route, by everything", &Scope{Operations: []string{"*"}}, "GET", "unknown", true},
		{"method and operation", both, "POST", "issues/create", true},
		{"the method alone", both, "POST", "gists/create", false},
		{"the operation alone", both, "PATCH", "issues/update", false},
		{"HEAD where GET is not named", &Scope{Methods: []string{"POST", "HEAD"}}, "HEAD", "repos/get", false},
	} {
		if got := c.scope.Allows(c.method, &Operation{ID: c.id}); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "a/b", true}, {"a*", "a", true}, {"a*a", "a", false}, {"a*a", "aa", true},
		{"*/get", "gists/get", true}, {"*/get", "gists/get-star", false}, {"a*b*c", "abc", true}, {"a*b*c", "acb", false}, {"a**c", "ac", true},
		{"a?", "ab", false}, {"[a]", "a", false}, {"A", "a", false}, {"*b*b", "ab", false},
	} {
		if got := Glob(c.pattern, c.name); got != c.want {
			t.Errorf("%q and %q: %t", c.pattern, c.name, got)
		}
	}
}

func TestGlobIsARegularExpression(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*]{0,6}`).Draw(t, "pattern")
		name := rapid.StringMatching(`[ab]{0,8}`).Draw(t, "name")
		want := regexp.MustCompile("^" + strings.ReplaceAll(pattern, "*", ".*") + "$").MatchString(name)
		if got := Glob(pattern, name); got != want {
			t.Fatalf("got %t", got)
		}
	})
}
