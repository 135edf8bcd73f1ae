package service

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// These are numbers of the seed.
const (
	watchers = 64
	members  = 40
)

// tester sends requests to a service in virtual time.
type tester struct {
	*testing.T
	s     *Service
	story *testservers.Story
}

// runWithService runs a test with a new service, in a synctest bubble with virtual time.
func runWithService(t *testing.T, f func(*tester)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f((&tester{T: t}).newService("service", 1)) })
}

// newService returns a tester of another service, with a dialect and a seed.
func (t *tester) newService(dialect string, seed uint64) *tester {
	t.Helper()
	d := testservers.Must(policy.LoadDialect(dialect))
	s := testservers.Must(New(Config{Limits: policy.DefaultLimits(), Seed: seed, Dialect: d}))
	t.Cleanup(s.Close)
	return &tester{t.T, s, &testservers.Story{Handler: s, Host: "api.test", Authorization: authorization}}
}

func basicAuth(user, token string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+token))
}

// authorizations maps names to Authorization headers with the credentials of the seed.
var authorizations = map[string]string{
	"owner-2": "token tok-owner-2", "basic user": basicAuth("acme-owner", "tok-owner"), "basic outsider": basicAuth("outsider", "tok-outsider"),
	"basic public": basicAuth("acme-owner", "tok-public"), "oauth": basicAuth("oauth-app", "oauth-secret"),
	"enterprise-oauth": basicAuth("enterprise-app", "enterprise-secret"),
}

// authorization returns the header field for the name of a credential.
func authorization(name string) string {
	if name == "" || authorizations[name] != "" {
		return authorizations[name]
	}
	return "Bearer tok-" + name
}

// call is one request of a test, and what its response must have. See testservers.Story.
type call struct {
	as, request string
	status      int
	want        string
}

// runCalls sends the calls of a test to a new service.
func runCalls(t *testing.T, calls []call) {
	t.Helper()
	runWithService(t, func(t *tester) { t.calls(calls) })
}

func (t *tester) calls(calls []call) {
	t.Helper()
	for _, c := range calls {
		t.call(c.as, c.request, c.status, c.want)
	}
}

func (t *tester) call(as, request string, status int, want string) *httptest.ResponseRecorder {
	t.Helper()
	return t.story.Call(t, as, request, status, want)
}

func (t *tester) do(as, request string) *httptest.ResponseRecorder { return t.story.Do(as, request) }

func (t *tester) get(as, target string) *httptest.ResponseRecorder {
	return t.do(as, "GET "+target)
}

// list returns the elements of a list that the owner gets.
func (t *tester) list(target string) []jsonObject {
	t.Helper()
	return decode[[]jsonObject](t, t.call("owner", "GET "+target, 200, ""))
}

func decode[T any](t *tester, w *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	err := json.Unmarshal(w.Body.Bytes(), &v)
	stopIf(t, err != nil, "decode response %d %s: %v", w.Code, w.Body, err)
	return v
}

// wantEqual compares two values.
func (t *tester) wantEqual(name string, want, got any) {
	t.Helper()
	diff := cmp.Diff(want, got)
	failIf(t, diff != "", "%s: want (-), got (+):\n%s", name, diff)
}

// wantErrors checks that each body of a request of the owner is refused because of one field of a resource.
func (t *tester) wantErrors(resource, request string, all []invalidBody) {
	t.Helper()
	for _, c := range all {
		t.call("owner", request+" "+c.body, 422, fmt.Sprintf(`{"errors":[{"resource":%q,"field":%q,"code":%q}]}`, resource, c.field, c.code))
	}
}

type invalidBody struct{ body, field, code string }

type jsonObject = map[string]any

func TestPrivateRepositoriesAreVisibleToMembersOnly(t *testing.T) {
	runCalls(t, []call{
		{"", "GET /repos/acme/widgets/subscribers", 200, ""},
		{"", "GET /repos/ACME/Widgets/subscribers", 200, ""},
		{"", "GET /repositories/1001/subscribers", 200, ""},
		{"", "GET /repos/acme/secret/subscribers", 404, ""},
		{"outsider", "GET /repos/acme/secret/subscribers", 404, ""},
		{"oauth", "GET /repos/acme/secret/subscribers", 404, ""},
		{"workflow", "GET /repos/acme/secret/subscribers", 404, ""},
		{"member", "GET /repos/acme/secret/subscribers", 200, ""},
		{"owner-2", "GET /repos/acme/secret/subscribers", 200, ""},
		{"basic user", "GET /repositories/1002/subscribers", 200, ""},
		{"app", "GET /repos/acme/secret/subscribers", 200, ""},
		{"invalid", "GET /gitignore/templates", 401, ""},
		{"", "GET /user/subscriptions", 401, ""},
		{"app", "GET /repos/acme/widgets/subscription", 403, ""},
		{"workflow", "GET /repos/acme/widgets/subscription", 403, ""},
		{"owner", "GET /orgs/acme/rulesets", 200, ""},
		{"member", "GET /orgs/acme/rulesets", 404, ""},
		{"owner", "GET /nowhere", 404, ""},
		{"owner", "GET /repos/acme/%2e%2e/x", 400, ""},
	})
}

func TestTemplatesAndCodesOfConduct(t *testing.T) {
	runWithService(t, func(t *tester) {
		const self = `"url":"http://api.test/codes_of_conduct/contributor_covenant"`
		t.calls([]call{
			{"", "GET /gitignore/templates", 200, `["C","C++",` + strings.Repeat(`"*",`, 18) + `"..."]`},
			{"", "GET /gitignore/templates/None", 404, ""},
			{"", "GET /codes_of_conduct", 200, `[{"body":"-",` + self + `},{},{},"..."]`},
			{"", "GET /codes_of_conduct/contributor_covenant", 200, `{"body":"*"}`},
			{"", "GET /codes_of_conduct/none", 404, ""},
		})
		raw := t.do("\nAccept: application/vnd.service.raw+json", "GET /gitignore/templates/C++").Body
		t.call("", "GET /gitignore/templates/C%2B%2B", 200, fmt.Sprintf(`{"name":"C++","source":%s}`, encode(raw.String())))
	})
}

func TestConditionalRequestsReturn304(t *testing.T) {
	runWithService(t, func(t *tester) {
		etag := t.call("owner", getTemplates, 200, "ETag: W/\"...\nX-RateLimit-Used: 1").Header().Get("ETag")
		for _, value := range []string{etag, strings.TrimPrefix(etag, "W/"), `"x", ` + etag, "*"} {
			t.call("owner\nIf-None-Match: "+value, getTemplates, 304, "X-RateLimit-Used: 1\n=")
		}
		t.calls([]call{
			{"owner\nIf-None-Match: \"x\"", getTemplates, 200, ""},
			{"", getTemplates, 200, ""},
			{"\nIf-None-Match: " + etag, getTemplates, 304, "X-RateLimit-Used: 2"}, // costs an anonymous caller one request
			{"owner", "HEAD /gitignore/templates", 200, "ETag: " + etag},
			{"owner", "OPTIONS /gitignore/templates", 204, ""},
		})
	})
}

func TestUnknownVersionIsRefusedWithoutCost(t *testing.T) {
	runCalls(t, []call{
		{"owner\nX-Service-Api-Version: 1999-01-01", "GET /gitignore/templates", 400, ""},
		{"owner\nX-Service-Api-Version: 2022-11-28", "GET /gitignore/templates", 200, "X-RateLimit-Used: 1"},
	})
}

func TestListsArePaginated(t *testing.T) {
	runWithService(t, func(t *tester) {
		next := regexp.MustCompile(`<http://api\.test(/repositories/1001/subscribers\?[^>]*)>; rel="next"`)
		target, seen, pages := "/repos/acme/widgets/subscribers?per_page=25", map[string]bool{}, 0
		for link := []string{"", target}; link != nil; pages++ {
			w := t.get("", link[1])
			for _, u := range decode[[]jsonObject](t, w) {
				seen[u["login"].(string)] = true
			}
			link = next.FindStringSubmatch(w.Header().Get("Link"))
		}
		failIf(t, len(seen) != watchers || pages != 3, "got %d watchers on %d pages", len(seen), pages)
		for query, want := range map[string]int{
			"": 30, "?per_page=1000": watchers, "?per_page=0": 30, "?per_page=x": 30, "?page=99": 0, "?page=3": 4,
			"?page=9223372036854775807&per_page=30": 0, "?page=307445734561825862": 0, "?page=99999999999999999999": 0, "?page=1000000000": 0,
			"?per_page=99999999999999999999": watchers, "?per_page=-1": 30, "?page=-99999999999999999999": 30, "?page=x": 30,
		} {
			t.call("", "GET /repos/acme/widgets/subscribers"+query, 200, fmt.Sprint("#", want))
		}
		middle := t.get("", "/repos/acme/widgets/subscribers?page=2&per_page=10").Header().Get("Link")
		for _, rel := range []string{"first", "prev", "next", "last"} {
			failIf(t, !strings.Contains(middle, `rel="`+rel+`"`), "%s is missing in Link %s", rel, middle)
		}
		cursors := t.get("owner", "/repos/acme/widgets/dependabot/alerts?per_page=1").Header().Get("Link")
		failIf(t, !strings.Contains(cursors, "after="+cursor(1)) || strings.Contains(cursors, "last"), "cursor: Link %s", cursors)
		t.call("owner", "GET /search/code?q=widget&page=9223372036854775807", 200, "")
		t.call("owner", "GET /search/commits?q=gear&per_page=1000", 200, `{"items":"#100"}`)
	})
}

func TestSubscriptionsAreStored(t *testing.T) {
	const path, secret = "/repos/acme/widgets/subscription", "/repos/acme/secret/subscription"
	runCalls(t, []call{
		{"member", "GET " + path, 404, ""},
		{"member", "PUT " + path + ` {"subscribed":true}`, 200,
			`{"subscribed":true,"ignored":false,"reason":null,"repository_url":"http://api.test/repos/acme/widgets"}`},
		{"member", "GET /user/subscriptions", 200, `[{"full_name":"acme/widgets","security_and_analysis":"*","hooks_url":"*"}]`},
		{"", "GET /repos/acme/widgets/subscribers?per_page=100", 200, fmt.Sprint("#", watchers+1)},
		{"member", "PUT " + path + ` {"ignored":true}`, 200, `{"subscribed":false,"ignored":true}`},
		{"member", "PUT " + path + ` {`, 400, ""},
		{"member", "PUT " + path + ` {"subscribed":"yes"}`, 422, `"field":"subscribed"`},
		{"member", "PUT " + path + strings.Repeat(" ", maxBody+2), 413, ""},
		{"member", "DELETE " + path, 204, ""},
		{"member", "GET " + path, 404, ""},
		{"member", "PUT " + secret + ` {"subscribed":true}`, 200, ""},
		{"outsider", "GET /users/acme-member/subscriptions", 200, "[]"},
		{"", "GET /users/nobody/subscriptions", 404, ""},
	})
}

func TestIgnoredRepositoriesAreNotWatched(t *testing.T) {
	runWithService(t, func(t *tester) {
		for name, body := range map[string]string{
			"widgets": `{"ignored":true}`, "monolith": `{"subscribed":true}`, "empty": `{"subscribed":false}`, "secret": `{"subscribed":true,"ignored":true}`,
		} {
			t.call("member", "PUT /repos/acme/"+name+"/subscription "+body, 200, "")
		}
		t.calls([]call{
			{"member", "GET /user/subscriptions", 200, "each name: monolith"},
			{"member", "GET /users/acme-member/subscriptions", 200, "each name: monolith"},
			{"member", "GET /user/2/subscriptions", 200, "each name: monolith"},
			{"member", "GET /repos/acme/widgets/subscribers?per_page=100", 200, `!"login":"acme-member"`},
		})
	})
}

func TestUsersCanBeNamedByID(t *testing.T) {
	runCalls(t, []call{
		{"member", `PUT /repos/acme/monolith/subscription {"subscribed":true}`, 200, ""},
		{"member", `PUT /repos/acme/widgets/subscription {"subscribed":true}`, 200, ""},
		{"", "GET /users/acme-member/subscriptions?per_page=1", 200,
			`Link: <http://api.test/user/2/subscriptions?per_page=1&page=2>; rel="next"...`},
		{"", "GET /user/2/subscriptions?per_page=1&page=2", 200, "each name: monolith"},
		{"", "GET /user/4/subscriptions", 404, ""}, // ID of an organization
		{"", "GET /users/acme/subscriptions", 404, ""},
		{"", "GET /user/999/subscriptions", 404, ""},
	})
}

func TestMembersAreListedByVisibilityAndFilter(t *testing.T) {
	const list = "GET /orgs/acme/members?per_page=100"
	all, public := fmt.Sprint("#", members+2), fmt.Sprint("#", members+2-(members/4+1))
	runCalls(t, []call{
		{"member", list, 200, all},
		{"app", list, 200, all},
		{"outsider", list, 200, public},
		{"", list, 200, public},
		{"workflow", list, 200, public}, // has no permission to read members
		{"member", list + "&role=admin", 200, "#1"},
		{"owner", list + "&filter=2fa_disabled", 200, fmt.Sprint("#", members/10)},
		{"member", list + "&filter=2fa_disabled", 422, ""},
		{"member", list + "&role=boss", 422, ""},
		{"", "GET /orgs/nobody/members", 404, ""},
		{"member", "GET /orgs/acme/members/acme-owner", 204, ""},
		{"member", "GET /orgs/acme/members/outsider", 404, ""},
		{"outsider", "GET /orgs/acme/members/acme-owner", 302, ""},
		{"", "GET /orgs/acme/public_members/acme-owner", 204, ""},
		{"", "GET /orgs/acme/public_members/acme-member", 404, ""},
		{"", "GET /orgs/acme/members/acme-owner", 302, "Location: http://api.test/orgs/acme/public_members/acme-owner"},
	})
}

func TestPrimaryLimitIsSharedByTheTokensOfAUser(t *testing.T) {
	runWithService(t, func(t *tester) {
		const search = "GET /search/users?q=acme"
		for i := range 30 {
			t.call("owner", search, 200, fmt.Sprintf("X-RateLimit-Used: %d\nX-RateLimit-Resource: search\nX-RateLimit-Limit: 30", i+1))
		}
		t.calls([]call{
			{"owner-2", search, 403, "X-RateLimit-Remaining: 0\nAPI rate limit exceeded for user acme-owner."}, // another token of the same user
			{"owner", search, 403, ""},
			{"member", search, 200, ""},
		})
		v := t.s.Violations()
		failIf(t, v.Violations != 2 || v.SentWhileLimited != 1 || v.Banned || v.ByLimit["primary:search"] != 2 || v.MaxConcurrent != 1, "got violations %+v", v)
		time.Sleep(time.Minute)
		t.call("owner", search, 200, "")
	})
}

func TestRequestsSentWhileLimitedLeadToABan(t *testing.T) {
	runWithService(t, func(t *tester) {
		const request = "GET /gitignore/templates"
		for i := range 60 + banAfter + 1 {
			t.call("", request, map[bool]int{true: 200, false: 403}[i < 60], "")
		}
		time.Sleep(2 * time.Hour)
		t.call("", request, 403, "")
		t.call("owner", request, 200, "")
		v := decode[Violations](t, t.get("", "/_service/violations"))
		failIf(t, !v.Banned || v.SentWhileLimited != banAfter, "got violations %+v", v)
	})
}

func TestRateLimitStatusCountsWithoutCost(t *testing.T) {
	runWithService(t, func(t *tester) {
		const core = `"limit":1000,"used":1,"remaining":999`
		t.get("workflow", "/gitignore/templates")
		t.get("workflow", "/search/commits?q=gear")
		w := t.call("workflow", "GET /rate_limit", 200, `{"resources":{"core":{`+core+`},"search":{"used":1}},"rate":{`+core+`}}`)
		t.wantEqual("resources", 10, len(decode[struct{ Resources map[string]any }](t, w).Resources))
	})
}

func TestSeedDeterminesTheState(t *testing.T) {
	runWithService(t, func(t *tester) {
		commits := func(t *tester) string {
			return t.get("owner", "/search/commits?q=gear+repo:acme/widgets&sort=author-date").Body.String()
		}
		one := commits(t)
		failIf(t, one != commits(t.newService("service", 1)) || one == commits(t.newService("service", 2)), "equal seeds differ, or different seeds are equal")
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
				t.do("member", []string{http.MethodPut, http.MethodDelete}[i%2]+` /repos/acme/widgets/subscription {"subscribed":true}`)
			})
		}
		group.Wait()
	})
}

// TestIndexValidatesTokens covers the requests of gh auth status. The client treats every
// error as an invalid token and reads the scopes.
func TestIndexValidatesTokens(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.call("owner", "GET /", 200, "X-Oauth-Scopes: admin:org, repo, user\n{\"rate_limit_url\":\"http://api.test/rate_limit\"}")
		t.call("nobody", "GET /", 401, "")
	})
}

// TestDocumentationNamesEndpointsAndTokens reads docs/reference-service.md.
func TestDocumentationNamesEndpointsAndTokens(t *testing.T) {
	text := testservers.Must(os.ReadFile("../../docs/reference-service.md"))
	names := slices.Concat(slices.Collect(maps.Keys(tokens())),
		[]string{"/_service/violations", "/_service/quirks", "/_service/webhooks", "/_service/events", "/_service/deliveries"})
	runWithService(t, func(t *tester) {
		for _, r := range t.s.world.repositories {
			if name := r.fullName(); !strings.HasPrefix(name, "acme-labs/spare-") || name == "acme-labs/spare-0" {
				names = append(names, name)
			}
		}
	})
	for _, name := range names {
		failIf(t, !strings.Contains(string(text), name+"`"), "docs/reference-service.md does not name %s", name)
	}
}

// TestLargeRepositoryIsSeededOnFirstUse checks that New leaves the content of monolith out, and that the time of its
// first use changes no ID.
func TestLargeRepositoryIsSeededOnFirstUse(t *testing.T) {
	var ids []any
	for _, first := range []string{"GET /repos/acme/widgets", "GET /repos/acme/monolith/pulls"} {
		runWithService(t, func(t *tester) {
			n := len(t.s.world.repositories[3].git.commits)
			failIf(t, n > 0, "New seeds %d commits of monolith", n)
			t.call("owner", first, 200, "")
			created := decode[jsonObject](t, t.call("owner", `POST /repos/acme/widgets/issues {"title":"new"}`, 201, ""))
			pulls := decode[[]jsonObject](t, t.call("owner", "GET /repos/acme/monolith/pulls?per_page=1", 200, ""))
			ids = append(ids, []any{created["id"], pulls[0]["id"]})
		})
	}
	failIf(t, !reflect.DeepEqual(ids[0], ids[1]), "the IDs of an issue and of a pull request are %v, depending on the first use", ids)
}
