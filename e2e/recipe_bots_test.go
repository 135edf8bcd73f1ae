//go:build e2e

package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

// TestBotsRecipe delivers two new issues to weir and to a bot. The bot must see each issue, although weir has stored the
// list before. Unchanged data must cost nothing.
func TestBotsRecipe(t *testing.T) {
	const secret = "a secret of webhooks"
	key := filepath.Join(t.TempDir(), "app.pem")
	if text, err := exec.CommandContext(t.Context(), "openssl", "genrsa", "-out", key, "2048").CombinedOutput(); err != nil {
		t.Fatalf("openssl genrsa: %v\n%s", err, text)
	}
	t.Setenv("HOOK_SECRET", secret)
	t.Setenv("APP_ID", "4200")
	t.Setenv("APP_KEY_FILE", key)
	r := startRecipe(t, "bots.md")
	address := testservers.FreeAddress(t)
	r.env = append(r.env, "PORT="+strings.TrimPrefix(address, "127.0.0.1:"), "HOST=127.0.0.1", "WEIR="+r.url)
	_, lines := r.start("node", installed(t, "bot.mjs"))
	want := func(line string) { // probot writes other lines
		t.Helper()
		for lines.Scan() {
			if text := lines.Text(); strings.HasPrefix(text, "bot ") {
				if text != line {
					t.Errorf("the bot wrote %q, want %q", text, line)
				}
				return
			}
		}
		t.Fatalf("the bot ended before %q: %v", line, lines.Err())
	}
	want("bot started")
	number := 42 // of the next issue
	r.checkRepetition(func() {
		sendWith(t, r.http, http.MethodGet, r.url+"/repos/acme/widgets/issues?per_page=100", "", "Authorization: Bearer "+r.key, "Accept: application/vnd.github.v3+json")
		r.asMember(http.MethodPost, "/repos/acme/widgets/issues", `{"title":"New"}`)
		body := fmt.Sprintf(`{"action":"opened","issue":{"number":%d},"repository":{"id":1001,"name":"widgets","full_name":"acme/widgets","owner":{"login":"acme"}},
			"organization":{"login":"acme"},"sender":{"login":"acme-member"},"installation":{"id":501}}`, number)
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(body))
		fields := []string{
			"Content-Type: application/json", "X-GitHub-Event: issues", fmt.Sprintf("X-GitHub-Delivery: 00000000-0000-0000-0000-%012d", number),
			"X-Hub-Signature-256: sha256=" + hex.EncodeToString(mac.Sum(nil)),
		}
		for _, url := range []string{r.url + "/_weir/webhooks", "http://" + address + "/api/github/webhooks"} {
			if resp, text := sendWith(t, r.http, http.MethodPost, url, body, fields...); resp.StatusCode >= 300 {
				t.Errorf("delivery to %s: got %d %s", url, resp.StatusCode, text)
			}
		}
		want("bot handled: 3 labels, listed true, 2 comments, paused false")
		number++
	}, "issues/list-for-repo", "issues/add-labels", "issues/create-comment", "issues/list-comments")
}
