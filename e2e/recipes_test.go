//go:build e2e

package e2e

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/weirgate/weir/internal/service/wholeapi"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// recipe is a gateway with the configuration of a page of docs/recipes, in front of the reference service.
type recipe struct {
	*testing.T
	page    string // text
	client  string // name in the configuration
	key     string // of the client
	url     string // of the gateway
	admin   string // address
	dir     string // of the programs
	env     []string
	service *wholeapi.Service
	graphQL any            // data of the responses to GraphQL calls
	roots   *x509.CertPool // verify the gateway
	queries atomic.Int64   // GraphQL calls that reached the upstream
	others  atomic.Int64   // other requests that reached the upstream
}

// startRecipe starts a gateway over HTTPS. The first block of the page that is marked yaml is its configuration, in which
// pairs of old and new text and the upstream's URL are replaced. Programs get the key of the client as KEY.
func startRecipe(t *testing.T, page, client string, replace ...string) *recipe {
	t.Helper()
	r := &recipe{T: t, page: readFile(t, "../docs/recipes/"+page), client: client, dir: t.TempDir(), roots: x509.NewCertPool()}
	var err error
	if r.service, err = wholeapi.New(wholeapi.Config{Limits: policy.DefaultLimits(), ETagsPerToken: true}); err != nil {
		t.Fatal(err)
	}
	upstream := httptest.NewServer(http.HandlerFunc(r.serveUpstream))
	t.Cleanup(upstream.Close)
	ca, err := testservers.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	r.roots.AddCert(ca.Certificate)
	certificates := filepath.Join(r.dir, "ca.pem")
	if err := ca.Write(certificates); err != nil {
		t.Fatal(err)
	}
	if err := ca.Issue(r.dir); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(r.dir, "weir.yaml")
	text := strings.NewReplacer(append(replace, "https://api.github.com", upstream.URL)...).Replace(r.block("yaml"))
	write(t, config, text+"tls: {certificates: [{certificate: tls.crt, key: tls.key}]}\n")
	made, _ := command(t, "key", "new", client)
	r.key = regexp.MustCompile(`weir_\S+`).FindString(made)
	hash := regexp.MustCompile(`sha256:([0-9a-f]{64})`).FindStringSubmatch(made)[1]
	weir := startWith(t, []string{"BOT_TOKEN=tok-owner", strings.ToUpper(client) + "_KEY_SHA256=" + hash},
		"serve", "--config", config, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	r.url = "https://" + weir.find(`msg="gateway started" address=(\S+)`)
	r.admin = weir.find(`msg="admin listener started" address=(\S+)`)
	r.env = append(os.Environ(), "HOME="+r.dir, "KEY="+r.key, "SSL_CERT_FILE="+certificates, "NODE_EXTRA_CA_CERTS="+certificates)
	return r
}

// block returns the first block of the page that is marked with a language.
func (r *recipe) block(language string) string {
	r.Helper()
	m := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```").FindStringSubmatch(r.page)
	if m == nil {
		r.Fatalf("the page has no block that is marked %s", language)
	}
	return m[1]
}

// settings returns the settings of the program in the first block of the page that is marked yml, with the address of
// the gateway.
func (r *recipe) settings() any {
	r.Helper()
	var settings any
	text := strings.ReplaceAll(r.block("yml"), "https://weir.example.com", r.url)
	if err := yaml.Unmarshal([]byte(text), &settings); err != nil {
		r.Fatal(err)
	}
	return settings
}

// at returns a value in settings. Keys are names and indexes.
func (r *recipe) at(settings any, keys ...any) any {
	r.Helper()
	for _, key := range keys {
		switch s := settings.(type) {
		case map[string]any:
			settings = s[key.(string)]
		case []any:
			settings = s[key.(int)]
		default:
			r.Fatalf("the settings have no %v of %v", key, keys)
		}
	}
	return settings
}

// serveUpstream is the upstream: the reference service, with GraphQL.
func (r *recipe) serveUpstream(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path != "/graphql" {
		r.others.Add(1)
		r.service.ServeHTTP(w, req)
		return
	}
	r.queries.Add(1)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(map[string]any{"data": r.graphQL}) // the client checks the response
}

// run runs a program that must succeed. It returns the program's standard output, and the quota that it spent.
func (r *recipe) run(name string, args ...string) (output string, spent int) {
	r.Helper()
	before := r.spent()
	c := exec.CommandContext(r.Context(), name, args...)
	c.Dir, c.Env = r.dir, r.env
	var problems strings.Builder
	c.Stderr = &problems
	text, err := c.Output()
	if err != nil {
		r.Fatalf("%s: %v\n%s%s", name, err, text, problems.String())
	}
	return string(text), r.spent() - before
}

// spent returns the number of requests that the upstream has charged.
func (r *recipe) spent() int {
	n := int(r.queries.Load())
	for _, charged := range r.service.Violations().Answered {
		n += charged
	}
	return n
}

// expire makes all stored responses stale.
func (r *recipe) expire() {
	r.Helper()
	if text, code := command(r.T, "cache", "purge", "--admin", r.admin, "--tag", "account:octo-bot"); code != 0 {
		r.Fatalf("weir cache purge: exit %d\n%s", code, text)
	}
}

// tool returns the path of a program that "make e2e" installs.
func (r *recipe) tool(name string) string {
	r.Helper()
	path, err := filepath.Abs(filepath.Join("../bin/e2e", name))
	if err != nil {
		r.Fatal(err)
	}
	return path
}

// checkAttribution checks that the metrics attribute all spent quota to the client, and that no limit was exceeded.
func (r *recipe) checkAttribution() {
	r.Helper()
	line := regexp.MustCompile(`(?m)^weir_spent_total\{.*?weir_client="([^"]*)".*\} (\d+)`)
	testservers.Eventually(r, "the metrics attribute the spent quota to "+r.client, func(context.Context) bool {
		n := 0
		_, metrics := get(r.T, "http://"+r.admin+"/metrics")
		for _, m := range line.FindAllStringSubmatch(metrics, -1) {
			if m[1] == r.client {
				spent, _ := strconv.Atoi(m[2]) // the pattern matches digits only
				n += spent
			}
		}
		return n == r.spent()
	})
	if v := r.service.Violations(); v.Violations > 0 {
		r.Errorf("violations: %+v", v)
	}
}

// TestArgoCDRecipe makes the requests of the two generators of an ApplicationSet.
func TestArgoCDRecipe(t *testing.T) {
	r := startRecipe(t, "argocd.md", "argocd")
	generators := r.at(r.settings(), "spec", "generators")
	args := []string{
		r.at(generators, 0, "scmProvider", "github", "api").(string), r.at(generators, 0, "scmProvider", "github", "organization").(string),
		r.at(generators, 0, "scmProvider", "filters", 0, "pathsExist", 0).(string), r.at(generators, 1, "pullRequest", "github", "repo").(string),
	}
	if other := r.at(generators, 1, "pullRequest", "github", "api"); other != args[0] {
		t.Errorf("the generators have the APIs %s and %s", args[0], other)
	}
	first, spent := r.run(r.tool("argocd"), args...)
	if repositories, pulls := strings.Count(first, "repository "), strings.Count(first, "pull "); repositories != 22 || pulls != 6 || spent != 46 {
		t.Errorf("got %d repositories and %d pull requests for %d requests\n%s", repositories, pulls, spent, first)
	}
	if again, spent := r.run(r.tool("argocd"), args...); again != first || spent != 0 {
		t.Errorf("the second run spent %d requests, and generated\n%s", spent, again)
	}
	r.expire()
	before := r.others.Load()
	if again, spent := r.run(r.tool("argocd"), args...); again != first || spent != 0 || r.others.Load()-before != 46 {
		t.Errorf("after the responses expired, a run spent %d requests, sent %d upstream, and generated\n%s", spent, r.others.Load()-before, again)
	}
	r.checkAttribution()
}

// TestTerraformRecipe refreshes and applies resources like the provider.
func TestTerraformRecipe(t *testing.T) {
	r := startRecipe(t, "terraform.md", "terraform")
	base := regexp.MustCompile(`base_url += "https://weir\.example\.com/"`)
	if hcl := r.block("hcl"); !base.MatchString(hcl) {
		t.Fatalf("no base_url in\n%s", hcl)
	}
	args := []string{r.url + "/", filepath.Join(r.dir, "state.json"), "widgets", "secret"}
	for i := range 10 {
		args = append(args, fmt.Sprintf("spare-%d", i))
	}
	began := time.Now()
	if got, spent := r.run(r.tool("terraform"), args...); got != "12 created, 36 read, 0 not modified\n" || spent != 48 {
		t.Errorf("apply: spent %d: %s", spent, got)
	}
	if elapsed := time.Since(began); elapsed > 10*time.Second {
		t.Errorf("apply with 12 writes took %s; with the provider's own delay it would take 11s", elapsed)
	}
	if got, spent := r.run(r.tool("terraform"), args...); got != "0 created, 0 read, 36 not modified\n" || spent != 0 {
		t.Errorf("plan: spent %d: %s", spent, got)
	}
	r.expire()
	if got, spent := r.run(r.tool("terraform"), args...); got != "0 created, 0 read, 36 not modified\n" || spent != 0 {
		t.Errorf("plan after the responses expired: spent %d: %s", spent, got)
	}
	r.checkAttribution()
}

// TestBackstageRecipe reads locations with the integration library of Backstage.
func TestBackstageRecipe(t *testing.T) {
	r := startRecipe(t, "backstage.md", "backstage")
	settings, err := json.Marshal(r.settings())
	if err != nil {
		t.Fatal(err)
	}
	r.env = append(r.env, "APP_CONFIG="+strings.ReplaceAll(string(settings), "${WEIR_KEY}", r.key))
	args := []string{r.tool("backstage.mjs"), "{}"}
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
		if err := json.Unmarshal([]byte(got), &result); err != nil {
			t.Fatal(err)
		}
		for _, url := range args[2:] {
			var l location
			if err := json.Unmarshal(result[url], &l); err != nil || l.Status != status || (l.Size > 0) != (size > 0) || l.ETag == "" {
				t.Errorf("%s: got %s, want %d: %v", url, result[url], status, err)
			}
		}
		if string(result["files"]) != "22" {
			t.Errorf("a wildcard found %s files", result["files"])
		}
	}
	first, spent := r.run("node", args...)
	check(first, http.StatusOK, 1)
	if spent != 6 {
		t.Errorf("the first run spent %d requests, want 6", spent)
	}
	args[1] = first
	for range 2 {
		again, spent := r.run("node", args...)
		check(again, http.StatusNotModified, 0)
		if spent != 0 {
			t.Errorf("a run with ETags spent %d requests", spent)
		}
		r.expire()
	}
	r.checkAttribution()
}

// TestActionsRecipe runs the steps of a job, with the toolkit of Actions and gh. The job authenticates with its OIDC token.
func TestActionsRecipe(t *testing.T) {
	issuer, sign := startIssuer(t)
	r := startRecipe(t, "actions.md", "jobs", "https://token.actions.githubusercontent.com", issuer)
	const repository = "acme/widgets"
	runner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != "Bearer runner-token" || req.URL.Query().Get("audience") != "weir" {
			t.Errorf("the runner got %s with the Authorization %q", req.URL, req.Header.Get("Authorization"))
		}
		token := sign(map[string]any{"sub": "repo:" + repository + ":ref:refs/heads/main", "repository": repository, "repository_owner": "acme", "exp": time.Now().Add(5 * time.Minute).Unix()})
		_ = json.NewEncoder(w).Encode(map[string]string{"value": token}) // the client checks the response
	}))
	t.Cleanup(runner.Close)
	steps := r.at(r.settings(), "jobs", "report", "steps")
	variables := filepath.Join(r.dir, "variables")
	write(t, variables, "")
	r.env = append(r.env, "ACTIONS_ID_TOKEN_REQUEST_URL="+runner.URL+"/token?api-version=2.0", "ACTIONS_ID_TOKEN_REQUEST_TOKEN=runner-token",
		"GITHUB_ENV="+variables, "GITHUB_REPOSITORY="+repository, "GH_CONFIG_DIR="+r.dir, "SCRIPT="+r.at(steps, 0, "with", "script").(string))
	got, spent := r.run("node", r.tool("job.mjs"))
	m := regexp.MustCompile(`(?s)WEIR_TOKEN<<(\S+)\n(.*?)\n`).FindStringSubmatch(readFile(t, variables))
	if m == nil || !strings.Contains(got, "::add-mask::"+m[2]) || spent != 0 {
		t.Fatalf("the first step wrote %q and the variables %q", got, readFile(t, variables))
	}
	r.env = append(r.env, "WEIR_TOKEN="+m[2], "TOKEN="+m[2], "BASE_URL="+r.at(steps, 1, "with", "base-url").(string), "SCRIPT="+r.at(steps, 1, "with", "script").(string))
	for i, want := range []int{1, 0} {
		if got, spent := r.run("node", r.tool("job.mjs")); !strings.Contains(got, "acme/widgets has 40 open issues") || spent != want {
			t.Errorf("run %d of actions/github-script spent %d requests, want %d\n%s", i, spent, want, got)
		}
	}
	r.env = append(r.env, "GH_HOST="+strings.TrimPrefix(r.url, "https://"), "GH_ENTERPRISE_TOKEN="+m[2])
	for i, want := range []int{1, 0} {
		if got, spent := r.run("sh", "-ec", r.at(steps, 2, "run").(string)); !strings.Contains(got, "main") || spent != want {
			t.Errorf("run %d of gh spent %d requests, want %d\n%s", i, spent, want, got)
		}
	}
	r.checkAttribution()
	if _, recent := get(t, "http://"+r.admin+"/api/v1/requests"); strings.Count(recent, `"tag": "`+repository+`"`) != 4 {
		t.Errorf("want four requests with the repository of the job as the tag, got %s", recent)
	}
}
