package service

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/policy"
)

// The members of the records, as the documents list them.
const (
	// Document A section 2.1.
	userMembers = `login id node_id avatar_url gravatar_id url html_url followers_url following_url gists_url starred_url
		subscriptions_url organizations_url repos_url events_url received_events_url type site_admin`
	// Document A section 2.6.
	subscriptionMembers = `subscribed ignored reason created_at url repository_url`
	// Document A section 2.7.
	repositoryMembers = `id node_id name full_name description homepage language default_branch visibility pushed_at created_at updated_at
		private fork is_template has_issues has_projects has_wiki has_pages has_downloads has_discussions archived disabled
		forks_count stargazers_count watchers_count size open_issues_count topics owner
		html_url url archive_url assignees_url blobs_url branches_url collaborators_url comments_url commits_url compare_url contents_url
		contributors_url deployments_url downloads_url events_url forks_url git_commits_url git_refs_url git_tags_url git_url issue_comment_url
		issue_events_url issues_url keys_url labels_url languages_url merges_url milestones_url notifications_url pulls_url releases_url ssh_url
		stargazers_url statuses_url subscribers_url subscription_url tags_url teams_url trees_url clone_url mirror_url hooks_url svn_url
		permissions security_and_analysis`
	// Document A sections 2.2, 2.4 and 2.5.
	roleMembers                = `id name description permissions organization created_at updated_at`
	organizationSummaryMembers = `login id node_id url repos_url events_url avatar_url description hooks_url issues_url members_url public_members_url`
	invitationMembers          = `id login node_id email role created_at failed_at failed_reason inviter team_count invitation_teams_url invitation_source`
	teamMembers                = `id node_id url html_url name slug description privacy notification_setting permission members_url repositories_url parent`

	// Document A section 2.10.
	rulesetMembers = `id name source_type source enforcement node_id _links created_at updated_at`
	// What a new one has beside: sections 4.8 and 4.9.
	newRulesetMembers = rulesetMembers + ` target bypass_actors conditions rules`
	ruleMembers       = `type ruleset_source_type ruleset_source ruleset_id parameters`
	// Document A section 2.8.
	tagMembers = `node_id tag sha url message tagger object verification`
	// Document B section 2.4.
	sbomMembers    = `SPDXID spdxVersion creationInfo name dataLicense documentDescribes documentNamespace packages`
	packageMembers = `SPDXID name versionInfo downloadLocation licenseConcluded licenseDeclared copyrightText filesAnalyzed`
	// Document B sections 2.1, 2.2, 2.3, 2.6.
	searchMembers   = `total_count incomplete_results items`
	codeMembers     = `name path sha url git_url html_url repository score`
	conductMembers  = `key name url html_url body`
	templateMembers = `name source`
	rateMembers     = `resources rate`

	// Document A section 2.3.
	configurationMembers = `id target_type name description advanced_security dependency_graph dependency_graph_autosubmit_action
		dependency_graph_autosubmit_action_options depbot_alerts depbot_security_updates code_scanning_default_setup secret_scanning
		secret_scanning_push_protection secret_scanning_validity_checks private_vulnerability_reporting enforcement url html_url created_at updated_at`

	// Document B section 2.7.
	importMembers    = `id node_id owner guid state lock_repositories exclude_attachments exclude_releases exclude_owner_projects url created_at updated_at`
	migrationMembers = importMembers + ` repositories`
	migratedMembers  = repositoryMembers + ` allow_rebase_merge allow_squash_merge allow_auto_merge delete_branch_on_merge allow_merge_commit
		template_repository temp_clone_token subscribers_count network_count forks open_issues watchers license`
	licenseMembers = `key name url spdx_id node_id html_url`

	// Document B section 2.5, and what RFC 4287 asks of a feed.
	publicFeedMembers = `timeline_url user_url security_advisories_url _links`
	userFeedMembers   = publicFeedMembers + ` current_user_public_url`
	feedMembers       = userFeedMembers + ` current_user_url current_user_actor_url current_user_organization_url current_user_organization_urls`
	feedLinkMembers   = `timeline user current_user_public current_user current_user_actor current_user_organization
		current_user_organizations security_advisories`
	feedPageMembers = `id title updated link entries`
)

func TestRecordsHaveTheMembersOfTheDocuments(t *testing.T) {
	run(t, func(t *tester) {
		t.do("member", http.MethodPut, "/repos/acme/widgets/subscription", `{"subscribed":true}`)
		tag := "/repos/acme/widgets/git/tags/" + t.s.world.repositories[0].tags[0].sha
		for _, c := range []struct {
			who, target string
			at          string // path in the answer
			want        string
		}{
			{"", "/repos/acme/widgets/subscribers", "0", userMembers},
			{"", "/orgs/acme/members", "0", userMembers},
			{"member", "/repos/acme/widgets/subscription", "", subscriptionMembers},
			{"member", "/user/subscriptions", "0", repositoryMembers},
			{"member", "/user/subscriptions", "0.owner", userMembers},
			{"member", "/user/subscriptions", "0.permissions", "admin push pull"},
			{"member", "/user/subscriptions", "0.security_and_analysis", "advanced_security secret_scanning secret_scanning_push_protection secret_scanning_non_provider_patterns"},
			{"owner", "/orgs/acme/organization-roles", "", "total_count roles"},
			{"owner", "/orgs/acme/organization-roles", "roles.0", roleMembers},
			{"owner", "/orgs/acme/organization-roles", "roles.0.organization", userMembers},
			{"owner", "/orgs/acme/organization-roles/1", "", roleMembers},
			{"owner", "/orgs/acme/organization-roles/1", "organization", organizationSummaryMembers},
			{"owner", "/orgs/acme/organization-roles/2/teams", "0", teamMembers},
			{"owner", "/orgs/acme/invitations", "0", invitationMembers},
			{"owner", "/orgs/acme/invitations", "0.inviter", userMembers},
			{"owner", "/orgs/acme/failed_invitations", "0", invitationMembers},
			{"owner", "/orgs/acme/invitations/7/teams?page=3&per_page=1", "0.parent", teamMembers},

			{"", "/repos/acme/widgets/rulesets", "0", rulesetMembers},
			{"", "/repos/acme/widgets/rulesets", "0._links", "self html"},
			{"", "/repos/acme/widgets/rules/branches/main", "0", ruleMembers},
			{"", tag, "", tagMembers},
			{"", tag, "tagger", "name email date"},
			{"", tag, "object", "type sha url"},
			{"", tag, "verification", "verified reason signature payload"},
			{"", "/repos/acme/widgets/dependency-graph/sbom", "", "sbom"},
			{"", "/repos/acme/widgets/dependency-graph/sbom", "sbom", sbomMembers},
			{"", "/repos/acme/widgets/dependency-graph/sbom", "sbom.creationInfo", "created creators"},
			{"", "/repos/acme/widgets/dependency-graph/sbom", "sbom.packages.0", packageMembers},
			{"member", "/search/code?q=gear", "", searchMembers},
			{"member", "/search/code?q=gear", "items.0", codeMembers},
			{"", "/codes_of_conduct/contributor_covenant", "", conductMembers},
			{"", "/gitignore/templates/Go", "", templateMembers},
			{"", "/feeds", "", publicFeedMembers},
			{"owner", "/feeds", "", userFeedMembers},
			{"basic user", "/feeds", "", feedMembers},
			{"basic user", "/feeds", "_links", feedLinkMembers},
			{"basic user", "/feeds", "_links.current_user", "href type"},
			{"basic user", "/feeds", "_links.current_user_organizations.0", "href type"},
			{"", "/feeds/timeline", "", feedPageMembers},
			{"", "/feeds/timeline", "entries.0", "id title updated author link"},
			{"", "/rate_limit", "", rateMembers},
			{"", "/rate_limit", "resources", strings.Join(policy.Resources(), " ")},
			{"", "/rate_limit", "rate", "limit used remaining reset"},

			{"owner", configurationsPath, "0", configurationMembers},
			{"owner", configurationsPath + "/2", "", configurationMembers},
			{"owner", configurationsPath + "/2", "dependency_graph_autosubmit_action_options", "labeled_runners"},
			{"owner", configurationsPath + "/defaults", "0", "default_for_new_repos configuration"},
			{"owner", configurationsPath + "/defaults", "0.configuration", configurationMembers},

			{"owner", organizationMigrations, "0", migrationMembers},
			{"owner", organizationMigrations, "0.owner", userMembers},
			{"owner", organizationMigrations, "0.repositories.0", migratedMembers},
			{"owner", organizationMigrations, "0.repositories.0.license", licenseMembers},
			{"owner", organizationMigrations + "?page=2&per_page=1", "0", importMembers},
			{"owner", userMigrations, "0", migrationMembers},
		} {
			w := t.get(c.who, c.target)
			if diff := cmp.Diff(sorted(strings.Fields(c.want)), membersAt(t, w.Body.Bytes(), c.at)); diff != "" {
				t.Errorf("%s %s: documents (-), service (+):\n%s", c.target, c.at, diff)
			}
		}
	})
}

func sorted(s []string) []string { slices.Sort(s); return s }

// membersAt are the names of the members of the object at a path of names and
// indices.
func membersAt(t *tester, text []byte, path string) []string {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", text, err)
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
		t.Fatalf("%s: no object at %q", text, path)
	}
	return slices.Sorted(maps.Keys(object))
}

func TestEveryAnswerCarriesTheCommonFields(t *testing.T) {
	run(t, func(t *tester) {
		for _, c := range []struct{ who, target, control string }{
			{"", "/gitignore/templates", "public, max-age=60, s-maxage=60"},
			{"owner", "/gitignore/templates", "private, max-age=60, s-maxage=60"},
			{"owner", "/nowhere", "no-cache"},
			{"nobody", "/gitignore/templates", "no-cache"},
			{"owner", "/search/commits?q=gear", "no-cache"},
			{"owner", "/repos/acme/widgets/stats/participation", "no-cache"},
		} {
			h := t.get(c.who, c.target).Header()
			if h.Get("Cache-Control") != c.control || h.Get("X-Service-Request-Id") == "" || h.Get("X-Service-Media-Type") != "service.v3; format=json" ||
				!strings.HasPrefix(h.Get("Content-Type"), "application/json") || !strings.Contains(h.Get("Vary"), "Authorization") {
				t.Errorf("%s as %q: %v", c.target, c.who, h)
			}
		}
	})
}

func TestErrorsAreJSONWithAMessage(t *testing.T) {
	run(t, func(t *tester) {
		for target, status := range map[string]int{"/nowhere": 404, "/repos/acme/none/subscribers": 404, "/search/commits": 422, "/repos/%2e%2e": 400} {
			w := t.get("owner", target)
			body := decode[problemBody](t, w)
			if w.Code != status || body.Message == "" || body.Documentation != "https://docs.example.com/rest" {
				t.Errorf("%s: %d %s", target, w.Code, w.Body)
			}
		}
	})
}

func TestHeadAndOptionsOfEveryReadableOperation(t *testing.T) {
	run(t, func(t *tester) {
		for id := range handlers() {
			op := policy.Embedded().Operation(id)
			if op == nil {
				t.Errorf("%s is not in the catalogue", id)
				continue
			}
			if !op.Safe() {
				continue
			}
			target := strings.NewReplacer("{owner}", "acme", "{repo}", "widgets", "{org}", "acme", "{username}", "acme-owner", "{name}", "Go",
				"{key}", "contributor_covenant", "{branch}", "main", "{kind}", "users", "{role_id}", "1", "{invitation_id}", "1", "{configuration_id}", "2", "{tag_sha}", t.s.world.repositories[0].tags[0].sha).Replace(op.Path) + "?q=gear"
			get, head := t.get("owner", target), t.do("owner", http.MethodHead, target, "")
			if get.Code != head.Code || get.Header().Get("ETag") != head.Header().Get("ETag") || get.Code >= 400 && id != "watching/get-subscription" {
				t.Errorf("%s: GET %d, HEAD %d", target, get.Code, head.Code)
			}
			t.wantStatus(t.do("owner", http.MethodOptions, target, ""), 204)
		}
	})
}

func TestDialectNamesHeadersAndMediaTypes(t *testing.T) {
	run(t, func(t *tester) {
		other := t.inDialect("github")
		raw := other.get("", "/gitignore/templates/Go", "Accept: application/vnd.github.v3.raw+json")
		if !strings.HasPrefix(raw.Body.String(), "#") || raw.Header().Get("Content-Type") != "application/vnd.github.raw+json; charset=utf-8" ||
			raw.Header().Get("X-GitHub-Request-Id") == "" {
			t.Errorf("%v %s", raw.Header(), raw.Body)
		}
		t.wantStatus(other.get("", "/gitignore/templates", "X-GitHub-Api-Version: 1999-01-01"), 400)
		t.wantStatus(other.get("", "/gitignore/templates", "X-Service-Api-Version: 1999-01-01"), 200)
	})
}

func TestPatternsOfRefs(t *testing.T) {
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
		if got := c.set.covers(c.branch, "main"); got != c.want {
			t.Errorf("%v but %v, branch %s: %v", c.set.Conditions.RefName.Include, c.set.Conditions.RefName.Exclude, c.branch, got)
		}
	}
}

// The app is installed on 42 users: 22 more than are free (Document B 8.1).
func TestWindowsOfEachKindOfCaller(t *testing.T) {
	run(t, func(t *tester) {
		for who, want := range map[string]string{"": "60", "owner": "5000", "app": "6100", "oauth": "5000", "workflow": "1000"} {
			if got := t.get(who, "/gitignore/templates").Header().Get("X-RateLimit-Limit"); got != want {
				t.Errorf("%q: limit %s, want %s", who, got, want)
			}
		}
		// One user's tokens share a window; another's does not, nor does a kind of resource.
		t.get("owner-2", "/gitignore/templates")
		for _, c := range []struct{ who, target, used string }{
			{"basic user", "/gitignore/templates", "3"}, {"member", "/gitignore/templates", "1"}, {"owner", "/search/commits?q=gear", "1"}, {"owner", "/search/code?q=gear", "1"},
		} {
			if got := t.get(c.who, c.target).Header().Get("X-RateLimit-Used"); got != c.used {
				t.Errorf("%s as %q: used %s, want %s", c.target, c.who, got, c.used)
			}
		}
	})
}

func TestSearchOfAUserOrganizationOrRepositoryIsWithinIt(t *testing.T) {
	run(t, func(t *tester) {
		total := func(q string) string {
			return fmt.Sprint(decode[jsonObject](t, t.get("owner", "/search/commits?q="+q))["total_count"])
		}
		all, org, widgets := total("gear"), total("gear+org:acme"), total("gear+repo:acme/widgets")
		if all != org || all == widgets || total("gear+-repo:acme/monolith") != total("gear+repo:acme/widgets+repo:acme/secret") || total("gear+-org:acme") != "0" {
			t.Errorf("all %s, acme %s, widgets %s", all, org, widgets)
		}
	})
}
