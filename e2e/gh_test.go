//go:build e2e

package e2e

import (
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/policy"
)

// TestGH runs gh against the reference service without a gateway. gh connects to a Unix socket and
// sends the queries that it sends to github.com. The scenario in .ci/clients/gh covers a self-hosted upstream.
func TestGH(t *testing.T) {
	dialect, err := policy.LoadDialect("github")
	if err != nil {
		t.Fatal(err)
	}
	s := service.New(service.Config{Limits: policy.DefaultLimits(), Seed: 1, Dialect: dialect})
	t.Cleanup(s.Close)
	dir := t.TempDir()
	socket := filepath.Join(dir, "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: s}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "config.yml"), []byte("http_unix_socket: "+socket+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	date := regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0000 UTC`)
	for _, c := range []struct{ command, want string }{
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
		{"pr checks 34", "build\tpass\t1m0s\thttp://api.github.com/runs/10010000340\ncoverage\tpass\t0\t\ntest\tpass\t1m0s\thttp://api.github.com/runs/10010000341"},
		{"issue list -L 2", "2\tOPEN\tThe gear is loose\tenhancement\tDATE\n3\tOPEN\tThe spring is loose\tbug\tDATE"},
		{"repo view", "name:\tacme/widgets\ndescription:\tMechanical parts"},
		{"issue create -t New -b text", "http://api.github.com/acme/widgets/issues/37"},
		{"issue list -L 1", "37\tOPEN\tNew\t\tDATE"},
		{"issue close 37", "✓ Closed issue #37 (New)"},
		{"issue list -L 1", "2\tOPEN\tThe gear is loose\tenhancement\tDATE"},
		{"pr comment 36 -b text", "http://api.github.com/acme/widgets/pull/36#issuecomment-80"},
	} {
		args := append(strings.Fields(c.command), "-R", "acme/widgets")
		if c.command == "repo view" {
			args = []string{"repo", "view", "acme/widgets"}
		}
		gh := exec.CommandContext(t.Context(), "gh", args...)
		gh.Env = append(os.Environ(), "GH_CONFIG_DIR="+dir, "GH_TOKEN=tok-owner", "HOME="+dir, "TZ=UTC")
		text, err := gh.CombinedOutput()
		got := strings.Trim(date.ReplaceAllString(string(text), "DATE"), "\n")
		if strings.HasPrefix(c.command, "pr checks") { // gh prints checks that began together in any order
			lines := strings.Split(got, "\n")
			slices.Sort(lines)
			got = strings.Join(lines, "\n")
		}
		if err != nil || got != c.want {
			t.Errorf("gh %s: %v\ngot\n%s\nwant\n%s", c.command, err, got, c.want)
		}
	}
	if v := s.Violations(); v.Violations > 0 {
		t.Errorf("violations: %+v", v)
	}
}
