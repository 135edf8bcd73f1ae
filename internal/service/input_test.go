package service

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weirgate/weir/policy"
)

func TestInvalidBodiesAreReported(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct{ method, target, body, want string }{
			{"POST", "/orgs/acme/invitations", `[]`, "Body should be a JSON object"},
			{"POST", "/orgs/acme/invitations", `7`, "Body should be a JSON object"},
			{"POST", "/orgs/acme/invitations", `null`, `"field":"invitee_id","code":"missing_field"`},
			{"POST", "/orgs/acme/invitations", `{"EMAIL":"cased@example.com"}`, `"field":"invitee_id","code":"missing_field"`},
			{"POST", "/orgs/acme/rulesets", `null`, `"field":"name","code":"missing_field"`},
			{"POST", "/graphql", `"x"`, "Body should be a JSON object"},
			{"PUT", "/repos/acme/widgets/subscription", `{"Subscribed":true}`, `"subscribed":false`},
			{"PUT", "/repos/acme/widgets/subscription", `{"subscribed":"yes"}`, `"field":"subscribed","code":"invalid"`},
			{"PUT", "/repos/acme/widgets/subscription", `{"subscribed":true`, "Problems parsing JSON"},
			{"DELETE", "/orgs/acme/code-security/configurations/detach", `[]`, "Body should be a JSON object"},
			{"POST", "/repos/acme/widgets/git/tags", strings.Repeat(`{"tagger":`, 5000), "Problems parsing JSON"},
		} {
			if w := t.do("owner", c.method, c.target, c.body); !strings.Contains(w.Body.String(), c.want) {
				t.Errorf("%s %s %.50s: got %d %s, want %s", c.method, c.target, c.body, w.Code, w.Body, c.want)
			}
		}
	})
}

func TestPageParametersAreBounded(t *testing.T) {
	runWithService(t, func(t *tester) {
		for query, want := range map[string]int{
			"page=9223372036854775807&per_page=30": 0, "page=307445734561825862": 0, "page=99999999999999999999": 0, "page=1000000000": 0,
			"per_page=99999999999999999999": 42, "per_page=-1": 30, "per_page=0": 30, "page=-99999999999999999999": 30, "page=x": 30,
		} {
			if got := len(decode[[]any](t, t.get("owner", "/orgs/acme/members?"+query))); got != want {
				t.Errorf("%s: got %d members, want %d", query, got, want)
			}
		}
		t.wantStatus(t.get("owner", "/search/code?q=widget&page=9223372036854775807"), 200)
	})
}

func TestPathsAreEscapedInLinkAndLocation(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, branch := range []string{"feature%23one", "a%22b", "100%25", "a%3Eb", "c/d%20e"} {
			path := "/repositories/1001/rules/branches/" + branch
			set := `{"name":"` + branch + `","enforcement":"active","conditions":{"ref_name":{"include":["~ALL"],"exclude":[]}},"rules":[{"type":"creation"},{"type":"deletion"}]}`
			t.wantStatus(t.do("owner", http.MethodPost, "/repos/acme/widgets/rulesets", set), 201)
			link := t.get("owner", path+"?per_page=1").Header().Get("Link")
			if !strings.HasPrefix(link, "<http://api.test"+path+"?per_page=1&page=2>") {
				t.Errorf("%s: got Link %s", branch, link)
			}
		}
		if got := t.get("", "/orgs/acme/members/a%3Fb%23c").Header().Get("Location"); got != "http://api.test/orgs/acme/public_members/a%3Fb%23c" {
			t.Errorf("got Location %s", got)
		}
	})
}

func TestOptionsReturnsTheMethods(t *testing.T) {
	runWithService(t, func(t *tester) {
		for target, want := range map[string]string{
			"/gitignore/templates": "GET, HEAD, OPTIONS", "/repos/acme/widgets/subscription": "GET, HEAD, PUT, DELETE, OPTIONS", "/graphql": "POST, OPTIONS",
		} {
			if w := t.do("owner", http.MethodOptions, target, ""); w.Code != 204 || w.Header().Get("Allow") != want {
				t.Errorf("%s: got %d, Allow %q", target, w.Code, w.Header().Get("Allow"))
			}
		}
		t.wantStatus(t.do("owner", http.MethodOptions, "/nowhere", ""), 404)
	})
}

func TestUnknownVersionCostsNothing(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.wantStatus(t.get("owner", "/gitignore/templates", "X-Service-Api-Version: 1999-01-01"), 400)
		if got := t.get("owner", "/gitignore/templates").Header().Get("X-RateLimit-Used"); got != "1" {
			t.Errorf("got used %s, want 1", got)
		}
	})
}

func TestBasicAuthenticationRequiresTheUserOfTheToken(t *testing.T) {
	runWithService(t, func(t *tester) {
		for name, status := range map[string]int{"acme-owner": 200, "ACME-owner": 200, "": 200, "outsider": 401} {
			r := newRequest(http.MethodGet, "/gitignore/templates")
			r.SetBasicAuth(name, "tok-owner")
			t.wantStatus(t.serve(r), status)
		}
	})
}

func TestFeedsHidePrivateRepositoriesFromTokensWithoutScope(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, path := range []string{"/feeds", "/feeds/users/acme-owner/private"} {
			r := newRequest(http.MethodGet, path)
			r.SetBasicAuth("acme-owner", "tok-public")
			if w := t.serve(r); w.Code != 200 || strings.Contains(w.Body.String(), "secret") || strings.Contains(w.Body.String(), "token=") {
				t.Errorf("%s: got %d %.300s", path, w.Code, w.Body)
			}
		}
	})
}

func TestMutationsRefuseTheSameTokensAsREST(t *testing.T) {
	runWithService(t, func(t *tester) {
		for credential, refused := range map[string]bool{"owner": false, "app-user": true, "fine-grained": true, "read-only": true, "app": true} {
			got := t.queryGraphQL(credential, `{"query":"mutation { updateSubscription(input: {subscribableId: \"R_1001\", state: SUBSCRIBED}) { clientMutationId } }"}`)
			if strings.Contains(got, "FORBIDDEN") != refused {
				t.Errorf("%s: got %s", credential, got)
			}
		}
	})
}

func TestLongPatternsAreMatchedFast(t *testing.T) {
	if matchRef(strings.Repeat("*?", 500_000), "refs/heads/main") || !matchRef(strings.Repeat("*", 500_000), "refs/heads/main") {
		t.Error("a long pattern has the wrong result")
	}
}

func TestEnterpriseTokensHaveTheEnterpriseLimit(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, credential := range []string{"enterprise", "enterprise-app", "enterprise-workflow", "enterprise-oauth"} {
			r := t.get(credential, "/gitignore/templates")
			if got := r.Header().Get("X-RateLimit-Limit"); r.Code != 200 || got != itoa(policy.DefaultLimits().Primary.Enterprise) {
				t.Errorf("%s: got status %d and limit %s", credential, r.Code, got)
			}
		}
	})
}
