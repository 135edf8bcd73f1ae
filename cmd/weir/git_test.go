package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/config"
)

// TestGitIsRefusedWithAnExplanation checks what a user of git reads, and that the API receives no request of git.
func TestGitIsRefusedWithAnExplanation(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/repos/acme/widgets/contents/info/refs" {
			t.Errorf("the API received %s %s", r.Method, r.URL)
		}
	}))
	t.Cleanup(up.Close)
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Upstream.Dialect, cfg.Limits.ColdStart = up.URL, "github", "trust"
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	weir := httptest.NewServer(g)
	t.Cleanup(weir.Close)
	git := exec.CommandContext(t.Context(), "git", "ls-remote", weir.URL+"/acme/widgets.git")
	git.Env = append(git.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "no_proxy=*")
	text, err := git.CombinedOutput()
	if want := "remote: Weir serves the API, not git. Use the URL of the git host"; err == nil || !strings.Contains(string(text), want) {
		t.Errorf("git ls-remote: %v\n%s", err, text)
	}
	for _, c := range []struct {
		method, target string
		want           int
	}{
		{"POST", "/acme/widgets.git/git-upload-pack", http.StatusMisdirectedRequest},
		{"POST", "/acme/widgets.git/git-receive-pack", http.StatusMisdirectedRequest},
		{"POST", "/acme/widgets.git/info/lfs/objects/batch", http.StatusMisdirectedRequest},
		{"GET", "/acme/widgets.git/info/refs?service=git-receive-pack", http.StatusMisdirectedRequest},
		{"GET", "/repos/acme/widgets/contents/info/refs", http.StatusOK},
	} {
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequest(c.method, c.target, nil))
		if w.Code != c.want {
			t.Errorf("%s %s: got %d, want %d", c.method, c.target, w.Code, c.want)
		}
	}
}
