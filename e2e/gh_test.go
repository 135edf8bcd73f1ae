//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/policy"
)

// ghClient runs gh, which connects to a Unix socket and sends the queries that it sends to github.com.
type ghClient struct {
	*testing.T
	dir string
}

// newGH returns a client of a handler.
func newGH(t *testing.T, handler http.Handler) *ghClient {
	dir := t.TempDir()
	socket := filepath.Join(dir, "socket")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	server := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	must(t, os.WriteFile(filepath.Join(dir, "config.yml"), []byte("http_unix_socket: "+socket+"\n"), 0o600))
	return &ghClient{t, dir}
}

// ghDate matches the dates in the output of gh.
var ghDate = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0000 UTC`)

// run runs a command about acme/widgets and returns its output, with DATE for each date.
func (g *ghClient) run(command string) (string, error) {
	args := append(strings.Fields(command), "-R", "acme/widgets")
	if command == "repo view" {
		args = []string{"repo", "view", "acme/widgets"}
	}
	gh := exec.CommandContext(g.Context(), "gh", args...)
	gh.Env = append(os.Environ(), "GH_CONFIG_DIR="+g.dir, "GH_TOKEN=tok-owner", "HOME="+g.dir, "TZ=UTC")
	text, err := gh.CombinedOutput()
	got := strings.Trim(ghDate.ReplaceAllString(string(text), "DATE"), "\n")
	if strings.HasPrefix(command, "pr checks") { // gh prints checks that began together in any order
		lines := strings.Split(got, "\n")
		slices.Sort(lines)
		got = strings.Join(lines, "\n")
	}
	return got, err
}

// newGitHub returns a reference service in the dialect of github.com.
func newGitHub(t *testing.T) *service.Service {
	dialect, err := policy.LoadDialect("github")
	must(t, err)
	s, err := service.New(service.Config{Limits: policy.DefaultLimits(), Seed: 1, Dialect: dialect})
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

// ghCommands are commands with their output. The commands before the first change send queries that rules can answer.
var ghCommands = []struct{ command, want string }{
	{"pr list -L 3", "35\tReplace part 11\tpart-11\tOPEN\tDATE\n34\tReplace part 10\tpart-10\tDRAFT\tDATE\n32\tReplace part 8\tpart-8\tOPEN\tDATE"},
	{"pr list --state merged", "36\tReplace part 12\tpart-12\tMERGED\tDATE\n30\tReplace part 6\tpart-6\tMERGED\tDATE"},
	{"pr status", `Relevant pull requests in acme/widgets

Current branch
  There is no current branch

Created by you
  #29  Replace part 5 [part-5]
  ✓ Checks passing ✓ 1 Approved
  #25  Replace part 1 [part-1]
  ✓ Checks passing - Review required

Requesting a code review from you
  #34  Replace part 10 [part-10]
  ✓ Checks passing
  #31  Replace part 7 [part-7]
  × 1/3 checks failing
  #28  Replace part 4 [part-4]
  - Checks pending`},
	{"pr checks 34", "build\tpass\t1m0s\tUPSTREAM/runs/10089\ncoverage\tpass\t0\t\ntest\tpass\t1m0s\tUPSTREAM/runs/10091"},
	{"issue list -L 2", "2\tOPEN\tThe lever is loose\tenhancement\tDATE\n3\tOPEN\tThe gear squeaks\tenhancement\tDATE"},
	{"repo view", "name:\tacme/widgets\ndescription:\tMechanical parts\n--\n# widgets\n\nA widget is a part that fits. Each widget has a gear."},
	{"issue create -t New -b text", "UPSTREAM/acme/widgets/issues/37"},
	{"issue list -L 1", "37\tOPEN\tNew\t\tDATE"},
	{"issue close 37", "✓ Closed issue #37 (New)"},
	{"issue list -L 1", "2\tOPEN\tThe lever is loose\tenhancement\tDATE"},
	{"pr comment 36 -b text", "UPSTREAM/acme/widgets/pull/36#issuecomment-10202"},
}

// TestGHThroughWeir runs gh through a gateway. With the rules for gh its queries are answered from the cache until gh
// itself changes something, and the output is the same as without rules. The scenario in .ci/clients/gh covers a
// self-hosted upstream.
func TestGHThroughWeir(t *testing.T) {
	t.Parallel()
	const each, changes = 7, 6 // queries of the commands before the first change; index of the first change
	for rules, repeated := range map[bool]int32{false: each, true: 0} {
		t.Run(fmt.Sprint("rules ", rules), func(t *testing.T) {
			s := newGitHub(t)
			var queries atomic.Int32
			upstream := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/graphql" {
					queries.Add(1)
				}
				s.ServeHTTP(w, r)
			}))
			weir := serveText(t, fmt.Sprintf("upstream: {url: %q, dialect: github}\nlimits: {cold_start: trust}\n"+
				"cache: {graphql: {gh: %v}}\n", upstream, rules))
			gh := newGH(t, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: weir.address}) }})
			run := func(from, to int, want int32) {
				before := queries.Load()
				for _, c := range ghCommands[from:to] {
					want := strings.ReplaceAll(c.want, "UPSTREAM", upstream)
					got, err := gh.run(c.command)
					failIf(t, err != nil || got != want, "gh %s: %v\ngot\n%s\nwant\n%s", c.command, err, got, want)
				}
				n := queries.Load() - before
				failIf(t, n != want && want >= 0, "the commands sent %d queries upstream, want %d", n, want)
			}
			run(0, changes, each)
			run(0, changes, repeated)
			run(changes, len(ghCommands), -1)
			v := s.Violations()
			failIf(t, v.Violations > 0, "violations: %+v", v)
		})
	}
}
