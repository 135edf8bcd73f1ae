package service

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

// inProcess is a transport that calls a handler.
type inProcess struct{ http.Handler }

func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	t.ServeHTTP(w, r)
	return w.Result(), nil
}

// freezer is a bad cache: it keeps the first response to each GET forever.
type freezer struct {
	http.Handler
	kept map[string]*httptest.ResponseRecorder
}

func (f *freezer) RoundTrip(r *http.Request) (*http.Response, error) {
	key := r.URL.RequestURI() + r.Header.Get("Authorization")
	if r.Method != http.MethodGet {
		return inProcess{f.Handler}.RoundTrip(r)
	}
	if f.kept[key] == nil {
		f.kept[key] = httptest.NewRecorder()
		f.ServeHTTP(f.kept[key], r)
	}
	response := *f.kept[key]
	return response.Result(), nil
}

func (s *tableTester) frozen() http.RoundTripper {
	return &freezer{s, map[string]*httptest.ResponseRecorder{}}
}

// client returns a function that sends requests of a user through a judge.
func (s *tableTester) client(t *testing.T, j *testservers.Judge, user string, next http.RoundTripper) func(request string) *http.Response {
	return func(request string) *http.Response {
		t.Helper()
		return testservers.Must(j.Transport(user, next).RoundTrip(s.NewRequest(user, request)))
	}
}

func TestJudgeReportsStaleReads(t *testing.T) {
	cases := []struct {
		name, read string
		write      string
		stale      bool
	}{
		{"the changed object", "/repos/acme/widgets/issues/3", `PATCH /repos/acme/widgets/issues/3 {"title":"x"}`, true},
		{"by number", "/repositories/1001/issues/3", `PATCH /repos/acme/widgets/issues/3 {"title":"x"}`, true},
		{"its list", "/repos/acme/widgets/issues?state=all&page=2", `PATCH /repos/acme/widgets/issues/3 {"title":"x"}`, true},
		{"another issue", "/repos/acme/widgets/issues/4", `PATCH /repos/acme/widgets/issues/3 {"title":"x"}`, false},
		{"another repository", "/repos/acme-owner/tools/issues", `PATCH /repos/acme/widgets/issues/3 {"title":"x"}`, false},
		{"comment in the list", "/repos/acme/widgets/issues/3/comments", `POST /repos/acme/widgets/issues/3/comments {"body":"x"}`, true},
		{"comment count", "/repos/acme/widgets/issues/3", `POST /repos/acme/widgets/issues/3/comments {"body":"x"}`, true},
		{"comments elsewhere", "/repos/acme/widgets/issues/4/comments", `POST /repos/acme/widgets/issues/3/comments {"body":"x"}`, false},
		{"first comment", "/repos/acme/widgets/issues/24/comments", `POST /repos/acme/widgets/issues/24/comments {"body":"x"}`, true},
		{"merge", "/repos/acme/widgets/pulls/25", `PUT /repos/acme/widgets/pulls/25/merge {}`, true},
		{"merge check", "/repos/acme/widgets/pulls/25/merge", `PUT /repos/acme/widgets/pulls/25/merge {}`, true},
		{"my issues", "/issues", `POST /repos/acme/widgets/issues {"title":"x","assignees":["acme-owner"]}`, true},
		{"issues that are not mine", "/issues", `POST /repos/acme/widgets/issues {"title":"x"}`, false},
		{"created by me", "/issues?filter=created", `POST /repos/acme/widgets/issues {"title":"x"}`, true},
		{"new file", "/repos/acme/widgets/contents/new.txt", `PUT /repos/acme/widgets/contents/new.txt {"message":"x","content":"eA=="}`, true},
		{"file on another branch", "/repos/acme/widgets/contents/new.txt?ref=part-1", `PUT /repos/acme/widgets/contents/new.txt {"message":"x","content":"eA=="}`, false},
		{"commit by branch", "/repos/acme/widgets/commits/main", `PUT /repos/acme/widgets/contents/new.txt {"message":"x","content":"eA=="}`, true},
		{"comparison", "/repos/acme/widgets/compare/part-1...main", `PUT /repos/acme/widgets/contents/new.txt {"message":"x","content":"eA=="}`, true},
		{"label of an issue", "/repos/acme/widgets/issues/3", `PATCH /repos/acme/widgets/labels/bug {"color":"ff0000"}`, true},
		{"star", "/repos/acme/widgets/stargazers/count", `PUT /user/starred/acme/widgets `, true},
		{"star check", "/user/starred/acme/widgets", `DELETE /user/starred/acme/widgets `, true},
		{"team by number", "/teams/203/members", `PUT /orgs/acme/teams/coils/memberships/outsider {}`, true},
		{"nested team by number", "/teams/203/repos", `DELETE /orgs/acme/teams/springs-levers `, true},
		{"selected secrets", "/repos/acme/widgets/actions/organization-secrets", `PUT /orgs/acme/actions/secrets/KEY {}`, true},
		{"protection", "/repos/acme/widgets/branches/main", `PUT /repos/acme/widgets/branches/main/protection {}`, true},
		{"check runs of a branch", "/repos/acme/widgets/commits/main/check-runs", `POST /repos/acme/widgets/check-runs {"name":"x","head_sha":"main"}`, true},
		{"suites of a branch", "/repos/acme/widgets/commits/main/check-suites", `POST /repos/acme/widgets/check-runs {"name":"x","head_sha":"main"}`, true},
		{"status of a branch", "/repos/acme/widgets/commits/main/status", `POST /repos/acme/widgets/statuses/main {"state":"success"}`, true},
		{"status of another branch", "/repos/acme/widgets/commits/part-1/status", `POST /repos/acme/widgets/statuses/main {"state":"success"}`, false},
		{"latest release", "/repos/acme/widgets/releases/latest", `POST /repos/acme/widgets/releases {"tag_name":"v9"}`, true},
		{"tag of a release", "/repos/acme/widgets/git/ref/tags/v9", `POST /repos/acme/widgets/releases {"tag_name":"v9"}`, true},
		{"files of a pull request", "/repos/acme/widgets/pulls/25/files", `PUT /repos/acme/widgets/contents/new.txt {"branch":"part-1","message":"x","content":"eA=="}`, true},
		{"my repositories", "/user/repos", `PUT /repos/acme/widgets/contents/new.txt {"message":"x","content":"eA=="}`, true},
		{"closed issue in its milestone", "/repos/acme/widgets/milestones/1", `PATCH /repos/acme/widgets/issues/3 {"state":"closed"}`, true},
		{"new title in the milestone", "/repos/acme/widgets/milestones/1", `PATCH /repos/acme/widgets/issues/3 {"title":"x"}`, false},
		{"pinged webhook", "/repos/acme/widgets/hooks/1", `POST /repos/acme/widgets/hooks/1/pings {}`, false},
		{"ruleset of the organization", "/repos/acme/widgets/rules/branches/main", `DELETE /orgs/acme/rulesets/501 `, true},
		{"ruleset of another organization", "/repos/acme-owner/tools/rules/branches/main", `DELETE /orgs/acme/rulesets/501 `, false},
		{"cancelled run", "/repos/acme/widgets/actions/runs/1", `POST /repos/acme/widgets/actions/runs/1/cancel {}`, true},
		{"delayed search", "/search/issues?q=x", `PATCH /repos/acme/widgets/issues/3 {"title":"x"}`, false},
		{"refused write", "/repos/acme/widgets/issues/3", `PATCH /repos/acme/widgets/issues/9999 {"title":"x"}`, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newTester(t, Config{})
			j := testservers.NewJudge(s.Missing)
			cached := s.frozen()
			owner, read := s.client(t, j, "owner", cached), "GET "+c.read
			owner(read)
			owner(c.write)
			s.client(t, j, "member", cached)(read)
			wantStale(t, j, 0) // a caller without writes
			owner(read)
			if got := j.Stale(); len(got) > 1 || (len(got) == 1) != c.stale {
				t.Errorf("reported %v; want stale: %v", got, c.stale)
			}
			testservers.Equal(t, "stale_reads", s.Violations().StaleReads == 1, c.stale)
			s.client(t, j, "owner", inProcess{s})(read)
			got := j.Stale()
			failIf(t, len(got) > 1, "a fresh read is reported: %v", got)
			judged, unjudged := j.Judged()
			failIf(t, judged != 4 || unjudged != 0, "judged %d reads, %d without a revision", judged, unjudged)
		})
	}
}

// wantStale checks the number of reported reads.
func wantStale(t *testing.T, j *testservers.Judge, want int) {
	t.Helper()
	got := j.Stale()
	failIf(t, len(got) != want, "reported %v; want %d reads", got, want)
}

const readIssue, writeIssue = "GET /repos/acme/widgets/issues/3", `PATCH /repos/acme/widgets/issues/3 {"title":"x"}`

func TestJudgeReportsStaleNotModified(t *testing.T) {
	s := newTester(t, Config{})
	j := testservers.NewJudge(s.Missing)
	honest := s.client(t, j, "owner", inProcess{s})
	tag := honest(readIssue).Header.Get("Etag")
	honest(writeIssue)
	liar := j.Transport("owner", testservers.RoundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusNotModified, Header: http.Header{"Etag": {tag}}, Body: http.NoBody}, nil
	}))
	_, err := liar.RoundTrip(s.NewRequest("owner\nIf-None-Match: "+tag, readIssue))
	stopIf(t, err != nil, "%v", err)
	wantStale(t, j, 1)
}

func TestWriteInFlightMakesNoReadStale(t *testing.T) {
	s := newTester(t, Config{})
	j := testservers.NewJudge(s.Missing)
	read := s.client(t, j, "owner", s.frozen())
	// The read is sent before the write is answered, so either state is right.
	write := s.client(t, j, "owner", testservers.RoundTripper(func(r *http.Request) (*http.Response, error) {
		read(readIssue)
		resp, err := inProcess{s}.RoundTrip(r)
		read(readIssue)
		return resp, err
	}))
	write(writeIssue)
	wantStale(t, j, 0)
	read(readIssue)
	wantStale(t, j, 1)
}

func TestViolationsCountStaleReads(t *testing.T) {
	s := newTester(t, Config{})
	j := testservers.NewJudge(s.Missing)
	send := s.client(t, j, "owner", s.frozen())
	send("GET /user/keys")
	send(`POST /user/keys {"title":"x"}`)
	send("GET /user/keys")
	wantStale(t, j, 1)
	s.Call(t, "owner", "GET /_service/violations", 200, `{"stale_reads":1}`)
	s.Call(t, "owner", "DELETE /_service/violations", 200, `{"stale_reads":0}`)
}

// TestHonestServiceIsNeverStale sends random traffic of two callers without a cache. The judge may report nothing.
func TestHonestServiceIsNeverStale(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 9))
	s := newTester(t, Config{})
	j := testservers.NewJudge(s.Missing)
	clients := []func(string) *http.Response{s.client(t, j, "owner", inProcess{s}), s.client(t, j, "member", inProcess{s})}
	operations := s.Operations()
	for range 2000 {
		method, target, body := s.Sample(operations[random.IntN(len(operations))].ID, random)
		clients[random.IntN(2)](method + " " + target + " " + string(body))
	}
	judged, unjudged := j.Judged()
	failIf(t, judged < 500 || unjudged != 0 || len(j.Stale()) != 0, "judged %d reads, %d without a revision, stale: %v", judged, unjudged, j.Stale())
}

func TestRevisionOfABody(t *testing.T) {
	for _, n := range []int64{0, 1, 2, 5, 1 << 40} {
		for _, body := range []string{"", "[]", `{"a":"\n"}`, "text\n"} {
			got, ok := testservers.Revision(mark([]byte(body), n))
			failIf(t, got != n || !ok, "revision %d of %q: %d, %v", n, body, got, ok)
		}
	}
	for _, body := range []string{"", "[]", "{}\n", "a\nb", " \t"} {
		n, ok := testservers.Revision([]byte(body))
		failIf(t, ok, "%q has revision %d", body, n)
	}
}
