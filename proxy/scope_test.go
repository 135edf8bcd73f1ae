package proxy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/learned"
)

// agentScope permits acme without acme/secret, and the organization itself.
var agentScope = policy.Scope{Repositories: words("acme/* !acme/secret"), Organizations: words("acme")}

// named is an upstream that shows names behind numbers, and answers all other requests with an empty object.
func named(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/repositories/7":
		_, _ = io.WriteString(w, `{"id":7,"name":"widgets","full_name":"Acme/Widgets"}`)
	case "/repositories/8":
		_, _ = io.WriteString(w, `{"id":8,"full_name":"acme/secret"}`)
	case "/organizations/8", "/user/8":
		_, _ = io.WriteString(w, `{"id":8,"login":"hidden"}`)
	case "/repositories/9":
		_, _ = io.WriteString(w, `{"id":1,"full_name":"acme/widgets"}`) // another number
	case "/repos/acme/missing":
		w.WriteHeader(http.StatusNotFound)
	case "/repos/acme/moved":
		setFields(w, "Location: "+upstreamURL+"/repositories/8")
		w.WriteHeader(http.StatusMovedPermanently)
	case "/repos/acme/widgets/issues":
		setFields(w, `Link: <`+upstreamURL+`/repositories/70/issues?page=2>; rel="next"`)
		_, _ = io.WriteString(w, "[]")
	default:
		if strings.HasPrefix(r.URL.Path, "/repositories/") && strings.Count(r.URL.Path, "/") == 2 {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, "{}")
	}
}

func TestScopeJudgesWhatACallNames(t *testing.T) {
	for _, c := range []struct{ name, call, body, reason string }{
		{"repository", "GET /repos/Acme/Widgets/issues", "", ""},
		{"excluded repository", "GET /repos/acme/secret/issues", "", "acme/secret is outside"},
		{"archive", "GET /repos/acme/secret/tarball/main", "", "is outside"},
		{"name of the Git repository", "GET /repos/acme/secret.git/issues", "", "is outside"},
		{"name of the Git repository, twice", "GET /repos/acme/secret.git.git", "", "is outside"},
		{"HEAD", "HEAD /repos/other/x", "", "-"},
		{"compare of a fork", "GET /repos/acme/widgets/compare/main...other:main", "", "not all repositories of other"},
		{"compare of a fork, encoded", "GET /repos/acme/widgets/compare/main...other%3Amain", "", "not all repositories of other"},
		{"compare of a fork with its name", "GET /repos/acme/widgets/compare/other:x:main...main", "", "other/x is outside"},
		{"compare of a branch of the owner", "GET /repos/acme/widgets/compare/main...acme:topic", "", ""},
		{"number", "GET /repositories/7/issues", "", ""},
		{"number with zeros", "GET /repositories/0007/issues", "", ""},
		{"number of an excluded repository", "GET /repositories/8/issues", "", "the number 8 names nothing in its scope"},
		{"number without a repository", "GET /repositories/404", "", "the number 404 names nothing in its scope"},
		{"number that the upstream answers with another", "GET /repositories/9", "", "the number 9 names nothing in its scope"},
		{"number with zeros only", "GET /repositories/0", "", "0 is not the number"},
		{"organization by number", "GET /organizations/8/members", "", "the number 8 names nothing"},
		{"repository of an organization by number", "POST /organizations/8/repos", `{"name":"x"}`, "the number 8 names nothing"},
		{"user by number", "GET /user/8", "", "the number 8 names nothing"},
		{"invalid target of a number", "POST /repositories/8/transfer", `{"new_owner":"a b"}`, "the number 8 names nothing"},
		{"invalid target of a permitted number", "POST /repositories/7/transfer", `{"new_owner":"a b"}`, `\"a b\" is not the name of an organization`},
		{"number and another organization", "PUT /orgs/other/actions/secrets/x/repositories/8", "", "the number 8 names nothing"},
		{"search of labels", "GET /search/labels?q=x&repository_id=8", "", "the number 8 names nothing"},
		{"members", "GET /orgs/acme/members", "", ""},
		{"repositories of the organization", "GET /orgs/acme/repos", "", "all repositories of acme"},
		{"write to the organization", "PUT /orgs/acme/memberships/x", "{}", "all repositories of acme"},
		{"user", "GET /users/other", "", "user other is outside"},
		{"team and repository", "PUT /orgs/acme/teams/x/repos/acme/secret", "{}", "acme/secret is outside"},
		{"team by number", "PUT /teams/7/repos/acme/widgets", "{}", "list teams/add-or-update-repo-permissions-legacy"},
		{"secret for a repository by number", "PUT /orgs/acme/actions/secrets/x/repositories/8", "", "the number 8 names nothing"},
		{"own data", "GET /user", "", "list users/get-authenticated in clients[].operations"},
		{"notifications", "GET /notifications", "", "names no repository"},
		{"events", "GET /events", "", "names no repository"},
		{"timeline", "GET /repos/acme/widgets/issues/1/timeline", "", "does not name"},
		{"new route of a repository", "GET /repos/acme/widgets/brand-new", "", "list unknown"},
		{"new route", "GET /brand/new", "", "names no repository"},
		{"route in capitals", "GET /REPOS/acme/secret", "", "names no repository"},
		{"trailing slash", "GET /repos/acme/secret/", "", "is outside"},
		{"search", "GET /search/issues?q=x+repo:acme/widgets", "", ""},
		{"search without a qualifier", "GET /search/issues?q=x", "", "has no qualifier repo:, org:, user:"},
		{"search of the organization", "GET /search/code?q=x+org:acme", "", "not all repositories of acme"},
		{"search with the number twice", "GET /search/labels?q=x&repository_id=7&[repository_id]=8", "", "[repository_id]\\\" may replace"},
		{"pull request of a branch", "POST /repos/acme/widgets/pulls", `{"head":"topic","base":"main"}`, ""},
		{"pull request of a fork", "POST /repos/acme/widgets/pulls", `{"head":"other:topic"}`, "not all repositories of other"},
		{"pull request into a fork", "POST /repos/acme/widgets/pulls", `{"head":"topic","base":"other:main"}`, "not all repositories of other"},
		{"merge of a fork", "POST /repos/acme/widgets/merges", `{"head":"other:topic","base":"main"}`, "not all repositories of other"},
		{"merge", "POST /repos/acme/widgets/merges", `{"head":"topic","base":"main"}`, ""},
		{"commit of a fork", "GET /repos/acme/widgets/commits/other:topic", "", "not all repositories of other"},
		{"archive of a fork", "GET /repos/acme/widgets/tarball/other:topic", "", "not all repositories of other"},
		{"commits of a fork", "GET /repos/acme/widgets/commits?sha=other:topic", "", "not all repositories of other"},
		{"file of a fork", "GET /repos/acme/widgets/contents/a:b?ref=other:topic", "", "not all repositories of other"},
		{"file with a colon", "GET /repos/acme/widgets/contents/a:b?ref=topic", "", ""},
		{"pull requests from a fork", "GET /repos/acme/widgets/pulls?head=other:topic", "", ""},
		{"pull request of another repository", "POST /repos/acme/widgets/pulls", `{"head":"topic","head_repo":"secret"}`, "acme/secret is outside"},
		{"fork into an organization", "POST /repos/acme/widgets/forks", `{"organization":"other"}`, "other/widgets is outside"},
		{"fork into the own account", "POST /repos/acme/widgets/forks", `{}`, "account of the credential"},
		{"fork without a body", "POST /repos/acme/widgets/forks", ``, "account of the credential"},
		{"fork within the scope", "POST /repos/acme/widgets/forks", `{"organization":"acme","name":"w2"}`, ""},
		{"transfer", "POST /repos/acme/widgets/transfer", `{"new_owner":"other"}`, "other/widgets is outside"},
		{"transfer by number", "POST /repositories/7/transfer", `{"new_owner":"other"}`, "other/widgets is outside"},
		{"member in the query", "POST /repos/acme/widgets/transfer?new_owner=other", `{"new_owner":"acme"}`, "send them in the body"},
		{"member twice", "POST /repos/acme/widgets/transfer", `{"new_owner":"other","new_owner":"acme"}`, "cannot be read"},
		{"member with an escape", "POST /repos/acme/widgets/transfer", `{"new\u005fowner":"other"}`, "other/widgets is outside"},
		{"form", "POST /repos/acme/widgets/transfer", `new_owner=other`, "cannot be read"},
		{"two values", "POST /repos/acme/widgets/transfer", `{"new_owner":"acme"}{"new_owner":"other"}`, "cannot be read"},
		{"deep body", "POST /repos/acme/widgets/pulls", strings.Repeat("[", 100), "cannot be read"},
		{"long body", "POST /repos/acme/widgets/pulls", `{"body":"` + strings.Repeat("x", 2<<20) + `"}`, "cannot be read"},
		{"rename", "PATCH /repos/acme/widgets", `{"name":"secret"}`, "acme/secret is outside"},
		{"template", "POST /repos/acme/widgets/generate", `{"owner":"other","name":"x"}`, "other/x is outside"},
		{"repository of an organization", "POST /orgs/acme/repos", `{"name":"secret"}`, "acme/secret is outside"},
		{"new repository of an organization", "POST /orgs/acme/repos", `{"name":"new"}`, ""},
		{"analysis of other repositories", "POST /repos/acme/widgets/code-scanning/codeql/variant-analyses", `{"repositories":["other/x"]}`, "other/x is outside"},
		{"repositories of a secret", "PUT /orgs/acme/actions/secrets/x/repositories", `{"selected_repository_ids":[7,8]}`, "the number 8 names nothing"},
		{"workflow of another repository", "POST /repos/acme/widgets/rulesets", `{"rules":[{"parameters":{"workflows":[{"repository_id":8}]}}]}`, "the number 8 names nothing"},
		{"workflow", "PUT /repos/acme/widgets/rulesets/1", `{"rules":[{"parameters":{"workflows":[{"repository_id":7}]}}]}`, ""},
		{"duplicate of another issue", "PATCH /repos/acme/widgets/issues/1", `{"state":"closed","duplicate_issue_id":1}`, "behind duplicate_issue_id"},
		{"issue", "PATCH /repos/acme/widgets/issues/1", `{"state":"closed"}`, ""},
		{"lists of repositories", "POST /repos/acme/widgets/code-scanning/codeql/variant-analyses", `{"repository_lists":["x"]}`, "list code-scanning/create-variant-analysis"},
		{"issue of another repository", "POST /repos/acme/widgets/issues/1/sub_issues", `{"sub_issue_id":1}`, "does not name"},
	} {
		setup(named, withCatalogue, scoped(agentScope)).sub(t, c.name, func(w *world) {
			method, target, _ := strings.Cut(c.call, " ")
			var body io.Reader
			if c.body != "" {
				body = strings.NewReader(c.body)
			}
			r := w.do(method, target, body, bearer("a"))
			if c.reason == "" {
				w.want("status", r.StatusCode, http.StatusOK)
				return
			}
			w.wantReply("refusal", r, http.StatusForbidden, "Cache-Status: weir; detail=scope")
			failIf(w, method != "HEAD" && !strings.Contains(r.body, c.reason), "got %s, want %q", r.body, c.reason)
			failIf(w, strings.Contains(r.body, "hidden") || !strings.Contains(c.call+c.body, "secret") && strings.Contains(r.body, "secret"), "the refusal shows a name: %s", r.body)
			for _, sent := range w.seen.all() {
				failIf(w, strings.Count(sent.URL.Path, "/") != 2 || sent.Method != "GET", "the upstream got %s %s", sent.Method, sent.URL)
			}
			w.want("detail of the record", w.last().Cache.Detail, "scope")
		})
	}
}

func TestNumbersOfRepositoriesAreLookedUpOnce(t *testing.T) {
	setup(named, withCatalogue, scoped(agentScope)).run(t, func(w *world) {
		calls := func(name, path string, status, upstream int) {
			t.Helper()
			before := w.upstreamSaw()
			w.want(name+" status", w.get(path, bearer("a"), "Cache-Control: no-cache").StatusCode, status)
			w.want(name+" requests upstream", w.upstreamSaw()-before, upstream)
		}
		calls("first", "/repositories/7/labels", 200, 2)
		lookup := w.recent()[1]
		w.want("look-up", lookup.Operation+" "+lookup.Client, "repos/get builds")
		w.want("spent by the look-up", lookup.Spent, 1)
		calls("second", "/repositories/7/labels", 200, 1)
		calls("first of a page", "/repos/acme/widgets/issues", 200, 1)
		calls("next of a page", "/repositories/70/issues?page=2", 200, 1)
		calls("excluded", "/repositories/8/labels", 403, 1)
		calls("excluded again", "/repositories/8/labels", 403, 0)
		calls("missing", "/repositories/404", 403, 1)
		calls("missing again", "/repositories/404", 403, 0)
		calls("redirect", "/repos/acme/moved", 301, 1)
		calls("target of the redirect", "/repositories/8", 403, 0)
		w.gateway.EndName(t.Context(), "acme/widgets")
		calls("after a rename", "/repositories/7/labels", 200, 2)
		time.Sleep(learned.NameFor)
		calls("much later", "/repositories/7/labels", 200, 2)
	})
}

// TestMissingNumbersConcernOneCredential checks that a number without a name for one credential is looked up for others.
func TestMissingNumbersConcernOneCredential(t *testing.T) {
	upstream := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer outsider" && r.URL.Path == "/repositories/7" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		named(w, r)
	}
	setup(upstream, withCatalogue, scoped(agentScope)).run(t, func(w *world) {
		for _, c := range []struct {
			token  string
			status int
		}{{"outsider", 403}, {"member", 200}, {"outsider", 200}} { // the name itself decides only about the scope
			w.want(c.token, w.get("/repositories/7/labels", bearer(c.token)).StatusCode, c.status)
		}
	})
}

func TestLookUpsOfNumbersAreShed(t *testing.T) {
	shedder, shed := withShedder(1)
	setup(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/repositories/7" {
			time.Sleep(5 * time.Second)
		}
		named(w, r)
	}, withCatalogue, scoped(agentScope), shed).run(t, func(w *world) {
		var clients sync.WaitGroup
		clients.Go(func() { w.want("first", w.get("/repositories/7/labels", bearer("a")).StatusCode, 200) })
		time.Sleep(time.Second)
		w.wantReply("second", w.get("/repositories/8/labels", bearer("b")), http.StatusServiceUnavailable, "Cache-Status: weir; detail=overload", "Retry-After: 1")
		clients.Wait()
		w.want("waiting requests", shedder.Waiting(), int64(0))
	})
}

func TestBodiesWithoutMemoryAreNotRefusedByTheScope(t *testing.T) {
	setup(named, withCatalogue, scoped(agentScope)).run(t, func(w *world) {
		w.gateway.Background.buffers.Limit = 10
		for path, body := range map[string]string{
			"/repos/acme/widgets/forks": `{"organization":"acme","name":"w2"}`, "/graphql": `{"query":"{repository(owner:\"acme\",name:\"widgets\"){id}}"}`,
		} {
			w.wantReply(path, w.do("POST", path, strings.NewReader(body+strings.Repeat(" ", 20<<10)), bearer("a")), http.StatusServiceUnavailable, "Cache-Status: weir; detail=overload", "Retry-After: 1")
		}
	})
}

func TestFailedLookUpsShowTheirReason(t *testing.T) {
	slowDown, limited := `{"message":"`+secondaryText+`"}`, failedQuery(`"type":"RATE_LIMITED","message":"`+primaryText+`"`)
	for _, c := range []struct {
		name, answer string
		sent, status int
		detail       string
		retry        string // with the margin of the ledger
	}{
		{"error", "", 502, 503, "scope", "10"},
		{"refused credential", "", 401, 401, "refused-token", ""},
		{"secondary limit", slowDown, 403, 429, "cooldown", "71"},
		{"limit of GraphQL", limited, 200, 429, "primary", "3602"},
	} {
		upstream := func(w http.ResponseWriter, _ *http.Request) {
			if setFields(w, "Content-Type: application/json"); c.detail == "cooldown" {
				setFields(w, "Retry-After: 70")
			}
			w.WriteHeader(c.sent)
			_, _ = io.WriteString(w, c.answer)
		}
		for call, ask := range map[string]func(*world) got{
			"number":  func(w *world) got { return w.get("/repositories/7/labels", bearer("a")) },
			"node ID": func(w *world) got { return w.graphQL("/graphql", `{node(id:"W"){id}}`) },
		} {
			if call == "number" && c.answer == limited {
				continue
			}
			setup(upstream, withCatalogue, scoped(agentScope)).sub(t, c.name+" for a "+call, func(w *world) {
				w.wantReply("", ask(w), c.status, "Cache-Status: weir; detail="+c.detail, "Retry-After: "+c.retry)
				w.want("requests upstream", w.upstreamSaw(), 1)
			})
		}
	}
}

// TestNewObjectsAreFoundSoon checks objects that the upstream does not show at first, because a replica of the API lags or because
// a client creates them later. Repeated look-ups of an object that stays absent become rare.
func TestNewObjectsAreFoundSoon(t *testing.T) {
	var exists atomic.Bool
	upstream := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case exists.Load():
			nodes(w, r)
		case r.URL.Path == "/graphql":
			setFields(w, "Content-Type: application/json")
			_, _ = io.WriteString(w, `{"data":{"nodes":[null]}}`)
		case r.Method == http.MethodGet:
			w.WriteHeader(http.StatusNotFound)
		}
	}
	for name, query := range map[string]string{
		"node ID": `mutation{closePullRequest(input:{pullRequestId:"PW"}){pullRequest{id}}}`, "name": `{repository(owner:"acme",name:"widgets"){id}}`,
	} {
		setup(upstream, withCatalogue, scoped(agentScope)).sub(t, name, func(w *world) {
			ask := func() int { return w.graphQL("/graphql", query).StatusCode }
			exists.Store(false)
			w.want("during the lag", ask(), 403)
			w.want("again", ask(), 403)
			w.want("look-ups", w.upstreamSaw(), 1)
			exists.Store(true)
			time.Sleep(2 * time.Second)
			w.want("after the lag", ask(), 200)
		})
		setup(upstream, withCatalogue, scoped(agentScope)).sub(t, name+", absent", func(w *world) {
			exists.Store(false)
			for range 600 {
				w.want("absent", w.graphQL("/graphql", query).StatusCode, 403)
				time.Sleep(time.Second)
			}
			failIf(w, w.upstreamSaw() > 20, "%d look-ups in ten minutes", w.upstreamSaw())
			w.want("creation", w.do("POST", "/orgs/acme/repos", strings.NewReader(`{"name":"widgets"}`), bearer("a")).StatusCode, 200)
			w.want("during the lag", w.graphQL("/graphql", query).StatusCode, 403)
			exists.Store(true)
			time.Sleep(2 * time.Second)
			w.want("after the lag", w.graphQL("/graphql", query).StatusCode, 200)
		})
	}
}

func TestScopeAppliesToHitsAndFiles(t *testing.T) {
	withScope := identifying(func(r *http.Request, id *caller.Identity) {
		if id.Class = "all"; r.Header.Get("Authorization") == "Bearer scoped" {
			id.Client, id.Scope = "builds", &agentScope
		}
	})
	fresh := replies("{}", "Cache-Control: max-age=60", "Content-Type: application/json")
	setup(fresh, withCatalogue, withScope).sub(t, "hits", func(w *world) {
		for _, path := range []string{"/repos/acme/secret", "/repos/acme/widgets"} {
			w.get(path, bearer("a"))
		}
		w.want("hit", w.get("/repos/acme/widgets", bearer("scoped")).StatusCode, 200)
		w.want("hit outside of the scope", w.get("/repos/acme/secret", bearer("scoped")).StatusCode, 403)
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
	files := func(c *Config) { c.Host, c.Catalogue = "codeload.github.com", policy.Files }
	setup(fresh, withScope, files).sub(t, "files", func(w *world) {
		for path, want := range map[string]int{
			"/acme/widgets/zip/main": 200, "/Acme/widgets.git/info/refs?service=git-upload-pack": 200, "/acme/secret/zip/main": 403,
			"/acme/%73ecret/zip/main": 403, "/acme/secret.git/info/refs?service=git-upload-pack": 403, "/acme/secret.wiki.git/info/refs": 403, "/acme/widgets/../secret/x": 403, "/acme/widgets/%2e%2e/secret": 403,
			"/acme%2Fsecret/x": 403, "//acme/widgets/x": 403, "/acme": 403, "/": 403, "/acme/secret%2Fx": 403, "/wiki/acme/widgets/x": 403,
		} {
			w.want(path, w.get(path, bearer("scoped")).StatusCode, want)
		}
	})
	for host, want := range map[string]int{"raw.githubusercontent.com": 403, "objects.githubusercontent.com": 200} {
		withoutCredential := identifying(func(_ *http.Request, id *caller.Identity) { id.Passed, id.Scope = false, &agentScope })
		setup(fresh, withoutCredential, func(c *Config) { c.Host, c.Catalogue = host, policy.Files }).sub(t, host, func(w *world) {
			w.want("file", w.get("/other/x/main/README.md").StatusCode, want)
		})
	}
}

// TestFormerNamesAreRefused checks calls by a former name, which the upstream follows without a redirect.
func TestFormerNamesAreRefused(t *testing.T) {
	setup(named, withCatalogue, scoped(agentScope)).run(t, func(w *world) {
		for _, c := range []struct {
			name, arguments  string
			status, requests int
		}{
			{"widgets", "", 200, 2}, {"Widgets", ",followRenames:true", 200, 1}, {"moved", "", 403, 1}, {"missing", "", 403, 1},
			{"moved", "", 403, 0}, {"moved", ",followRenames:false", 200, 1},
		} {
			before := w.upstreamSaw()
			w.want(c.name+c.arguments, w.graphQL("/graphql", `{repository(owner:"acme",name:"`+c.name+`"`+c.arguments+`){id}}`).StatusCode, c.status)
			w.want("requests upstream for "+c.name+c.arguments, w.upstreamSaw()-before, c.requests)
		}
		w.want("search by a former name", w.get("/search/issues?q=x+repo:acme/moved", bearer("a")).StatusCode, 403)
		w.want("search", w.get("/search/issues?q=x+repo:acme/widgets", bearer("a")).StatusCode, 200)
	})
}

// nodes answers queries for node IDs: W is acme/widgets, PW a pull request of it, S acme/secret, and IO an issue of other/x.
func nodes(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var asked struct{ Variables struct{ IDs []string } }
	if r.URL.Path != "/graphql" || json.Unmarshal(body, &asked) != nil || len(asked.Variables.IDs) == 0 {
		named(w, r)
		return
	}
	shown := make([]json.RawMessage, len(asked.Variables.IDs))
	for i, id := range asked.Variables.IDs {
		shown[i] = json.RawMessage(cmp.Or(map[string]string{
			"W": `{"__typename":"Repository","nameWithOwner":"Acme/Widgets"}`, "MDEwOlJlcG9zaXRvcnkx": `{"__typename":"Repository","nameWithOwner":"acme/widgets"}`,
			"PW": `{"__typename":"PullRequest","repository":{"nameWithOwner":"acme/widgets"}}`, "LW": `{"__typename":"Label","repository":{"nameWithOwner":"acme/widgets"}}`,
			"S": `{"__typename":"Repository","nameWithOwner":"acme/secret"}`, "IO": `{"__typename":"Issue","repository":{"nameWithOwner":"other/x"}}`,
			"U": `{"__typename":"User"}`, "P": `{"__typename":"ProjectV2","repository":{"nameWithOwner":"acme/widgets"}}`,
		}[id], "null"))
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"nodes": shown}, "errors": []any{}})
}

// TestScopeJudgesNodeIDs sends calls with node IDs. A call is permitted if it has no reason, and only then reaches the upstream.
func TestScopeJudgesNodeIDs(t *testing.T) {
	const gone, comment = "names nothing in its scope", `mutation($i:AddCommentInput!){addComment(input:$i){commentEdge{node{url}}}}`
	for _, c := range []struct{ name, query, variables, reason string }{
		{"comment", comment, `{"i":{"subjectId":"PW","body":"x"}}`, ""},
		{"comment elsewhere", comment, `{"i":{"subjectId":"IO","body":"x"}}`, gone},
		{"unknown ID", comment, `{"i":{"subjectId":"X","body":"x"}}`, gone},
		{"user", comment, `{"i":{"subjectId":"U","body":"x"}}`, gone},
		{"project", comment, `{"i":{"subjectId":"P","body":"x"}}`, gone},
		{"list", comment, `{"i":{"subjectId":["PW","IO"],"body":"x"}}`, gone},
		{"member twice", comment, `{"i":{"subjectId":"IO","subjectId":"PW"}}`, gone},
		{"member with an escape", comment, `{"i":{"subject\u0049d":"IO"}}`, gone},
		{"list of inputs", comment, `{"i":[{"subjectId":"PW"},{"subjectId":"IO"}]}`, gone},
		{"number", comment, `{"i":{"subjectId":7}}`, "addComment.subjectId"},
		{"text that is no ID", comment, `{"i":{"subjectId":"P W"}}`, gone},
		{"member that is not listed", comment, `{"i":{"subjectId":"PW","projectId":"P"}}`, "addComment.projectId"},
		{"default", `mutation($i:AddCommentInput={subjectId:"IO",body:"x"}){addComment(input:$i){clientMutationId}}`, `{}`, gone},
		{"literal", `mutation{createIssue(input:{repositoryId:"W",title:"x",labelIds:["LW"],assigneeIds:["U"]}){issue{id url}}}`, `{}`, ""},
		{"literal elsewhere", `mutation{createIssue(input:{repositoryId:"W",title:"x",labelIds:["LW","S"]}){issue{id}}}`, `{}`, gone},
		{"ID in a variable", `mutation($id:ID!){closePullRequest(input:{pullRequestId:$id}){pullRequest{id}}}`, `{"id":"PW"}`, ""},
		{"ID in a variable elsewhere", `mutation($id:ID!){closePullRequest(input:{pullRequestId:$id}){pullRequest{id}}}`, `{"id":"IO"}`, gone},
		{"variable as text and as an ID", `mutation($x:ID!){addComment(input:{subjectId:"PW",body:$x}){clientMutationId} closeIssue(input:{issueId:$x}){issue{id}}}`, `{"x":"IO"}`, gone},
		{"one variable in two mutations", `mutation($i:I){closeIssue(input:$i){issue{id}} addComment(input:$i){clientMutationId}}`, `{"i":{"issueId":"PW"}}`, "addComment.issueId"},
		{"two mutations, one elsewhere", `mutation{a:closeIssue(input:{issueId:"PW"}){issue{id}} b:closeIssue(input:{issueId:"IO"}){issue{id}}}`, `{}`, gone},
		{"fragment", `mutation{...f} fragment f on Mutation{closeIssue(input:{issueId:"IO"}){issue{id}}}`, `{}`, gone},
		{"legacy ID", `mutation{createIssue(input:{repositoryId:"MDEwOlJlcG9zaXRvcnkx",title:"x"}){issue{id}}}`, `{}`, ""},
		{"mutation that is not listed", `mutation{deleteRepository(input:{repositoryId:"W"}){clientMutationId}}`, `{}`, "deleteRepository"},
		{"alias", `mutation{closeIssue:deleteRepository(input:{repositoryId:"W"}){clientMutationId}}`, `{}`, "deleteRepository"},
		{"argument that is not input", `mutation{closeIssue(input:{issueId:"PW"},issueId:"IO"){issue{id}}}`, `{}`, "closeIssue.issueId"},
		{"result that leaves", `mutation{closeIssue(input:{issueId:"PW"}){issue{timelineItems(first:1){nodes{... on ConnectedEvent{subject{id}}}}}}}`, `{}`, "timelineItems.subject"},
		{"pull request", `mutation{createPullRequest(input:{repositoryId:"W",baseRefName:"main",headRefName:"topic",title:"x"}){pullRequest{id}}}`, `{}`, ""},
		{"pull request of a branch of the owner", `mutation{createPullRequest(input:{repositoryId:"W",headRefName:"acme:topic"}){pullRequest{id}}}`, `{}`, ""},
		{"pull request of a fork", `mutation{createPullRequest(input:{repositoryId:"W",headRefName:"other:topic"}){pullRequest{id}}}`, `{}`, "not all repositories of other"},
		{"pull request of an excluded fork", `mutation{createPullRequest(input:{repositoryId:"W",headRefName:"acme:secret:topic"}){pullRequest{id}}}`, `{}`, "acme/secret is outside"},
		{"pull request of a fork by its ID", `mutation{createPullRequest(input:{repositoryId:"W",headRepositoryId:"S"}){pullRequest{id}}}`, `{}`, gone},
		{"commit", `mutation{createCommitOnBranch(input:{branch:{repositoryNameWithOwner:"acme/widgets",branchName:"t"},message:{headline:"x"}}){commit{url}}}`, `{}`, ""},
		{"commit elsewhere", `mutation{createCommitOnBranch(input:{branch:{repositoryNameWithOwner:"acme/secret",branchName:"t"}}){commit{url}}}`, `{}`, "is not allowed"},
		{"node", `query($id:ID!){node(id:$id){... on PullRequest{commits(last:1){nodes{commit{oid}}}}}}`, `{"id":"PW"}`, ""},
		{"node elsewhere", `query($id:ID!){node(id:$id){id}}`, `{"id":"IO"}`, gone},
		{"node without a variable", `query($id:ID!){node(id:$id){id}}`, `{}`, "node"},
		{"node of another type", `{node(id:"W"){... on PullRequest{commits(last:1){nodes{commit{oid}}}}}}`, `{}`, "Repository.commits"},
		{"user as a node", `{node(id:"U"){... on User{login}}}`, `{}`, gone},
		{"nodes", `query($ids:[ID!]!){nodes(ids:$ids){id}}`, `{"ids":["PW","W"]}`, ""},
		{"nodes elsewhere", `query($ids:[ID!]!){a:nodes(ids:"W"){id} b:nodes(ids:$ids){id}}`, `{"ids":["PW","S"]}`, gone},
		{"nodes with a number", `query($ids:[ID!]!){nodes(ids:$ids){id}}`, `{"ids":["PW",7]}`, "nodes"},
		{"too many nodes", `query($ids:[ID!]!){nodes(ids:$ids){id}}`, `{"ids":["PW"` + distinctIDs(100) + `]}`, "more than 100 node IDs"},
		{"viewer", `{viewer{...f}} fragment f on User{login name}`, `{}`, ""},
		{"private data of the viewer", `{viewer{...f}} fragment f on User{login email}`, `{}`, "viewer"},
		{"objects of the viewer", `{viewer{organization{login}}}`, `{}`, "viewer"},
		{"organization", `{organization(login:"Acme"){name teams(first:9){nodes{slug}}} user(login:"acme"){id}}`, `{}`, ""},
		{"another organization", `{organization(login:"other"){name}}`, `{}`, "user other is outside"},
		{"repositories of the organization", `{organization(login:"acme"){repositories(first:1){nodes{name}}}}`, `{}`, "repositories"},
		{"repositories of a team", `{organization(login:"acme"){team(slug:"x"){repositories(first:1){nodes{name}}}}}`, `{}`, "repositories"},
		{"search", `query($q:String!){search(query:$q,type:ISSUE,first:1){nodes{... on Issue{title labels(first:9){nodes{name}}}}}}`, `{"q":"repo:acme/widgets is:open"}`, ""},
		{"search elsewhere", `query($q:String!){search(query:$q,type:ISSUE,first:1){nodes{id}}}`, `{"q":"repo:acme/widgets repo:other/x"}`, "other/x is outside"},
		{"search of all", `{search(query:"x",type:ISSUE,first:1){nodes{id}}}`, `{}`, "has no qualifier"},
		{"search of the organization", `{search(query:"org:acme",type:ISSUE,first:1){nodes{id}}}`, `{}`, "not all repositories of acme"},
		{"search of users", `{search(query:"repo:acme/widgets",type:USER,first:1){nodes{id}}}`, `{}`, "search"},
		{"parent", `{repository(owner:"acme",name:"widgets"){parent{name owner{login} defaultBranchRef{name}}}}`, `{}`, ""},
		{"parent as gh reads it", `{repository(owner:"acme",name:"widgets"){...f parent{...f}}} fragment f on Repository{id name owner{id login} hasIssuesEnabled description hasWikiEnabled viewerPermission isPrivate defaultBranchRef{name}}`, `{}`, ""},
		{"token of the parent", `{repository(owner:"acme",name:"widgets"){parent{nameWithOwner tempCloneToken}}}`, `{}`, "tempCloneToken"},
		{"token of the parent of a node", `{node(id:"W"){... on Repository{parent{a:tempCloneToken}}}}`, `{}`, "tempCloneToken"},
		{"addresses of the viewer", `{repository(owner:"acme",name:"widgets"){viewerPossibleCommitEmails}}`, `{}`, "viewerPossibleCommitEmails"},
		{"address of the viewer", `{node(id:"W"){... on Repository{viewerDefaultCommitEmail}}}`, `{}`, "viewerDefaultCommitEmail"},
		{"token in the scope", `{repository(owner:"acme",name:"widgets"){...f}} fragment f on Repository{tempCloneToken}`, `{}`, "tempCloneToken"},
		{"token in a result", `mutation{createRef(input:{repositoryId:"W",name:"x",oid:"y"}){ref{repository{tempCloneToken}}}}`, `{}`, "tempCloneToken"},
		{"private scalar of the parent", `{repository(owner:"acme",name:"widgets"){parent{... on Repository{lockReason}}}}`, `{}`, "parent.lockReason"},
		{"private scalar below the parent", `{repository(owner:"acme",name:"widgets"){parent{defaultBranchRef{associatedData}}}}`, `{}`, "parent.associatedData"},
		{"private scalar of an owner", `{repository(owner:"acme",name:"widgets"){owner{... on Organization{organizationBillingEmail}}}}`, `{}`, "owner.organizationBillingEmail"},
		{"billing", `{organization(login:"acme"){...f}} fragment f on Organization{login organizationBillingEmail}`, `{}`, "organization.organizationBillingEmail"},
		{"income", `{user(login:"acme"){monthlyEstimatedSponsorsIncomeInCents}}`, `{}`, "user.monthlyEstimatedSponsorsIncomeInCents"},
		{"second factors of members", `{organization(login:"acme"){membersWithRole(first:9){edges{hasTwoFactorEnabled node{login}}}}}`, `{}`, "organization.hasTwoFactorEnabled"},
		{"income of an actor", `{node(id:"W"){... on Repository{suggestedActors(first:9,loginNames:"x"){nodes{... on User{monthlyEstimatedSponsorsIncomeInCents}}}}}}`, `{}`, "suggestedActors.monthlyEstimatedSponsorsIncomeInCents"},
		{"actors", `{node(id:"W"){... on Repository{suggestedActors(first:9,capabilities:CAN_BE_ASSIGNED,query:""){nodes{__typename login ... on User{id name}} pageInfo{hasNextPage endCursor}}}}}`, `{}`, ""},
		{"token of a head repository", `{node(id:"PW"){... on PullRequest{headRepository{tempCloneToken}}}}`, `{}`, "tempCloneToken"},
		{"people", `{node(id:"PW"){... on PullRequest{author{login ... on User{id name}} assignees(first:9){totalCount nodes{id login name databaseId}} headRepository{id name nameWithOwner} commits(first:9){nodes{commit{authors(first:9){nodes{name email user{id login}}}}}}}}}`, `{}`, ""},
		{"content of the parent", `{repository(owner:"acme",name:"widgets"){parent{defaultBranchRef{target{oid ... on Commit{history(first:1){nodes{oid}}}}}}}}`, `{}`, "parent"},
	} {
		setup(nodes, withCatalogue, scoped(agentScope)).sub(t, c.name, func(w *world) {
			r := w.do("POST", "/graphql", strings.NewReader(`{"query":`+strconv.Quote(c.query)+`,"variables":`+c.variables+`}`), bearer("a"))
			if c.reason == "" {
				w.want("status", r.StatusCode, http.StatusOK)
				failIf(w, strings.Contains(r.body, "FORBIDDEN"), "refused: %s", r.body)
				return
			}
			w.wantReply("refusal", r, http.StatusForbidden, "Cache-Status: weir; detail=scope")
			failIf(w, !strings.Contains(r.body, c.reason), "got %s, want %q", r.body, c.reason)
			failIf(w, w.upstreamSaw() > 1, "the upstream got %d requests", w.upstreamSaw())
		})
	}
}

func distinctIDs(n int) string {
	var ids strings.Builder
	for i := range n {
		fmt.Fprintf(&ids, `,"X%d"`, i)
	}
	return ids.String()
}

func TestNodeIDsAreLookedUpOnce(t *testing.T) {
	setup(nodes, withCatalogue, scoped(agentScope)).run(t, func(w *world) {
		for _, c := range []struct {
			ids              string
			status, requests int
		}{{`["W","PW"]`, 200, 2}, {`["PW","W","PW"]`, 200, 1}, {`["W","S"]`, 403, 1}, {`["S"]`, 403, 0}, {`["X"]`, 403, 1}, {`["X"]`, 403, 0}} {
			before := w.upstreamSaw()
			w.want(c.ids, w.graphQL("/graphql", `{nodes(ids:`+c.ids+`){id}}`).StatusCode, c.status)
			w.want("requests for "+c.ids, w.upstreamSaw()-before, c.requests)
		}
		w.gateway.EndName(t.Context(), "acme/widgets")
		before := w.upstreamSaw()
		w.want("after a rename", w.graphQL("/graphql", `{node(id:"W"){id}}`).StatusCode, 200)
		w.want("requests after a rename", w.upstreamSaw()-before, 2)
	})
}

func TestScopeAppliesToGraphQL(t *testing.T) {
	setup(nothing, withCatalogue, scoped(agentScope)).run(t, func(w *world) {
		for query, want := range map[string]int{
			`{repository(owner:"acme",name:"widgets"){issues(first:5){nodes{title}}}}`:                                          200,
			`{repository(owner:"Acme",name:"Secret"){id}}`:                                                                      403,
			`{repository(owner:"acme",name:"secret.git"){id}}`:                                                                  403,
			`{a:repository(owner:"acme",name:"widgets"){id} b:repository(owner:"acme",name:"secret"){id}}`:                      403,
			`query($n:String="secret"){repository(owner:"acme",name:$n){id}}`:                                                   403,
			`{repository(owner:"acme",name:"widgets"){...f}} fragment f on Repository{owner{repositories(first:1){nodes{id}}}}`: 403,
			`{viewer{email}}`:    403,
			`{unknown syntax !!`: 403,
		} {
			r := w.graphQL("/graphql", query)
			w.want(query, r.StatusCode, want)
		}
		w.want("query in the URL", w.graphQL("/graphql?query={viewer{login}}", `{repository(owner:"acme",name:"widgets"){id}}`).StatusCode, 403)
	})
}
