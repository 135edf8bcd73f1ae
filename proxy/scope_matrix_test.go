package proxy

import (
	"bufio"
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
)

// The matrix has its own rule for what an operation reaches: the text of its path template, and the exceptions in these lists.
var (
	matrixSearches = words("search/code search/commits search/issues-and-pull-requests search/repos")
	// matrixMembers read nothing about the repositories of an owner.
	matrixMembers = words(`orgs/get orgs/list-blocked-users orgs/check-blocked-user orgs/list-failed-invitations interactions/get-restrictions-for-org
		orgs/list-pending-invitations orgs/list-invitation-teams orgs/list-issue-types orgs/list-members orgs/check-membership-for-user
		orgs/get-membership-for-user orgs/list-org-roles orgs/get-org-role orgs/list-org-role-teams orgs/list-org-role-users
		orgs/list-outside-collaborators orgs/list-public-members orgs/check-public-membership-for-user orgs/list-security-manager-teams
		teams/list teams/get-by-name teams/list-pending-invitations-in-org teams/list-members-in-org teams/get-membership-for-user-in-org
		teams/list-child-in-org orgs/get-membership-for-authenticated-user users/get-by-id users/get-by-username users/list-followers-for-user
		users/list-following-for-user users/check-following-for-user users/list-gpg-keys-for-user users/list-public-keys-for-user
		orgs/list-for-user users/list-social-accounts-for-user users/list-ssh-signing-keys-for-user`)
	// matrixOthers are operations of a repository that show or change others.
	matrixOthers = words(`activity/list-public-events-for-repo-network code-scanning/create-variant-analysis code-scanning/get-variant-analysis
		code-scanning/get-variant-analysis-repo-task issues/list-sub-issues issues/add-sub-issue issues/remove-sub-issue
		issues/reprioritize-sub-issue issues/list-dependencies-blocked-by issues/list-dependencies-blocking issues/add-blocked-by-dependency
		issues/remove-dependency-blocked-by issues/get-event issues/get-parent issues/list-events issues/list-events-for-repo
		issues/list-events-for-timeline migrations/start-import migrations/update-import migrations/cancel-import migrations/get-import-status
		migrations/map-commit-author migrations/set-lfs-preference repos/list-forks repos/merge-upstream security-advisories/create-fork`)
	// matrixReference reaches nothing of anyone.
	matrixReference = words(`codes-of-conduct/get-all-codes-of-conduct codes-of-conduct/get-conduct-code codes-of-conduct/get codes-of-conduct/list emojis/get
		gitignore/get-all-templates gitignore/get-template gitignore/list-templates licenses/get licenses/get-all-commonly-used meta/get
		meta/get-all-versions meta/get-octocat meta/get-zen meta/root rate-limit/get`)
	// matrixBodies name a target in the scope.
	matrixBodies = map[string]string{
		"repos/create-fork": `{"organization":"acme"}`, "repos/transfer": `{"new_owner":"acme"}`,
		"repos/create-using-template": `{"owner":"acme","name":"widgets2"}`, "repos/create-in-org": `{"name":"widgets2"}`,
	}
)

func words(text string) []string { return strings.Fields(text) }

// matrixCall is an operation with its template, and the kind of what it reaches by the rule of the test.
type matrixCall struct{ id, method, template, kind string }

// matrixKind returns what an operation reaches: one repository (repo), an owner without repositories (members), all repositories of
// an owner (all), a search, or anything (any). The suffix +any means that it may also reach others.
func matrixKind(id, template string) string {
	kind := "any"
	switch hasRepo := strings.Contains(template, "{owner}/{repo}") || strings.Contains(template, "{template_owner}"); {
	case slices.Contains(matrixSearches, id):
		return "search"
	case id == "search/labels":
		return "labels"
	case slices.Contains(matrixReference, id):
		return "reference"
	case regexp.MustCompile(`^/(repos|networks|agents/repos|user/starred)/\{`).MatchString(template):
		kind = "repo"
	case !regexp.MustCompile(`^/((scim/v2/)?(orgs|organizations)|user/memberships/orgs|users?)/\{(org|organization_id|username|user_id|account_id)\}`).MatchString(template):
	case hasRepo, strings.Contains(template, "{repository_id}"), id == "repos/create-in-org":
		kind = "owner+repo"
	case slices.Contains(matrixMembers, id):
		kind = "members"
	default:
		kind = "all"
	}
	if slices.Contains(matrixOthers, id) || strings.HasPrefix(id, "projects/") || strings.HasPrefix(id, "copilot-spaces/") {
		kind += "+any"
	}
	return kind
}

// fill returns the path of a template for an owner and a repository with their numbers.
func (c matrixCall) fill(owner, repo, id string) string {
	path := regexp.MustCompile(`\{\+?(base)\}\.\.\.\{\+?head\}`).ReplaceAllString(c.template, "main...topic")
	for name, value := range map[string]string{
		"owner": owner, "repo": repo, "template_owner": owner, "template_repo": repo, "repo_owner": owner, "repo_name": repo, "org": owner,
		"repository_id": id, "basehead": "main...topic", "+basehead": "main...topic", "security_product": "dependency_graph", "enablement": "enable_all",
	} {
		path = strings.ReplaceAll(path, "{"+name+"}", value)
	}
	if strings.HasPrefix(path, "/users/{username}") {
		path = strings.Replace(path, "{username}", owner, 1)
	}
	for _, parameter := range []string{"organization_id", "user_id", "account_id"} {
		path = strings.ReplaceAll(path, "{"+parameter+"}", id)
	}
	path = regexp.MustCompile(`\{[a-z_]*(_id|_ids|number)\}`).ReplaceAllString(path, "1")
	return regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(path, "x")
}

// spelling changes a path without changing what it names, or what the upstream may take it for.
type spelling struct {
	name   string
	change func(path string) string
	same   bool // the path stays permitted
}

var namedSpellings = []spelling{
	{"as documented", func(p string) string { return p }, true},
	{"with the prefix of servers", func(p string) string { return "/api/v3" + p }, true},
	{"with slashes", func(p string) string {
		path, query, _ := strings.Cut(p, "?")
		return "/" + strings.ReplaceAll(path, "/", "//") + "?" + query
	}, true},
	{"in capitals", func(p string) string { return capitals.ReplaceAllStringFunc(p, strings.ToUpper) }, true},
	{"encoded", func(p string) string {
		return capitals.ReplaceAllStringFunc(p, func(s string) string { return fmt.Sprintf("/%%%02x%s", s[1], s[2:]) })
	}, true},
	{"encoded twice", func(p string) string {
		return capitals.ReplaceAllStringFunc(p, func(s string) string { return fmt.Sprintf("/%%25%02x%s", s[1], s[2:]) })
	}, false},
	{"with a suffix", func(p string) string { return capitals.ReplaceAllString(p, "$0.json") }, false},
	{"with dot segments", func(p string) string { return "/repos/acme/widgets/../../.." + p }, false},
	{"with encoded dot segments", func(p string) string { return "/repos/acme/widgets/%2e%2e/%2e%2e/.." + p }, false},
	{"with a space", func(p string) string { return capitals.ReplaceAllString(p, "$0%20") }, false},
}

// capitals are the names in the paths of the matrix.
var capitals = regexp.MustCompile(`/(acme|whole|other|hush|widgets)\b`)

// TestScopesOverTheWholeAPI calls all operations in and outside of a scope, by names and numbers, in odd spellings, and with an entry
// of the operation. No call outside of the scope may reach the upstream.
func TestScopesOverTheWholeAPI(t *testing.T) {
	rules := policy.Scope{Repositories: words("acme/* !acme/hush whole/*"), Organizations: words("acme whole")}
	explicit := rules
	var calls []matrixCall
	for lines := bufio.NewScanner(strings.NewReader(policy.Table())); lines.Scan(); {
		if row := strings.Split(lines.Text(), "\t"); row[0] != "" && row[0][0] != '#' {
			calls = append(calls, matrixCall{row[0], row[1], row[2], matrixKind(row[0], row[2])})
		}
	}
	for _, op := range policy.CatalogueOf("github").Operations() {
		explicit.Operations = append(explicit.Operations, op.ID)
	}
	var mu sync.Mutex
	var sent []string // the requests that reached the upstream, except those for names
	names := map[string]string{
		"/repositories/7": `{"id":7,"full_name":"acme/widgets"}`, "/repositories/8": `{"id":8,"full_name":"acme/hush"}`, "/repositories/9": `{"id":9,"full_name":"whole/any"}`,
		"/organizations/7": `{"id":7,"login":"acme"}`, "/organizations/8": `{"id":8,"login":"other"}`, "/organizations/9": `{"id":9,"login":"whole"}`,
		"/user/7": `{"id":7,"login":"acme"}`, "/user/8": `{"id":8,"login":"other"}`, "/user/9": `{"id":9,"login":"whole"}`,
	}
	upstream := roundTripper(func(r *http.Request) (*http.Response, error) {
		path := strings.TrimPrefix(r.URL.Path, "/base")
		answer := httptest.NewRecorder()
		answer.Header().Set("Content-Type", "application/json")
		switch body, isNumber := names[path]; {
		case isNumber:
			_, _ = answer.WriteString(body)
		case strings.HasSuffix(path, "/404") && strings.Count(path, "/") == 2:
			answer.WriteHeader(http.StatusNotFound)
			_, _ = answer.WriteString("{}")
		default:
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, r.Method+" "+path)
		}
		resp := answer.Result()
		resp.Request = r
		return resp, nil
	})
	w := newWorld(t, nothing, withCatalogue, func(c *Config) { c.Transport = upstream }, withLedger(limits.Unlimited{}), identifying(func(r *http.Request, id *caller.Identity) {
		id.Client, id.Scope = "agents", &rules
		if r.Header.Get("Authorization") == "Bearer explicit" {
			id.Scope = &explicit
		}
	}))
	counts, wrong := map[string]int{}, 0
	check := func(c matrixCall, name, token, path string, want bool) {
		mu.Lock()
		sent = nil
		mu.Unlock()
		body := matrixBodies[c.id]
		if body == "" {
			body = "{}"
		}
		r := httptest.NewRequest(c.method, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+token)
		answer := httptest.NewRecorder()
		w.gateway.ServeHTTP(answer, r)
		detail := answer.Header().Get("Cache-Status")
		refused := answer.Code == http.StatusForbidden && strings.Contains(detail, "detail=scope") || strings.Contains(detail, "detail=form")
		mu.Lock()
		failIf(t, refused && len(sent) > 0, "%s %s: the upstream got %v", c.id, name, sent)
		mu.Unlock()
		verdict := "permitted"
		if refused {
			verdict = "refused"
		}
		_, class, _ := strings.Cut(name, ", ")
		if counts[cmp.Or(class, name)+": "+verdict]++; refused == want {
			if wrong++; wrong < 40 {
				t.Errorf("%s (%s) %s: %s %s: got %d %s, want permitted %v", c.id, c.kind, name, c.method, path, answer.Code, answer.Body, want)
			}
		}
	}
	for i, c := range calls {
		one, all := strings.Contains(c.kind, "repo"), c.kind == "all" || c.kind == "members" || strings.HasPrefix(c.kind, "owner")
		others := strings.HasSuffix(c.kind, "any")
		query := ""
		switch c.kind {
		case "search":
			query = "?q=x+repo:OWNER/REPO"
		case "labels":
			query = "?q=x&repository_id=ID"
		}
		at := func(owner, repo, id string) string {
			if query != "" {
				return c.template + strings.NewReplacer("OWNER", owner, "REPO", repo, "ID", id).Replace(query)
			}
			return c.fill(owner, repo, id)
		}
		searches := query != ""
		for k, s := range namedSpellings {
			if !searches && k > 0 && (i+k)%4 != 0 {
				continue // another operation has this spelling
			}
			if searches && !s.same && !strings.Contains(s.name, "dot") || !searches && !capitals.MatchString(at("acme", "widgets", "7")) && !s.same {
				continue // the path has no name to change
			}
			isKnown := (one || all || searches || c.kind == "reference") && !others
			check(c, s.name+", in scope", "plain", s.change(at("whole", "widgets", "9")), s.same && isKnown)
			check(c, s.name+", partly in scope", "plain", s.change(at("acme", "widgets", "7")), s.same && isKnown && c.kind != "all")
			if one || searches || all {
				check(c, s.name+", out of scope", "plain", s.change(at("other", "widgets", "8")), false)
				check(c, s.name+", out of scope with an entry", "explicit", s.change(at("other", "widgets", "8")), false)
			}
			if hasName := c.id != "repos/create-in-org"; one && hasName || searches {
				check(c, s.name+", excluded", "plain", s.change(at("acme", "hush", "8")), false)
				check(c, s.name+", excluded with an entry", "explicit", s.change(at("acme", "hush", "8")), false)
			}
		}
		check(c, "with an entry", "explicit", at("acme", "widgets", "7"), true)
		for prefix, number := range map[string]string{"/repos/{owner}/{repo}": "/repositories/", "/orgs/{org}": "/organizations/", "/users/{username}": "/user/"} {
			rest, ok := strings.CutPrefix(c.template, prefix)
			if !ok || rest != "" && rest[0] != '/' {
				continue
			}
			path := func(owner, id string) string {
				return matrixCall{template: number + id + rest}.fill(owner, "widgets", id)
			}
			check(c, "by number, in scope", "plain", path("whole", "9"), !others)
			check(c, "by number, partly in scope", "plain", path("acme", "7"), !others && c.kind != "all")
			check(c, "by number, out of scope", "plain", path("acme", "8"), false)
			check(c, "by an unknown number", "plain", path("acme", "404"), false)
		}
	}
	kinds := map[string]int{}
	for _, c := range calls {
		kinds[c.kind]++
	}
	t.Logf("%d operations, %v, %d wrong", len(calls), kinds, wrong)
	t.Log(counts)
	w.want("operations", len(calls) >= 1223, true)
}
