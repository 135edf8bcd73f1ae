package wholeapi

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

func TestPointsAreCountedPerEndpoint(t *testing.T) {
	cases := []struct {
		name    string
		method  string
		target  func(n int) string
		allowed int // requests within 20 points
	}{
		{"one path", "GET", func(int) string { return "/repos/acme/widgets" }, 20},
		{"many files", "GET", func(n int) string { return fmt.Sprintf("/repos/acme/widgets/contents/docs/f-%d.txt", n) }, 20},
		{"names and numbers", "GET", func(n int) string {
			return []string{"/repos/acme/widgets/issues/1", "/repositories/1001/issues/2"}[n%2]
		}, 20},
		{"branches with slashes", "GET", func(n int) string { return fmt.Sprintf("/repos/acme/widgets/branches/a/b/%d/protection", n) }, 20},
		{"comparisons", "GET", func(n int) string { return fmt.Sprintf("/repos/acme/widgets/compare/main...topic-%d", n%6) }, 20},
		{"unsafe", "PATCH", func(n int) string { return fmt.Sprintf("/repos/acme/widgets/issues/%d", n+1) }, 4},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := testLimits()
				l.Points.REST = 20
				s := newTest(t, Config{Limits: l})
				for n := range c.allowed {
					if w := send(t, s, c.method, c.target(n), "{}"); w.Code >= 500 || w.Code == 403 {
						t.Fatalf("request %d: status %d: %s", n, w.Code, w.Body)
					}
				}
				if got := send(t, s, "GET", "/orgs/acme", ""); got.Code != 200 {
					t.Errorf("another endpoint: status %d", got.Code)
				}
				if v := s.Violations(); v.Violations != 0 || v.Highest["points"] != (Highest{20, 20}) {
					t.Errorf("at the limit: %+v", v)
				}
				w := send(t, s, c.method, c.target(c.allowed), "{}")
				if w.Code != 403 || w.Header().Get("Retry-After") != "60" {
					t.Errorf("beyond the limit: status %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
				}
				time.Sleep(59 * time.Second)
				send(t, s, "GET", "/orgs/acme", "")
				v := s.Violations()
				if v.Violations != 1 || v.ByLimit["points"] != 1 || v.SentWhileLimited != 1 {
					t.Errorf("violations: %+v", v)
				}
				time.Sleep(time.Second)
				if w := send(t, s, c.method, c.target(0), "{}"); w.Code == 403 {
					t.Errorf("after the cool-down: status %d", w.Code)
				}
			})
		})
	}
}

func TestPrimaryWindowsAreCountedPerResource(t *testing.T) {
	cases := []struct{ method, target, resource string }{
		{"GET", "/repos/acme/widgets", "core"},
		{"GET", "/search/issues?q=x", "search"},
		{"GET", "/search/code?q=x", "code_search"},
		{"POST", "/repos/acme/widgets/dependency-graph/snapshots", "dependency_snapshots"},
		{"GET", "/repos/acme/widgets/dependency-graph/sbom", "dependency_sbom"},
		{"POST", "/repos/acme/widgets/code-scanning/sarifs", "code_scanning_upload"},
		{"POST", "/repos/acme/widgets/code-scanning/alerts/1/autofix", "code_scanning_autofix"},
		{"POST", "/orgs/acme/actions/runners/registration-token", "actions_runner_registration"},
		{"PUT", "/repos/acme/widgets/import", "source_import"},
		{"POST", "/app-manifests/x/conversions", "integration_manifest"},
		{"GET", "/repos/acme/widgets/traffic/views", "invented"},
	}
	for _, c := range cases {
		t.Run(c.resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				three := policy.Window{Max: 3, Window: time.Hour}
				l := testLimits()
				l.Primary.User, l.Search.Authenticated, l.Search.Code = 3, 3, 3
				resources := map[string]policy.Window{}
				for _, r := range resourcesOf(User, l) {
					resources[r.Name] = three
				}
				s := newTest(t, Config{Limits: l, Resources: resources, Unlisted: map[string]Resource{"repos/get-views": {"invented", three, 0}}})
				for n := range 3 {
					w := send(t, s, c.method, c.target, "{}")
					if w.Code >= 400 || w.Header().Get("X-Ratelimit-Resource") != c.resource || w.Header().Get("X-Ratelimit-Remaining") != strconv.Itoa(2-n) {
						t.Fatalf("status %d, resource %q, remaining %q", w.Code, w.Header().Get("X-Ratelimit-Resource"), w.Header().Get("X-Ratelimit-Remaining"))
					}
				}
				if w := send(t, s, c.method, c.target, "{}"); w.Code != 403 || w.Header().Get("X-Ratelimit-Remaining") != "0" || w.Header().Get("Retry-After") != "" {
					t.Errorf("beyond the limit: status %d", w.Code)
				}
				other := "/orgs/acme"
				if c.resource == "core" {
					other = "/search/issues?q=x"
				}
				if w := send(t, s, "GET", other, ""); w.Code != 200 {
					t.Errorf("another resource: status %d", w.Code)
				}
				if v := s.Violations(); v.Violations != 1 || v.ByLimit["primary:"+c.resource] != 1 || v.Answered[c.resource] != 3 {
					t.Errorf("violations: %+v", v)
				}
				if got := at(get(t, s, "/rate_limit"), "resources", c.resource, "remaining"); got != 0.0 {
					t.Errorf("/rate_limit: %v remaining", got)
				}
			})
		})
	}
}

func TestContentCreationIsCounted(t *testing.T) {
	cases := []struct {
		method, target, body string
		counted              bool
	}{
		{"POST", "/repos/acme/widgets/issues", `{"title":"x"}`, true},
		{"POST", "/repos/acme/widgets/issues/1/comments", `{"body":"x"}`, true},
		{"PUT", "/repos/acme/widgets/collaborators/outsider", `{}`, true},
		{"POST", "/repos/acme/widgets/statuses/main", `{"state":"success"}`, true},
		{"PATCH", "/repos/acme/widgets/issues/1", `{"title":"x"}`, false},
		{"POST", "/markdown", `{"text":"x"}`, false},
		{"POST", "/orgs/acme/actions/runners/registration-token", ``, false},
	}
	for _, c := range cases {
		t.Run(c.method+" "+c.target, func(t *testing.T) {
			l := testLimits()
			l.Content = []policy.Window{{Max: 2, Window: time.Minute}, {Max: 500, Window: time.Hour}}
			s := newTest(t, Config{Limits: l})
			send(t, s, c.method, c.target, c.body)
			send(t, s, c.method, c.target, c.body)
			if w := send(t, s, c.method, c.target, c.body); (w.Code == 403) != c.counted {
				t.Errorf("the third request: status %d", w.Code)
			}
			if got := s.Violations().ByLimit["content:1m0s"] == 1; got != c.counted {
				t.Errorf("violation: %v; want %v", got, c.counted)
			}
		})
	}
}

func TestConcurrentRequestsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLimits()
		l.Concurrent = 2
		s := newTest(t, Config{Limits: l, Latency: time.Second})
		refused := make(chan bool, 3)
		for range 3 {
			go func() { refused <- send(t, s, "GET", "/orgs/acme", "").Code == http.StatusForbidden }()
		}
		n := 0
		for range 3 {
			if <-refused {
				n++
			}
		}
		if v := s.Violations(); n != 1 || v.MaxConcurrent != 3 || v.ByLimit["concurrency"] != 1 {
			t.Errorf("%d refused, %+v", n, v)
		}
	})
}

func TestNotModifiedIsFreeForAuthenticatedCallers(t *testing.T) {
	s := newTest(t, Config{})
	for _, authorization := range []string{"Bearer tok-owner", ""} {
		w := send(t, s, "GET", "/repos/acme/widgets/issues", "", "Authorization", authorization)
		before := w.Header().Get("X-Ratelimit-Remaining")
		w = send(t, s, "GET", "/repos/acme/widgets/issues", "", "Authorization", authorization, "If-None-Match", w.Header().Get("Etag"))
		if w.Code != 304 || w.Body.Len() != 0 || (w.Header().Get("X-Ratelimit-Remaining") == before) != (authorization != "") {
			t.Errorf("%q: status %d, remaining %s before and %s after", authorization, w.Code, before, w.Header().Get("X-Ratelimit-Remaining"))
		}
	}
}

func TestTokensOfOneUserShareLimits(t *testing.T) {
	s := newTest(t, Config{})
	send(t, s, "GET", "/orgs/acme", "")
	for token, used := range map[string]string{"tok-owner-2": "2", "tok-member": "1", "tok-app": "1"} {
		w := send(t, s, "GET", "/orgs/acme", "", "Authorization", "token "+token)
		if w.Header().Get("X-Ratelimit-Used") != used {
			t.Errorf("%s: used %s; want %s", token, w.Header().Get("X-Ratelimit-Used"), used)
		}
	}
}

func TestRequestsWhileLimitedCauseABan(t *testing.T) {
	l := testLimits()
	l.Primary.User = 1
	s := newTest(t, Config{Limits: l})
	for range 2 + banAfter {
		send(t, s, "GET", "/orgs/acme", "")
	}
	if v := s.Violations(); !v.Banned || v.SentWhileLimited != banAfter {
		t.Errorf("%+v", v)
	}
	s.Reset()
	if w := send(t, s, "GET", "/orgs/acme", ""); w.Code != 200 || s.Violations().Banned {
		t.Errorf("after the reset: status %d", w.Code)
	}
}

func TestRateLimitStatusDependsOnTheVersion(t *testing.T) {
	s := newTest(t, Config{Unlisted: map[string]Resource{"repos/get-views": {"invented", policy.Window{Max: 7, Window: time.Minute}, 0}}})
	for version, hasRate := range map[string]bool{"": true, "2022-11-28": true, "2026-03-10": false} {
		w := send(t, s, "GET", "/rate_limit", "", versionHeader, version)
		var body map[string]any
		body, _ = decodeBody(w.Body.Bytes()).(map[string]any)
		if _, got := body["rate"]; got != hasRate || at(body, "resources", "invented", "limit") != 7.0 || w.Header().Get("Etag") == "" {
			t.Errorf("version %q: %s", version, w.Body)
		}
		if w := send(t, s, "GET", "/rate_limit", "", versionHeader, version, "If-None-Match", w.Header().Get("Etag")); w.Code != 304 {
			t.Errorf("version %q with the ETag: status %d", version, w.Code)
		}
	}
	if w := send(t, s, "GET", "/rate_limit", "", versionHeader, "2021-01-01"); w.Code != 400 {
		t.Errorf("unknown version: status %d", w.Code)
	}
	s = newTest(t, Config{NoRateLimits: true})
	if w := send(t, s, "GET", "/rate_limit", ""); w.Code != 404 || w.Header().Get("X-Ratelimit-Limit") != "" {
		t.Errorf("without rate limits: status %d, headers %v", w.Code, w.Header())
	}
}
