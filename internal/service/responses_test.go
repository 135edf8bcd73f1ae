package service

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// TestRecordsHaveTheDocumentedMembers covers records that are not direct responses of the
// catalogue's operations, and responses that depend on the caller. The tests of cmd/weir
// check the other records, with and without the gateway.
func TestRecordsHaveTheDocumentedMembers(t *testing.T) {
	resources := strings.Join(policy.Resources(), ":{} ") + ":{}"
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			credential, target string
			at                 string // path in the response
			record             string
		}{
			{"owner", "/orgs/acme/invitations/7/teams?page=3&per_page=1", "0.parent", testservers.TeamSchema},
			{"", "/feeds", "", testservers.PublicFeedsSchema},
			{"owner", "/feeds", "", testservers.UserFeedsSchema},
			{"basic user", "/feeds", "", testservers.FeedsSchema},
			{"basic user", "/feeds", "_links", testservers.FeedLinksSchema},
			{"basic user", "/feeds", "_links.current_user", "href:string type:string"},
			{"basic user", "/feeds", "_links.current_user_organizations.0", "href:string type:string"},
			{"", "/feeds/timeline", "", "id:string title:string updated:time link:{} entries:[]{}"}, // RFC 4287 requires these members
			{"", "/feeds/timeline", "entries.0", "id:string title:string updated:time author:{} link:{}"},
			{"", "/rate_limit", "resources", resources},
			{"owner", organizationMigrations + "?page=2&per_page=1", "0", testservers.ImportSchema},
		} {
			t.wantRecord(t.get(c.credential, c.target).Body.Bytes(), c.at, c.record)
		}
	})
}

func sorted(s []string) []string { slices.Sort(s); return s }

// wantRecord compares the object at a path of names and indices with a record of the
// documents.
func (t *tester) wantRecord(text []byte, path, record string) {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("decode %s: %v", text, err)
	}
	for step := range strings.SplitSeq(path, ".") {
		switch at := v.(type) {
		case []any:
			v = at[0]
		case map[string]any:
			if step != "" {
				v = at[step]
			}
		}
	}
	object, ok := v.(map[string]any)
	if !ok {
		t.Fatalf("%s has no object at %q", text, path)
	}
	if differences := testservers.SchemaDifferences(record, object); differences != "" {
		t.Errorf("%.200s, at %q:\n%s", text, path, differences)
	}
}

func TestResponsesHaveTheCommonHeaders(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct{ credential, target, control string }{
			{"", "/gitignore/templates", "public, max-age=60, s-maxage=60"},
			{"owner", "/gitignore/templates", "private, max-age=60, s-maxage=60"},
			{"owner", "/nowhere", "no-cache"},
			{"invalid", "/gitignore/templates", "no-cache"},
			{"owner", "/search/commits?q=gear", "no-cache"},
			{"owner", "/repos/acme/widgets/stats/participation", "no-cache"},
		} {
			h := t.get(c.credential, c.target).Header()
			if h.Get("Cache-Control") != c.control || h.Get("X-Service-Request-Id") == "" || h.Get("X-Service-Media-Type") != "service.v3; format=json" ||
				!strings.HasPrefix(h.Get("Content-Type"), "application/json") || !strings.Contains(h.Get("Vary"), "Authorization") {
				t.Errorf("%s as %q: got headers %v", c.target, c.credential, h)
			}
		}
	})
}

func TestErrorsAreJSONWithAMessage(t *testing.T) {
	runWithService(t, func(t *tester) {
		for target, status := range map[string]int{"/nowhere": 404, "/repos/acme/none/subscribers": 404, "/search/commits": 422, "/repos/%2e%2e": 400} {
			w := t.get("owner", target)
			body := decode[problemBody](t, w)
			if w.Code != status || body.Message == "" || body.Documentation != "https://docs.example.com/rest" {
				t.Errorf("%s: got %d %s", target, w.Code, w.Body)
			}
		}
	})
}

func TestDialectNamesHeadersAndMediaTypes(t *testing.T) {
	runWithService(t, func(t *tester) {
		other := t.serviceInDialect("github")
		raw := other.get("", "/gitignore/templates/Go", "Accept: application/vnd.github.v3.raw+json")
		if !strings.HasPrefix(raw.Body.String(), "#") || raw.Header().Get("Content-Type") != "application/vnd.github.raw+json; charset=utf-8" ||
			raw.Header().Get("X-GitHub-Request-Id") == "" {
			t.Errorf("got headers %v and body %s", raw.Header(), raw.Body)
		}
		t.wantStatus(other.get("", "/gitignore/templates", "X-GitHub-Api-Version: 1999-01-01"), 400)
		t.wantStatus(other.get("", "/gitignore/templates", "X-Service-Api-Version: 1999-01-01"), 200)
	})
}

func TestRefPatternsSelectBranches(t *testing.T) {
	set := func(include, exclude string) *ruleset {
		return &ruleset{Target: "branch", Conditions: conditions{RefName: &patterns{strings.Fields(include), strings.Fields(exclude)}}}
	}
	for _, c := range []struct {
		set    *ruleset
		branch string
		want   bool
	}{
		{set("~ALL", ""), "anything", true},
		{set("~DEFAULT_BRANCH", ""), "main", true},
		{set("~DEFAULT_BRANCH", ""), "other", false},
		{set("", ""), "main", false},
		{set("refs/heads/release/*", ""), "release/1", true},
		{set("refs/heads/release/*", ""), "release/1/fix", false},
		{set("refs/heads/release/**", ""), "release/1/fix", true},
		{set("refs/heads/v?", ""), "v1", true},
		{set("refs/heads/v?", ""), "v10", false},
		{set("refs/heads/a.b", ""), "axb", false},
		{set("refs/heads/(x", ""), "(x", true},
		{set("~ALL", "refs/heads/wip/**"), "wip/x", false},
		{set("~ALL", "~DEFAULT_BRANCH"), "main", false},
	} {
		if got := c.set.appliesToBranch(c.branch, "main"); got != c.want {
			t.Errorf("include %v, exclude %v, branch %s: got %v", c.set.Conditions.RefName.Include, c.set.Conditions.RefName.Exclude, c.branch, got)
		}
	}
}

// TestPrimaryLimitDependsOnTheCaller also covers the installation. The installation has 42 users, 22 more than the base
// limit includes (Document B section 8.1).
func TestPrimaryLimitDependsOnTheCaller(t *testing.T) {
	runWithService(t, func(t *tester) {
		for credential, want := range map[string]string{"": "60", "owner": "5000", "app": "6100", "oauth": "5000", "workflow": "1000"} {
			if got := t.get(credential, "/gitignore/templates").Header().Get("X-RateLimit-Limit"); got != want {
				t.Errorf("%q: got limit %s, want %s", credential, got, want)
			}
		}
		// The tokens of a user share a window. Other users and resources have separate windows.
		t.get("owner-2", "/gitignore/templates")
		for _, c := range []struct{ credential, target, used string }{
			{"basic user", "/gitignore/templates", "3"}, {"member", "/gitignore/templates", "1"}, {"owner", "/search/commits?q=gear", "1"}, {"owner", "/search/code?q=gear", "1"},
		} {
			if got := t.get(c.credential, c.target).Header().Get("X-RateLimit-Used"); got != c.used {
				t.Errorf("%s as %q: got used %s, want %s", c.target, c.credential, got, c.used)
			}
		}
	})
}

func TestSearchQualifiersRestrictTheScope(t *testing.T) {
	runWithService(t, func(t *tester) {
		total := func(q string) string {
			return fmt.Sprint(decode[jsonObject](t, t.get("owner", "/search/commits?q="+q))["total_count"])
		}
		all, org, widgets := total("gear"), total("gear+org:acme"), total("gear+repo:acme/widgets")
		if all != org || all == widgets || total("gear+-repo:acme/monolith") != total("gear+repo:acme/widgets+repo:acme/secret") || total("gear+-org:acme") != "0" {
			t.Errorf("got totals: all %s, acme %s, widgets %s", all, org, widgets)
		}
	})
}
