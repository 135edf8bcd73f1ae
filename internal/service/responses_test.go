package service

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// TestRecordsHaveTheDocumentedMembers covers records that are not direct responses of the
// catalogue's operations, and responses that depend on the caller. The tests of cmd/weir
// check the other records, with and without the gateway.
func TestRecordsHaveTheDocumentedMembers(t *testing.T) {
	resources := strings.Join(policy.Resources(), ":{} ") + ":{}"
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			as, target string
			at         string // path in the response
			record     string
		}{
			{"owner", "/orgs/acme/invitations/7/teams?page=3&per_page=1", "0.parent", testservers.TeamSchema},
			{"", "/feeds", "", testservers.PublicFeedsSchema},
			{"owner", "/feeds", "", testservers.UserFeedsSchema},
			{"basic user", "/feeds", "", testservers.FeedsSchema},
			{"basic user", "/feeds", "_links", testservers.FeedLinksSchema},
			{"basic user", "/feeds", "_links.current_user", "href:string type:string"},
			{"basic user", "/feeds", "_links.current_user_organizations.0", "href:string type:string"},
			{"", "/feeds/timeline", "", "id:string title:string updated:time link:{} entries:[]{}"}, // RFC 4287 requires these members
			{"", "/feeds/timeline", "entries.0", "id:string title:string updated:time author:{} link:{}"},
			{"", "/rate_limit", "resources", resources},
			{"owner", organizationMigrations + "?page=2&per_page=1", "0", testservers.ImportSchema},
		} {
			t.wantRecord(t.get(c.as, c.target).Body.Bytes(), c.at, c.record)
		}
	})
}

func sorted(s []string) []string { slices.Sort(s); return s }

// wantRecord compares the object at a path of names and indices with a record of the
// documents.
func (t *tester) wantRecord(text []byte, path, record string) {
	t.Helper()
	var v any
	err := json.Unmarshal(text, &v)
	stopIf(t, err != nil, "decode %s: %v", text, err)
	for step := range strings.SplitSeq(path, ".") {
		switch at := v.(type) {
		case []any:
			v = at[0]
		case map[string]any:
			if step != "" {
				v = at[step]
			}
		}
	}
	object, ok := v.(map[string]any)
	stopIf(t, !ok, "%s has no object at %q", text, path)
	differences := testservers.SchemaDifferences(record, object)
	failIf(t, differences != "", "%.200s, at %q:\n%s", text, path, differences)
}

func TestResponsesHaveTheCommonHeaders(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			as, target string
			status     int
			control    string
		}{
			{"", "/gitignore/templates", 200, "public, max-age=60, s-maxage=60"},
			{"owner", "/gitignore/templates", 200, "private, max-age=60, s-maxage=60"},
			{"owner", "/nowhere", 404, "no-cache"},
			{"invalid", "/gitignore/templates", 401, "no-cache"},
			{"owner", "/search/commits?q=gear", 200, "no-cache"},
			{"owner", "/repos/acme/widgets/stats/participation", 202, "no-cache"},
		} {
			h := t.call(c.as, "GET "+c.target, c.status, "Content-Type: application/json...\nX-Service-Media-Type: service.v3; format=json").Header()
			failIf(t, h.Get("Cache-Control") != c.control || h.Get("X-Service-Request-Id") == "" || !strings.Contains(h.Get("Vary"), "Authorization"), "%s as %q: got headers %v", c.target, c.as, h)
		}
	})
}

func TestErrorsAreJSONWithAMessage(t *testing.T) {
	runWithService(t, func(t *tester) {
		for target, status := range map[string]int{"/nowhere": 404, "/repos/acme/none/subscribers": 404, "/search/commits": 422, "/repos/%2e%2e": 400} {
			t.call("owner", "GET "+target, status, `{"message":"*","documentation_url":"https://docs.example.com/rest"}`)
		}
	})
}

func TestDialectNamesHeadersAndMediaTypes(t *testing.T) {
	runWithService(t, func(t *tester) {
		other := t.newService("github", 1)
		raw := other.call("\nAccept: application/vnd.github.v3.raw+json", "GET /gitignore/templates/Go", 200,
			"Content-Type: application/vnd.github.raw+json; charset=utf-8")
		failIf(t, !strings.HasPrefix(raw.Body.String(), "#") || raw.Header().Get("X-GitHub-Request-Id") == "", "got headers %v and body %s", raw.Header(), raw.Body)
		other.calls([]call{
			{"\nX-GitHub-Api-Version: 1999-01-01", "GET /gitignore/templates", 400, ""},
			{"\nX-Service-Api-Version: 1999-01-01", "GET /gitignore/templates", 200, ""},
			{"owner", `POST /orgs/acme/code-security/configurations {"name":"n","description":"d",
				"dependabot_alerts":"enabled","depbot_security_updates":"enabled"}`, 201,
				`{"depbot_alerts":"-","dependabot_alerts":"enabled","dependabot_security_updates":"disabled"}`},
		})
	})
}

// TestPrimaryLimitDependsOnTheCaller also covers the installation. The installation has 42 users, 22 more than the base
// limit includes (Document B section 8.1).
func TestPrimaryLimitDependsOnTheCaller(t *testing.T) {
	runWithService(t, func(t *tester) {
		enterprise := itoa(policy.DefaultLimits().Primary.Enterprise)
		for as, want := range map[string]string{
			"": "60", "owner": "5000", "app": "6100", "oauth": "5000", "workflow": "1000",
			"enterprise": enterprise, "enterprise-app": enterprise, "enterprise-workflow": enterprise, "enterprise-oauth": enterprise,
		} {
			t.call(as, "GET /gitignore/templates", 200, "X-RateLimit-Limit: "+want)
		}
		// The tokens of a user share a window. Other users and resources have separate windows.
		t.calls([]call{
			{"owner-2", "GET /gitignore/templates", 200, "X-RateLimit-Used: 2"},
			{"basic user", "GET /gitignore/templates", 200, "X-RateLimit-Used: 3"},
			{"member", "GET /gitignore/templates", 200, "X-RateLimit-Used: 1"},
			{"owner", "GET /search/commits?q=gear", 200, "X-RateLimit-Used: 1"},
			{"owner", "GET /search/code?q=gear", 200, "X-RateLimit-Used: 1"},
		})
	})
}

func TestInvalidBodiesAreReported(t *testing.T) {
	const subscription = "PUT /repos/acme/widgets/subscription "
	runCalls(t, []call{
		{"owner", "POST /orgs/acme/invitations []", 400, "Body should be a JSON object"},
		{"owner", "POST /orgs/acme/invitations 7", 400, "Body should be a JSON object"},
		{"owner", "POST /orgs/acme/invitations null", 422, `"field":"invitee_id","code":"missing_field"`},
		{"owner", `POST /orgs/acme/invitations {"EMAIL":"cased@example.com"}`, 422, `"field":"invitee_id","code":"missing_field"`},
		{"owner", "POST /orgs/acme/rulesets null", 422, `"field":"name","code":"missing_field"`},
		{"owner", `POST /graphql "x"`, 400, "Body should be a JSON object"},
		{"owner", subscription + `{"Subscribed":true}`, 200, `{"subscribed":false}`},
		{"owner", subscription + `{"subscribed":"yes"}`, 422, `"field":"subscribed","code":"invalid"`},
		{"owner", subscription + `{"subscribed":true`, 400, "Problems parsing JSON"},
		{"owner", "DELETE /orgs/acme/code-security/configurations/detach []", 400, "Body should be a JSON object"},
		{"owner", "POST /repos/acme/widgets/git/tags " + strings.Repeat(`{"tagger":`, 5000), 400, "Problems parsing JSON"},
	})
}

func TestPathsAreEscapedInLinkAndLocation(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, branch := range []string{"feature%23one", "a%22b", "100%25", "a%3Eb", "c/d%20e"} {
			path := "/repositories/1001/rules/branches/" + branch
			t.call("owner", `POST /repos/acme/widgets/rulesets {"name":"`+branch+`","enforcement":"active",
				"conditions":{"ref_name":{"include":["~ALL"],"exclude":[]}},"rules":[{"type":"creation"},{"type":"deletion"}]}`, 201, "")
			t.call("owner", "GET "+path+"?per_page=1", 200, "Link: <http://api.test"+path+"?per_page=1&page=2>...")
		}
		t.call("", "GET /orgs/acme/members/a%3Fb%23c", 302, "Location: http://api.test/orgs/acme/public_members/a%3Fb%23c")
	})
}

func TestOptionsReturnsTheMethods(t *testing.T) {
	runCalls(t, []call{
		{"owner", "OPTIONS /gitignore/templates", 204, "Allow: GET, HEAD, OPTIONS"},
		{"owner", "OPTIONS /repos/acme/widgets/subscription", 204, "Allow: GET, HEAD, PUT, DELETE, OPTIONS"},
		{"owner", "OPTIONS /graphql", 204, "Allow: POST, OPTIONS"},
		{"owner", "OPTIONS /nowhere", 404, ""},
	})
}

func TestBasicAuthenticationRequiresTheUserOfTheToken(t *testing.T) {
	runWithService(t, func(t *tester) {
		for name, status := range map[string]int{"acme-owner": 200, "ACME-owner": 200, "": 200, "outsider": 401} {
			t.call("\nAuthorization: "+basicAuth(name, "tok-owner"), "GET /gitignore/templates", status, "")
		}
	})
}

func TestFeedsHidePrivateRepositoriesFromTokensWithoutScope(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.call("basic public", "GET /feeds", 200, "!secret\n!token=")
		t.call("basic public", "GET /feeds/users/acme-owner/private", 200, "!secret\n!token=")
	})
}

func TestRepositoryPermissionsDependOnTheCaller(t *testing.T) {
	runWithService(t, func(t *tester) {
		for as, want := range map[string][3]bool{
			"owner": {true, true, true}, "member": {false, true, true}, "outsider": {false, false, true},
			"app": {true, true, true}, "workflow": {false, true, true}, "": {false, false, true},
		} {
			watched := decode[[]jsonObject](t, t.get(as, "/users/watcher-01/subscriptions"))
			t.wantEqual("permissions of "+as, jsonObject{"admin": want[0], "push": want[1], "pull": want[2]}, watched[0]["permissions"])
		}
	})
}

func TestNodeIDPrefixesAreUnique(t *testing.T) {
	kinds := map[string]string{}
	for kind, prefix := range views().NodePrefixes {
		failIf(t, kinds[prefix] != "" || prefix == "", "%s and %s share the prefix %q", kind, kinds[prefix], prefix)
		kinds[prefix] = kind
	}
	for prefix, kind := range map[string]string{"R": "Repository", "U": "User", "O": "Organization"} {
		failIf(t, kinds[prefix] != kind, "prefix %q belongs to %s", prefix, kinds[prefix])
	}
}

func TestObjectsKeepTheOrderOfMembers(t *testing.T) {
	got := string(encode(object{{"b", 1}, {"a", object{{"z", "<&>"}, {"y", nil}}}, {"c", []int{1, 2}}}))
	testservers.Equal(t, "object", got, `{"b":1,"a":{"z":"<&>","y":null},"c":[1,2]}`)
}

func TestEncodeMatchesTheStandardLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, number, list := rapid.String().Draw(t, "text"), rapid.Int32().Draw(t, "number"), rapid.SliceOf(rapid.String()).Draw(t, "list")
		written := encode(object{{text, []object{{{"s", text}}, {}}}, {"other " + text, list}, {"n", int(number)}, {"t", true}, {"z", nil}})
		standard, err := json.Marshal(map[string]any{
			text: []any{map[string]any{"s": text}, map[string]any{}}, "other " + text: list, "n": number, "t": true, "z": nil,
		})
		var got, want any
		if err != nil || json.Unmarshal(written, &got) != nil || json.Unmarshal(standard, &want) != nil {
			t.Fatalf("decode %s and %s (%v)", written, standard, err)
		}
		if text != "n" && text != "t" && text != "z" && !cmp.Equal(want, got) {
			t.Fatalf("got %s, want %s", written, standard)
		}
	})
}
