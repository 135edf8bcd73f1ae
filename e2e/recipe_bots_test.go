//go:build e2e

package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestProbotThroughWeir delivers two new issues to weir and to a bot. The bot must see each issue, although weir has
// stored the list before. Unchanged data must cost nothing.
func TestProbotThroughWeir(t *testing.T) {
	const secret = "a secret of webhooks"
	b := newCookbook(t)
	t.Setenv("HOOK_SECRET", secret)
	t.Setenv("APP_ID", "4200")
	t.Setenv("APP_KEY_FILE", filepath.Join(b.dir, "app.pem"))
	b.run(nil, "openssl", "genrsa", "-out", "app.pem", "2048")
	b.start("bots.md")
	address := freeAddress(t)
	_, lines := b.startProgram([]string{"PORT=" + strings.TrimPrefix(address, "127.0.0.1:"), "HOST=127.0.0.1", "WEIR_KEY=" + b.key, "WEIR=http://" + b.address}, "node", installed(t, "e2e/bot.mjs"))
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
	run := func() {
		get(t, "http://"+b.address+"/repos/acme/widgets/issues?per_page=100", "Authorization: Bearer "+b.key, "Accept: application/vnd.github.v3+json")
		send(t, http.MethodPost, b.upstream.URL+"/repos/acme/widgets/issues", `{"title":"New"}`, "Authorization: Bearer tok-member")
		body := fmt.Sprintf(`{"action":"opened","issue":{"number":%d},"repository":{"id":1001,"name":"widgets","full_name":"acme/widgets","owner":{"login":"acme"}},
			"organization":{"login":"acme"},"sender":{"login":"acme-member"},"installation":{"id":501}}`, number)
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(body))
		fields := []string{
			"Content-Type: application/json", "X-GitHub-Event: issues", fmt.Sprintf("X-GitHub-Delivery: 00000000-0000-0000-0000-%012d", number),
			"X-Hub-Signature-256: sha256=" + hex.EncodeToString(mac.Sum(nil)),
		}
		for _, url := range []string{"http://" + b.address + "/_weir/webhooks", "http://" + address + "/api/github/webhooks"} {
			if resp, text := send(t, http.MethodPost, url, body, fields...); resp.StatusCode >= 300 {
				t.Errorf("delivery to %s: got %d %s", url, resp.StatusCode, text)
			}
		}
		want("bot handled: 3 labels, listed true, 2 comments, paused false")
		number++
	}
	b.checkSpending("triage-bot", run, "issues/list-for-repo", "issues/add-labels", "issues/create-comment", "issues/list-comments")
	b.checkLimits()
}
