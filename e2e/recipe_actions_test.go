//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestActionsRecipe runs the steps of a job, with the toolkit of Actions and gh. The job authenticates with its OIDC token.
func TestActionsRecipe(t *testing.T) {
	issuer, sign := startIssuer(t)
	r := startRecipe(t, "actions.md", "https://token.actions.githubusercontent.com", issuer)
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
	got, spent := r.run("node", installed(t, "job.mjs"))
	m := regexp.MustCompile(`(?s)WEIR_TOKEN<<(\S+)\n(.*?)\n`).FindStringSubmatch(readFile(t, variables))
	if m == nil || !strings.Contains(got, "::add-mask::"+m[2]) || spent != 0 {
		t.Fatalf("the first step wrote %q and the variables %q", got, readFile(t, variables))
	}
	r.env = append(r.env, "WEIR_TOKEN="+m[2], "TOKEN="+m[2], "BASE_URL="+r.at(steps, 1, "with", "base-url").(string), "SCRIPT="+r.at(steps, 1, "with", "script").(string))
	for i, want := range []int{1, 0} {
		if got, spent := r.run("node", installed(t, "job.mjs")); !strings.Contains(got, "acme/widgets has 40 open issues") || spent != want {
			t.Errorf("run %d of actions/github-script spent %d requests, want %d\n%s", i, spent, want, got)
		}
	}
	r.env = append(r.env, "GH_HOST="+strings.TrimPrefix(r.url, "https://"), "GH_ENTERPRISE_TOKEN="+m[2])
	for i, want := range []int{1, 0} {
		if got, spent := r.run("sh", "-ec", r.at(steps, 2, "run").(string)); !strings.Contains(got, "main") || spent != want {
			t.Errorf("run %d of gh spent %d requests, want %d\n%s", i, spent, want, got)
		}
	}
	r.checkSpending()
	if _, recent := get(t, "http://"+r.admin+"/api/v1/requests"); strings.Count(recent, `"tag": "`+repository+`"`) != 4 {
		t.Errorf("want four requests with the repository of the job as the tag, got %s", recent)
	}
}
