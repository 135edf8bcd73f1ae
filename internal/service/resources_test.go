package service

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

func TestPointsAreCountedPerEndpoint(t *testing.T) {
	for _, c := range []struct {
		name    string
		request func(n int) string
		allowed int // requests within 20 points
	}{
		{"one path", func(int) string { return "GET /repos/acme/widgets" }, 20},
		{"many files", func(n int) string { return fmt.Sprintf("GET /repos/acme/widgets/contents/docs/f-%d.txt", n) }, 20},
		{"names and numbers", func(n int) string {
			return []string{"GET /repos/acme/widgets/issues/1", "GET /repositories/1001/issues/2"}[n%2]
		}, 20},
		{"branches with slashes", func(n int) string { return fmt.Sprintf("GET /repos/acme/widgets/branches/a/b/%d/protection", n) }, 20},
		{"comparisons", func(n int) string { return fmt.Sprintf("GET /repos/acme/widgets/compare/main...part-%d", 1+n%6) }, 20},
		{"unsafe", func(n int) string { return fmt.Sprintf("PATCH /repos/acme/widgets/issues/%d {}", n+1) }, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := testLimits()
				l.Points.REST = 20
				s := newTester(t, Config{Limits: l})
				for n := range c.allowed {
					w := s.Do("owner", c.request(n))
					stopIf(t, w.Code >= 500 || w.Code == 403, "request %d: status %d: %s", n, w.Code, w.Body)
				}
				s.Call(t, "owner", "GET /orgs/acme", 200, "") // another endpoint
				if v := s.Violations(); v.Violations != 0 || v.Highest["points"] != (Highest{20, 20}) {
					t.Errorf("at the limit: %+v", v)
				}
				s.Call(t, "owner", c.request(c.allowed), 403, "Retry-After: 60")
				time.Sleep(59 * time.Second)
				s.Do("owner", "GET /orgs/acme")
				v := s.Violations()
				failIf(t, v.Violations != 1 || v.ByLimit["points"] != 1 || v.SentWhileLimited != 1, "violations: %+v", v)
				time.Sleep(time.Second)
				w := s.Do("owner", c.request(0))
				failIf(t, w.Code == 403, "after the cool-down: status %d", w.Code)
			})
		})
	}
}

func TestPrimaryWindowsAreCountedPerResource(t *testing.T) {
	cases := []struct{ request, resource string }{
		{"GET /repos/acme/widgets", "core"},
		{"GET /search/issues?q=x", "search"},
		{"GET /search/code?q=x", "code_search"},
		{"POST /repos/acme/widgets/dependency-graph/snapshots {}", "dependency_snapshots"},
		{"GET /repos/acme/widgets/dependency-graph/sbom", "dependency_sbom"},
		{"POST /repos/acme/widgets/code-scanning/sarifs {}", "code_scanning_upload"},
		{"POST /repos/acme/widgets/code-scanning/alerts/1/autofix {}", "code_scanning_autofix"},
		{"POST /orgs/acme/actions/runners/registration-token {}", "actions_runner_registration"},
		{"PUT /repos/acme/widgets/import {}", "source_import"},
		{"POST /app-manifests/x/conversions {}", "integration_manifest"},
		{"GET /repos/acme/widgets/traffic/views", "invented"},
	}
	for _, c := range cases {
		t.Run(c.resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				three := policy.Window{Max: 3, Window: time.Hour}
				l := testLimits()
				l.Primary.User, l.Search.Authenticated, l.Search.Code = 3, 3, 3
				override := map[string]policy.Window{}
				for _, r := range limitRules().Resources {
					override[r.Name] = three
				}
				s := newTester(t, Config{Limits: l, Resources: override, Unlisted: map[string]Resource{"repos/get-views": {Name: "invented", Limit: three}}})
				for n := range 3 {
					w := s.Do("owner", c.request)
					h := w.Header()
					stopIf(t, w.Code >= 400 || h.Get("X-Ratelimit-Resource") != c.resource || h.Get("X-Ratelimit-Remaining") != strconv.Itoa(2-n), "status %d, headers %v", w.Code, h)
				}
				s.Call(t, "owner", c.request, 403, "X-Ratelimit-Remaining: 0\nRetry-After:")
				if c.resource != "core" {
					s.Call(t, "owner", "GET /orgs/acme", 200, "")
				} else {
					s.Call(t, "owner", "GET /search/issues?q=x", 200, "")
				}
				v := s.Violations()
				failIf(t, v.Violations != 1 || v.ByLimit["primary:"+c.resource] != 1 || v.Answered[c.resource] != 3, "violations: %+v", v)
				s.Call(t, "owner", "GET /rate_limit", 200, fmt.Sprintf(`{"resources":{%q:{"remaining":0}}}`, c.resource))
			})
		})
	}
}

func TestContentCreationIsCounted(t *testing.T) {
	for request, counted := range map[string]bool{
		`POST /repos/acme/widgets/issues {"title":"x"}`:              true,
		`POST /repos/acme/widgets/issues/1/comments {"body":"x"}`:    true,
		`PUT /repos/acme/widgets/collaborators/outsider {}`:          true,
		`POST /repos/acme/widgets/statuses/main {"state":"success"}`: true,
		`PATCH /repos/acme/widgets/issues/1 {"title":"x"}`:           false,
		`POST /markdown {"text":"x"}`:                                false,
		`POST /orgs/acme/actions/runners/registration-token`:         false,
	} {
		l := testLimits()
		l.Content = []policy.Window{{Max: 2, Window: time.Minute}, {Max: 500, Window: time.Hour}}
		s := newTester(t, Config{Limits: l})
		s.Do("owner", request)
		s.Do("owner", request)
		testservers.Equal(t, request, s.Do("owner", request).Code == 403, counted)
		testservers.Equal(t, request, s.Violations().ByLimit["content:1m0s"] == 1, counted)
	}
}

func TestNotModifiedIsFreeForAuthenticatedCallers(t *testing.T) {
	s := newTester(t, Config{})
	for _, as := range []string{"owner", ""} {
		const list = "GET /repos/acme/widgets/issues"
		h := s.Do(as, list).Header()
		w := s.Call(t, as+"\nIf-None-Match: "+h.Get("Etag"), list, 304, "=")
		before, after := h.Get("X-Ratelimit-Remaining"), w.Header().Get("X-Ratelimit-Remaining")
		failIf(t, (after == before) != (as != ""), "%q: remaining %s before and %s after", as, before, after)
	}
}

func TestRateLimitStatusDependsOnTheVersion(t *testing.T) {
	s := newTester(t, Config{Unlisted: map[string]Resource{"repos/get-views": {Name: "invented", Limit: policy.Window{Max: 7, Window: time.Minute}}}})
	for version, rate := range map[string]string{"": "*", "\n" + "X-GitHub-Api-Version" + ": 2022-11-28": "*", "\n" + "X-GitHub-Api-Version" + ": 2026-03-10": "-"} {
		as := "owner" + version
		etag := s.Call(t, as, "GET /rate_limit", 200, fmt.Sprintf(`{"rate":%q,"resources":{"invented":{"limit":7}}}`, rate)).Header().Get("Etag")
		s.Call(t, as+"\nIf-None-Match: "+etag, "GET /rate_limit", 304, "")
	}
	s.Call(t, "owner\n"+"X-GitHub-Api-Version"+": 2021-01-01", "GET /rate_limit", 400, "")
	newTester(t, Config{NoRateLimits: true}).Call(t, "owner", "GET /rate_limit", 404, "X-Ratelimit-Limit:")
}
