//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirgate/weir/internal/service/wholeapi"
	"github.com/weirgate/weir/policy"
)

// selfHosted plays a self-hosted server without rate limits, with the paths of its three APIs.
type selfHosted struct {
	*recipe
	uploaded atomic.Int64
}

func (s *selfHosted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-GitHub-Enterprise-Version", "3.19.0")
	reply := func(value any) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_ = json.NewEncoder(w).Encode(value) // gh reports an incomplete response
	}
	switch path := r.URL.Path; {
	case path == "/api/v3/repos/acme/widgets/releases/tags/v1":
		root := "https://" + r.Host
		reply(map[string]any{
			"id": 1, "tag_name": "v1", "url": root + "/api/v3/repos/acme/widgets/releases/1", "assets": []any{},
			"upload_url": root + "/api/uploads/repos/acme/widgets/releases/1/assets{?name,label}",
		})
	case path == "/api/uploads/repos/acme/widgets/releases/1/assets":
		n, _ := io.Copy(io.Discard, r.Body) // the test checks the size
		s.uploaded.Store(n)
		w.WriteHeader(http.StatusCreated)
		reply(map[string]any{"id": 1, "name": r.URL.Query().Get("name"), "state": "uploaded"})
	case path == "/api/graphql":
		query, _ := io.ReadAll(r.Body)                        // the service reports an incomplete query
		if bytes.Contains(query, []byte("release(tagName")) { // gh looks for a draft
			reply(map[string]any{"data": map[string]any{"repository": map[string]any{"release": nil}}})
			return
		}
		r.URL.Path, r.Body = "/graphql", io.NopCloser(bytes.NewReader(query))
		answer := httptest.NewRecorder()
		s.graphQL.ServeHTTP(answer, r)
		w.Header().Set("Content-Type", answer.Header().Get("Content-Type")) // no fields about limits
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	case strings.HasPrefix(path, "/api/v3/"):
		http.StripPrefix("/api/v3", s.service).ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

// TestSelfHostedRecipe runs gh against a self-hosted server. Weir must send nothing outside the three APIs, and pass the
// version of the server.
func TestSelfHostedRecipe(t *testing.T) {
	s := &selfHosted{recipe: startRecipe(t, "self-hosted.md")}
	var err error
	if s.service, err = wholeapi.New(wholeapi.Config{Limits: policy.DefaultLimits(), Product: "ghes-3.19", NoRateLimits: true, ETagsPerToken: true}); err != nil {
		t.Fatal(err)
	}
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
			if text, _ := s.run("gh", strings.Fields(c.command)...); !strings.Contains(text, c.want) {
				t.Errorf("gh %s: got %s, want %s", c.command, text, c.want)
			}
		}
	}, "graphql")
	if text, _ := s.run("gh", "api", "-i", "repos/acme/widgets"); strings.Contains(text, "X-Ratelimit") {
		t.Errorf("weir invented limits: %s", text)
	}
	write(t, filepath.Join(s.dir, "big.bin"), strings.Repeat("x", 1<<20))
	s.run("gh", "release", "upload", "v1", "big.bin", "-R", host+"/acme/widgets")
	if n := s.uploaded.Load(); n != 1<<20 {
		t.Errorf("gh release upload: the server got %d bytes", n)
	}
	s.wantLogged("POST /repos/{owner}/{repo}/releases/{release_id}/assets repos/upload-release-asset 201")
	s.checkSpending()
}
