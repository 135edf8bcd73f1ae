//go:build e2e

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// jenkinsScan is a recording: the requests that the GitHub Branch Source plugin documents for the scan of a repository with
// one pull request, and a part of each response.
var jenkinsScan = []struct{ path, want string }{
	{"/", `"rate_limit_url"`},
	{"/rate_limit", `"core"`},
	{"/repos/acme/widgets", `"full_name"`},
	{"/repos/acme/widgets/pulls?state=open", `"topic-6"`},
	{"/repos/acme/widgets/branches", `"topic-6"`},
	{"/repos/acme/widgets/contents/docs?ref=refs%2Fheads%2Ftopic-6", `"docs/README.md"`},
	{"/repos/acme/widgets/contents/docs/README.md?ref=topic-6", `"content"`},
	{"/repos/acme/widgets/collaborators/acme-owner/permission", `/permission"`},
	{"/repos/acme/widgets/pulls/41", `"number":41`},
}

// jenkins sends the requests of the plugin with the fields of its library.
type jenkins struct {
	*recipe
	etags map[string]string // of the library's cache; nil without this cache
}

// send sends a request and returns the response with its body.
func (j *jenkins) send(method, path, body string) (*http.Response, string) {
	j.Helper()
	fields := []string{
		"Accept: application/vnd.github+json", "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("octo-bot:none")), "User-Agent: okhttp/4",
	}
	if j.etags != nil && method == http.MethodGet {
		fields = append(fields, "Cache-Control: max-age=0")
		if etag := j.etags[path]; etag != "" {
			fields = append(fields, "If-None-Match: "+etag)
		}
	}
	resp, text := sendWith(j.T, j.http, method, "https://api.github.com"+path, body, fields...)
	if j.etags != nil && resp.StatusCode == http.StatusOK {
		j.etags[path] = resp.Header.Get("Etag")
	}
	return resp, text
}

// scan sends the requests of a scan. want reports whether a response is right.
func (j *jenkins) scan(want func(*http.Response) bool) {
	j.Helper()
	for _, r := range jenkinsScan {
		resp, text := j.send(http.MethodGet, r.path, "")
		if resp.StatusCode == http.StatusOK && !strings.Contains(text, r.want) {
			j.Errorf("%s: got %.200s, want %s", r.path, text, r.want)
		}
		if r.path != "/rate_limit" && !want(resp) {
			j.Errorf("%s: got %s and Cache-Status %q", r.path, resp.Status, resp.Header.Get("Cache-Status"))
		}
	}
}

// TestJenkinsRecipe sends the recorded scan twice, with and without the cache of the library. The second scan must cost
// nothing. Without the cache of the library, weir answers it without the upstream.
func TestJenkinsRecipe(t *testing.T) {
	for _, c := range []struct {
		name   string
		etags  map[string]string
		second func(*http.Response) bool
	}{
		{"without the cache of the library", nil, func(resp *http.Response) bool {
			return resp.StatusCode == http.StatusOK && strings.Contains(resp.Header.Get("Cache-Status"), "; hit")
		}},
		{"with the cache of the library", map[string]string{}, func(resp *http.Response) bool { return resp.StatusCode == http.StatusNotModified }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("HOOK_SECRET", "a secret of webhooks")
			j := &jenkins{startRecipe(t, "jenkins.md"), c.etags}
			want := func(resp *http.Response) bool { return resp.StatusCode == http.StatusOK }
			j.checkRepetition(func() {
				j.scan(want)
				want = c.second
			})
			var pull struct{ Head struct{ SHA string } }
			if err := json.Unmarshal(j.asMember(http.MethodGet, "/repos/acme/widgets/pulls/41", "").Body.Bytes(), &pull); err != nil {
				t.Fatal(err)
			}
			if resp, text := j.send(http.MethodPost, "/repos/acme/widgets/statuses/"+pull.Head.SHA, `{"state":"success"}`); resp.StatusCode != http.StatusCreated {
				t.Errorf("the status of a build: got %s %s", resp.Status, text)
			}
			j.checkSpending()
		})
	}
}
