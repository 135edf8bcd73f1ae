package policy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// classify classifies a target with the embedded catalogue. A refusal fails the test.
func classify(t *testing.T, method, target string) Match {
	t.Helper()
	path, query, _ := strings.Cut(target, "?")
	m, err := Embedded().Classify(method, path, query)
	stopIf(t, err != nil, "%s %s: %v", method, target, err)
	return m
}

func TestClassifyFindsOperationAndParameters(t *testing.T) {
	type params = map[string]string
	for _, c := range []struct {
		name, method, target, id, path string
		params                         params
	}{
		{"a literal path", "GET", "/gitignore/templates", "gitignore/list-templates", "/gitignore/templates", nil},
		{"a parameter is decoded", "GET", "/gitignore/templates/C%2b%2b", "gitignore/get-template", "/gitignore/templates/C%2B%2B", params{"name": "C++"}},
		{"a parameter that is not encoded", "GET", "/gitignore/templates/C++", "gitignore/get-template", "/gitignore/templates/C%2B%2B", params{"name": "C++"}},
		{"a parameter that keeps its case", "GET", "/users/Octo/subscriptions", "watching/list-of-user", "/users/Octo/subscriptions", params{"username": "Octo"}},

		{"owner and repo are not case sensitive", "GET", "/repos/ACME/Widgets/subscribers", "watching/list-subscribers", "/repos/acme/widgets/subscribers", params{"owner": "acme", "repo": "widgets"}},
		{"org is not case sensitive", "GET", "/orgs/Acme/members", "organization-members/list", "/orgs/acme/members", params{"org": "acme"}},
		{"an encoded org is not case sensitive", "GET", "/orgs/%41cme/members", "organization-members/list", "/orgs/acme/members", params{"org": "acme"}},
		{"escapes in org stay in upper case", "GET", "/orgs/%C3%89T%C3%A9/members", "organization-members/list", "/orgs/%C3%89t%C3%A9/members", params{"org": "Été"}},
		{"literals are case sensitive", "GET", "/orgs/acme/Members", "unknown", "/orgs/acme/Members", nil},

		{"a branch", "GET", "/repos/a/b/rules/branches/main", "rulesets/list-branch-rules", "/repos/a/b/rules/branches/main", params{"owner": "a", "repo": "b", "branch": "main"}},
		{"a branch with a slash", "GET", "/repos/a/b/rules/branches/release/1.x", "rulesets/list-branch-rules", "/repos/a/b/rules/branches/release/1.x", params{"owner": "a", "repo": "b", "branch": "release/1.x"}},
		{"a branch with an encoded slash", "GET", "/repos/a/b/rules/branches/release%2f1.x", "rulesets/list-branch-rules", "/repos/a/b/rules/branches/release/1.x", params{"owner": "a", "repo": "b", "branch": "release/1.x"}},
		{"a branch with both kinds of slashes", "GET", "/repos/a/b/rules/branches/x%2Fy/z", "rulesets/list-branch-rules", "/repos/a/b/rules/branches/x/y/z", params{"owner": "a", "repo": "b", "branch": "x/y/z"}},
		{"a branch keeps its case", "GET", "/repos/A/B/rules/branches/Main", "rulesets/list-branch-rules", "/repos/a/b/rules/branches/Main", params{"owner": "a", "repo": "b", "branch": "Main"}},
		{"a branch with an encoded percent sign", "GET", "/repos/a/b/rules/branches/x%252Fy", "rulesets/list-branch-rules", "/repos/a/b/rules/branches/x%252Fy", params{"owner": "a", "repo": "b", "branch": "x%2Fy"}},
		{"a missing branch", "GET", "/repos/a/b/rules/branches", "unknown", "/repos/a/b/rules/branches", nil},
		{"an empty branch", "GET", "/repos/a/b/rules/branches/", "unknown", "/repos/a/b/rules/branches/", nil},
		{"a branch that ends in a slash", "GET", "/repos/a/b/rules/branches/x/", "unknown", "/repos/a/b/rules/branches/x/", nil},

		{"HEAD as GET", "HEAD", "/feeds", "feeds/get", "/feeds", nil},
		{"another method of the same path", "DELETE", "/repos/a/b/subscription", "watching/delete-subscription", "/repos/a/b/subscription", params{"owner": "a", "repo": "b"}},
		{"a method that no operation has", "PATCH", "/repos/a/b/subscription", "unknown", "/repos/a/b/subscription", nil},
		{"methods are case sensitive", "get", "/feeds", "unknown", "/feeds", nil},

		{"an integer", "GET", "/orgs/a/organization-roles/7", "organization-roles/get", "/orgs/a/organization-roles/7", params{"org": "a", "role_id": "7"}},
		{"not an integer", "GET", "/orgs/a/organization-roles/seven", "unknown", "/orgs/a/organization-roles/seven", nil},
		{"a negative integer", "GET", "/orgs/a/organization-roles/-7", "unknown", "/orgs/a/organization-roles/-7", nil},
		{"an empty integer", "GET", "/orgs/a/organization-roles/", "unknown", "/orgs/a/organization-roles/", nil},

		{"a literal takes precedence over a parameter", "GET", "/search/issues", "search/issues", "/search/issues", nil},
		{"a parameter matches other values", "GET", "/search/topics", "search/other", "/search/topics", params{"kind": "topics"}},
		{"a literal takes precedence over an integer", "GET", "/orgs/a/code-security/configurations/defaults", "code-security/list-defaults", "/orgs/a/code-security/configurations/defaults", params{"org": "a"}},
		{"a team with the name teams", "DELETE", "/orgs/a/organization-roles/teams/teams", "organization-roles/revoke-all-team", "/orgs/a/organization-roles/teams/teams", params{"org": "a", "team_slug": "teams"}},
		{"teams is not a role id", "GET", "/orgs/a/organization-roles/teams/teams", "unknown", "/orgs/a/organization-roles/teams/teams", nil},

		{"a repository by number", "GET", "/repositories/42/subscribers", "watching/list-subscribers", "/repositories/42/subscribers", params{"repository_id": "42"}},
		{"a branch of a repository by number", "GET", "/repositories/42/rules/branches/x%2Fy", "rulesets/list-branch-rules", "/repositories/42/rules/branches/x/y", params{"repository_id": "42", "branch": "x/y"}},
		{"a repository id that is not a number", "GET", "/repositories/x/subscribers", "unknown", "/repositories/x/subscribers", nil},
		{"an organization by number", "GET", "/organizations/7/members", "organization-members/list", "/organizations/7/members", params{"organization_id": "7"}},
		{"a user by number", "GET", "/user/7/subscriptions", "watching/list-of-user", "/user/7/subscriptions", params{"user_id": "7"}},
		{"a path of the caller is not a path of a user id", "GET", "/user/subscriptions", "watching/list-mine", "/user/subscriptions", nil},

		{"a trailing slash is another path", "GET", "/feeds/", "unknown", "/feeds/", nil},
		{"an empty parameter", "GET", "/gitignore/templates/", "unknown", "/gitignore/templates/", nil},
		{"a longer path", "GET", "/feeds/x", "unknown", "/feeds/x", nil},
		{"the root", "GET", "/", "unknown", "/", nil},
	} {
		m := classify(t, c.method, c.target)
		failIf(t, m.Operation.ID != c.id || m.Path != c.path, "%s: got %s at %s, want %s at %s", c.name, m.Operation.ID, m.Path, c.id, c.path)
		wantEqual(t, c.name+": parameters", c.params, byName(m.Params))
		failIf(t, m.Operation.Known() != (c.id != "unknown"), "%s: Known returns %v", c.name, m.Operation.Known())
	}
}

// byName returns parameters as a map, or nil for an empty list.
func byName(params Params) map[string]string {
	var values map[string]string
	for _, p := range params {
		if p.Name == "" {
			break
		}
		if values == nil {
			values = map[string]string{}
		}
		values[p.Name] = p.Value
	}
	return values
}

// TestClassifyFindsEveryTemplate expands each template, and its form under each alias, with random values for its
// parameters.
func TestClassifyFindsEveryTemplate(t *testing.T) {
	for _, op := range Embedded().Operations() {
		templates := []string{op.Path}
		for _, a := range Embedded().aliases {
			if path := a.spell(op.Path); path != "" {
				templates = append(templates, path)
			}
		}
		for _, template := range templates {
			t.Run(op.Method+" "+template, rapid.MakeCheck(func(t *rapid.T) { checkTemplate(t, op, template) }))
		}
	}
}

func templateParameter(segment string) (name string, ok bool) {
	if strings.HasPrefix(segment, "{") && strings.HasSuffix(segment, "}") {
		return segment[1 : len(segment)-1], true
	}
	return "", false
}

// checkTemplate classifies a path of a template with random values. Each value begins with x, so that no value equals a
// literal of another template.
func checkTemplate(t *rapid.T, op *Operation, template string) {
	var path strings.Builder
	want := map[string]string{}
	for segment := range strings.SplitSeq(template[1:], "/") {
		name, ok := templateParameter(segment)
		if ok {
			segment = drawValue(t, name)
			want[name] = segment
		}
		path.WriteString("/" + segment)
	}
	m, err := Embedded().Classify(op.Method, path.String(), "")
	if err != nil {
		t.Fatal(err)
	}
	if m.Operation != op || m.Path != path.String() || !maps.Equal(byName(m.Params), want) {
		t.Fatalf("%s %s: got %s at %s with %v, want %s with %v", op.Method, path.String(), m.Operation.ID, m.Path, m.Params, op.ID, want)
	}
}

// drawValue returns a random value of a parameter in its canonical form.
func drawValue(t *rapid.T, name string) string {
	switch rule := parameters[name]; {
	case rule.Integer:
		return rapid.StringMatching(`[1-9][0-9]{0,9}`).Draw(t, name)
	case rule.Fold:
		return rapid.StringMatching(`x[a-z0-9._-]{0,20}`).Draw(t, name)
	case rule.Tail:
		return rapid.StringMatching(`x[A-Za-z0-9._-]{0,9}(/x[A-Za-z0-9._-]{0,9}){0,3}`).Draw(t, name)
	}
	return rapid.StringMatching(`x[A-Za-z0-9._~-]{0,20}`).Draw(t, name)
}

func TestClassifyGivesUnknownRoutesSafeDefaults(t *testing.T) {
	for _, c := range []struct {
		name, method string
		points       int
		class        CacheClass
	}{
		{"GET", "GET", 1, PerCaller},
		{"HEAD", "HEAD", 1, PerCaller},
		{"OPTIONS", "OPTIONS", 1, PerCaller},
		{"DELETE", "DELETE", 5, Never},
		{"an unknown method", "PROPFIND", 5, Never},
	} {
		want := &Operation{ID: "unknown", Method: c.method, Path: "/…", Resource: Core, Points: c.points, Cache: CacheRule{Class: c.class}, Auth: "optional"}
		want.CreatesContent = c.class == Never
		m := classify(t, c.method, "/meta")
		wantEqual(t, c.name, want, m.Operation)
		f := m.Preflight(Unauthenticated)
		failIf(t, f != nil || byName(m.Params) != nil, "%s: got %+v and %v, want no finding and no parameters", c.name, f, m.Params)
	}
}

func TestUnknownRouteHasTheLongestKnownPrefix(t *testing.T) {
	for _, c := range []struct{ name, path, want string }{
		{"a repository", "/repos/acme/widgets", "/repos/{owner}/{repo}"},
		{"an owner without a repository", "/repos/acme", "/repos/{owner}"},
		{"an empty owner", "/repos/", "/repos/…"},
		{"below a repository", "/repos/acme/widgets/pulls/12/files", "/repos/{owner}/{repo}/…"},
		{"below a repository by number", "/repositories/42/pulls", "/repositories/{repository_id}/…"},
		{"a known collection", "/repos/acme/widgets/rulesets/7", "/repos/{owner}/{repo}/rulesets/…"},
		{"another route that begins like this one", "/repos/acme/widgets/rulesets/rule-suites/9", "/repos/{owner}/{repo}/rulesets/…"},
		{"a known path with another method", "/gitignore", "/gitignore"},
		{"a segment that may be a token (attack 53)", "/x/ghp_16C7e42F292c6912E7710c838347Ae178B4a", "/…"},
		{"the root", "/", "/…"},
	} {
		wantEqual(t, c.name, c.want, classify(t, "GET", c.path).Operation.Path)
	}
}

// TestClassifyAcceptsEncodedSlashesInRefsOnly checks three cases. In a branch parameter, an encoded slash is decoded.
// In a ref of an unknown repository route, the slash stays encoded. Elsewhere an encoded slash is refused.
func TestClassifyAcceptsEncodedSlashesInRefsOnly(t *testing.T) {
	for target, want := range map[string]string{
		"/repos/a/b/rules/branches/x%2Fy":      "/repos/a/b/rules/branches/x/y",
		"/repos/a/b/branches/release%2F1.x":    "/repos/a/b/branches/release%2F1.x",
		"/repositories/42/branches/x%2fy":      "/repositories/42/branches/x%2Fy",
		"/repos/a/b/rules/branches/x%2F%2Fy":   "",
		"/repos/a/b/rules/branches/%2Fx":       "",
		"/repos/a/b/rules/branches/x%2F":       "",
		"/repos/a/b/rules/branches/x%2F..%2Fy": "",
		"/repos/a/b/branches/x%2F%2e%2E%2Fy":   "",
		"/repos/a/b/branches/%2F":              "",
		"/repos/a/b/stats%2Fparticipation":     "",
		"/repos/a%2Fb/stats/participation":     "",
		"/repos/a/b%2Fstats/participation":     "",
		"/repos/a%2Fb/x/y/z":                   "",
		"/repositories/42/x%2Fy/z":             "",
		"/repos/a/b/git/tags/x%2Fy":            "",
		"/gitignore/templates/x%2Fy":           "",
		"/orgs/a/teams/x%2Fy":                  "",
		"/user%2Fsubscriptions":                "",
	} {
		m, err := Embedded().Classify("GET", target, "")
		failIf(t, m.Path != want || (err == nil) != (want != ""), "%s: got %q (%v), want %q", target, m.Path, err, want)
	}
}

func TestTemplatesUseAllParametersOfYAML(t *testing.T) {
	used := map[string]bool{}
	for _, op := range CatalogueOf("github").Operations() {
		for _, a := range append(slices.Clone(CatalogueOf("github").aliases), alias{}) {
			for segment := range strings.SplitSeq(op.Path+a.Prefix, "/") {
				if name, ok := templateParameter(segment); ok {
					used[name] = true
				}
			}
		}
	}
	for name := range parameters {
		failIf(t, !used[name], "parameters.yaml: no template contains {%s}", name)
	}
}
