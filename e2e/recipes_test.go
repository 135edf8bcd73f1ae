//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"io"
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
	address string // of the gateway
	admin   string
	dir     string // of the programs
	service *wholeapi.Service
	graphQL func(query string) any // data of a response
	queries atomic.Int64           // GraphQL calls that reached the upstream
	env     []string               // of the programs
}

// startRecipe starts a gateway. The first YAML block of the page is its configuration; only the upstream's address is
// replaced. Additional replacements are pairs of old and new text.
func startRecipe(t *testing.T, page, client string, replace ...string) *recipe {
	t.Helper()
	r := &recipe{T: t, page: readFile(t, "../docs/recipes/"+page), client: client, dir: t.TempDir()}
	var err error
	if r.service, err = wholeapi.New(wholeapi.Config{Limits: policy.DefaultLimits(), ETagsPerToken: true}); err != nil {
		t.Fatal(err)
	}
	upstream := httptest.NewServer(http.HandlerFunc(r.serveUpstream))
	t.Cleanup(upstream.Close)
	block := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindStringSubmatch(r.page)
	if block == nil {
		t.Fatalf("%s has no YAML block", page)
	}
	config := filepath.Join(r.dir, "weir.yaml")
	write(t, config, strings.NewReplacer(append(replace, "https://api.github.com", upstream.URL)...).Replace(block[1]))
	text, _ := command(t, "key", "new", client)
	r.key = regexp.MustCompile(`weir_\S+`).FindString(text)
	hash := regexp.MustCompile(`sha256:([0-9a-f]{64})`).FindStringSubmatch(text)[1]
	weir := startWith(t, []string{"BOT_TOKEN=tok-owner", strings.ToUpper(client) + "_KEY_SHA256=" + hash},
		"serve", "--config", config, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	r.address = weir.find(`msg="gateway started" address=(\S+)`)
	r.admin = weir.find(`msg="admin listener started" address=(\S+)`)
	r.env = append(os.Environ(), "HOME="+r.dir, "KEY="+r.key, "WEIR=http://"+r.address)
	return r
}

// serveUpstream is the upstream: the reference service, with GraphQL.
func (r *recipe) serveUpstream(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path != "/graphql" {
		r.service.ServeHTTP(w, req)
		return
	}
	var call struct{ Query string }
	if err := json.NewDecoder(req.Body).Decode(&call); err != nil || r.graphQL == nil {
		r.Errorf("the upstream got the GraphQL query %q: %v", call.Query, err)
	}
	r.queries.Add(1)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(map[string]any{"data": r.graphQL(call.Query)}) // the client checks the response
}

// run runs a program that must succeed, and returns its standard output and the quota that it spent.
func (r *recipe) run(name string, args ...string) (output string, spent int) {
	r.Helper()
	before := r.spent()
	c := exec.CommandContext(r.Context(), name, args...)
	c.Dir, c.Env = r.dir, r.env
	text, err := c.Output()
	if err != nil {
		var problem string
		if exit, ok := err.(*exec.ExitError); ok {
			problem = string(exit.Stderr)
		}
		r.Fatalf("%s: %v\n%s%s", name, err, text, problem)
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

// tool returns the path of a program that "make e2e" installs.
func (r *recipe) tool(name string) string {
	r.Helper()
	path, err := filepath.Abs(filepath.Join("../bin/e2e", name))
	if err != nil {
		r.Fatal(err)
	}
	return path
}

// checkAttribution checks that the metrics attribute all requests to the client, and that no request exceeded a limit.
func (r *recipe) checkAttribution() {
	r.Helper()
	requests := regexp.MustCompile(`(?m)^weir_spent_total\{.*?weir_client="([^"]*)".*\} (\d+)`)
	var text string
	testservers.Eventually(r, "the metrics contain what the client spent", func(ctx context.Context) bool {
		text = r.metrics(ctx)
		n := 0
		for _, m := range requests.FindAllStringSubmatch(text, -1) {
			spent, _ := strconv.Atoi(m[2]) // the pattern matches digits only
			n += spent
		}
		return n >= r.spent()
	})
	for _, m := range regexp.MustCompile(`weir_client="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		if m[1] != r.client {
			r.Errorf("the metrics name the client %q, want only %q", m[1], r.client)
		}
	}
	if v := r.service.Violations(); v.Violations > 0 {
		r.Errorf("violations: %+v", v)
	}
}

func (r *recipe) metrics(ctx context.Context) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.admin+"/metrics", http.NoBody)
	if err != nil {
		return ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body) // Eventually repeats an incomplete read
	return string(text)
}
