package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// samplePath returns a path of a template. Values of parameters that may contain slashes contain one.
func samplePath(template string) string {
	segments := strings.Split(template, "/")
	for i, s := range segments {
		switch {
		case s == "{+base}...{+head}":
			segments[i] = "main...feature/x"
		case s == "{+basehead}":
			segments[i] = "main"
		case strings.HasPrefix(s, "{+"):
			segments[i] = "one/two"
		case !strings.HasPrefix(s, "{"):
		case parameters[strings.Trim(s, "{}")].Integer:
			segments[i] = "42"
		case len(parameters[strings.Trim(s, "{}")].Values) > 0:
			segments[i] = parameters[strings.Trim(s, "{}")].Values[0]
		default:
			segments[i] = "x" + strings.Trim(s, "{}")
		}
	}
	return strings.Join(segments, "/")
}

// allRows returns the operations of the table.
func allRows(t *testing.T) (rows []*Operation) {
	t.Helper()
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		op, err := parseRow(strings.TrimSuffix(line, "\n"))
		noError(t, err)
		rows = append(rows, op)
	}
	return rows
}

// rowsOf returns the operations of the table of one product, with {+name} in their paths.
func rowsOf(t *testing.T, product string) []*Operation {
	t.Helper()
	return slices.DeleteFunc(allRows(t), func(op *Operation) bool {
		return !slices.Contains(strings.Fields(strings.Join(op.Products, " ")), product)
	})
}

// TestEveryOperationMatchesItsRow classifies a sample of each operation of each product. Every sample must match the row
// of the table, or the operation of the documents with the same method and path.
func TestEveryOperationMatchesItsRow(t *testing.T) {
	for product, want := range map[string]int{"cloud": 1223, "ghec": 1471, "ghes-3.19": 1039, "ghes-3.18": 980, "ghes-3.17": 966} {
		rows := rowsOf(t, product)
		wantEqual(t, product, want, len(rows))
		for _, row := range rows {
			template := cmp.Or(row.Template, row.Path)
			m, err := CatalogueOf("github").Classify(row.Method, samplePath(template), "")
			switch {
			case err != nil:
				t.Errorf("%s %s: %v", row.Method, template, err)
			case m.Operation.ID == row.ID:
			case !m.Operation.Known() || m.Operation.Category != "" || withoutNames(m.Operation.Path) != withoutNames(row.Path) || m.Operation.Method != row.Method:
				t.Errorf("%s %s: got %s, want %s", row.Method, samplePath(template), m.Operation.ID, row.ID)
			}
		}
	}
}

// TestAliasesByNumberMatchEveryOperation classifies every operation of a repository, an organization and a user under
// the prefix with the number.
func TestAliasesByNumberMatchEveryOperation(t *testing.T) {
	c := CatalogueOf("github")
	for _, op := range c.Operations() {
		template := cmp.Or(op.Template, op.Path)
		for _, a := range c.aliases {
			path := a.spell(template)
			if path == "" {
				continue
			}
			m, err := c.Classify(op.Method, samplePath(path), "")
			if err != nil || m.Operation != op && withoutNames(m.Operation.Path) != withoutNames(path) {
				t.Errorf("%s %s: got %v, %v, want %s", op.Method, samplePath(path), m.Operation, err, op.ID)
			}
		}
	}
}

func TestClassifyFindsHardPaths(t *testing.T) {
	type params = map[string]string
	const repo = "/repos/acme/widgets"
	named := func(more params) params {
		maps.Copy(more, params{"owner": "acme", "repo": "widgets"})
		return more
	}
	for _, c := range []struct {
		name, method, path, id string
		params                 params
	}{
		{"a branch before the last segment", "GET", repo + "/branches/release/1.x/protection", "repos/get-branch-protection", named(params{"branch": "release/1.x"})},
		{"an encoded branch before the last segment", "GET", repo + "/branches/release%2F1.x/protection", "repos/get-branch-protection", named(params{"branch": "release/1.x"})},
		{"a branch at the end", "GET", repo + "/branches/release/1.x", "repos/get-branch", named(params{"branch": "release/1.x"})},
		{"an encoded branch with the name of a route", "GET", repo + "/branches/x%2Fprotection", "repos/get-branch", named(params{"branch": "x/protection"})},
		{"a path of a file", "GET", repo + "/contents/docs/a%20b.md", "repos/get-content", named(params{"path": "docs/a b.md"})},
		{"the root directory", "GET", repo + "/contents", "repos/get-content", named(params{})},
		{"the root directory with a slash", "GET", repo + "/contents/", "repos/get-content", named(params{})},
		{"two refs", "GET", repo + "/compare/main...feature/x", "repos/compare-commits", named(params{"base": "main", "head": "feature/x"})},
		{"two refs with slashes", "GET", repo + "/compare/release/1...octo:release/2", "repos/compare-commits", named(params{"base": "release/1", "head": "octo:release/2"})},
		{"two refs with an encoded slash", "GET", repo + "/dependency-graph/compare/main...feature%2Fa", "dependency-graph/diff-range", named(params{"basehead": "main...feature/a"})},
		{"two refs with a plain slash", "GET", repo + "/dependency-graph/compare/main...feature/a", "dependency-graph/diff-range", named(params{"basehead": "main...feature/a"})},
		{"a ref and a suffix", "GET", repo + "/commits/heads/main/check-runs", "checks/list-for-ref", named(params{"ref": "heads/main"})},
		{"a commit", "GET", repo + "/commits/abc123", "repos/get-commit", named(params{"ref": "abc123"})},
		{"a git ref", "PATCH", repo + "/git/refs/heads/a/b/c", "git/update-ref", named(params{"ref": "heads/a/b/c"})},
		{"a label with an encoded slash", "GET", repo + "/labels/area%2Fui", "issues/get-label", named(params{"name": "area/ui"})},
		{"a security product", "POST", "/orgs/acme/dependabot_alerts/enable_all", "orgs/enable-or-disable-security-product-on-all-org-repos", params{"org": "acme"}},
		{"not a security product", "POST", "/orgs/acme/teams/core", "unknown", nil},
		{"a team by number", "GET", "/organizations/12/team/34/members", "teams/list-members-in-org", params{"organization_id": "12", "team_id": "34"}},
		{"five parameters", "GET", "/orgs/acme/teams/core/repos/acme/widgets", "teams/check-permissions-for-repo-in-org", params{"org": "acme", "team_slug": "core", "owner": "acme", "repo": "widgets"}},
		{"a user by number", "GET", "/user/7", "users/get-by-id", params{"account_id": "7"}},
		{"repositories of a user by number", "GET", "/user/7/repos", "repos/list-for-user", params{"user_id": "7"}},
		{"issues of a repository by number", "GET", "/repositories/42/issues", "issues/list-for-repo", params{"repository_id": "42"}},
		{"a repository by number", "GET", "/repositories/42", "repos/get", params{"repository_id": "42"}},
		{"a gist's comments", "GET", "/gists/aa/comments", "gists/list-comments", params{"gist_id": "aa"}},
		{"a gist's revision", "GET", "/gists/public/c0ffee", "gists/get-revision", params{"gist_id": "public", "sha": "c0ffee"}},
		{"the root", "GET", "/", "meta/root", nil},
		{"a documented operation", "GET", repo + "/rules/branches/x%2Fy", "rulesets/list-branch-rules", named(params{"branch": "x/y"})},
	} {
		m, err := CatalogueOf("github").Classify(c.method, c.path, "")
		stopIf(t, err != nil, "%s: %v", c.name, err)
		failIf(t, m.Operation.ID != c.id || !maps.Equal(byName(m.Params), c.params), "%s: got %s %v, want %s %v", c.name, m.Operation.ID, m.Params, c.id, c.params)
	}
}

func TestTableIsSmall(t *testing.T) {
	failIf(t, len(table) > 300<<10, "the table has %d bytes, want at most 300 KB", len(table))
}

func TestImmutableNeedsAFullHashAtTheEnd(t *testing.T) {
	hash := strings.Repeat("0a", 20)
	for path, want := range map[string]bool{
		"/repos/a/b/git/blobs/" + hash: true, "/repos/a/b/commits/" + hash: true, "/repos/a/b/commits/main": false,
		"/repos/a/" + hash + "/commits/main": false, "/repos/a/b/git/trees/" + hash[:39]: false, "/repos/a/b/branches/" + hash: false,
	} {
		m, err := CatalogueOf("github").Classify("GET", path, "")
		failIf(t, err != nil || m.Immutable() != want, "%s: got %v (%v), want %v", path, m.Immutable(), err, want)
	}
}

func BenchmarkLoadTable(b *testing.B) {
	for b.Loop() {
		if _, err := loadTable(data, table, Embedded()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(time.Millisecond), "ms/load")
}

// A name of a delivery is no pattern: a tag with an asterisk would mean all repositories of an owner.
func TestEventsMeanNoPattern(t *testing.T) {
	for _, name := range []string{"acme/*", "*/widgets", "acme/?"} {
		tags, all := CatalogueOf("github").ChangedByEvent("push", name, "acme", false)
		failIf(t, all || slices.ContainsFunc(tags, func(tag string) bool { return strings.HasPrefix(tag, "repo:"+name) }), "%s: all %t, tags %q", name, all, tags)
	}
}
