package wholeapi

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const repoPath = "/repos/acme/widgets"

// find returns the element of a list whose member has a value, or nil.
func find(list any, member string, value any) any {
	elements, _ := list.([]any)
	for _, e := range elements {
		if at(e, member) == value {
			return e
		}
	}
	return nil
}

func TestIssueIsShownByAllItsRoutes(t *testing.T) {
	s := newTest(t, Config{})
	open := at(get(t, s, repoPath), "open_issues_count").(float64)
	created := write(t, s, "POST", repoPath+"/issues", `{"title":"New","labels":["fresh"],"assignees":["acme-owner"],"milestone":1}`)
	number := at(created, "number")
	path := fmt.Sprintf("%s/issues/%v", repoPath, number)
	for _, list := range []string{repoPath + "/issues", "/repositories/1001/issues", "/issues", "/user/issues", "/orgs/acme/issues", "/organizations/101/issues",
		repoPath + "/issues?labels=fresh", repoPath + "/issues?milestone=1&assignee=acme-owner&creator=acme-owner"} {
		if find(get(t, s, list), "number", number) == nil {
			t.Errorf("GET %s does not show the issue", list)
		}
	}
	if got := at(get(t, s, repoPath), "open_issues_count"); got != open+1 {
		t.Errorf("open_issues_count is %v; want %v", got, open+1)
	}
	get(t, s, repoPath+"/labels/fresh")
	write(t, s, "POST", path+"/comments", `{"body":"A comment"}`)
	write(t, s, "POST", path+"/labels", `["bug"]`)
	write(t, s, "DELETE", path+"/labels/fresh", "")
	write(t, s, "POST", path+"/reactions", `{"content":"+1"}`)
	write(t, s, "PUT", path+"/lock", `{}`)
	write(t, s, "POST", path+"/sub_issues", fmt.Sprintf(`{"sub_issue_id":%v}`, at(get(t, s, repoPath+"/issues/3"), "id")))
	write(t, s, "PATCH", repoPath+"/labels/bug", `{"new_name":"defect"}`)
	issue := get(t, s, path)
	for want, got := range map[any]any{
		1.0: at(issue, "comments"), "defect": at(issue, "labels", 0, "name"), true: at(issue, "locked"), "v1": at(issue, "milestone", "title"),
		number: at(get(t, s, repoPath+"/issues/3/parent"), "number"), 3.0: at(get(t, s, path+"/sub_issues"), 0, "number"),
		"A comment": at(get(t, s, path+"/comments"), 0, "body"),
	} {
		if got != want {
			t.Errorf("got %v; want %v in %v", got, want, issue)
		}
	}
	comment := fmt.Sprintf("%s/issues/comments/%v", repoPath, at(get(t, s, path+"/comments"), 0, "id"))
	write(t, s, "PATCH", comment, `{"body":"Changed"}`)
	if got := at(get(t, s, path+"/comments"), 0, "body"); got != "Changed" {
		t.Errorf("the list shows the comment %v", got)
	}
	write(t, s, "DELETE", comment, "")
	if w := send(t, s, "GET", comment, ""); w.Code != 404 {
		t.Errorf("deleted comment: status %d", w.Code)
	}
	write(t, s, "PATCH", path, `{"state":"closed"}`)
	if issue := get(t, s, path); at(issue, "comments") != 0.0 || at(issue, "closed_at") == nil {
		t.Errorf("after closing: %v", issue)
	}
	if find(get(t, s, repoPath+"/issues"), "number", number) != nil || find(get(t, s, repoPath+"/issues?state=all"), "number", number) == nil {
		t.Error("the closed issue is in the wrong lists")
	}
}

func TestFileIsACommit(t *testing.T) {
	s := newTest(t, Config{})
	content := base64.StdEncoding.EncodeToString([]byte("hello"))
	write(t, s, "POST", repoPath+"/git/refs", fmt.Sprintf(`{"ref":"refs/heads/feature/x","sha":"%v"}`, at(get(t, s, repoPath+"/branches/main"), "commit", "sha")))
	put := write(t, s, "PUT", repoPath+"/contents/a/b.txt", `{"message":"Add b","branch":"feature/x","content":"`+content+`"}`)
	sha := at(put, "commit", "sha")
	for target, path := range map[string][]any{
		"/commits?sha=feature/x": {0, "sha"}, "/commits/feature/x": {"sha"}, "/branches/feature/x": {"commit", "sha"},
		"/git/ref/heads/feature/x": {"object", "sha"}, "/git/matching-refs/heads/feature": {0, "object", "sha"},
		"/compare/main...feature/x": {"commits", 0, "sha"}, fmt.Sprintf("/git/commits/%v", sha): {"sha"},
	} {
		if got := at(get(t, s, repoPath+target), path...); got != sha {
			t.Errorf("GET %s shows %v; want %v", target, got, sha)
		}
	}
	if got := at(get(t, s, repoPath+"/contents/a/b.txt?ref=feature/x"), "content"); got != content {
		t.Errorf("content %v", got)
	}
	if got := at(get(t, s, repoPath+"/contents/a?ref=feature/x"), 0, "name"); got != "b.txt" {
		t.Errorf("directory shows %v", got)
	}
	if w := send(t, s, "GET", repoPath+"/contents/a/b.txt", ""); w.Code != 404 {
		t.Errorf("file on another branch: status %d", w.Code)
	}
	if w := send(t, s, "PUT", repoPath+"/contents/a/b.txt", `{"message":"x","branch":"feature/x","content":"eA==","sha":"0"}`); w.Code != 409 {
		t.Errorf("PUT with a wrong SHA: status %d", w.Code)
	}
	pull := write(t, s, "POST", repoPath+"/pulls", `{"title":"Pull","head":"feature/x","base":"main"}`)
	path := fmt.Sprintf("%s/pulls/%v", repoPath, at(pull, "number"))
	if got := at(get(t, s, path+"/files"), 0, "filename"); got != "a/b.txt" {
		t.Errorf("files of the pull request: %v", got)
	}
	if got := at(get(t, s, path+"/commits"), 0, "sha"); got != sha {
		t.Errorf("commits of the pull request: %v", got)
	}
	if at(get(t, s, strings.Replace(path, "/pulls/", "/issues/", 1)), "pull_request", "url") == nil {
		t.Error("the pull request is no issue")
	}
	write(t, s, "PUT", path+"/merge", `{}`)
	if w := send(t, s, "GET", path+"/merge", ""); w.Code != 204 || at(get(t, s, path), "state") != "closed" {
		t.Errorf("merged: status %d", w.Code)
	}
	get(t, s, repoPath+"/contents/a/b.txt")
	write(t, s, "DELETE", repoPath+"/git/refs/heads/feature/x", "")
	if w := send(t, s, "GET", repoPath+"/branches/feature/x", ""); w.Code != 404 {
		t.Errorf("deleted branch: status %d", w.Code)
	}
}

func TestChecksAndStatusesAreShownByCommitAndBranch(t *testing.T) {
	s := newTest(t, Config{})
	sha := at(get(t, s, repoPath+"/branches/main"), "commit", "sha")
	write(t, s, "POST", fmt.Sprintf("%s/statuses/%v", repoPath, sha), `{"state":"failure","context":"lint"}`)
	run := write(t, s, "POST", repoPath+"/check-runs", fmt.Sprintf(`{"name":"unit","head_sha":"%v"}`, sha))
	for _, name := range []any{sha, "main"} {
		if got := at(get(t, s, fmt.Sprintf("%s/commits/%v/status", repoPath, name)), "state"); got != "failure" {
			t.Errorf("status of %v: %v", name, got)
		}
		runs := at(get(t, s, fmt.Sprintf("%s/commits/%v/check-runs", repoPath, name)), "check_runs")
		if find(runs, "id", at(run, "id")) == nil {
			t.Errorf("check runs of %v: %v", name, runs)
		}
	}
	suite := fmt.Sprintf("%s/check-suites/%v/check-runs", repoPath, at(run, "suite"))
	if find(at(get(t, s, suite), "check_runs"), "id", at(run, "id")) == nil {
		t.Errorf("GET %s does not show the check run", suite)
	}
}

func TestReleaseIsShownByTagAndAsLatest(t *testing.T) {
	s := newTest(t, Config{})
	id := at(write(t, s, "POST", repoPath+"/releases", `{"tag_name":"v2/rc","name":"Two"}`), "id")
	path := fmt.Sprintf("%s/releases/%v", repoPath, id)
	asset := write(t, s, "POST", path+"/assets?name=a.zip", "binary")
	for _, target := range []string{path, repoPath + "/releases/latest", repoPath + "/releases/tags/v2/rc"} {
		if release := get(t, s, target); at(release, "id") != id || at(release, "assets", 0, "id") != at(asset, "id") {
			t.Errorf("GET %s shows %v", target, release)
		}
	}
	get(t, s, repoPath+"/git/ref/tags/v2/rc")
	write(t, s, "PATCH", path, `{"prerelease":true}`)
	if got := at(get(t, s, repoPath+"/releases/latest"), "id"); got == id {
		t.Error("a prerelease is the latest release")
	}
	write(t, s, "DELETE", path, "")
	if w := send(t, s, "GET", repoPath+"/releases/tags/v2/rc", ""); w.Code != 404 {
		t.Errorf("deleted release: status %d", w.Code)
	}
}

func TestGenericObjects(t *testing.T) {
	s := newTest(t, Config{})
	cases := []struct{ list, create, body, item string }{
		{"/repos/acme/widgets/hooks", "POST /repos/acme/widgets/hooks", `{"name":"web"}`, ""},
		{"/repos/acme/widgets/keys", "POST /repos/acme/widgets/keys", `{"title":"key"}`, ""},
		{"/orgs/acme/actions/variables", "POST /orgs/acme/actions/variables", `{"name":"STAGE"}`, "/orgs/acme/actions/variables/STAGE"},
		{"/repos/acme/widgets/actions/secrets", "PUT /repos/acme/widgets/actions/secrets/KEY", `{}`, "/repos/acme/widgets/actions/secrets/KEY"},
		{"/user/keys", "POST /user/keys", `{"title":"key"}`, ""},
		{"/gists", "POST /gists", `{"description":"x"}`, ""},
		{"/orgs/acme/teams", "POST /orgs/acme/teams", `{"name":"New Team"}`, "/orgs/acme/teams/new-team"},
	}
	for _, c := range cases {
		method, target, _ := strings.Cut(c.create, " ")
		before := send(t, s, "GET", c.list+"?per_page=100", "").Body.String()
		created := write(t, s, method, target, c.body)
		if c.item == "" {
			c.item = fmt.Sprintf("%s/%v", c.list, at(created, "id"))
			if c.list == "/gists" {
				c.item = strings.TrimPrefix(at(created, "url").(string), "http://example.com")
			}
		}
		get(t, s, c.item)
		if after := send(t, s, "GET", c.list+"?per_page=100", "").Body.String(); len(after) <= len(before)+10 {
			t.Errorf("%s: the list shows no new object: %s", c.create, after)
		}
		write(t, s, "DELETE", c.item, "")
		if w := send(t, s, "GET", c.item, ""); w.Code != 404 {
			t.Errorf("%s: deleted object: status %d", c.create, w.Code)
		}
	}
}

func TestChecksRespondWith204Or404(t *testing.T) {
	s := newTest(t, Config{})
	for _, path := range []string{"/user/starred/acme/widgets", "/user/following/outsider", "/orgs/acme/blocks/outsider", "/repos/acme/widgets/vulnerability-alerts"} {
		write(t, s, "PUT", path, "")
		if w := send(t, s, "GET", path, ""); w.Code != 204 || w.Body.Len() != 0 {
			t.Errorf("GET %s after PUT: status %d", path, w.Code)
		}
		write(t, s, "DELETE", path, "")
		if w := send(t, s, "GET", path, ""); w.Code != 404 {
			t.Errorf("GET %s after DELETE: status %d", path, w.Code)
		}
	}
}

func TestPathsByNumberShowTheSame(t *testing.T) {
	s := newTest(t, Config{})
	for byName, byNumber := range map[string]string{
		"/repos/acme/widgets/labels": "/repositories/1001/labels", "/orgs/acme/teams": "/organizations/101/teams",
		"/users/acme-owner/repos": "/user/1/repos", "/orgs/acme/teams/core/members": "/organizations/101/team/10001/members",
		"/orgs/acme/teams/core": "/teams/10001", "/repos/Acme/WIDGETS": "/repos/acme/widgets", "/users/acme-owner": "/user/1",
	} {
		a, b := send(t, s, "GET", byName, ""), send(t, s, "GET", byNumber, "")
		if a.Code != 200 || a.Body.String() != b.Body.String() {
			t.Errorf("GET %s: status %d; GET %s: status %d, another body: %s", byName, a.Code, byNumber, b.Code, b.Body)
		}
	}
}

func TestPages(t *testing.T) {
	s := newTest(t, Config{})
	seen, target := map[any]bool{}, "/repos/acme/widgets/issues?per_page=10&state=all"
	for pages := 1; ; pages++ {
		w := send(t, s, "GET", target, "")
		for _, issue := range decodeBody(w.Body.Bytes()).([]any) {
			seen[at(issue, "number")] = true
		}
		link := w.Header().Get("Link")
		before, _, more := strings.Cut(link, `>; rel="next"`)
		if !more {
			if pages != 5 || len(seen) != 41 || !strings.Contains(link, `rel="prev"`) {
				t.Errorf("%d pages with %d issues; the last Link is %s", pages, len(seen), link)
			}
			break
		}
		target = before[strings.LastIndex(before, "<")+1:]
		if !strings.HasPrefix(target, "http://example.com/repositories/1001/issues?") {
			t.Fatalf("Link: %s", link)
		}
	}
	w := send(t, s, "GET", "/repos/acme/widgets/dependabot/alerts?per_page=1", "")
	if link := w.Header().Get("Link"); !strings.Contains(link, "after=2") || strings.Contains(link, "last") {
		t.Errorf("cursor: Link %s", link)
	}
}

func TestAccess(t *testing.T) {
	s := newTest(t, Config{})
	cases := []struct {
		method, target, authorization string
		status                        int
	}{
		{"GET", "/repos/acme/secret", "Bearer tok-owner", 200},
		{"GET", "/repos/acme/secret", "token tok-member", 200},
		{"GET", "/repos/acme/secret", "Bearer tok-app", 200},
		{"GET", "/repos/acme/secret", "Bearer tok-outsider", 404},
		{"GET", "/repositories/1002/issues", "Bearer tok-outsider", 404},
		{"GET", "/repos/acme/secret", "", 404},
		{"GET", "/repos/acme/widgets", "", 200},
		{"GET", "/repos/acme/widgets", "Bearer unknown", 401},
		{"GET", "/user", "", 401},
		{"GET", "/search/code?q=x", "", 401},
		{"POST", "/repos/acme/widgets/issues", "", 401},
		{"GET", "/user", "Bearer tok-app", 403},
		{"GET", "/no/such/path", "Bearer tok-owner", 404},
		{"GET", "/user/x", "Bearer tok-owner", 404},
		{"GET", "/repos/acme/none", "Bearer tok-owner", 404},
		{"GET", "/repos/acme//issues", "Bearer tok-owner", 404},
		{"GET", "/repos/acme/widgets/issues/9999", "Bearer tok-owner", 404},
		{"POST", "/repos/acme/secret/issues", "Bearer tok-outsider", 404},
	}
	for _, c := range cases {
		if w := send(t, s, c.method, c.target, `{"title":"x"}`, "Authorization", c.authorization); w.Code != c.status {
			t.Errorf("%s %s with %q: status %d; want %d", c.method, c.target, c.authorization, w.Code, c.status)
		}
	}
}

func TestHeaders(t *testing.T) {
	s := newTest(t, Config{})
	for authorization, cache := range map[string]string{"Bearer tok-owner": "private, max-age=60, s-maxage=60", "": "public, max-age=60, s-maxage=60"} {
		h := send(t, s, "GET", "/repos/acme/widgets", "", "Authorization", authorization).Header()
		if h.Get("Cache-Control") != cache || h.Get("X-Github-Media-Type") == "" || h.Get("X-Github-Request-Id") == "" || h.Get("X-Github-Api-Version-Selected") != "2022-11-28" ||
			h.Get("Last-Modified") == "" || strings.Contains(h.Get("Vary"), "Authorization") != (authorization != "") {
			t.Errorf("%q: %v", authorization, h)
		}
	}
	tag := func(s http.Handler, headers ...string) string {
		return send(t, s, "GET", "/orgs/acme", "", headers...).Header().Get("Etag")
	}
	if tag(s) != tag(s, "Authorization", "Bearer tok-member") {
		t.Error("ETags depend on the token")
	}
	s = newTest(t, Config{ETagsPerToken: true})
	if tag(s) == tag(s, "Authorization", "Bearer tok-member") || tag(s) == tag(s, "Accept", "application/json") {
		t.Error("ETags do not depend on the token or on Accept")
	}
	w := send(t, s, "GET", "/repos/acme/widgets/tarball/main", "")
	if w.Code != 302 || !strings.HasPrefix(w.Header().Get("Location"), "https://downloads.example.com/") {
		t.Errorf("archive: status %d, Location %q", w.Code, w.Header().Get("Location"))
	}
}

func TestStatisticsAreComputedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTest(t, Config{})
		for _, name := range []string{"code_frequency", "commit_activity", "contributors", "participation", "punch_card"} {
			w := send(t, s, "GET", "/repos/acme/widgets/stats/"+name, "")
			if w.Code != 202 || w.Header().Get("Cache-Control") != "no-cache" {
				t.Errorf("%s: status %d", name, w.Code)
			}
		}
		time.Sleep(2 * time.Second)
		if w := send(t, s, "GET", "/repos/acme/widgets/stats/contributors", ""); w.Code != 200 {
			t.Errorf("after 2 s: status %d", w.Code)
		}
	})
}

func TestEventsOfWrites(t *testing.T) {
	s := newTest(t, Config{})
	write(t, s, "PATCH", "/repos/acme/widgets/issues/3", `{"title":"x"}`)
	write(t, s, "PUT", "/repos/acme/widgets/contents/x.txt", `{"message":"x","content":"eA=="}`)
	write(t, s, "PATCH", "/orgs/acme", `{"description":"x"}`)
	var got []string
	for _, e := range s.Events() {
		got = append(got, e.Name+" "+e.Repository+" "+e.Organization)
	}
	if want := "issues acme/widgets acme,push acme/widgets acme,organization  acme"; strings.Join(got, ",") != want {
		t.Errorf("events %v; want %s", got, want)
	}
	if len(s.Events()) != 0 {
		t.Error("events are returned twice")
	}
}
