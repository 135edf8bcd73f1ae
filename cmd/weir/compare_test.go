package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/pipe"
	"github.com/weirgate/weir/policy"
)

// call is one request of a client.
type call struct {
	as, method, target, body, accept, match string
}

// calls visit every operation that the reference service implements, as
// different callers, in one order that changes state on the way.
var calls = map[string][]call{
	"codes-of-conduct/list":    {{}, {as: "tok-owner"}},
	"codes-of-conduct/get":     {{target: "/codes_of_conduct/contributor_covenant"}, {target: "/codes_of_conduct/none"}},
	"gitignore/list-templates": {{}, {as: "tok-owner", match: "*"}, {method: "HEAD"}},
	"gitignore/get-template": {
		{target: "/gitignore/templates/Go"}, {target: "/gitignore/templates/C%2B%2B"}, {target: "/gitignore/templates/none"},
		{target: "/gitignore/templates/Go", accept: "application/vnd.service.raw+json"}, {target: "/gitignore/templates/Go", accept: "*/*"},
	},
	"rate-limit/get": {{}, {as: "tok-owner"}, {as: "tok-workflow"}},

	"statistics/code-frequency":  onRepositories("/stats/code_frequency"),
	"statistics/commit-activity": onRepositories("/stats/commit_activity"),
	"statistics/contributors":    onRepositories("/stats/contributors"),
	"statistics/participation":   onRepositories("/stats/participation"),
	"statistics/punch-card":      onRepositories("/stats/punch_card"),

	"search/code": {
		{target: "/search/code?q=gear"}, {as: "tok-owner", target: "/search/code?q=widget&per_page=5"}, {as: "tok-outsider", target: "/search/code?q=key+repo:acme/secret"},
		{as: "tok-owner", target: "/search/code?q=gear", accept: "application/vnd.service.text-match+json"}, {as: "tok-owner", target: "/search/code?q=repo:acme/widgets"},
	},
	"search/commits": {{target: "/search/commits?q=gear+repo:acme/widgets"}, {target: "/search/commits"}, {target: "/search/commits?q=a" + strings.Repeat("+OR+a", 6)}},
	"search/issues":  {{target: "/search/issues?q=gear+label:bug"}},
	"search/other":   {{target: "/search/users?q=acme"}, {target: "/search/topics?q=acme"}},

	"watching/list-subscribers": append(onRepositories("/subscribers"), call{target: "/repos/acme/widgets/subscribers?page=2&per_page=10"}, call{target: "/repositories/1001/subscribers?page=3"}),
	"watching/get-subscription": {{as: "tok-member", target: "/repos/acme/widgets/subscription"}, {as: "tok-app", target: "/repos/acme/widgets/subscription"}, {target: "/repos/acme/widgets/subscription"}},
	"watching/set-subscription": {
		{as: "tok-member", method: "PUT", target: "/repos/Acme/widgets/subscription", body: `{"subscribed":true}`},
		{as: "tok-member", target: "/repos/acme/widgets/subscription"}, {as: "tok-member", target: "/user/subscriptions"}, {target: "/repos/acme/widgets/subscribers?per_page=100"},
		{as: "tok-member", method: "PUT", target: "/repos/acme/widgets/subscription", body: `{"subscribed":3}`}, {as: "tok-member", method: "PUT", target: "/repos/acme/widgets/subscription", body: `{`},
	},
	"watching/delete-subscription": {{as: "tok-member", method: "DELETE", target: "/repos/acme/widgets/subscription"}, {as: "tok-member", target: "/repos/acme/widgets/subscription"}},
	"watching/list-mine":           {{as: "tok-owner", target: "/user/subscriptions"}, {target: "/user/subscriptions"}},
	"watching/list-of-user":        {{target: "/users/watcher-01/subscriptions"}, {target: "/users/none/subscriptions"}},

	"organization-members/list": {
		{target: "/orgs/acme/members"}, {as: "tok-workflow", target: "/orgs/acme/members?page=2"}, {as: "tok-member", target: "/orgs/ACME/members?per_page=100"}, {as: "tok-owner", target: "/orgs/acme/members?filter=2fa_disabled"},
		{as: "tok-member", target: "/orgs/acme/members?filter=2fa_disabled"}, {target: "/orgs/none/members"},
	},
	"organization-members/check": {
		{target: "/orgs/acme/members/acme-owner"}, {as: "tok-member", target: "/orgs/acme/members/acme-owner"}, {as: "tok-member", target: "/orgs/acme/members/outsider"},
	},
	"organization-members/check-public": {{target: "/orgs/acme/public_members/acme-owner"}},

	"rulesets/list-repository":   append(onRepositories("/rulesets"), call{target: "/repos/acme/widgets/rulesets?includes_parents=false"}),
	"rulesets/list-organization": {{as: "tok-owner", target: "/orgs/acme/rulesets"}, {as: "tok-member", target: "/orgs/acme/rulesets"}, {target: "/orgs/acme/rulesets"}},
	"rulesets/list-branch-rules": {{target: "/repos/acme/widgets/rules/branches/main"}, {target: "/repos/acme/widgets/rules/branches/release/1.x"}, {target: "/repos/acme/widgets/rules/branches/release%2F1.x"}},

	"git-tags/get": {
		{target: "/repos/acme/widgets/git/tags/0000000000000000000000000000000000000000"}, {target: "/repos/acme/empty/git/tags/00"}, {as: "tok-outsider", target: "/repos/acme/secret/git/tags/00"},
	},
	"git-tags/create": {
		{as: "tok-member", method: "POST", target: "/repos/acme/widgets/git/tags", body: `{"tag":"v2","message":"m","object":"0000000000000000000000000000000000000000","type":"commit"}`},
		{as: "tok-member", method: "POST", target: "/repos/acme/widgets/git/tags", body: `{"tag":"v2"}`}, {as: "tok-member", method: "POST", target: "/repos/acme/empty/git/tags", body: `{}`},
		{as: "tok-outsider", method: "POST", target: "/repos/acme/widgets/git/tags", body: `{}`}, {method: "POST", target: "/repos/acme/widgets/git/tags", body: `{}`},
	},
	"dependency-graph/export-sbom": onRepositories("/dependency-graph/sbom"),

	"graphql": {
		{as: "tok-owner", method: "POST", target: "/graphql", body: `{"query":"{ viewer { login } }"}`},
		{as: "tok-owner", method: "POST", target: "/graphql", body: `{"query":"mutation { addStar(input: {}) { clientMutationId } }"}`},
		{method: "POST", target: "/graphql", body: `{"query":"{ viewer { login } }"}`},
	},
	"app-manifests/convert": {{method: "POST", target: "/app-manifests/abc/conversions"}, {as: "tok-owner", method: "POST", target: "/app-manifests/def/conversions"}},

	"unknown": {{target: "/nowhere"}, {as: "wrong-token", target: "/user"}, {as: "tok-owner", method: "PATCH", target: "/repos/acme/widgets", body: "{}"}, {method: "OPTIONS", target: "/gitignore/templates"}},
}

// onRepositories asks of each kind of repository, as somebody who may see it
// and as somebody who may not.
func onRepositories(path string) []call {
	return []call{
		{target: "/repos/acme/widgets" + path}, {as: "tok-member", target: "/repos/acme/secret" + path}, {as: "tok-outsider", target: "/repos/acme/secret" + path},
		{target: "/repos/acme/empty" + path}, {target: "/repos/acme/monolith" + path}, {as: "tok-workflow", target: "/repos/none/none" + path},
		{as: "oauth-app:oauth-secret", target: "/repos/acme/widgets" + path},
	}
}

// client is the same code against both: it asks again while the answer is 202.
type client struct {
	http http.Client
	base string
}

// answer is what a client's code can see.
type answer struct {
	Status int
	Body   string
	Header map[string]string
}

func (c *client) do(t *testing.T, target string, call call) answer {
	t.Helper()
	method := call.method
	if method == "" {
		method = http.MethodGet
	}
	for {
		req, err := http.NewRequest(method, c.base+target, strings.NewReader(call.body))
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.Contains(call.as, ":"):
			req.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(call.as)))
		case call.as != "":
			req.Header.Set("Authorization", "token "+call.as)
		}
		if call.accept != "" {
			req.Header.Set("Accept", call.accept)
		}
		if call.match != "" {
			req.Header.Set("If-None-Match", call.match)
		}
		resp, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted {
			return c.answer(resp, string(body))
		}
		time.Sleep(2 * time.Second)
	}
}

// counts are what a cache is there to change.
var counts = regexp.MustCompile(`"(used|remaining|reset)":\d+`)

func (c *client) answer(resp *http.Response, body string) answer {
	a := answer{Status: resp.StatusCode, Body: counts.ReplaceAllString(body, `"$1":0`), Header: map[string]string{}}
	for _, name := range []string{"Content-Type", "Etag", "Last-Modified", "Link", "Location", "X-Service-Media-Type", "X-Ratelimit-Limit", "X-Ratelimit-Resource"} {
		if v := resp.Header.Get(name); v != "" {
			a.Header[name] = strings.ReplaceAll(v, c.base, "BASE")
		}
	}
	return a
}

// TestTheSameClientCodeSeesTheSameThroughTheGateway drives every implemented
// operation against the reference service and, with the same code, against a
// gateway in front of another of the same seed.
func TestTheSameClientCodeSeesTheSameThroughTheGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		direct, through := pair(t)
		for _, id := range slices.Sorted(maps.Keys(calls)) {
			for _, call := range calls[id] {
				target := call.target
				if target == "" {
					target = policy.Embedded().Operation(id).Path
				}
				name := fmt.Sprintf("%s: %s %s as %q", id, call.method, target, call.as)
				want := direct.do(t, target, call)
				for _, turn := range []string{"first", "again"} { // from the service and, where it may, from the cache
					got := through.do(t, target, call)
					if call.method != "" && turn == "again" && call.method != "HEAD" {
						continue // a write has its effect once on either side
					}
					allowDifferences(id, call, &want, &got)
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%s, %s: direct (-), through the gateway (+):\n%s", name, turn, diff)
					}
				}
				time.Sleep(20 * time.Second) // within every search window
			}
		}
	})
}

// allowDifferences takes out where the gateway must answer by what it knows.
func allowDifferences(id string, call call, want, got *answer) {
	switch {
	case got.Status == http.StatusUnauthorized || got.Status == http.StatusBadRequest:
		// The service tells a caller that it does not know nothing of a budget.
		delete(want.Header, "X-Ratelimit-Limit")
		delete(got.Header, "X-Ratelimit-Limit")
		delete(want.Header, "X-Ratelimit-Resource")
		delete(got.Header, "X-Ratelimit-Resource")
	case id == "rate-limit/get":
		delete(want.Header, "X-Service-Media-Type")
		delete(got.Header, "X-Service-Media-Type")
	}
	if got.Status >= 400 {
		delete(want.Header, "X-Service-Media-Type")
		delete(got.Header, "X-Service-Media-Type")
	}
}

// pair returns a client of a service and a client of a gateway in front of
// another service of the same seed and name.
func pair(t *testing.T) (direct, through *client) {
	t.Helper()
	cfg := config.Default()
	cfg.Upstream.URL = "http://service.test"
	cfg.Limits.Primary.Unauthenticated = 1000 // every call goes out twice as often through the gateway
	start := func() *pipe.Listener {
		s, err := newService(cfg, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return pipe.Serve(t, "service.test:80", &http.Server{Handler: s})
	}
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	g.transport.DialContext = start().Dial
	front := pipe.Serve(t, "gateway.test:80", &http.Server{Handler: g})
	connect := func(base string, l *pipe.Listener) *client {
		transport := &http.Transport{DialContext: l.Dial}
		t.Cleanup(transport.CloseIdleConnections)
		return &client{http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}, base}
	}
	return connect("http://service.test", start()), connect("http://gateway.test", front)
}

// TestEveryImplementedOperationIsCompared: whatever the reference service does
// not answer by 501 stands in calls.
func TestEveryImplementedOperationIsCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		direct, _ := pair(t)
		template := regexp.MustCompile(`\{\w+\}`)
		for _, op := range policy.Embedded().Operations() {
			target := template.ReplaceAllString(op.Path, "1")
			got := direct.do(t, target+"?q=x", call{as: "tok-owner", method: op.Method})
			if _, compared := calls[op.ID]; compared == (got.Status == http.StatusNotImplemented) {
				t.Errorf("%s answers %d; compared: %v", op.ID, got.Status, compared)
			}
			time.Sleep(10 * time.Second)
		}
	})
}
