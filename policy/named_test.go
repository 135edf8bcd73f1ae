package policy

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestMembersOfOneOperationNameRepositories checks members that name a repository in the bodies of some operations only.
func TestMembersOfOneOperationNameRepositories(t *testing.T) {
	for _, c := range []struct{ method, path, body, reason string }{
		{"POST", "/orgs/whole/rulesets", `{"name":"x","rules":[{"parameters":{"required_status_checks":[{"context":"ci/test"},{"context":"build"}]}}]}`, ""},
		{"POST", "/orgs/whole/hooks", `{"head":"a:b:c:d"}`, ""},
		{"POST", "/markdown", `{"text":"#1","context":"acme/secret"}`, "acme/secret is outside"},
		{"POST", "/repos/acme/widgets/pulls", `{"head":"other:x"}`, "not all repositories of other"},
	} {
		m, err := CatalogueOf("github").Classify(c.method, c.path, "")
		noError(t, err)
		n, err := m.Named([]byte(c.body), func(IDs, string) (string, error) { return "", nil })
		scope := &Scope{Repositories: searchScope.Repositories, Organizations: []string{"whole"}}
		if err == nil {
			err = scope.Permits(m.Operation, n)
		}
		got := ""
		if err != nil {
			got = err.Error()
		}
		failIf(t, (got == "") != (c.reason == "") || !strings.Contains(got, c.reason), "%s: got %q, want %q", c.path, got, c.reason)
	}
}

func TestPathsOfFilesNameRepositories(t *testing.T) {
	const raw, media, web = "raw.githubusercontent.com", "media.githubusercontent.com", "github.com"
	for _, c := range []struct {
		host, path string
		credential bool
		want       string // the repository, "refused", or "unjudged"
	}{
		{raw, "/Acme/widgets/main/x", false, "acme/widgets"}, {raw, "/wiki/acme/secret/Page.md", true, "acme/secret"}, {raw, "/%77IKI/acme/secret/Page.md", true, "acme/secret"},
		{raw, "/wiki/acme", true, "refused"}, {raw, "//acme/widgets/main/x", true, "refused"}, {"RAW.githubusercontent.com", "/wiki/acme/secret/x", false, "acme/secret"},
		{media, "/media/acme/secret/main/x", true, "acme/secret"}, {media, "/Media/acme/secret/main/x", true, "acme/secret"}, {media, "/acme/widgets/main/x", true, "refused"},
		{web, "/acme/widgets.git/info/refs", true, "acme/widgets.git"}, {web, "/acme/widgets/releases/download/v1/x", true, "acme/widgets"}, {web, "/orgs/acme/repositories", true, "refused"},
		{web, "/acme/widgets/compare/main...other:main", true, "refused"}, {web, "/search", true, "refused"},
		{"mcp.example.com", "/mcp/readonly", true, "refused"}, {"gist.github.com", "/acme/1", true, "refused"}, {"objects.githubusercontent.com", "/x/y", false, "unjudged"},
	} {
		n, judged, err := NamedByFile(c.path, c.credential, "any.example.com", c.host)
		got := "unjudged"
		switch {
		case err != nil && judged:
			got = "refused"
		case judged:
			got = strings.Join(n.Repositories, " ")
		}
		wantEqual(t, c.host+c.path, c.want, got)
	}
}

// TestTablesOfNamesListOperations checks the operations that named.yaml lists without asterisks.
func TestTablesOfNamesListOperations(t *testing.T) {
	ids := slices.Concat(named.Bodies, slices.Collect(maps.Keys(named.Targets)), slices.Collect(maps.Keys(named.OwnMembers)), slices.Collect(maps.Keys(named.Search)))
	for _, id := range slices.Concat(ids, named.Others, named.Reference) {
		failIf(t, !CatalogueOf("github").Names(id) && !CatalogueOf("service").Names(id), "named.yaml: no operation is %s", id)
	}
}
