package service

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/internal/testservers"
)

func TestIssueIsShownByAllItsRoutes(t *testing.T) {
	runTableCalls(t, []call{
		{"owner", "GET /repos/acme/widgets", 200, `{"open_issues_count":24}`},
		{"owner", `POST /repos/acme/widgets/issues {"title":"New","labels":["fresh"],"assignees":["acme-owner"],"milestone":1}`, 201, `{"number":"$n"}`},
		{"owner", "GET /repos/acme/widgets/issues", 200, `"number":$n,`},
		{"owner", "GET /repositories/1001/issues", 200, `"number":$n,`},
		{"owner", "GET /issues", 200, `"number":$n,`},
		{"owner", "GET /user/issues", 200, `"number":$n,`},
		{"owner", "GET /orgs/acme/issues", 200, `"number":$n,`},
		{"owner", "GET /organizations/4/issues", 200, `"number":$n,`},
		{"owner", "GET /repos/acme/widgets/issues?labels=fresh", 200, `"number":$n,`},
		{"owner", "GET /repos/acme/widgets/issues?milestone=1&assignee=acme-owner&creator=acme-owner", 200, `"number":$n,`},
		{"owner", "GET /repos/acme/widgets", 200, `{"open_issues_count":25}`},
		{"owner", "GET /repos/acme/widgets/labels/fresh", 200, ""},
		{"owner", `POST /repos/acme/widgets/issues/$n/comments {"body":"A comment"}`, 201, `{"id":"$comment"}`},
		{"owner", `POST /repos/acme/widgets/issues/$n/labels ["bug"]`, 200, ""},
		{"owner", "DELETE /repos/acme/widgets/issues/$n/labels/fresh", 200, ""},
		{"owner", `POST /repos/acme/widgets/issues/$n/reactions {"content":"+1"}`, 201, ""},
		{"owner", "PUT /repos/acme/widgets/issues/$n/lock {}", 204, ""},
		{"owner", "GET /repos/acme/widgets/issues/3", 200, `{"id":"$sub"}`},
		{"owner", `POST /repos/acme/widgets/issues/$n/sub_issues {"sub_issue_id":$sub}`, 201, ""},
		{"owner", `PATCH /repos/acme/widgets/labels/bug {"new_name":"defect"}`, 200, ""},
		{"owner", "GET /repos/acme/widgets/issues/$n", 200, `{"comments":1,"labels":[{"name":"defect"},"..."],"locked":true,"milestone":{"title":"v1"}}`},
		{"owner", "GET /repos/acme/widgets/issues/3/parent", 200, `{"number":"$n"}`},
		{"owner", "GET /repos/acme/widgets/issues/$n/sub_issues", 200, `[{"number":3},"..."]`},
		{"owner", "GET /repos/acme/widgets/issues/$n/comments", 200, `[{"body":"A comment"},"..."]`},
		{"owner", `PATCH /repos/acme/widgets/issues/comments/$comment {"body":"Changed"}`, 200, ""},
		{"owner", "GET /repos/acme/widgets/issues/$n/comments", 200, `[{"id":"$comment","body":"Changed"},"..."]`},
		{"owner", "DELETE /repos/acme/widgets/issues/comments/$comment", 204, ""},
		{"owner", "GET /repos/acme/widgets/issues/comments/$comment", 404, ""},
		{"owner", `PATCH /repos/acme/widgets/issues/$n {"state":"closed"}`, 200, ""},
		{"owner", "GET /repos/acme/widgets/issues/$n", 200, `{"comments":0,"closed_at":"*"}`},
		{"owner", "GET /repos/acme/widgets/issues", 200, `!"number":$n,`},
		{"owner", "GET /repos/acme/widgets/issues?state=all", 200, `"number":$n,`},
	})
}

// TestDeletedObjectIsGone deletes objects that no request created.
func TestDeletedObjectIsGone(t *testing.T) {
	runTableCalls(t, []call{
		{"owner", "DELETE /repos/acme/widgets/hooks/1", 204, ""},
		{"owner", "GET /repos/acme/widgets/hooks/1", 404, ""},
		{"owner", "GET /repos/acme/widgets/hooks", 200, `!"id":1,`},
		{"owner", "DELETE /repos/acme/widgets/pages", 204, ""},
		{"owner", "GET /repos/acme/widgets/pages", 404, ""},
		{"owner", "POST /repos/acme/widgets/pages {}", 201, ""},
		{"owner", "GET /repos/acme/widgets/pages", 200, ""},
	})
}

// TestDeletedTeamChangesItsReadsByID reads below a path that names the team by its ID.
func TestDeletedTeamChangesItsReadsByID(t *testing.T) {
	runTableCalls(t, []call{
		{"owner", "GET /teams/204/repos/acme/widgets", 200, "X-Github-Revision: 0"},
		{"owner", "DELETE /orgs/acme/teams/release", 204, ""},
		{"owner", "GET /teams/204/repos/acme/widgets", 404, "X-Github-Revision: 1"},
	})
}

func TestFileIsACommit(t *testing.T) {
	runTableCalls(t, []call{
		{"owner", "GET /repos/acme/widgets/branches/main", 200, `{"commit":{"sha":"$main"}}`},
		{"owner", `POST /repos/acme/widgets/git/refs {"ref":"refs/heads/feature/x","sha":"$main"}`, 201, ""},
		{"owner", `PUT /repos/acme/widgets/contents/a/b.txt {"message":"Add b","branch":"feature/x","content":"aGVsbG8="}`, 201, `{"commit":{"sha":"$sha"}}`},
		{"owner", "GET /repos/acme/widgets/commits?sha=feature/x", 200, `[{"sha":"$sha"},"..."]`},
		{"owner", "GET /repos/acme/widgets/commits/feature/x", 200, `{"sha":"$sha"}`},
		{"owner", "GET /repos/acme/widgets/branches/feature/x", 200, `{"commit":{"sha":"$sha"}}`},
		{"owner", "GET /repos/acme/widgets/git/ref/heads/feature/x", 200, `{"object":{"sha":"$sha"}}`},
		{"owner", "GET /repos/acme/widgets/git/matching-refs/heads/feature", 200, `[{"object":{"sha":"$sha"}},"..."]`},
		{"owner", "GET /repos/acme/widgets/compare/main...feature/x", 200, `{"commits":[{"sha":"$sha"},"..."]}`},
		{"owner", "GET /repos/acme/widgets/git/commits/$sha", 200, `{"sha":"$sha"}`},
		{"owner", "GET /repos/acme/widgets/contents/a/b.txt?ref=feature/x", 200, `{"content":"aGVsbG8="}`},
		{"owner", "GET /repos/acme/widgets/contents/a?ref=feature/x", 200, `[{"name":"b.txt"},"..."]`},
		{"owner", "GET /repos/acme/widgets/contents/a/b.txt", 404, ""}, // is on another branch
		{"owner", `PUT /repos/acme/widgets/contents/a/b.txt {"message":"x","branch":"feature/x","content":"eA==","sha":"0"}`, 409, ""},
		{"owner", `POST /repos/acme/widgets/pulls {"title":"Pull","head":"feature/x","base":"main"}`, 201, `{"number":"$n"}`},
		{"owner", "GET /repos/acme/widgets/pulls/$n/files", 200, `[{"filename":"a/b.txt"},"..."]`},
		{"owner", "GET /repos/acme/widgets/pulls/$n/commits", 200, `[{"sha":"$sha"},"..."]`},
		{"owner", "GET /repos/acme/widgets/issues/$n", 200, `{"pull_request":{"url":"*"}}`}, // a pull request is an issue
		{"owner", "PUT /repos/acme/widgets/pulls/$n/merge {}", 200, ""},
		{"owner", "GET /repos/acme/widgets/pulls/$n/merge", 204, ""},
		{"owner", "GET /repos/acme/widgets/pulls/$n", 200, `{"state":"closed"}`},
		{"owner", "GET /repos/acme/widgets/contents/a/b.txt", 200, ""},
		{"owner", "DELETE /repos/acme/widgets/git/refs/heads/feature/x", 204, ""},
		{"owner", "GET /repos/acme/widgets/branches/feature/x", 404, ""},
	})
}

func TestChecksAndStatusesAreShownByCommitAndBranch(t *testing.T) {
	runTableCalls(t, []call{
		{"owner", "GET /repos/acme/widgets/branches/main", 200, `{"commit":{"sha":"$sha"}}`},
		{"owner", `POST /repos/acme/widgets/statuses/$sha {"state":"failure","context":"lint"}`, 201, ""},
		{"owner", `POST /repos/acme/widgets/check-runs {"name":"unit","head_sha":"$sha"}`, 201, `{"id":"$run","suite":"$suite"}`},
		{"owner", "GET /repos/acme/widgets/commits/$sha/status", 200, `{"state":"failure"}`},
		{"owner", "GET /repos/acme/widgets/commits/main/status", 200, `{"state":"failure"}`},
		{"owner", "GET /repos/acme/widgets/commits/$sha/check-runs", 200, `{"check_runs":"*"}` + "\n" + `"id":$run,`},
		{"owner", "GET /repos/acme/widgets/commits/main/check-runs", 200, `{"check_runs":"*"}` + "\n" + `"id":$run,`},
		{"owner", "GET /repos/acme/widgets/check-suites/$suite/check-runs", 200, `{"check_runs":"*"}` + "\n" + `"id":$run,`},
	})
}

func TestReleaseIsShownByTagAndAsLatest(t *testing.T) {
	const release = `{"id":"$id","assets":[{"id":"$asset"},"..."]}`
	runTableCalls(t, []call{
		{"owner", `POST /repos/acme/widgets/releases {"tag_name":"v2/rc","name":"Two"}`, 201, `{"id":"$id"}`},
		{"owner", "POST /repos/acme/widgets/releases/$id/assets?name=a.zip binary", 201, `{"id":"$asset"}`},
		{"owner", "GET /repos/acme/widgets/releases/$id", 200, release},
		{"owner", "GET /repos/acme/widgets/releases/latest", 200, release},
		{"owner", "GET /repos/acme/widgets/releases/tags/v2/rc", 200, release},
		{"owner", "GET /repos/acme/widgets/git/ref/tags/v2/rc", 200, ""},
		{"owner", `PATCH /repos/acme/widgets/releases/$id {"prerelease":true}`, 200, ""},
		{"owner", "GET /repos/acme/widgets/releases/latest", 200, `!"id":$id,`}, // a prerelease is never the latest
		{"owner", "DELETE /repos/acme/widgets/releases/$id", 204, ""},
		{"owner", "GET /repos/acme/widgets/releases/tags/v2/rc", 404, ""},
	})
}

func TestGenericObjects(t *testing.T) {
	for _, c := range []struct{ list, create, item, want string }{
		{"/repos/acme/widgets/hooks", `POST /repos/acme/widgets/hooks {"name":"web"}`, "/repos/acme/widgets/hooks/$id", `{"id":"$id"}`},
		{"/repos/acme/widgets/keys", `POST /repos/acme/widgets/keys {"title":"key"}`, "/repos/acme/widgets/keys/$id", `{"id":"$id"}`},
		{"/orgs/acme/actions/variables", `POST /orgs/acme/actions/variables {"name":"STAGE"}`, "/orgs/acme/actions/variables/STAGE", ""},
		{"/repos/acme/widgets/actions/secrets", "PUT /repos/acme/widgets/actions/secrets/KEY {}", "/repos/acme/widgets/actions/secrets/KEY", ""},
		{"/user/keys", `POST /user/keys {"title":"key"}`, "/user/keys/$id", `{"id":"$id"}`},
		{"/gists", `POST /gists {"description":"x"}`, "$url", `{"url":"$url"}`},
		{"/orgs/acme/teams", `POST /orgs/acme/teams {"name":"New Team"}`, "/orgs/acme/teams/new-team", ""},
	} {
		s := newTester(t, Config{})
		before := s.Do("owner", "GET "+c.list+"?per_page=100").Body.Len()
		s.Call(t, "owner", c.create, 201, c.want)
		s.Call(t, "owner", "GET "+c.item, 200, "{}")
		after := s.Do("owner", "GET "+c.list+"?per_page=100").Body
		failIf(t, after.Len() <= before+10, "%s: the list shows no new object: %s", c.create, after)
		s.Call(t, "owner", "DELETE "+c.item, 204, "")
		s.Call(t, "owner", "GET "+c.item, 404, "")
	}
}

func TestChecksRespondWith204Or404(t *testing.T) {
	s := newTester(t, Config{})
	for _, path := range []string{"/user/starred/acme/widgets", "/user/following/outsider", "/orgs/acme/blocks/outsider", "/repos/acme/widgets/vulnerability-alerts"} {
		s.Call(t, "owner", "PUT "+path, 204, "")
		s.Call(t, "owner", "GET "+path, 204, "=")
		s.Call(t, "owner", "DELETE "+path, 204, "")
		s.Call(t, "owner", "GET "+path, 404, "")
	}
}

func TestPathsByNumberShowTheSame(t *testing.T) {
	s := newTester(t, Config{})
	for byName, byNumber := range map[string]string{
		"/repos/acme/widgets/labels": "/repositories/1001/labels", "/orgs/acme/teams": "/organizations/4/teams",
		"/users/acme-owner/repos": "/user/1/repos", "/orgs/acme/teams/coils/members": "/organizations/4/team/203/members",
		"/orgs/acme/teams/coils": "/teams/203", "/repos/Acme/WIDGETS": "/repos/acme/widgets", "/users/acme-owner": "/user/1",
	} {
		a, b := s.Call(t, "owner", "GET "+byName, 200, ""), s.Call(t, "owner", "GET "+byNumber, 200, "")
		failIf(t, a.Body.String() != b.Body.String(), "GET %s and GET %s differ: %s", byName, byNumber, b.Body)
	}
}

func TestAccess(t *testing.T) {
	runTableCalls(t, []call{
		{"owner", "GET /repos/acme/secret", 200, ""},
		{"\nAuthorization: token tok-member", "GET /repos/acme/secret", 200, ""},
		{"app", "GET /repos/acme/secret", 200, ""},
		{"outsider", "GET /repos/acme/secret", 404, ""},
		{"outsider", "GET /repositories/1002/issues", 404, ""},
		{"", "GET /repos/acme/secret", 404, ""},
		{"", "GET /repos/acme/widgets", 200, ""},
		{"unknown", "GET /repos/acme/widgets", 401, ""},
		{"", "GET /user", 401, ""},
		{"", "GET /search/code?q=x", 401, ""},
		{"", `POST /repos/acme/widgets/issues {"title":"x"}`, 401, ""},
		{"app", "GET /user", 403, ""},
		{"owner", "GET /no/such/path", 404, ""},
		{"owner", "GET /user/x", 404, ""},
		{"owner", "GET /repos/acme/none", 404, ""},
		{"owner", "GET /repos/acme//issues", 404, ""},
		{"owner", "GET /repos/acme/widgets/issues/9999", 404, ""},
		{"outsider", `POST /repos/acme/secret/issues {"title":"x"}`, 404, ""},
	})
}

func TestHeaders(t *testing.T) {
	s := newTester(t, Config{})
	for as, cache := range map[string]string{"owner": "private, max-age=60, s-maxage=60", "": "public, max-age=60, s-maxage=60"} {
		h := s.Call(t, as, "GET /repos/acme/widgets", 200, "Cache-Control: "+cache+"\nX-Github-Api-Version-Selected: 2022-11-28").Header()
		failIf(t, h.Get("X-Github-Media-Type") == "" || h.Get("X-Github-Request-Id") == "" || h.Get("Last-Modified") == "" ||
			strings.Contains(h.Get("Vary"), "Authorization") != (as != ""), "%q: %v", as, h)
	}
	s.Call(t, "owner", "GET /repos/acme/widgets/tarball/main", 302, "Location: https://downloads.example.com/...")
	s = newTester(t, Config{Quirks: quirk.Set{ETagsPerToken: true}})
	tag := func(as string) string { return s.Do(as, "GET /orgs/acme").Header().Get("Etag") }
	failIf(t, tag("owner") == tag("member") || tag("owner") == tag("owner\nAccept: application/json"), "ETags do not depend on the token, or not on Accept")
}

func TestEventsOfWrites(t *testing.T) {
	s := newTester(t, Config{})
	s.Call(t, "owner", `PATCH /repos/acme/widgets/issues/3 {"title":"x"}`, 200, "")
	s.Call(t, "owner", `PUT /repos/acme/widgets/contents/x.txt {"message":"x","content":"eA=="}`, 201, "")
	s.Call(t, "owner", `PATCH /orgs/acme {"description":"x"}`, 200, "")
	got := ""
	for _, e := range s.Events() {
		got += fmt.Sprintln(e.Name, e.Repository, e.Organization)
	}
	testservers.Equal(t, "events", got, "issues acme/widgets acme\npush acme/widgets acme\norganization  acme\n")
	testservers.Equal(t, "events returned twice", len(s.Events()), 0)
}

func TestRulesetsAreShownByAllTheirRoutes(t *testing.T) {
	runTableCalls(t, []call{
		{"owner", `POST /repos/acme/widgets/rulesets {"name":"new","enforcement":"active","rules":[{"type":"deletion"}]}`, 201, `{"id":"$id"}`},
		{"owner", "GET /repos/acme/widgets/rulesets/$id", 200, `{"name":"new","target":"branch","rules":[{"type":"deletion"}]}`},
		{"owner", `PUT /repos/acme/widgets/rulesets/$id {"enforcement":"disabled"}`, 200, `{"name":"new","enforcement":"disabled"}`},
		{"owner", `PUT /repos/acme/widgets/rulesets/$id {"name":"switched off"}`, 422, `already_exists`},
		{"owner", "GET /repos/acme/widgets/rulesets?per_page=100", 200, `"name":"new"`},
		{"owner", "DELETE /repos/acme/widgets/rulesets/$id", 204, ""},
		{"owner", "GET /repos/acme/widgets/rulesets/$id", 404, ""},
		{"owner", "GET /repos/acme/widgets/rulesets?per_page=100", 200, `!"name":"new"`},
		{"owner", "DELETE /orgs/acme/rulesets/501", 204, ""},
		{"owner", "GET /repos/acme/widgets/rulesets", 200, "!signed everywhere"},
	})
}

func TestMembershipsAreShownByAllTheirRoutes(t *testing.T) {
	runTableCalls(t, []call{
		{"owner", "GET /orgs/acme/members/outsider", 404, ""},
		{"owner", `PUT /orgs/acme/teams/coils/memberships/outsider {}`, 200, `{"state":"active"}`},
		{"owner", "GET /orgs/acme/members/outsider", 204, ""},
		{"outsider", "GET /user/orgs", 200, `[{"login":"acme"}]`},
		{"outsider", "GET /repos/acme/secret", 200, ""},
		{"owner", "GET /orgs/acme/teams/builders/members", 200, `"login":"outsider"`}, // coils is below builders
		{"owner", "PUT /orgs/acme/public_members/outsider", 204, ""},
		{"", "GET /orgs/acme/public_members/outsider", 204, ""},
		{"owner", `PUT /orgs/acme/memberships/acme-owner {"role":"member"}`, 200, `{"role":"admin"}`}, // an organization has an owner
		{"owner", "DELETE /orgs/acme/members/outsider", 204, ""},
		{"outsider", "GET /repos/acme/secret", 404, ""},
		{"owner", "GET /teams/203/members", 200, `!"login":"outsider"`},
	})
}

func TestWritesAreDelivered(t *testing.T) {
	runWithService(t, func(t *tester) {
		box := t.startReceiver(webhookOn("acme/widgets"))
		t.call("owner", `PUT /repos/acme/widgets/contents/x.txt {"message":"x","content":"eA=="}`, 201, "")
		if p := box.takePayload(t); p["ref"] != "refs/heads/main" || p["repository"].(jsonObject)["full_name"] != "acme/widgets" {
			t.Errorf("got payload %v", p)
		}
		t.call("owner", `PATCH /repos/acme/widgets/issues/3 {"title":"x"}`, 200, "")
		p := box.takePayload(t)
		failIf(t, p["action"] != "edited" || p["issue"].(jsonObject)["number"] != 3.0, "got payload %v", p)
	})
}
