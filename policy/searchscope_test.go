package policy

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// searchScope permits acme without acme/secret, and whole.
var searchScope = &Scope{Repositories: []string{"acme/*", "!acme/secret", "whole/*"}}

// permitsSearch returns the reason why the scope refuses a search, or an empty string.
func permitsSearch(t testing.TB, operation, query string) string {
	t.Helper()
	m, err := CatalogueOf("github").Classify("GET", operation, query)
	if err != nil {
		return err.Error()
	}
	n, err := m.Named(nil, func(IDs, string) (string, error) { return "acme/widgets", nil })
	if err == nil {
		err = searchScope.Permits(m.Operation, n)
	}
	if reason := (*ScopeError)(nil); errors.As(err, &reason) {
		return reason.Reason
	}
	return ""
}

func TestSearchesStayInsideTheScope(t *testing.T) {
	const none = "has no qualifier"
	for _, c := range []struct{ q, reason string }{
		{"repo:acme/widgets x", ""}, {"repo:Acme/Widgets repo:acme/gadgets is:open", ""}, {"org:whole x", ""}, {"user:whole", ""},
		{`repo:acme/widgets "some phrase"`, ""}, {"repo:acme/widgets -repo:acme/secret", ""}, {"repo:acme/widgets a AND b", ""},
		{"repo:acme/secret x", "is outside"}, {"repo:acme/widgets repo:other/x", "is outside"}, {"org:acme", "not all repositories"},
		{"repo:acme/widgets user:other", "not all repositories"}, {"repo:acme/secret.git", "is outside"},
		{"", none}, {"x", none}, {"-repo:acme/widgets", none}, {`repo:"acme/widgets"`, none}, {"REPO:acme/widgets", none},
		{"repo:acme/widgets REPO:other/x", "is outside"}, {"repo:acme/widgets OR x", "has OR"}, {"repo:acme/widgets or x", "has or"},
		{"NOT repo:acme/widgets", "has NOT"}, {"(repo:acme/widgets)", "parentheses"}, {"repo:acme/widgets (x)", "parentheses"},
		{"repo:", "is not the name"}, {"repo: acme/widgets", "is not the name"}, {"repo:acme/*", "is not the name"}, {"repo:acme", "is not the name"},
		{"repo:acme/widgets,other/x", "is not the name"}, {"repo:acme/widgets\u00a0repo:other/x", "control characters"}, {"repo:acme/widgets\trepo:other/x", "control"},
		{`"repo:acme/widgets"`, "may be a qualifier"}, {`x"repo:acme/widgets"`, "may be a qualifier"}, {"+repo:other/x repo:acme/widgets", "may be a qualifier"},
		{`repo:acme/widgets "x`, "open quotation"}, {`"a\" repo:acme/widgets "b"`, "backslash"}, {"/a repo:acme/widgets b/", "regular expression"},
		{`repo:acme/widgets label:"bug"repo:acme/secret`, "may be a qualifier"}, {`repo:acme/widgets label:x" "repo:acme/secret`, "may be a qualifier"},
		{`repo:acme/widgets -repo:"x"repo:acme/secret`, "may be a qualifier"}, {`repo:"acme/widgets"org:other`, "may be a qualifier"}, {"repo:acme/widgets label:repo:acme/secret", "may be a qualifier"},
		{`repo:acme/widgets label:"bug"OR x`, "beside quotation marks"}, {`repo:acme/widgets "a"OR"b"`, "beside quotation marks"}, {`repo:acme/widgets author:"x"-label:y`, "beside quotation marks"},
		{`repo:acme/widgets label:"good first issue" -label:"x y" "z"`, ""}, {"path:/a repo:acme/widgets b/", "regular expression"}, {"-/a repo:acme/widgets b/", "regular expression"}, {"repo:acme/widgets path:/a", ""},
		{"enterprise:x repo:acme/widgets", "not supported"}, {"user:@me", "is not the name"}, {"repo：acme/widgets", "control characters"},
	} {
		got := permitsSearch(t, "/search/issues", "q="+url.QueryEscape(c.q))
		failIf(t, (got == "") != (c.reason == "") || !strings.Contains(got, c.reason), "%q: got %q, want %q", c.q, got, c.reason)
	}
	for query, want := range map[string]bool{
		"q=repo%3Aacme%2Fwidgets": true, "q=repo:acme/widgets&q=x": false, "q=repo:acme/widgets&q[]=x": false, "q=repo:acme/widgets&Q=x": false, "x=repo:acme/widgets": false, "": false,
		"q=repo:acme/widgets%26q=x": false, "q=%2572epo:acme/widgets": false, "q=repo:acme/widgets;q=x": false, "q=repo:acme/widgets&[q]=x": false, "q=repo:acme/widgets&+q=x": false, "q=repo:acme/widgets&%255Bq]=x": false, "sort=created&q=repo:acme/widgets": true,
	} {
		wantEqual(t, query, want, permitsSearch(t, "/search/code", query) == "")
	}
}

// FuzzSearchScope compares the decision with a search for qualifiers in the text.
func FuzzSearchScope(f *testing.F) {
	for _, q := range []string{"repo:acme/widgets x", "org:whole -repo:whole/x", `"a" repo:acme/x`, `repo:acme/x label:"a"repo:other/x`, "repo:acme/secret OR x", "user:other", "org:whole repo"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, q string) {
		if permitsSearch(t, "/search/issues", "q="+url.QueryEscape(q)) != "" {
			return
		}
		scoped := false
		separates := func(r rune) bool { return r == ' ' || r == '"' }
		for _, token := range append(strings.Split(q, " "), strings.FieldsFunc(q, separates)...) {
			name, value, qualifies := strings.Cut(token, ":")
			switch owner, _, _ := strings.Cut(strings.ToLower(value), "/"); {
			case name == "repo" && owner == "acme" && !strings.EqualFold(value, "acme/secret"), slices.Contains([]string{"repo", "org", "user"}, name) && owner == "whole":
				scoped = true
			case qualifies && slices.Contains(scoping, strings.ToLower(strings.Trim(name, `"+(`))):
				failIf(t, owner != "acme" && owner != "whole" || strings.EqualFold(value, "acme/secret"), "%q is permitted with %q", q, token)
			case strings.EqualFold(token, "OR"), strings.EqualFold(token, "NOT"):
				t.Errorf("%q is permitted", q)
			}
		}
		failIf(t, !scoped, "%q is permitted without a qualifier", q)
	})
}

func TestScopeCombinesPatternsAndClaims(t *testing.T) {
	claimed := searchScope.WithClaim([]string{"Acme/Widgets", "other/x", "acme/*", "whole/*"})
	for _, c := range []struct {
		scope *Scope
		name  string
		want  bool
	}{
		{searchScope, "acme/widgets", true}, {searchScope, "acme/secret", false}, {searchScope, "other/x", false}, {searchScope, "acme/secret.json", false}, {searchScope, "acme/secret2", true},
		{claimed, "acme/widgets", true}, {claimed, "acme/gadgets", false}, {claimed, "other/x", false}, {claimed, "whole/y", false},
		{(&Scope{}).WithClaim([]string{"other/x"}), "other/x", true}, {(&Scope{}).WithClaim(nil), "acme/widgets", false},
		{&Scope{Organizations: []string{"acme"}}, "acme/widgets", false}, {&Scope{Repositories: []string{"acme/widgets"}}, "acme/widgets.git", true},
		{&Scope{Repositories: []string{"a*/b*"}}, "acme/box", true}, {&Scope{Repositories: []string{"*/box"}}, "acme/x/box", false},
	} {
		wantEqual(t, c.name, c.want, c.scope.Permits(&Operation{}, Named{Repositories: []string{c.name}}) == nil)
	}
	wantEqual(t, "all of an owner by a claim", false, claimed.Permits(&Operation{}, Named{Whole: []string{"whole"}}) == nil)
}
