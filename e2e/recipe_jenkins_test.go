//go:build e2e

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
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

// jenkins sends the requests of the plugin with the fields of its library, through the proxy of its configuration.
type jenkins struct {
	*cookbook
	client *http.Client
	etags  map[string]string // of the library's cache; nil without this cache
}

func newJenkins(b *cookbook) *jenkins {
	b.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(readFile(b.T, b.ca)))
	proxy := &url.URL{Scheme: "http", Host: b.proxy, User: url.UserPassword("jenkins", b.key)}
	transport := &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: roots}}
	b.Cleanup(transport.CloseIdleConnections)
	return &jenkins{b, &http.Client{Transport: transport}, nil}
}

// send sends a request and returns the status, the body and Cache-Status.
func (j *jenkins) send(method, path, body string) (status int, text, cached string) {
	j.Helper()
	req, err := http.NewRequestWithContext(j.Context(), method, "https://api.github.com"+path, strings.NewReader(body))
	if err != nil {
		j.Fatal(err)
	}
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("octo-jenkins:none")))
	req.Header.Set("User-Agent", "okhttp/4")
	if j.etags != nil && method == http.MethodGet {
		req.Header.Set("Cache-Control", "max-age=0")
		if etag := j.etags[path]; etag != "" {
			req.Header.Set("If-None-Match", etag)
		}
	}
	resp, err := j.client.Do(req)
	if err != nil {
		j.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	bytes, err := io.ReadAll(resp.Body)
	if err != nil {
		j.Fatal(err)
	}
	if j.etags != nil && resp.StatusCode == http.StatusOK {
		j.etags[path] = resp.Header.Get("Etag")
	}
	return resp.StatusCode, string(bytes), resp.Header.Get("Cache-Status")
}

// scan sends the requests of a scan. want reports whether the status and Cache-Status of a response are right.
func (j *jenkins) scan(want func(status int, cached string) bool) {
	j.Helper()
	for _, r := range jenkinsScan {
		status, text, cached := j.send(http.MethodGet, r.path, "")
		if status == http.StatusOK && !strings.Contains(text, r.want) {
			j.Errorf("%s: got %.200s, want %s", r.path, text, r.want)
		}
		if r.path != "/rate_limit" && !want(status, cached) {
			j.Errorf("%s: got %d and Cache-Status %q", r.path, status, cached)
		}
	}
}

// TestJenkinsScan sends the recorded scan twice, with and without the cache of the library. The second scan must cost
// nothing. Without the cache of the library, weir answers it without the upstream.
func TestJenkinsScan(t *testing.T) {
	for _, c := range []struct {
		name   string
		etags  map[string]string
		second func(status int, cached string) bool
	}{
		{"without the cache of the library", nil, func(status int, cached string) bool { return status == 200 && strings.Contains(cached, "; hit") }},
		{"with the cache of the library", map[string]string{}, func(status int, _ string) bool { return status == 304 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newCookbook(t)
			t.Setenv("HOOK_SECRET", "a secret of webhooks")
			b.start("jenkins.md")
			j := newJenkins(b)
			j.etags = c.etags
			want := func(status int, _ string) bool { return status == 200 }
			b.checkSpending("jenkins", func() {
				j.scan(want)
				want = c.second
			})
			var pull struct{ Head struct{ SHA string } }
			_, text := get(t, b.upstream.URL+"/repos/acme/widgets/pulls/41", "Authorization: Bearer tok-owner")
			if err := json.Unmarshal([]byte(text), &pull); err != nil {
				t.Fatal(err)
			}
			if status, text, _ := j.send(http.MethodPost, "/repos/acme/widgets/statuses/"+pull.Head.SHA, `{"state":"success"}`); status != http.StatusCreated {
				t.Errorf("the status of a build: got %d %s", status, text)
			}
			b.checkLimits()
		})
	}
}
