//go:build e2e

package e2e

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/testservers"
)

// TestActionsRecipe runs the steps of a job, with the toolkit of Actions and gh. The job authenticates with its OIDC token.
func TestActionsRecipe(t *testing.T) {
	t.Parallel()
	issuer, sign := startIssuer(t)
	r := startRecipe(t, "actions.md", nil, "https://token.actions.githubusercontent.com", issuer)
	const repository = "acme/widgets"
	runner := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		failIf(t, req.Header.Get("Authorization") != "Bearer runner-token" || req.URL.Query().Get("audience") != "weir", "the runner got %s with the Authorization %q", req.URL, req.Header.Get("Authorization"))
		token := sign(map[string]any{"sub": "repo:" + repository + ":ref:refs/heads/main", "repository": repository, "repository_owner": "acme", "exp": time.Now().Add(5 * time.Minute).Unix()})
		reply(w, http.StatusOK, map[string]string{"value": token})
	}))
	steps := r.at(r.settings(), "jobs", "report", "steps")
	variables := filepath.Join(r.dir, "variables")
	write(t, variables, "")
	r.env = append(r.env, "ACTIONS_ID_TOKEN_REQUEST_URL="+runner+"/token?api-version=2.0", "ACTIONS_ID_TOKEN_REQUEST_TOKEN=runner-token",
		"GITHUB_ENV="+variables, "GITHUB_REPOSITORY="+repository, "GH_CONFIG_DIR="+r.dir, "SCRIPT="+r.at(steps, 0, "with", "script").(string))
	got, spent := r.run("node", installed(t, "job.mjs"))
	m := regexp.MustCompile(`(?s)WEIR_TOKEN<<(\S+)\n(.*?)\n`).FindStringSubmatch(readFile(t, variables))
	if m == nil || !strings.Contains(got, "::add-mask::"+m[2]) || spent != 0 {
		t.Fatalf("the first step wrote %q and the variables %q", got, readFile(t, variables))
	}
	r.env = append(r.env, "WEIR_TOKEN="+m[2], "TOKEN="+m[2], "BASE_URL="+r.at(steps, 1, "with", "base-url").(string), "SCRIPT="+r.at(steps, 1, "with", "script").(string))
	for _, spent := range []int{1, 0} {
		r.wantRun("acme/widgets has 24 open issues", spent, "node", installed(t, "job.mjs"))
	}
	r.env = append(r.env, "GH_HOST="+strings.TrimPrefix(r.url, "https://"), "GH_ENTERPRISE_TOKEN="+m[2])
	for _, spent := range []int{1, 0} {
		r.wantRun("main", spent, "sh", "-ec", r.at(steps, 2, "run").(string))
	}
	r.checkSpending()
	_, recent := get(t, "http://"+r.weir.admin+"/api/v1/requests")
	failIf(t, strings.Count(recent, `"tag": "`+repository+`"`) != 4, "want four requests with the repository of the job as the tag, got %s", recent)
}

// TestArgoCDRecipe makes the requests of the two generators of an ApplicationSet.
func TestArgoCDRecipe(t *testing.T) {
	t.Parallel()
	r := startRecipe(t, "argocd.md", nil)
	generators := r.at(r.settings(), "spec", "generators")
	args := []string{
		r.at(generators, 0, "scmProvider", "github", "api").(string), r.at(generators, 0, "scmProvider", "github", "organization").(string),
		r.at(generators, 0, "scmProvider", "filters", 0, "pathsExist", 0).(string), r.at(generators, 1, "pullRequest", "github", "repo").(string),
	}
	other := r.at(generators, 1, "pullRequest", "github", "api")
	failIf(t, other != args[0], "the generators have the APIs %s and %s", args[0], other)
	first, spent := r.run(installed(t, "argocd"), args...)
	repositories, pulls := strings.Count(first, "repository "), strings.Count(first, "pull ")
	failIf(t, repositories != 13 || pulls != 8 || spent != 29, "got %d repositories and %d pull requests for %d requests\n%s", repositories, pulls, spent, first)
	r.wantRun("^"+regexp.QuoteMeta(first)+"$", 1, installed(t, "argocd"), args...) // the 404 of the empty repository
	r.expire()
	before := r.requests.Load()
	r.wantRun("^"+regexp.QuoteMeta(first)+"$", 1, installed(t, "argocd"), args...)
	want(t, "requests upstream after the responses expired", r.requests.Load()-before, 29)
	r.checkSpending()
}

// TestAtlantisRecipe makes the requests of two plans with the libraries of Atlantis. Its own token must not reach the
// upstream.
func TestAtlantisRecipe(t *testing.T) {
	t.Parallel()
	r := startRecipe(t, "atlantis.md", nil)
	r.env = append(r.env, "ATLANTIS_GH_USER=octo-bot", "ATLANTIS_GH_TOKEN=none")
	r.checkRepetition(func() {
		const want = "pull request 35: 1 files, README.md, 1 reviews, repository 1001, last comment"
		text, _ := r.run(installed(t, "atlantis"))
		failIf(t, !strings.HasPrefix(text, want), "got %s, want %s", text, want)
	}, "graphql")
	text, _ := r.run(installed(t, "atlantis"), "plan")
	if want := "last comment \"Ran Plan for dir: `.`\""; !strings.Contains(text, want) {
		t.Errorf("after a plan: got %s, want %s", text, want)
	}
	spent := r.checkSpending()
	failIf(t, spent["repos/create-commit-status"] != 2 || spent["issues/create-comment"] != 1, "a plan spent %v, want 2 statuses and a comment", spent)
}

// TestBackstageRecipe reads locations with the integration library of Backstage.
func TestBackstageRecipe(t *testing.T) {
	t.Parallel()
	r := startRecipe(t, "backstage.md", nil)
	r.env = append(r.env, "APP_CONFIG="+strings.ReplaceAll(toJSON(r.settings()), "${WEIR_KEY}", r.key))
	args := []string{installed(t, "backstage.mjs"), "{}"}
	for _, repository := range []string{"widgets", "secret", "spare-1", "spare-2"} {
		args = append(args, "https://github.com/acme/"+repository+"/blob/main/README.md")
	}
	type location struct {
		Status, Size int
		ETag         string
	}
	check := func(got string, status, size int) {
		t.Helper()
		var result map[string]json.RawMessage
		must(t, json.Unmarshal([]byte(got), &result))
		for _, url := range args[2:] {
			var l location
			err := json.Unmarshal(result[url], &l)
			failIf(t, err != nil || l.Status != status || (l.Size > 0) != (size > 0) || l.ETag == "", "%s: got %s, want %d: %v", url, result[url], status, err)
		}
		failIf(t, string(result["files"]) != "46", "a wildcard found %s files", result["files"])
	}
	first, spent := r.run("node", args...)
	check(first, http.StatusOK, 1)
	failIf(t, spent != 6, "the first run spent %d requests, want 6", spent)
	args[1] = first
	for range 2 {
		again, spent := r.run("node", args...)
		check(again, http.StatusNotModified, 0)
		failIf(t, spent != 0, "a run with ETags spent %d requests", spent)
		r.expire()
	}
	r.checkSpending()
}

// TestBotsRecipe delivers two new issues to weir and to a bot. The bot must see each issue, although weir has stored the
// list before. Unchanged data must cost nothing.
func TestBotsRecipe(t *testing.T) {
	t.Parallel()
	const secret = "a secret of webhooks"
	key := filepath.Join(t.TempDir(), "app.pem")
	if text, err := exec.CommandContext(t.Context(), "openssl", "genrsa", "-out", key, "2048").CombinedOutput(); err != nil {
		t.Fatalf("openssl genrsa: %v\n%s", err, text)
	}
	r := startRecipe(t, "bots.md", []string{"HOOK_SECRET=" + secret, "APP_ID=4200", "APP_KEY_FILE=" + key})
	address := testservers.FreeAddress(t)
	r.env = append(r.env, "PORT="+strings.TrimPrefix(address, "127.0.0.1:"), "HOST=127.0.0.1", "WEIR="+r.url)
	_, lines := r.start("node", installed(t, "bot.mjs"))
	wantLine := func(line string) { // probot writes other lines
		t.Helper()
		for lines.Scan() {
			if text := lines.Text(); strings.HasPrefix(text, "bot ") {
				failIf(t, text != line, "the bot wrote %q, want %q", text, line)
				return
			}
		}
		t.Fatalf("the bot ended before %q: %v", line, lines.Err())
	}
	wantLine("bot started")
	number := 37 // of the next issue
	r.checkRepetition(func() {
		sendWith(t, r.http, http.MethodGet, r.url+"/repos/acme/widgets/issues?per_page=100", "", "Authorization: Bearer "+r.key, "Accept: application/vnd.github.v3+json")
		r.asMember(http.MethodPost, "/repos/acme/widgets/issues", `{"title":"New"}`)
		body := fmt.Sprintf(`{"action":"opened","issue":{"number":%d},"repository":{"id":1001,"name":"widgets","full_name":"acme/widgets","owner":{"login":"acme"}},
			"organization":{"login":"acme"},"sender":{"login":"acme-member"},"installation":{"id":501}}`, number)
		fields := []string{
			"Content-Type: application/json", "X-GitHub-Event: issues", fmt.Sprintf("X-GitHub-Delivery: 00000000-0000-0000-0000-%012d", number), signature(secret, body),
		}
		for _, url := range []string{r.url + "/_weir/webhooks", "http://" + address + "/api/github/webhooks"} {
			resp, text := sendWith(t, r.http, http.MethodPost, url, body, fields...)
			failIf(t, resp.StatusCode >= 300, "delivery to %s: got %d %s", url, resp.StatusCode, text)
		}
		wantLine("bot handled: 4 labels, listed true, 2 comments, paused false")
		number++
	}, "issues/list-for-repo", "issues/add-labels", "issues/create-comment", "issues/list-comments", "repos/get-content") // 404 is not stored
}

// jenkinsScan is a recording: the requests that the GitHub Branch Source plugin documents for the scan of a repository with
// one pull request, and a part of each response.
var jenkinsScan = []struct{ path, want string }{
	{"/", `"rate_limit_url"`},
	{"/rate_limit", `"core"`},
	{"/repos/acme/widgets", `"full_name"`},
	{"/repos/acme/widgets/pulls?state=open", `"part-11"`},
	{"/repos/acme/widgets/branches", `"part-11"`},
	{"/repos/acme/widgets/contents/docs?ref=refs%2Fheads%2Fpart-11", `"docs/README.md"`},
	{"/repos/acme/widgets/contents/docs/README.md?ref=part-11", `"content"`},
	{"/repos/acme/widgets/collaborators/acme-owner/permission", `/permission"`},
	{"/repos/acme/widgets/pulls/35", `"number":35`},
}

// jenkins sends the requests of the plugin with the fields of its library.
type jenkins struct {
	*recipe
	etags map[string]string // of the library's cache; nil without this cache
}

// send sends a request and returns the response with its body.
func (j *jenkins) send(method, path, body string) (*http.Response, string) {
	j.Helper()
	fields := []string{
		"Accept: application/vnd.github+json", "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("octo-bot:none")), "User-Agent: okhttp/4",
	}
	if j.etags != nil && method == http.MethodGet {
		fields = append(fields, "Cache-Control: max-age=0")
		if etag := j.etags[path]; etag != "" {
			fields = append(fields, "If-None-Match: "+etag)
		}
	}
	resp, text := sendWith(j.T, j.http, method, "https://api.github.com"+path, body, fields...)
	if j.etags != nil && resp.StatusCode == http.StatusOK {
		j.etags[path] = resp.Header.Get("Etag")
	}
	return resp, text
}

// scan sends the requests of a scan. want reports whether a response is right.
func (j *jenkins) scan(want func(*http.Response) bool) {
	j.Helper()
	for _, r := range jenkinsScan {
		resp, text := j.send(http.MethodGet, r.path, "")
		failIf(j, resp.StatusCode == http.StatusOK && !strings.Contains(text, r.want), "%s: got %.200s, want %s", r.path, text, r.want)
		failIf(j, r.path != "/rate_limit" && !want(resp), "%s: got %s and Cache-Status %q", r.path, resp.Status, resp.Header.Get("Cache-Status"))
	}
}

// TestJenkinsRecipe sends the recorded scan twice, with and without the cache of the library. The second scan must cost
// nothing. Without the cache of the library, weir answers it without the upstream.
func TestJenkinsRecipe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		etags  map[string]string
		second func(*http.Response) bool
	}{
		{"without the cache of the library", nil, func(resp *http.Response) bool {
			return resp.StatusCode == http.StatusOK && strings.Contains(resp.Header.Get("Cache-Status"), "; hit")
		}},
		{"with the cache of the library", map[string]string{}, func(resp *http.Response) bool { return resp.StatusCode == http.StatusNotModified }},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := &jenkins{startRecipe(t, "jenkins.md", []string{"HOOK_SECRET=a secret of webhooks"}), c.etags}
			want := func(resp *http.Response) bool { return resp.StatusCode == http.StatusOK }
			j.checkRepetition(func() {
				j.scan(want)
				want = c.second
			})
			var pull struct{ Head struct{ SHA string } }
			must(t, json.Unmarshal(j.asMember(http.MethodGet, "/repos/acme/widgets/pulls/35", "").Body.Bytes(), &pull))
			resp, text := j.send(http.MethodPost, "/repos/acme/widgets/statuses/"+pull.Head.SHA, `{"state":"success"}`)
			failIf(t, resp.StatusCode != http.StatusCreated, "the status of a build: got %s %s", resp.Status, text)
			j.checkSpending()
		})
	}
}

// TestMCPRecipe makes the requests of github-mcp-server to its three base URLs.
func TestMCPRecipe(t *testing.T) {
	t.Parallel()
	r := startRecipe(t, "mcp.md", nil)
	r.env = append(r.env, "GITHUB_HOST="+r.url, "GITHUB_PERSONAL_ACCESS_TOKEN="+r.key)
	r.checkRepetition(func() {
		text, _ := r.run(installed(t, "mcp"))
		for _, want := range []string{
			"get_me: acme-owner\n", "list_issues: true\n", `get_file_contents: README.md, 200 OK "text\n"`, "search_issues: true\n", "add_issue_comment: POST", "403",
		} {
			failIf(t, !strings.Contains(text, want), "no %q in\n%s", want, text)
		}
	}, "search/issues")
	r.wantLogged("POST /repos/{owner}/{repo}/issues/{issue_number}/comments issues/create-comment 403")
}

// TestMCPRecipeThroughForwardProxy runs tools of a server that has the host of the API compiled in.
func TestMCPRecipeThroughForwardProxy(t *testing.T) {
	t.Parallel()
	r := startRecipe(t, "mcp.md", nil, "callers:", "proxy:\n  {listen: \":3128\", ca: {certificate: weir-ca.crt, key: weir-ca.key}}\ncallers:")
	s := startMCP(r)
	r.checkRepetition(func() {
		for _, c := range []struct{ tool, arguments, want string }{
			{"list_issues", `{"owner":"acme","repo":"widgets","state":"open"}`, `"number"`},
			{"get_issue", `{"owner":"acme","repo":"widgets","issue_number":1}`, `"number": 1`},
			{"list_commits", `{"owner":"acme","repo":"widgets"}`, `"sha"`},
			{"search_issues", `{"q":"repo:acme/widgets is:issue"}`, `"total_count"`},
		} {
			text := s.call("tools/call", `{"name":"`+c.tool+`","arguments":`+c.arguments+`}`)
			failIf(t, !strings.Contains(text, c.want), "%s: no %s in %.300s", c.tool, c.want, text)
		}
	}, "search/issues")
	text := s.call("tools/call", `{"name":"create_issue","arguments":{"owner":"acme","repo":"widgets","title":"New"}}`)
	failIf(t, !strings.Contains(text, `does not let its client "triage-agent" call POST issues/create`), "a tool that writes: got %s", text)
	r.checkSpending()
}

// mcpServer is an MCP server that speaks JSON-RPC over its standard input and output.
type mcpServer struct {
	*testing.T
	in    io.Writer
	lines *bufio.Scanner
	id    int
}

// startMCP starts the server and initializes the session.
func startMCP(r *recipe) *mcpServer {
	r.Helper()
	s := &mcpServer{T: r.T}
	r.env = append(r.env, "GITHUB_PERSONAL_ACCESS_TOKEN=none")
	s.in, s.lines = r.start("node", "--import", installed(r.T, "preload.mjs"), installed(r.T, "node_modules/@modelcontextprotocol/server-github/dist/index.js"))
	s.call("initialize", `{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`)
	s.send(map[string]any{"jsonrpc": "2.0", "method": "notifications/initialized"})
	return s
}

func (s *mcpServer) send(message any) {
	s.Helper()
	_, err := fmt.Fprintln(s.in, toJSON(message))
	must(s, err)
}

// call calls a method and returns the text of the result or of the error.
func (s *mcpServer) call(method, params string) string {
	s.Helper()
	s.id++
	s.send(map[string]any{"jsonrpc": "2.0", "id": s.id, "method": method, "params": json.RawMessage(params)})
	if !s.lines.Scan() {
		s.Fatalf("%s: the server ended: %v", method, s.lines.Err())
	}
	var response struct {
		ID     int
		Result struct{ Content []struct{ Text string } }
		Error  struct{ Message string }
	}
	if err := json.Unmarshal(s.lines.Bytes(), &response); err != nil || response.ID != s.id {
		s.Fatalf("%s: got %s, %v", method, s.lines.Text(), err)
	}
	for _, c := range response.Result.Content {
		return c.Text
	}
	return response.Error.Message
}

// selfHosted plays a self-hosted server without rate limits, with the paths of its three APIs.
type selfHosted struct {
	*recipe
	uploaded atomic.Int64
}

func (s *selfHosted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-GitHub-Enterprise-Version", "3.19.0")
	switch path := r.URL.Path; {
	case path == "/api/v3/repos/acme/widgets/releases/tags/v1":
		root := "https://" + r.Host
		reply(w, http.StatusOK, map[string]any{
			"id": 1, "tag_name": "v1", "url": root + "/api/v3/repos/acme/widgets/releases/1", "assets": []any{},
			"upload_url": root + "/api/uploads/repos/acme/widgets/releases/1/assets{?name,label}",
		})
	case path == "/api/uploads/repos/acme/widgets/releases/1/assets":
		n, _ := io.Copy(io.Discard, r.Body) // the test checks the size
		s.uploaded.Store(n)
		reply(w, http.StatusCreated, map[string]any{"id": 1, "name": r.URL.Query().Get("name"), "state": "uploaded"})
	case path == "/api/graphql":
		r.URL.Path = "/graphql"
		serveGraphQL(w, r, s.service)
	case strings.HasPrefix(path, "/api/v3/"):
		http.StripPrefix("/api/v3", s.service).ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

// TestSelfHostedRecipe runs gh against a self-hosted server. Weir must send nothing outside the three APIs, and pass the
// version of the server.
func TestSelfHostedRecipe(t *testing.T) {
	t.Parallel()
	s := &selfHosted{recipe: startRecipe(t, "self-hosted.md", nil)}
	s.useAPI(service.Config{Product: "ghes-3.19", NoRateLimits: true})
	s.upstream = s
	host := strings.TrimPrefix(s.url, "https://")
	s.env = append(s.env, "GH_HOST="+host, "GH_ENTERPRISE_TOKEN="+s.key, "GH_CONFIG_DIR="+s.dir, "GH_PROMPT_DISABLED=1", "GIT_CONFIG_GLOBAL=/dev/null")
	s.checkRepetition(func() {
		for _, c := range []struct{ command, want string }{
			{"api repos/acme/widgets --jq .full_name", "acme/widgets\n"},
			{"api -i meta", "X-Github-Enterprise-Version: 3.19.0"},
			{"api repos/acme/widgets/branches --jq .[0].name", "main\n"},
			{"api repos/acme/widgets/contents/README.md --jq .path", "README.md\n"},
			{"pr list -R " + host + "/acme/widgets -L 1", "35\tReplace part 11"},
		} {
			text, _ := s.run("gh", strings.Fields(c.command)...)
			failIf(t, !strings.Contains(text, c.want), "gh %s: got %s, want %s", c.command, text, c.want)
		}
	}, "graphql")
	text, _ := s.run("gh", "api", "-i", "repos/acme/widgets")
	failIf(t, strings.Contains(text, "X-Ratelimit"), "weir invented limits: %s", text)
	write(t, filepath.Join(s.dir, "big.bin"), strings.Repeat("x", 1<<20))
	s.run("gh", "release", "upload", "v1", "big.bin", "-R", host+"/acme/widgets")
	want(t, "bytes that the server got from gh release upload", s.uploaded.Load(), 1<<20)
	s.wantLogged("POST /repos/{owner}/{repo}/releases/{release_id}/assets repos/upload-release-asset 201")
	s.checkSpending()
}

// TestDataResidencyRecipe runs gh against a host below ghe.com, from which Weir infers the dialect. Only an egress proxy knows the host.
func TestDataResidencyRecipe(t *testing.T) {
	t.Parallel()
	page := readFile(t, "../docs/recipes/self-hosted.md")
	upstream := regexp.MustCompile("`(upstream: .url: \"https://api.TENANT.ghe.com\").`").FindStringSubmatch(page)
	_, block, _ := strings.Cut(page, "```yaml\n")
	section, _, ok := strings.Cut(block, "credentials:")
	stopIf(t, upstream == nil || !ok, "the page has no upstream below ghe.com")
	var r *recipe
	proxy := testservers.NewEgressProxy(t, "weir:secret", func(string) string { return r.address })
	r = startRecipe(t, "self-hosted.md", nil, section, strings.Replace(upstream[1], "api.TENANT.ghe.com", tenantHost, 1)+
		`, proxy: "`+strings.Replace(proxy.URL, "://", "://weir:secret@", 1)+"\"}\n")
	_, settings := get(t, "http://"+r.weir.admin+"/api/v1/config")
	wantMatch(t, "settings of the gateway", settings, `"dialect": ?"github"`)
	host := strings.TrimPrefix(r.url, "https://")
	r.env = append(r.env, "GH_HOST="+host, "GH_ENTERPRISE_TOKEN="+r.key, "GH_CONFIG_DIR="+r.dir, "GH_PROMPT_DISABLED=1")
	r.checkRepetition(func() {
		for command, want := range map[string]string{
			"api repos/acme/widgets --jq .url":                                      "https://" + tenantHost + "/repos/acme/widgets\n",
			"api --paginate repos/acme/widgets/subscribers?per_page=50 --jq length": "50\n14\n",
			"pr list -R " + host + "/acme/widgets -L 1":                             "35\tReplace part 11",
		} {
			text, _ := r.run("gh", strings.Fields(command)...)
			failIf(t, !strings.Contains(text, want), "gh %s: got %s, want %s", command, text, want)
		}
	}, "graphql")
	want(t, "targets of the egress proxy", strings.Trim(strings.Join(slices.Compact(proxy.Take()), " "), " "), "CONNECT "+tenantHost+":443")
}

// TestTerraformRecipe refreshes and applies resources like the provider.
func TestTerraformRecipe(t *testing.T) {
	t.Parallel()
	r := startRecipe(t, "terraform.md", nil)
	base := regexp.MustCompile(`base_url += "https://weir\.example\.com/"`)
	hcl := r.block("hcl")
	stopIf(t, !base.MatchString(hcl), "no base_url in\n%s", hcl)
	args := []string{r.url + "/", filepath.Join(r.dir, "state.json"), "widgets", "secret"}
	for i := range 10 {
		args = append(args, fmt.Sprintf("spare-%d", i))
	}
	began := time.Now()
	terraform := installed(t, "terraform")
	r.wantRun("^12 created, 36 read, 0 not modified\n$", 48, terraform, args...)
	elapsed := time.Since(began)
	failIf(t, elapsed > 10*time.Second, "apply with 12 writes took %s; with the provider's own delay it would take 11s", elapsed)
	const unchanged = "^0 created, 0 read, 36 not modified\n$"
	r.wantRun(unchanged, 0, terraform, args...)
	r.expire()
	r.wantRun(unchanged, 0, terraform, args...)
	r.checkSpending()
}

// renovateRuns is the file with the recorded requests of two runs of Renovate. Each line has the run, the method, the
// target, and the status of the response.
const renovateRuns = "testdata/renovate.txt"

// TestRenovateRecipe sends the recorded requests of two runs of Renovate on one repository. The first run creates a pull
// request, and the second run finds it.
//
// Renovate has 590 packages, which take minutes to install. So the test runs it only if WEIR_RENOVATE is its command, for
// example "npx renovate@44.121.2". The requests must then equal the recorded requests; WEIR_TRANSCRIPTS=write records them.
func TestRenovateRecipe(t *testing.T) {
	t.Parallel()
	r := startRecipe(t, "renovate.md", nil)
	repository := map[string]any{
		"id": "R_1001", "sshUrl": "git@github.com:acme/widgets.git", "nameWithOwner": "acme/widgets", "isFork": false, "isArchived": false,
		"hasIssuesEnabled": true, "hasVulnerabilityAlertsEnabled": false, "autoMergeAllowed": false, "squashMergeAllowed": true,
		"defaultBranchRef": map[string]any{"name": "main", "target": map[string]any{"oid": strings.Repeat("0", 40)}},
		"issues":           map[string]any{"nodes": []any{}, "pageInfo": map[string]any{"hasNextPage": false}},
	}
	r.upstream = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/graphql" {
			r.serveAPI(w, req)
			return
		}
		reply(w, http.StatusOK, map[string]any{"data": map[string]any{"repository": repository}})
	})
	n := &renovate{recipe: r}
	run := n.replay
	if os.Getenv("WEIR_RENOVATE") != "" {
		n.prepare()
		run = n.execute
	}
	var spent [2]int64
	for i := range spent {
		before := r.spent.Load()
		run(i + 1)
		spent[i] = r.spent.Load() - before
		r.expire()
	}
	want(t, "requests that the runs spent", spent, [2]int64{10, 5})
	r.checkSpending()
	want(t, "pull requests that the runs created", r.pulls("renovate/ms-2.x"), 1)
}

// pulls returns the number of pull requests of a branch.
func (r *recipe) pulls(branch string) (n int) {
	r.Helper()
	var list []struct{ Head struct{ Ref string } }
	must(r, json.Unmarshal(r.asMember(http.MethodGet, "/repos/acme/widgets/pulls?state=all&per_page=100", "").Body.Bytes(), &list))
	for _, pull := range list {
		if pull.Head.Ref == branch {
			n++
		}
	}
	return n
}

// renovate runs Renovate, or sends its recorded requests.
type renovate struct {
	*recipe
	mu    sync.Mutex // guards lines
	lines []string   // of the current run
}

// replay sends the recorded requests of a run.
func (n *renovate) replay(run int) {
	n.Helper()
	found := false
	for line := range strings.Lines(readFile(n.T, renovateRuns)) {
		var recorded, status int
		var method, target string
		_, err := fmt.Sscan(line, &recorded, &method, &target, &status)
		stopIf(n, err != nil, "%s: %q: %v", renovateRuns, line, err)
		if recorded != run {
			continue
		}
		found = true
		body := ""
		switch {
		case target == "/graphql":
			body = `{"query": "query { repository(owner: \"acme\", name: \"widgets\") { id } }"}`
		case method == http.MethodPost:
			body = `{"title": "Update ms", "head": "renovate/ms-2.x", "base": "main"}`
		}
		resp, _ := sendWith(n.T, n.http, method, n.url+target, body, "Authorization: token "+n.key, "Accept: application/json, application/vnd.github.v3+json")
		failIf(n, resp.StatusCode != status, "run %d: %s %s: got %s, want %d", run, method, target, resp.Status, status)
	}
	stopIf(n, !found, "%s has no run %d", renovateRuns, run)
}

// prepare creates a repository with a dependency that has an update, a registry with that update, and the configuration
// of the page.
func (n *renovate) prepare() {
	n.Helper()
	registry := serveHTTP(n, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, json.RawMessage(`{"name": "ms", "dist-tags": {"latest": "2.1.3"}, "versions": {"2.1.2": {}, "2.1.3": {}}}`))
	}))
	recorder := serveHTTP(n, &httputil.ReverseProxy{
		Transport: n.http.Transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "https", Host: strings.TrimPrefix(n.url, "https://")})
			p.Out.Host = p.In.Host
		},
		ModifyResponse: func(resp *http.Response) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.lines = append(n.lines, fmt.Sprintln(resp.Request.Method, resp.Request.URL.RequestURI(), resp.StatusCode))
			return nil
		},
	})
	write(n.T, filepath.Join(n.dir, "package.json"), `{"name": "widgets", "dependencies": {"ms": "2.1.2"}}`)
	write(n.T, filepath.Join(n.dir, "renovate.json"), fmt.Sprintf(`{"packageRules": [{"matchPackageNames": ["ms"], "registryUrls": [%q]}]}`, registry))
	write(n.T, filepath.Join(n.dir, "config.cjs"), strings.ReplaceAll(n.block("js"), "https://weir.example.com", recorder))
	write(n.T, filepath.Join(n.dir, ".gitconfig"), fmt.Sprintf("[user]\nname = owner\nemail = owner@example.com\n[url \"file://%s/git/\"]\ninsteadOf = git@github.com:\n", n.dir))
	n.run("sh", "-ec", "git init -q -b main; git add package.json renovate.json; git commit -q -m Widgets; git clone -q --bare . git/acme/widgets.git")
	n.env = append(n.env, "RENOVATE_CONFIG_FILE="+filepath.Join(n.dir, "config.cjs"), "RENOVATE_BASE_DIR="+filepath.Join(n.dir, "base"))
}

// execute runs Renovate, and compares its requests with the recorded requests.
func (n *renovate) execute(run int) {
	n.Helper()
	n.lines = nil
	log, _ := n.run("sh", "-c", os.Getenv("WEIR_RENOVATE"))
	for i := range n.lines {
		n.lines[i] = fmt.Sprint(run, " ", n.lines[i])
	}
	var recorded []string
	for line := range strings.Lines(readFile(n.T, renovateRuns)) {
		recorded = append(recorded, line)
	}
	ofRun := func(line string) bool { return strings.HasPrefix(line, fmt.Sprint(run, " ")) }
	if os.Getenv("WEIR_TRANSCRIPTS") == "write" {
		recorded = append(slices.DeleteFunc(recorded, ofRun), n.lines...)
		write(n.T, renovateRuns, strings.Join(recorded, ""))
	}
	if want := slices.DeleteFunc(recorded, func(line string) bool { return !ofRun(line) }); !slices.Equal(n.lines, want) {
		n.Errorf("the requests differ from %s\ngot\n%s\nRenovate wrote\n%s", renovateRuns, strings.Join(n.lines, ""), log)
	}
}
