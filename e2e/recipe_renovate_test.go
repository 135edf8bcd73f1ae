//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// renovateRuns is the file with the recorded requests of two runs of Renovate. Each line has the run, the method, the
// target, and the status of the response.
const renovateRuns = "testdata/renovate.txt"

// TestRenovateRecipe sends the recorded requests of two runs of Renovate on one repository. The first run creates a pull
// request, and the second run finds it.
//
// Renovate has 590 packages, which take minutes to install. So the test runs it only if WEIR_RENOVATE is its command, for
// example "npx renovate@44.121.2". The requests must then equal the recorded requests; WEIR_TRANSCRIPTS=write records them.
func TestRenovateRecipe(t *testing.T) {
	r := startRecipe(t, "renovate.md")
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
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_ = json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"repository": repository}}) // the client checks the response
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
	if spent != [2]int64{10, 5} {
		t.Errorf("the runs spent %d requests, want 10 and 5", spent)
	}
	r.checkSpending()
	if pulls := r.pulls("renovate/ms-2.x"); pulls != 1 {
		t.Errorf("the runs created %d pull requests, want 1", pulls)
	}
}

// pulls returns the number of pull requests of a branch.
func (r *recipe) pulls(branch string) (n int) {
	r.Helper()
	var list []struct{ Head struct{ Ref string } }
	if err := json.Unmarshal(r.asMember(http.MethodGet, "/repos/acme/widgets/pulls?state=all&per_page=100", "").Body.Bytes(), &list); err != nil {
		r.Fatal(err)
	}
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
		if _, err := fmt.Sscan(line, &recorded, &method, &target, &status); err != nil {
			n.Fatalf("%s: %q: %v", renovateRuns, line, err)
		}
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
		if resp.StatusCode != status {
			n.Errorf("run %d: %s %s: got %s, want %d", run, method, target, resp.Status, status)
		}
	}
	if !found {
		n.Fatalf("%s has no run %d", renovateRuns, run)
	}
}

// prepare creates a repository with a dependency that has an update, a registry with that update, and the configuration
// of the page.
func (n *renovate) prepare() {
	n.Helper()
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"name": "ms", "dist-tags": {"latest": "2.1.3"}, "versions": {"2.1.2": {}, "2.1.3": {}}}`)) // Renovate checks the response
	}))
	n.Cleanup(registry.Close)
	recorder := httptest.NewServer(&httputil.ReverseProxy{
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
	n.Cleanup(recorder.Close)
	write(n.T, filepath.Join(n.dir, "package.json"), `{"name": "widgets", "dependencies": {"ms": "2.1.2"}}`)
	write(n.T, filepath.Join(n.dir, "renovate.json"), fmt.Sprintf(`{"packageRules": [{"matchPackageNames": ["ms"], "registryUrls": [%q]}]}`, registry.URL))
	write(n.T, filepath.Join(n.dir, "config.cjs"), strings.ReplaceAll(n.block("js"), "https://weir.example.com", recorder.URL))
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
