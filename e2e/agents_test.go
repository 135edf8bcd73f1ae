//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

// agent runs commands in a separate network namespace, without an address and without a token of the API. The commands reach
// only the socket in the configuration of gh.
type agent struct {
	*testing.T
	dir, socket string
	env         []string
}

func newAgent(t *testing.T, token, socket string) *agent {
	a := &agent{T: t, dir: t.TempDir(), socket: socket}
	a.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + a.dir, "GH_CONFIG_DIR=" + a.dir, "GH_TOKEN=" + token, "GH_PROMPT_DISABLED=1", "TZ=UTC"}
	write(t, filepath.Join(a.dir, "config.yml"), "http_unix_socket: "+socket+"\n")
	return a
}

// run runs a command of the agent, and returns its output. Its words are separated by spaces.
func (a *agent) run(command string) (string, error) {
	c := exec.CommandContext(a.Context(), "unshare", append([]string{"--net", "--"}, strings.Fields(command)...)...)
	c.Dir, c.Env = a.dir, a.env
	text, err := c.CombinedOutput()
	return string(text), err
}

// work runs the commands of a task.
func (a *agent) work() {
	for command, want := range map[string]string{
		"gh pr list -R acme/widgets -L 1":    "Replace part 11",
		"gh issue list -R acme/widgets -L 1": "The lever is loose",
		"gh pr checks 34 -R acme/widgets":    "coverage",
		"gh repo view acme/widgets":          "Mechanical parts",
		"gh api repos/acme/widgets/branches": `"main"`,
	} {
		text, err := a.run(command)
		failIf(a, err != nil || !strings.Contains(text, want), "%s: %v: %s", command, err, text)
	}
}

// TestAgentsRecipe follows docs/recipes/agents.md with 20 agents and the configuration of weir init --case agents. It reports
// what agents can do, what they cannot do, and what their work costs.
func TestAgentsRecipe(t *testing.T) {
	t.Parallel()
	if text, err := exec.CommandContext(t.Context(), "unshare", "--net", "--", "true").CombinedOutput(); err != nil {
		t.Fatalf("creating network namespaces needs root: unshare --net: %v: %s", err, text)
	}
	const agents = 20
	var sent, held atomic.Int64
	github := newGitHub(t)
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent.Add(1)
		if strings.HasSuffix(r.Header.Get("Authorization"), " tok-owner") {
			held.Add(1)
		}
		github.ServeHTTP(w, r)
	})
	newAgent(t, "tok-owner", filepath.Join(newGH(t, api).dir, "socket")).work()
	direct := sent.Swap(0)
	held.Store(0)

	upstream, dir := serveHTTP(t, api), t.TempDir()
	socket, file := filepath.Join(dir, "weir.sock"), filepath.Join(dir, "weir.yaml")
	args := []string{"init", "--case", "agents", "--upstream", upstream, "--dialect", "github", "--credential", "token", "--listen", "unix:" + socket, "--out", file, "--repository", "acme/widgets"}
	for i := range agents {
		args = append(args, "--client", fmt.Sprintf("agent-%02d", i+1))
	}
	text, code := command(t, args...)
	want(t, "exit of weir init", code, 0)
	keys := regexp.MustCompile(`(?m)^  agent-\d\d +(weir_\w+)$`).FindAllStringSubmatch(text, -1)
	want(t, "keys", len(keys), agents)
	// In the test, the API has another address than its name.
	write(t, file, readFile(t, file)+fmt.Sprintf("hosts: [{name: api.github.com, url: %q, kind: api}]\nlimits: {cold_start: trust}\n", upstream))
	weir := startWith(t, []string{"UPSTREAM_TOKEN=tok-owner"}, "serve", "--config", file, "--admin", testservers.FreeAddress(t))
	weir.find("gateway started")
	all := make([]*agent, agents)
	var running sync.WaitGroup
	for i := range all {
		all[i] = newAgent(t, keys[i][1], socket)
		running.Go(all[i].work)
	}
	running.Wait()
	cost := sent.Load()
	t.Logf("%d agents: %d requests upstream, %d without the gateway: %.0f %%", agents, cost, agents*direct, float64(100*cost)/float64(agents*direct))
	failIf(t, 100*cost > 15*agents*direct, "%d requests are more than 15 %% of %d", cost, agents*direct)

	// An agent writes in a loop. Others still write, and all still read.
	written := 0
	const comment = "gh api repos/acme/widgets/issues/2/comments -f body=x"
	for range 12 {
		text, err := all[0].run(comment)
		if err == nil {
			written++
		} else if !strings.Contains(text, "limits the writes") {
			t.Errorf("%s: %v: %s", comment, err, text)
		}
	}
	want(t, "writes of an agent in a minute", written, 10)
	for _, c := range []struct {
		agent         *agent
		command, want string
		works         bool
	}{
		{all[1], comment, `"body":"x"`, true},
		{all[0], "gh api repos/acme/widgets/issues/2", "The lever is loose", true},
		{all[1], "gh issue create -R acme/widgets -t New -b text", "/acme/widgets/issues/", true},
		{all[1], "gh pr comment 34 -R acme/widgets -b text", "#issuecomment", true},
		{all[1], "gh pr status -R acme/widgets", "Requesting a code review", true},
		{all[1], "gh issue status -R acme/widgets", "Issues opened by you", true},
		{all[1], "gh search issues --repo acme/widgets lever", "lever", true},
		{all[1], "gh auth status", "Logged in", true},
		{all[1], "gh api rate_limit", "graphql", true},
		{all[1], "gh issue list -R acme/gadgets", "is not allowed", false},
		{all[1], "gh api repos/acme/gadgets", "outside of its scope", false},
		{all[1], "gh search issues --repo acme/gadgets lever", "outside of its scope", false},
		{all[1], `gh api graphql -f query=mutation{closeIssue(input:{issueId:"I_1002000001"}){issue{id}}}`, "names nothing in its scope", false},
		{all[1], "gh api user", "clients[].operations", false},
		{all[0], "curl -sS --max-time 5 " + upstream + "/user", "curl: (7)", false}, // no network
		{all[0], "curl -sS --unix-socket " + socket + " http://api.github.com/user", "requires authentication", true},
		{newAgent(t, keys[0][1]+"x", socket), "gh api repos/acme/widgets", "refuses the credential", false},
		{newAgent(t, "tok-owner", socket), "gh api repos/acme/widgets", "refuses the credential", false}, // only the gateway has a token
	} {
		text, err := c.agent.run(c.command)
		failIf(t, (err == nil) != c.works || !strings.Contains(text, c.want), "%s: %v: %s", c.command, err, text)
		failIf(t, strings.Contains(text, "tok-owner"), "%s: the agent sees the token: %s", c.command, text)
	}
	want(t, "requests with the token of the gateway", held.Load(), sent.Load())
	want(t, "violations of limits", github.Violations().Violations, 0)
}
