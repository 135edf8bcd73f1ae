package service

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// tester sends requests to a service in virtual time.
type tester struct {
	*testing.T
	s *Service
}

// runWithService runs a test with a new service, in a synctest bubble with virtual time.
func runWithService(t *testing.T, f func(*tester)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dialect, err := policy.LoadDialect("service")
		if err != nil {
			t.Fatal(err)
		}
		s := New(Config{Limits: policy.DefaultLimits(), Seed: 1, Dialect: dialect})
		defer s.Close()
		f(&tester{t, s})
	})
}

// serviceInDialect returns a tester of another service, which uses another dialect.
func (t *tester) serviceInDialect(name string) *tester {
	t.Helper()
	dialect, err := policy.LoadDialect(name)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Limits: policy.DefaultLimits(), Seed: 1, Dialect: dialect})
	t.Cleanup(s.Close)
	return &tester{t.T, s}
}

// authorizations maps names to Authorization headers with the credentials of the seed.
var authorizations = map[string]string{
	"": "", "owner": "Bearer tok-owner", "owner-2": "token tok-owner-2", "member": "Bearer tok-member", "outsider": "Bearer tok-outsider",
	"app": "Bearer tok-app", "workflow": "Bearer tok-workflow", "app-user": "Bearer tok-app-user", "security-manager": "Bearer tok-security-manager",
	"fine-grained": "Bearer tok-fine-grained", "read-only": "Bearer tok-read-only", "public": "Bearer tok-public", "org-admin": "Bearer tok-org-admin", "enterprise": "Bearer tok-enterprise",
	"enterprise-app": "Bearer tok-enterprise-app", "enterprise-workflow": "Bearer tok-enterprise-workflow",
	"enterprise-oauth": "Basic " + base64.StdEncoding.EncodeToString([]byte("enterprise-app:enterprise-secret")),
	"oauth":            "Basic " + base64.StdEncoding.EncodeToString([]byte("oauth-app:oauth-secret")),
	"basic user":       "Basic " + base64.StdEncoding.EncodeToString([]byte("acme-owner:tok-owner")),
	"invalid":          "Bearer wrong",
}

func newRequest(method, target string) *http.Request {
	return httptest.NewRequest(method, "http://api.test"+target, http.NoBody)
}

func (t *tester) serve(r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	t.s.ServeHTTP(w, r)
	return w
}

func (t *tester) do(credential, method, target, body string, fields ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, "http://api.test"+target, strings.NewReader(body))
	if authorizations[credential] != "" {
		r.Header.Set("Authorization", authorizations[credential])
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Set(name, value)
	}
	return t.serve(r)
}

func (t *tester) get(credential, target string, fields ...string) *httptest.ResponseRecorder {
	t.Helper()
	return t.do(credential, http.MethodGet, target, "", fields...)
}

func (t *tester) wantStatus(w *httptest.ResponseRecorder, status int) {
	t.Helper()
	if w.Code != status {
		t.Errorf("got %d %.200s, want %d", w.Code, w.Body, status)
	}
}

func decode[T any](t *tester, w *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("decode response %d %s: %v", w.Code, w.Body, err)
	}
	return v
}

type jsonObject = map[string]any

func TestPrivateRepositoriesAreVisibleToMembersOnly(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			credential, target string
			status             int
		}{
			{"", "/repos/acme/widgets/subscribers", 200},
			{"", "/repos/ACME/Widgets/subscribers", 200},
			{"", "/repositories/1001/subscribers", 200},
			{"", "/repos/acme/secret/subscribers", 404},
			{"outsider", "/repos/acme/secret/subscribers", 404},
			{"oauth", "/repos/acme/secret/subscribers", 404},
			{"workflow", "/repos/acme/secret/subscribers", 404},
			{"member", "/repos/acme/secret/subscribers", 200},
			{"owner-2", "/repos/acme/secret/subscribers", 200},
			{"basic user", "/repositories/1002/subscribers", 200},
			{"app", "/repos/acme/secret/subscribers", 200},
			{"invalid", "/gitignore/templates", 401},
			{"", "/user/subscriptions", 401},
			{"app", "/repos/acme/widgets/subscription", 403},
			{"workflow", "/repos/acme/widgets/subscription", 403},
			{"owner", "/orgs/acme/rulesets", 200},
			{"member", "/orgs/acme/rulesets", 404},
			{"owner", "/nowhere", 404},
			{"owner", "/repos/acme/%2e%2e/x", 400},
		} {
			if w := t.get(c.credential, c.target); w.Code != c.status {
				t.Errorf("%s as %q: got %d %s, want %d", c.target, c.credential, w.Code, w.Body, c.status)
			}
		}
	})
}

func TestTemplatesAndCodesOfConduct(t *testing.T) {
	runWithService(t, func(t *tester) {
		names := decode[[]string](t, t.get("", "/gitignore/templates"))
		if len(names) < 20 || names[0] != "C" || names[1] != "C++" {
			t.Errorf("got templates %q", names)
		}
		template := decode[jsonObject](t, t.get("", "/gitignore/templates/C%2B%2B"))
		raw := t.get("", "/gitignore/templates/C++", "Accept: application/vnd.service.raw+json")
		if template["name"] != "C++" || template["source"] != raw.Body.String() {
			t.Errorf("got template %v and raw template %q", template, raw.Body)
		}
		t.wantStatus(t.get("", "/gitignore/templates/None"), 404)
		all := decode[[]jsonObject](t, t.get("", "/codes_of_conduct"))
		one := decode[jsonObject](t, t.get("", "/codes_of_conduct/contributor_covenant"))
		if len(all) < 3 || all[0]["body"] != nil || one["body"] == "" || all[0]["url"] != "http://api.test/codes_of_conduct/contributor_covenant" {
			t.Errorf("got list %v and single code of conduct %v", all, one)
		}
		t.wantStatus(t.get("", "/codes_of_conduct/none"), 404)
	})
}

func TestConditionalRequestsReturn304(t *testing.T) {
	runWithService(t, func(t *tester) {
		first := t.get("owner", "/gitignore/templates")
		etag := first.Header().Get("ETag")
		if !strings.HasPrefix(etag, `W/"`) || first.Header().Get("X-RateLimit-Used") != "1" {
			t.Fatalf("got headers %v", first.Header())
		}
		for _, value := range []string{etag, strings.TrimPrefix(etag, "W/"), `"x", ` + etag, "*"} {
			w := t.get("owner", "/gitignore/templates", "If-None-Match: "+value)
			t.wantStatus(w, 304)
			if w.Body.Len() > 0 || w.Header().Get("X-RateLimit-Used") != "1" {
				t.Errorf("got headers %v and body %q, want a free 304 without body", w.Header(), w.Body)
			}
		}
		t.wantStatus(t.get("owner", "/gitignore/templates", `If-None-Match: "x"`), 200)
		t.get("", "/gitignore/templates")
		if w := t.get("", "/gitignore/templates", "If-None-Match: "+etag); w.Code != 304 || w.Header().Get("X-RateLimit-Used") != "2" {
			t.Errorf("got %d %v, want a 304 that costs an anonymous caller one request", w.Code, w.Header())
		}
		head := t.do("owner", http.MethodHead, "/gitignore/templates", "")
		if head.Header().Get("ETag") != etag {
			t.Error("HEAD and GET have different ETags")
		}
		t.wantStatus(t.do("owner", http.MethodOptions, "/gitignore/templates", ""), 204)
	})
}

func TestUnknownVersionIsRefused(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.wantStatus(t.get("", "/gitignore/templates", "X-Service-Api-Version: 2022-11-28"), 200)
		t.wantStatus(t.get("", "/gitignore/templates", "X-Service-Api-Version: 1999-01-01"), 400)
	})
}

func TestListsArePaginated(t *testing.T) {
	runWithService(t, func(t *tester) {
		next := regexp.MustCompile(`<http://api\.test(/[^>]*)>; rel="next"`)
		target, seen, pages := "/repos/acme/widgets/subscribers?per_page=25", map[string]bool{}, 0
		for target != "" {
			w := t.get("", target)
			for _, u := range decode[[]jsonObject](t, w) {
				seen[u["login"].(string)] = true
			}
			pages++
			m := next.FindStringSubmatch(w.Header().Get("Link"))
			if target = ""; m != nil {
				target = m[1]
			}
			if target != "" && !strings.HasPrefix(target, "/repositories/1001/subscribers?") {
				t.Fatalf("got next page %s", target)
			}
		}
		if len(seen) != watchers || pages != 3 {
			t.Errorf("got %d watchers on %d pages", len(seen), pages)
		}
		for query, want := range map[string]int{"": 30, "?per_page=1000": watchers, "?per_page=0": 30, "?per_page=x": 30, "?page=99": 0, "?page=3": 4} {
			if got := len(decode[[]jsonObject](t, t.get("", "/repos/acme/widgets/subscribers"+query))); got != want {
				t.Errorf("%q: got %d items, want %d", query, got, want)
			}
		}
		middle := t.get("", "/repos/acme/widgets/subscribers?page=2&per_page=10").Header().Get("Link")
		for _, rel := range []string{"first", "prev", "next", "last"} {
			if !strings.Contains(middle, `rel="`+rel+`"`) {
				t.Errorf("%s is missing in Link %s", rel, middle)
			}
		}
	})
}

func TestSubscriptionsAreStored(t *testing.T) {
	runWithService(t, func(t *tester) {
		const path = "/repos/acme/widgets/subscription"
		t.wantStatus(t.get("member", path), 404)
		w := t.do("member", http.MethodPut, path, `{"subscribed":true}`)
		t.wantStatus(w, 200)
		if sub := decode[jsonObject](t, w); sub["subscribed"] != true || sub["ignored"] != false || sub["reason"] != nil || sub["repository_url"] != "http://api.test/repos/acme/widgets" {
			t.Errorf("got subscription %v", sub)
		}
		mine := decode[[]jsonObject](t, t.get("member", "/user/subscriptions"))
		if len(mine) != 1 || mine[0]["full_name"] != "acme/widgets" || mine[0]["security_and_analysis"] == nil || mine[0]["hooks_url"] == nil {
			t.Errorf("got watched repositories %v", mine)
		}
		if n := len(decode[[]jsonObject](t, t.get("", "/repos/acme/widgets/subscribers?per_page=100"))); n != watchers+1 {
			t.Errorf("got %d watchers", n)
		}
		if sub := decode[jsonObject](t, t.do("member", http.MethodPut, path, `{"ignored":true}`)); sub["subscribed"] != false || sub["ignored"] != true {
			t.Errorf("got subscription %v", sub)
		}
		t.wantStatus(t.do("member", http.MethodPut, path, `{`), 400)
		w = t.do("member", http.MethodPut, path, `{"subscribed":"yes"}`)
		t.wantStatus(w, 422)
		if !strings.Contains(w.Body.String(), `"field":"subscribed"`) {
			t.Errorf("got %s, want an error of subscribed", w.Body)
		}
		t.wantStatus(t.do("member", http.MethodPut, path, strings.Repeat(" ", maxBody+1)), 413)
		t.wantStatus(t.do("member", http.MethodDelete, path, ""), 204)
		t.wantStatus(t.get("member", path), 404)
		t.do("member", http.MethodPut, "/repos/acme/secret/subscription", `{"subscribed":true}`)
		if n := len(decode[[]jsonObject](t, t.get("outsider", "/users/acme-member/subscriptions"))); n != 0 {
			t.Errorf("got %d private repositories for an outsider, want none", n)
		}
		t.wantStatus(t.get("", "/users/nobody/subscriptions"), 404)
	})
}

func TestMembersAreListedByVisibilityAndFilter(t *testing.T) {
	runWithService(t, func(t *tester) {
		count := func(credential, query string) int {
			return len(decode[[]jsonObject](t, t.get(credential, "/orgs/acme/members?per_page=100"+query)))
		}
		concealed := members/4 + 1
		for credential, want := range map[string]int{"member": members + 2, "app": members + 2, "outsider": members + 2 - concealed, "": members + 2 - concealed} {
			if got := count(credential, ""); got != want {
				t.Errorf("%q: got %d members, want %d", credential, got, want)
			}
		}
		if count("member", "&role=admin") != 1 || count("owner", "&filter=2fa_disabled") != members/10 {
			t.Error("the filters role and 2fa_disabled return wrong numbers of members")
		}
		for _, c := range []struct {
			credential, target string
			status             int
		}{
			{"member", "/orgs/acme/members?filter=2fa_disabled", 422},
			{"member", "/orgs/acme/members?role=boss", 422},
			{"", "/orgs/nobody/members", 404},
			{"member", "/orgs/acme/members/acme-owner", 204},
			{"member", "/orgs/acme/members/outsider", 404},
			{"outsider", "/orgs/acme/members/acme-owner", 302},
			{"", "/orgs/acme/public_members/acme-owner", 204},
			{"", "/orgs/acme/public_members/acme-member", 404},
		} {
			t.wantStatus(t.get(c.credential, c.target), c.status)
		}
		if l := t.get("", "/orgs/acme/members/acme-owner").Header().Get("Location"); l != "http://api.test/orgs/acme/public_members/acme-owner" {
			t.Errorf("got Location %q", l)
		}
	})
}

func TestSeededRulesetsAndRules(t *testing.T) {
	runWithService(t, func(t *tester) {
		count := func(target string) int { return len(decode[[]jsonObject](t, t.get("owner", target))) }
		for target, want := range map[string]int{
			"/repos/acme/widgets/rulesets":                            5,
			"/repos/acme/widgets/rulesets?includes_parents=false":     3,
			"/orgs/acme/rulesets":                                     2,
			"/repos/acme/widgets/rules/branches/main":                 2, // pull_request, required_signatures
			"/repos/acme/widgets/rules/branches/release/1.x/fix":      3, // deletion, non_fast_forward, required_signatures
			"/repos/acme/widgets/rules/branches/release%2F1.x%2Ffix":  3,
			"/repos/acme/widgets/rules/branches/release/old/1":        1,
			"/repos/acme/widgets/rules/branches/not/there?per_page=5": 1,
		} {
			if got := count(target); got != want {
				t.Errorf("%s: got %d, want %d", target, got, want)
			}
		}
		rules := decode[[]jsonObject](t, t.get("", "/repos/acme/widgets/rules/branches/main"))
		if rules[0]["type"] != "pull_request" || rules[0]["parameters"] == nil || rules[1]["ruleset_source_type"] != "Organization" {
			t.Errorf("got rules %v", rules)
		}
	})
}

func TestPrimaryLimitIsSharedByTheTokensOfAUser(t *testing.T) {
	runWithService(t, func(t *tester) {
		for i := range 30 {
			w := t.get("owner", "/search/users?q=acme")
			if w.Header().Get("X-RateLimit-Used") != fmt.Sprint(i+1) || w.Header().Get("X-RateLimit-Resource") != "search" || w.Header().Get("X-RateLimit-Limit") != "30" {
				t.Fatalf("request %d: got headers %v", i+1, w.Header())
			}
		}
		w := t.get("owner-2", "/search/users?q=acme") // another token of the same user
		t.wantStatus(w, 403)
		if w.Header().Get("X-RateLimit-Remaining") != "0" || !strings.Contains(w.Body.String(), "API rate limit exceeded for user acme-owner.") {
			t.Errorf("got %v %s, want a primary limit error", w.Header(), w.Body)
		}
		t.get("owner", "/search/users?q=acme")
		t.wantStatus(t.get("member", "/search/users?q=acme"), 200)
		if v := t.s.Violations(); v.Violations != 2 || v.SentWhileLimited != 1 || v.Banned || v.ByLimit["primary:search"] != 2 || v.MaxConcurrent != 1 {
			t.Errorf("got violations %+v", v)
		}
		time.Sleep(time.Minute)
		t.wantStatus(t.get("owner", "/search/users?q=acme"), 200)
	})
}

func TestRequestsSentWhileLimitedLeadToABan(t *testing.T) {
	runWithService(t, func(t *tester) {
		for range 60 {
			t.wantStatus(t.get("", "/gitignore/templates"), 200)
		}
		for range banAfter + 1 {
			t.wantStatus(t.get("", "/gitignore/templates"), 403)
		}
		time.Sleep(2 * time.Hour)
		t.wantStatus(t.get("", "/gitignore/templates"), 403)
		t.wantStatus(t.get("owner", "/gitignore/templates"), 200)
		if v := decode[Violations](t, t.get("", "/_service/violations")); !v.Banned || v.SentWhileLimited != banAfter {
			t.Errorf("got violations %+v", v)
		}
	})
}

func TestRateLimitStatusCountsWithoutCost(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.get("workflow", "/gitignore/templates")
		t.get("workflow", "/search/commits?q=gear")
		var status struct {
			Resources map[string]struct{ Limit, Used, Remaining int }
			Rate      struct{ Limit, Used, Remaining int }
		}
		w := t.get("workflow", "/rate_limit")
		if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
			t.Fatal(err)
		}
		core := status.Resources["core"]
		if core != status.Rate || core.Limit != 1000 || core.Used != 1 || core.Remaining != 999 || status.Resources["search"].Used != 1 || len(status.Resources) != 10 {
			t.Errorf("got %s", w.Body)
		}
	})
}

func TestSeedDeterminesTheState(t *testing.T) {
	runWithService(t, func(t *tester) {
		dialect, _ := policy.LoadDialect("service")
		other := New(Config{Limits: policy.DefaultLimits(), Seed: 1, Dialect: dialect})
		defer other.Close()
		third := New(Config{Limits: policy.DefaultLimits(), Seed: 2, Dialect: dialect})
		defer third.Close()
		const target = "/search/commits?q=gear+repo:acme/widgets&sort=author-date"
		one, two, three := t.get("owner", target), (&tester{t.T, other}).get("owner", target), (&tester{t.T, third}).get("owner", target)
		if one.Body.String() != two.Body.String() || one.Body.String() == three.Body.String() {
			t.Error("equal seeds differ, or different seeds are equal")
		}
	})
}

func TestServiceIsSafeForConcurrentUse(t *testing.T) {
	runWithService(t, func(t *tester) {
		var group sync.WaitGroup
		for i := range 50 {
			group.Go(func() {
				for _, target := range []string{"/repos/acme/widgets/stats/contributors", "/repos/acme/widgets/subscribers", "/rate_limit", "/search/commits?q=gear"} {
					t.get("app", target)
				}
				t.do("member", []string{http.MethodPut, http.MethodDelete}[i%2], "/repos/acme/widgets/subscription", `{"subscribed":true}`)
			})
		}
		group.Wait()
	})
}

// TestIndexValidatesTokens covers the requests of gh auth status. The client treats every
// error as an invalid token and reads the scopes.
func TestIndexValidatesTokens(t *testing.T) {
	runWithService(t, func(t *tester) {
		w := t.get("owner", "/")
		t.wantStatus(w, 200)
		if got := decode[jsonObject](t, w)["rate_limit_url"]; got != "http://api.test/rate_limit" {
			t.Errorf("got rate_limit_url %v", got)
		}
		if got := w.Header().Get("X-Oauth-Scopes"); got != "admin:org, repo, user" {
			t.Errorf("got scopes %q", got)
		}
		t.wantStatus(t.get("", "/", "Authorization: token nobody"), 401)
	})
}
