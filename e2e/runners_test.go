//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// runnerHosts plays what a self-hosted Actions runner calls beside the documented API: its registration at the API, and the host
// that it asks for jobs.
type runnerHosts struct {
	*testing.T
	api http.Handler
}

// The runner has a separate credential for each of the hosts.
const registrationToken, runnerToken = "AABF3JGZDX3P5PMEXLND6TS6FCWO6", "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJydW5uZXIifQ.c2lnbmF0dXJl"

func (h *runnerHosts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	credential := r.Header.Get("Authorization")
	switch {
	case r.URL.Path == "/actions/runner-registration" && r.Method == http.MethodPost:
		want(h, "credential of the registration", credential, "RemoteAuth "+registrationToken)
		reply(w, http.StatusOK, map[string]string{"url": "https://pipelines.example.com/x", "token_schema": "OAuthAccessToken", "token": runnerToken})
	case strings.HasSuffix(r.URL.Path, "/messages"):
		want(h, "credential of the poll", credential, "Bearer "+runnerToken)
		sleep(r.Context(), runnerPoll)
		reply(w, http.StatusAccepted, map[string]string{})
	default:
		h.api.ServeHTTP(w, r)
	}
}

// runnerPoll is the time for which the host holds a request of a runner without a job.
const runnerPoll = 50 * time.Second

// TestRunnerRegistersAndPolls makes the requests of a self-hosted Actions runner with the default bounds for silence. Reads of the API
// pass while the runners poll.
func TestRunnerRegistersAndPolls(t *testing.T) {
	t.Parallel()
	service := newGitHub(t)
	up := serveHTTP(t, &runnerHosts{t, service})
	weir, through := serveProxied(t, fmt.Sprintf("upstream: {url: %q, dialect: github}\nhosts:\n"+
		"  - {name: api.github.com, url: %q, kind: api}\n  - {name: pipelines.example.com, url: %q, path: /pipelines, credential: true}\n", up, up, up))
	for session, c := range []struct {
		name, api, pipelines string
		client               *http.Client
	}{
		{"API", weir.url, weir.url + "/pipelines", http.DefaultClient},
		{"proxy with HTTP/1.1", "https://api.github.com", "https://pipelines.example.com", through(false)},
		{"proxy with HTTP/2", "https://api.github.com", "https://pipelines.example.com", through(true)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			resp, _ := sendWith(t, c.client, http.MethodPost, c.api+"/repos/acme/widgets/actions/runners/registration-token", "{}", "Authorization: Bearer tok-owner")
			want(t, "status of the token", resp.StatusCode, http.StatusCreated)
			resp, text := sendWith(t, c.client, http.MethodPost, c.api+"/actions/runner-registration", `{"url":"https://github.com/acme/widgets","runner_event":"register"}`,
				"Authorization: RemoteAuth "+registrationToken)
			var registration struct{ Token string }
			if err := json.Unmarshal([]byte(text), &registration); err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("registration: %s %s", resp.Status, text)
			}
			reads := make(chan int, 1)
			go func() {
				sleep(t.Context(), time.Second)
				resp, _, err := do(c.client, newRequest(t.Context(), http.MethodGet, c.api+"/user", "", "Authorization: Bearer tok-owner", "Prefer: wait=0"))
				failIf(t, err != nil, "%v", err)
				reads <- resp.StatusCode
			}()
			began := time.Now()
			resp, _ = sendWith(t, c.client, http.MethodGet, fmt.Sprint(c.pipelines, "/x/_apis/distributedtask/pools/1/messages?sessionId=", session), "", "Authorization: Bearer "+registration.Token)
			want(t, "status of the poll", resp.StatusCode, http.StatusAccepted)
			failIf(t, time.Since(began) < runnerPoll, "the poll ended early")
			want(t, "status of a read", <-reads, http.StatusOK)
		})
	}
	t.Cleanup(func() { want(t, "violations of limits", service.Violations().Violations, 0) })
}
