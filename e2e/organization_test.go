//go:build e2e

package e2e

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOrganization runs docs/organization.md: two bots, CI and a person on an app and a token, behind two replicas with
// Redis, HTTPS and metrics.
func TestOrganization(t *testing.T) {
	t.Parallel()
	secrets := t.TempDir()
	for _, name := range []string{"admin", "cache", "hook"} {
		write(t, filepath.Join(secrets, name), strings.Repeat(name, 10))
	}
	key := filepath.Join(secrets, "app.pem")
	if text, err := exec.CommandContext(t.Context(), "openssl", "genrsa", "-out", key, "2048").CombinedOutput(); err != nil {
		t.Fatalf("openssl genrsa: %v\n%s", err, text)
	}
	env := []string{"REDIS_URL=" + oneRedis(&fleet{T: t, dir: t.TempDir()}), "APP_ID=4200", "APP_KEY_FILE=" + key}
	r := startRecipe(t, "../organization.md", env, "file:admin", "file:"+secrets+"/admin", "file:cache", "file:"+secrets+"/cache", "file:hook", "file:"+secrets+"/hook")
	second := serve(t, filepath.Join(r.dir, "weir.yaml"), r.weirEnv...)
	replicas := []string{"https://" + r.weir.address, "https://" + second.address}

	const subscribers = "/repos/acme/widgets/subscribers"
	for _, c := range []struct {
		client, method, path, body string
		status                     int
		cacheStatus                string
	}{
		{"CI", http.MethodGet, subscribers, "", 200, "fwd=uri-miss"},
		{"CI", http.MethodGet, subscribers, "", 200, "weir; hit"}, // from the tier in Redis
		{"PERSON", http.MethodGet, subscribers, "", 200, "fwd=uri-miss"},
		{"PERSON", http.MethodPut, "/repos/acme/widgets/subscription", "{}", 403, "detail=scope"},
		{"TRIAGE", http.MethodPost, "/repos/acme/widgets/issues", `{"title":"New"}`, 201, "fwd=method"},
		{"TRIAGE", http.MethodGet, subscribers, "", 403, "detail=scope"},
		{"RELEASE", http.MethodGet, "/repos/acme/widgets/tags", "", 200, "fwd=uri-miss"},
		{"", http.MethodGet, subscribers, "", 401, "detail=key"},
	} {
		for i, replica := range replicas {
			fields := []string{}
			if c.client != "" {
				fields = append(fields, "Authorization: Bearer "+r.keys[c.client+"_KEY_SHA256"])
			}
			resp, text := sendWith(t, r.http, c.method, replica+c.path, c.body, fields...)
			failIf(t, resp.StatusCode != c.status, "%s %s %s: got %s %s, want %d", c.client, c.method, c.path, resp.Status, text, c.status)
			got := resp.Header.Get("Cache-Status")
			failIf(t, i == 0 && !strings.Contains(got, c.cacheStatus), "%s %s %s: got %s, want %s", c.client, c.method, c.path, got, c.cacheStatus)
		}
	}

	token := "Authorization: Bearer " + strings.Repeat("admin", 10)
	resp, _ := get(t, "http://"+r.weir.admin+"/metrics")
	want(t, "status of metrics without the token", resp.StatusCode, http.StatusUnauthorized)
	_, state := get(t, "http://"+r.weir.admin+"/api/v1/state", token)
	wantMatch(t, "state", state, `(?s)"kind": "redis",\s+"replicas": 2`)
	_, metrics := get(t, "http://"+r.weir.admin+"/metrics", token)
	for _, client := range []string{"triage-bot", "release-bot", "ci", "person"} {
		wantMatch(t, "metrics", metrics, `weir_spent_total\{.*weir_client="`+client+`"`)
	}
	text, code := commandWith(t, []string{"WEIR_ADMIN_TOKEN=" + strings.Repeat("admin", 10)}, "budget", "--admin", r.weir.admin)
	want(t, "exit status of weir budget", code, 0)
	wantMatch(t, "weir budget", text, `(?s)acme-bot \(user\).*installation:4201|installation:4201.*acme-bot \(user\)`)
	v := r.service.Violations()
	failIf(t, v.Violations > 0, "violations: %+v", v)
}
