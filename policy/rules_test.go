package policy

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
)

// matching returns the sorted IDs of the operations for which a function returns true.
func matching(match func(*Operation) bool) []string {
	var ids []string
	for _, op := range Embedded().Operations() {
		if match(op) {
			ids = append(ids, op.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// statement returns the first group of a pattern in a document. The test fails if the pattern does not match.
func statement(t *testing.T, text, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	stopIf(t, m == nil, "the document does not contain %q", pattern)
	return m[1]
}

func TestOperationsRefuseDocumentedTokenKinds(t *testing.T) {
	texts := documents(t)
	a := statement(t, texts["A"], `The repository subscription operations \(get, set, delete\) do not work with ([^.]*)\.`)
	b := statement(t, texts["B"], `(?s)Organization migrations are .* user migrations .* Neither works with ([^.]*)\.`)
	stopIf(t, a != b, "Document A lists %q, but Document B %q", a, b)
	var kinds []string
	for _, k := range []struct{ phrase, kind string }{
		{"app user access tokens", "app_user"}, {"app installation access tokens", "installation"}, {"fine-grained personal access tokens", "fine_grained"},
	} {
		if strings.Contains(a, k.phrase) {
			kinds = append(kinds, k.kind)
		}
	}
	for _, op := range Embedded().Operations() {
		var want []string
		if strings.HasSuffix(op.Path, "/subscription") || strings.HasSuffix(op.Path, "/migrations") {
			want = kinds
		}
		wantEqual(t, op.ID, want, op.Refuses)
	}
	wantEqual(t, a, 3, len(kinds))
}

func TestOptionalAuthenticationMatchesDocuments(t *testing.T) {
	texts := documents(t)
	groups := statement(t, texts["A"], `Operations that may be called without authentication when only public resources are requested: ([^.]*)\.`) + ", " +
		strings.ToLower(statement(t, texts["B"], `(Search, [^.]*) accept requests without authentication when only public resources are requested`))
	operations := map[string][]string{
		"organization members list":       {"organization-members/list"},
		"membership check":                {"organization-members/check", "organization-members/check-public"},
		"watchers list":                   {"watching/list-subscribers"},
		"both watched-repositories lists": {"watching/list-of-user"}, // the other list belongs to the caller and has a 401 (Document A 4.4)
		"statistics operations":           {"statistics/code-frequency", "statistics/commit-activity", "statistics/contributors", "statistics/participation", "statistics/punch-card"},
		"branch rules":                    {"rulesets/list-branch-rules"},
		"repository rulesets list":        {"rulesets/list-repository"},
		"get a git tag":                   {"git-tags/get"},
		"search":                          {"search/commits", "search/issues", "search/other"}, // "code search … must be authenticated"
		"codes of conduct":                {"codes-of-conduct/get", "codes-of-conduct/list"},
		"ignore-file templates":           {"gitignore/get-template", "gitignore/list-templates"},
		"the sbom export":                 {"dependency-graph/export-sbom"},
		"the rate limit status":           {"rate-limit/get"},
		"feeds":                           {"feeds/get"},
	}
	want := []string{"app-manifests/convert"} // its code is the credential
	for group := range strings.SplitSeq(strings.ReplaceAll(groups, " and ", ", "), ", ") {
		ids, ok := operations[strings.ToLower(group)]
		failIf(t, !ok, "the test has no operations for the group %q", group)
		want = append(want, ids...)
	}
	slices.Sort(want)
	wantEqual(t, "catalogue", want, matching(func(op *Operation) bool { return op.Auth == "optional" }))
	ids := matching(func(op *Operation) bool { return op.Auth != "optional" && op.Auth != "required" })
	failIf(t, ids != nil, "the authentication of %q is neither required nor optional", ids)
}

// TestScopesAndPermissionsMatchDocuments compares the catalogue with the table of Document A 5.4. If a row contains two
// permissions ("write / read"), the operations of the row are in the same order.
func TestScopesAndPermissionsMatchDocuments(t *testing.T) {
	groups := map[string][][]string{
		"list/get organization roles":                                  {{"organization-roles/list", "organization-roles/get"}},
		"assign/remove roles for teams and users":                      {{"organization-roles/revoke-all-team", "organization-roles/assign-team", "organization-roles/revoke-team", "organization-roles/revoke-all-user", "organization-roles/assign-user", "organization-roles/revoke-user"}},
		"list teams of a role":                                         {{"organization-roles/list-teams"}},
		"code security configurations (all operations)":                {matching(func(op *Operation) bool { return op.Section == "A 4.2" })},
		"invitations: create, cancel":                                  {{"organization-members/create-invitation", "organization-members/cancel-invitation"}},
		"invitations: failed, pending, teams":                          {{"organization-members/list-failed-invitations", "organization-members/list-invitations", "organization-members/list-invitation-teams"}},
		"members list, membership check":                               {{"organization-members/list", "organization-members/check", "organization-members/check-public"}},
		"watchers, statistics, branch rules, repository rulesets list": {append([]string{"watching/list-subscribers", "rulesets/list-branch-rules", "rulesets/list-repository"}, matching(func(op *Operation) bool { return op.Section == "A 4.5" })...)},
		"subscribed repositories lists":                                {{"watching/list-mine", "watching/list-of-user"}},
		"create/get Git tags":                                          {{"git-tags/create"}, {"git-tags/get"}},
		"create repository ruleset":                                    {{"rulesets/create-repository"}},
		"list/create organization rulesets":                            {{"rulesets/list-organization", "rulesets/create-organization"}},
	}
	type needs struct{ Scope, Permission string }
	want := map[string]needs{"dependency-graph/export-sbom": {"", "Contents: read"}} // Document B 5.3
	for _, row := range tableRows("A", documents(t)["A"]) {
		group, ok := row.cells["Group"]
		if row.section != "A 5" || row.cells["Fine-grained permission"] == "" {
			continue
		}
		failIf(t, !ok || groups[group] == nil, "the test has no operations for the group %q", group)
		subject, levels, _ := strings.Cut(withoutBrackets(row.cells["Fine-grained permission"]), ": ")
		for i, level := range strings.Split(levels, " / ") {
			for _, id := range groups[group][i] {
				want[id] = needs{strings.Trim(row.cells["Classic scope"], "`"), subject + ": " + level}
			}
		}
	}
	got := map[string]needs{}
	for _, op := range Embedded().Operations() {
		if op.Scope != "" || op.Permission != "" {
			got[op.ID] = needs{op.Scope, withoutBrackets(op.Permission)}
		}
	}
	wantEqual(t, "catalogue", want, got)
}

func withoutBrackets(s string) string {
	return strings.ReplaceAll(inBrackets.ReplaceAllString(s, ""), " :", ":")
}

// eventsWithoutEffect are the events of Document B 6.2 that change no response of the catalogue, each with the reason.
// No event makes a search stale, because the upstream updates the search index later, without a delivery.
var eventsWithoutEffect = map[string]string{
	"bypass_request_push_ruleset":    "requests to bypass a ruleset; the ruleset does not change",
	"bypass_request_secret_scanning": "requests to bypass push protection",
	"check_run":                      "checks",
	"check_suite":                    "checks",
	"code_scanning_alert":            "alerts; configurations contain only whether scanning is enabled",
	"commit_comment":                 "comments",
	"project":                        "projects",
	"project_column":                 "projects",
	"projects_v2":                    "projects",
	"projects_v2_item":               "projects",
	"projects_v2_status_update":      "projects",
	"pull_request":                   "pull requests; a merge also sends a push event",
	"pull_request_review_comment":    "pull requests",
	"pull_request_review":            "pull requests",
	"pull_request_review_thread":     "pull requests",
	"registry_package":               "published packages; an SBOM lists only dependencies",
	"release":                        "releases; a new tag also sends a create event",
	"repository_advisory":            "advisories; an SBOM does not list them",
	// Events that Document B mentions in descriptions only.
	"delete":             "a deleted branch or tag; a push event reports it too, and the tag object remains",
	"issue_comment":      "comments",
	"discussion_comment": "comments",
	"package":            "packages, like registry_package",
}

func TestEveryEventHasAnEffectOrAReason(t *testing.T) {
	text := documents(t)["B"]
	events := []string{statement(t, text, `A (custom_property_values) event exists`)}
	for _, row := range tableRows("B", text) {
		if event := row.cells["Event"]; row.section == "B 6.2" && row.cells["When it occurs"] != "" {
			events = append(events, event)
		}
	}
	wantEqual(t, "events", 25, len(events))
	for _, m := range quoted.FindAllStringSubmatch(statement(t, text, `(Other events referenced by name[^.]*)\.`), -1) {
		events = append(events, m[1])
	}
	used := map[string][]string{}
	for _, op := range Embedded().Operations() {
		for _, event := range op.StaleOn {
			used[event] = append(used[event], op.ID)
			failIf(t, !slices.Contains(events, event), "%s: Document B has no event %q", op.ID, event)
			failIf(t, op.Cache.Class == Never || op.Cache.Class == Shared, "%s has events, but is never stored or is reference data", op.ID)
		}
	}
	for _, event := range events {
		failIf(t, (used[event] == nil) == (eventsWithoutEffect[event] == ""), "event %s: got the stale operations %q and the reason for no effect %q; want one of both", event, used[event], eventsWithoutEffect[event])
	}
	statistics := matching(func(op *Operation) bool { return op.Cache.Class == Statistics })
	wantEqual(t, "event push", append([]string{"dependency-graph/export-sbom"}, statistics...), used["push"], cmpopts.SortSlices(strings.Compare))
}

func TestOperationFieldsAreConsistent(t *testing.T) {
	withoutInvalidation := map[string]string{
		"organization-roles/revoke-all-user": "no operation lists a user's roles",
		"organization-roles/assign-user":     "no operation lists a user's roles",
		"organization-roles/revoke-user":     "no operation lists a user's roles",
		"graphql":                            "its effect depends on the body",
		"app-manifests/convert":              "no operation returns apps",
	}
	for _, op := range Embedded().Operations() {
		search := strings.HasPrefix(op.Path, "/search/")
		for problem, found := range map[string]bool{
			"safe, but invalidates operations":     op.Safe() && op.Invalidates != nil,
			"unsafe, but invalidates no operation": !op.Safe() && (op.Invalidates == nil) != (withoutInvalidation[op.ID] != ""),
			"wrong cache class":                    op.Safe() && op.ID != "rate-limit/get" == (op.Cache.Class == Never),
			"wrong points":                         op.Points != map[bool]int{true: 1, false: 5}[op.Safe() || op.ID == "graphql"],
			"class shared and section differ":      (op.Cache.Class == Shared) != (op.Section == "B 4.2"),
			"class statistics and section differ":  (op.Cache.Class == Statistics) != (op.Section == "A 4.5"),
			"class shared and TTL differ":          (op.Cache.TTL > 0) != (op.Cache.Class == Shared),
			"wrong creates_content":                op.CreatesContent != (op.Method == "POST" && op.ID != "graphql" || op.Notifies),
			"wrong notifies":                       op.Notifies != (op.ID == "organization-members/create-invitation" || op.ID == "organization-members/cancel-invitation"),
			"path and resource of a search differ": search != strings.HasSuffix(op.Resource, "search"),
			"path and checks of a search differ":   search != slices.Contains(op.Checks, "search-query"),
			"ID is not group/verb-noun":            !regexp.MustCompile(`^[a-z]+(-[a-z]+)*(/[a-z]+(-[a-z]+)*)?$`).MatchString(op.ID),
		} {
			failIf(t, found, "%s: %s: %+v", op.ID, problem, *op)
		}
		for _, id := range op.Invalidates {
			stale := Embedded().Operation(id)
			failIf(t, !stale.Safe() || stale.Cache.Class == Never, "%s invalidates %s, which is never stored", op.ID, id)
		}
	}
}

func TestRepresentationsMatchDocuments(t *testing.T) {
	want := map[string][]string{
		"gitignore/get-template": {"raw"},        // Document B 4.2
		"search/code":            {"text-match"}, // Document B 4.1, query rule 5
		"search/commits":         {"text-match"},
		"search/issues":          {"text-match"}, // "each item", Document B 2.1
		"search/other":           {"text-match"},
	}
	for _, op := range Embedded().Operations() {
		wantEqual(t, op.ID, want[op.ID], op.Accept)
	}
}

// TestSubscriptionChangesInvalidateWatchLists checks an invalidation whose cause has no path parameter in common with
// the stale operations.
func TestSubscriptionChangesInvalidateWatchLists(t *testing.T) {
	want := []string{"watching/get-subscription", "watching/list-subscribers", "watching/list-mine", "watching/list-of-user"}
	for _, id := range []string{"watching/set-subscription", "watching/delete-subscription"} {
		wantEqual(t, id, want, Embedded().Operation(id).Invalidates)
	}
}

func TestOperationsReturnsCopyOrderedBySection(t *testing.T) {
	operations := Embedded().Operations()
	var sections []string
	for _, op := range operations {
		if len(sections) == 0 || sections[len(sections)-1] != op.Section {
			sections = append(sections, op.Section)
		}
	}
	want := []string{"A 4.1", "A 4.2", "A 4.3", "A 4.4", "A 4.5", "A 4.6", "A 4.7", "B 4.1", "B 4.2", "B 4.3", "B 4.4", "B 4.5", "B 4.6", ""}
	wantEqual(t, "sections", want, sections)
	operations[0] = nil
	failIf(t, Embedded().Operations()[0] == nil, "a change of the returned slice changed the catalogue")
	if op := Embedded().Operation("no/such"); op != nil {
		t.Errorf("no/such: got %s, want nil", op.ID)
	}
}
