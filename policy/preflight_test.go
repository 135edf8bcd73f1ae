package policy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestPreflightReportsFirstFailedCheck(t *testing.T) {
	long := strings.Repeat("é", 257)
	for _, c := range []struct {
		name, path, q string
		kind          CallerKind
		check         string // "" passes
	}{
		{"no query", "/search/commits", "", User, "search-query"},
		{"a query with blanks only", "/search/commits", "  ", User, "search-query"},
		{"256 characters", "/search/commits", long[2:], User, ""},
		{"257 characters", "/search/commits", long, User, "search-length"},
		{"a blank counts", "/search/commits", long[4:] + " é", User, "search-length"},
		{"qualifiers do not count", "/search/commits", long[2:] + " repo:" + long, User, ""},
		{"operators do not count", "/search/commits", long[6:] + " AND é", User, ""},
		{"five operators", "/search/issues", "a AND b OR c NOT d AND e OR f", User, ""},
		{"six operators", "/search/issues", "a AND b OR c NOT d AND e OR f NOT g", User, "search-operators"},
		{"operators in a phrase", "/search/issues", `"a AND b AND c AND d AND e AND f AND g"`, User, ""},
		{"operators between qualifiers", "/search/issues", strings.Repeat("NOT repo:a/b ", 6), User, "search-operators"},
		{"only qualifiers for code", "/search/code", "repo:a/b language:go", User, "search-terms"},
		{"only qualifiers for commits", "/search/commits", "repo:a/b", User, ""},
		{"a term and a qualifier for code", "/search/code", "repo:a/b gear", User, ""},
		{"anonymous code search", "/search/code", "gear", Unauthenticated, "authentication"},
		{"authentication is checked before the query", "/search/code", "", Unauthenticated, "authentication"},
		{"anonymous commit search", "/search/commits", "gear", Unauthenticated, ""},
		{"code search of an installation", "/search/code", "gear", Installation, ""},
		{"code search of an OAuth app", "/search/code", "repo:a/b", OAuthApp, "search-terms"},
		{"a search outside of the endpoint tables", "/search/topics", "", User, "search-query"},
		{"not a search", "/feeds", "", Unauthenticated, ""},
	} {
		got := ""
		if f := classify(t, "GET", c.path+"?q="+url.QueryEscape(c.q)).Preflight(c.kind); f != nil {
			got = f.Check
		}
		wantEqual(t, c.name, c.check, got)
	}
}

// TestPreflightFindings checks the findings, which become responses of the gateway and of the reference service.
func TestPreflightFindings(t *testing.T) {
	invalid := func(check, code, message string) *Finding {
		return &Finding{Check: check, Status: http.StatusUnprocessableEntity, Message: message, Resource: "Search", Field: "q", Code: code}
	}
	for _, c := range []struct {
		target string
		kind   CallerKind
		want   *Finding
	}{
		{"/search/code?q=a", Unauthenticated, &Finding{Check: "authentication", Status: http.StatusUnauthorized, Message: "Requires authentication"}},
		{"/search/code", User, invalid("search-query", "missing", "Validation Failed")},
		{"/search/code?q=" + strings.Repeat("a", 257), User, invalid("search-length", "invalid", "Validation Failed: the search is longer than 256 characters")},
		{"/search/code?q=a" + strings.Repeat("+OR+b", 6), User, invalid("search-operators", "invalid", "Validation Failed: more than five AND / OR / NOT operators were used")},
		{"/search/code?q=in:file", User, invalid("search-terms", "invalid", "Validation Failed: the search contains only qualifiers; at least one search term is needed")},
	} {
		wantEqual(t, c.target, c.want, classify(t, "GET", c.target).Preflight(c.kind))
	}
}

// TestPreflightRefusesRepeatedQueriesOnlyIfAllFail checks requests with several q. The upstream may use any q, so a
// request is refused only if every q fails.
func TestPreflightRefusesRepeatedQueriesOnlyIfAllFail(t *testing.T) {
	for target, refused := range map[string]bool{
		"/search/code?q=gear&q=":                 false,
		"/search/code?q=&q=gear":                 false,
		"/search/code?q=repo:a/b&q=":             true,
		"/search/code?q=gear&sort=indexed&q=x":   false,
		"/search/commits?Q=gear":                 true,
		"/search/commits?q%5B%5D=gear":           true,
		"/search/commits?order=asc&%71=gear&x=y": false,
	} {
		f := classify(t, "GET", target).Preflight(User)
		failIf(t, (f != nil) != refused, "%s: got %+v, want refused %v", target, f, refused)
	}
}

func TestCatalogueUsesAllChecks(t *testing.T) {
	for name := range checks {
		failIf(t, !slices.ContainsFunc(Embedded().Operations(), func(op *Operation) bool { return slices.Contains(op.Checks, name) }), "no operation has the check %q", name)
	}
}
