package wholeapi

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
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
	next http.RoundTripper
	kept map[string]*http.Response
	body map[string][]byte
}

func (f *freezer) RoundTrip(r *http.Request) (*http.Response, error) {
	key := r.URL.RequestURI() + r.Header.Get("Authorization")
	if r.Method != http.MethodGet {
		return f.next.RoundTrip(r)
	}
	if f.kept[key] == nil {
		resp, err := f.next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		f.kept[key] = resp
		f.body[key], _ = io.ReadAll(resp.Body)
	}
	resp := *f.kept[key]
	resp.Body = io.NopCloser(bytes.NewReader(f.body[key]))
	return &resp, nil
}

// client sends requests of one caller through a judge.
type client struct {
	t     *testing.T
	token string
	http.RoundTripper
}

func (c client) send(method, target, body string, headers ...string) *http.Response {
	c.t.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+c.token)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.RoundTrip(r)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

func TestJudgeReportsStaleReads(t *testing.T) {
	cases := []struct {
		name, read string
		write      string // method, target and body
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
		{"first comment", "/repos/acme/widgets/issues/35/comments", `POST /repos/acme/widgets/issues/35/comments {"body":"x"}`, true},
		{"merge", "/repos/acme/widgets/pulls/36", `PUT /repos/acme/widgets/pulls/36/merge {}`, true},
		{"merge check", "/repos/acme/widgets/pulls/36/merge", `PUT /repos/acme/widgets/pulls/36/merge {}`, true},
		{"my issues", "/issues", `POST /repos/acme/widgets/issues {"title":"x","assignees":["acme-owner"]}`, true},
		{"issues that are not mine", "/issues", `POST /repos/acme/widgets/issues {"title":"x"}`, false},
		{"created by me", "/issues?filter=created", `POST /repos/acme/widgets/issues {"title":"x"}`, true},
		{"new file", "/repos/acme/widgets/contents/new.txt", `PUT /repos/acme/widgets/contents/new.txt {"message":"x","content":"eA=="}`, true},
		{"file on another branch", "/repos/acme/widgets/contents/new.txt?ref=topic-1", `PUT /repos/acme/widgets/contents/new.txt {"message":"x","content":"eA=="}`, false},
		{"commit by branch", "/repos/acme/widgets/commits/main", `PUT /repos/acme/widgets/contents/new.txt {"message":"x","content":"eA=="}`, true},
		{"comparison", "/repos/acme/widgets/compare/topic-1...main", `PUT /repos/acme/widgets/contents/new.txt {"message":"x","content":"eA=="}`, true},
		{"label of an issue", "/repos/acme/widgets/issues/3", `PATCH /repos/acme/widgets/labels/bug {"color":"ff0000"}`, true},
		{"star", "/repos/acme/widgets/stargazers/count", `PUT /user/starred/acme/widgets `, true},
		{"star check", "/user/starred/acme/widgets", `DELETE /user/starred/acme/widgets `, true},
		{"team by number", "/teams/10001/members", `PUT /orgs/acme/teams/core/memberships/outsider {}`, true},
		{"selected secrets", "/repos/acme/widgets/actions/organization-secrets", `PUT /orgs/acme/actions/secrets/KEY {}`, true},
		{"protection", "/repos/acme/widgets/branches/main", `PUT /repos/acme/widgets/branches/main/protection {}`, true},
		{"check runs of a branch", "/repos/acme/widgets/commits/main/check-runs", `POST /repos/acme/widgets/check-runs {"name":"x","head_sha":"main"}`, true},
		{"suites of a branch", "/repos/acme/widgets/commits/main/check-suites", `POST /repos/acme/widgets/check-runs {"name":"x","head_sha":"main"}`, true},
		{"status of a branch", "/repos/acme/widgets/commits/main/status", `POST /repos/acme/widgets/statuses/main {"state":"success"}`, true},
		{"status of another branch", "/repos/acme/widgets/commits/topic-1/status", `POST /repos/acme/widgets/statuses/main {"state":"success"}`, false},
		{"latest release", "/repos/acme/widgets/releases/latest", `POST /repos/acme/widgets/releases {"tag_name":"v9"}`, true},
		{"tag of a release", "/repos/acme/widgets/git/ref/tags/v9", `POST /repos/acme/widgets/releases {"tag_name":"v9"}`, true},
		{"files of a pull request", "/repos/acme/widgets/pulls/36/files", `PUT /repos/acme/widgets/contents/new.txt {"branch":"topic-1","message":"x","content":"eA=="}`, true},
		{"my repositories", "/user/repos", `PUT /repos/acme/widgets/contents/new.txt {"message":"x","content":"eA=="}`, true},
		{"closed issue in its milestone", "/repos/acme/widgets/milestones/1", `PATCH /repos/acme/widgets/issues/3 {"state":"closed"}`, true},
		{"new title in the milestone", "/repos/acme/widgets/milestones/1", `PATCH /repos/acme/widgets/issues/3 {"title":"x"}`, false},
		{"pinged webhook", "/repos/acme/widgets/hooks/1", `POST /repos/acme/widgets/hooks/1/pings {}`, false},
		{"cancelled run", "/repos/acme/widgets/actions/runs/1", `POST /repos/acme/widgets/actions/runs/1/cancel {}`, true},
		{"delayed search", "/search/issues?q=x", `PATCH /repos/acme/widgets/issues/3 {"title":"x"}`, false},
		{"refused write", "/repos/acme/widgets/issues/3", `PATCH /repos/acme/widgets/issues/9999 {"title":"x"}`, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newTest(t, Config{})
			j := NewJudge(s)
			cached := &freezer{inProcess{s}, map[string]*http.Response{}, map[string][]byte{}}
			owner := client{t, "tok-owner", j.Transport("owner", cached)}
			owner.send("GET", c.read, "")
			part := strings.SplitN(c.write, " ", 3)
			owner.send(part[0], part[1], part[2])
			member := client{t, "tok-member", j.Transport("member", cached)}
			member.send("GET", c.read, "")
			if len(j.Stale()) != 0 {
				t.Errorf("a read of a caller without writes is reported: %v", j.Stale())
			}
			owner.send("GET", c.read, "")
			if got := j.Stale(); len(got) > 1 || (len(got) == 1) != c.stale {
				t.Errorf("reported %v; want stale: %v", got, c.stale)
			}
			if got := s.Violations().StaleReads == 1; got != c.stale {
				t.Errorf("stale_reads %d", s.Violations().StaleReads)
			}
			fresh := client{t, "tok-owner", j.Transport("owner", inProcess{s})}
			fresh.send("GET", c.read, "")
			if got := j.Stale(); len(got) > 1 {
				t.Errorf("a fresh read is reported: %v", got)
			}
			if judged, unjudged := j.Judged(); judged != 4 || unjudged != 0 {
				t.Errorf("judged %d reads, %d without a revision", judged, unjudged)
			}
		})
	}
}

func TestJudgeReportsStaleNotModified(t *testing.T) {
	s := newTest(t, Config{})
	j := NewJudge(s)
	c := client{t, "tok-owner", j.Transport("owner", inProcess{s})}
	tag := c.send("GET", "/repos/acme/widgets/issues/3", "").Header.Get("Etag")
	c.send("PATCH", "/repos/acme/widgets/issues/3", `{"title":"x"}`)
	liar := client{t, "tok-owner", j.Transport("owner", roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusNotModified, Header: http.Header{"Etag": {tag}}, Body: http.NoBody}, nil
	}))}
	liar.send("GET", "/repos/acme/widgets/issues/3", "", "If-None-Match", tag)
	if len(j.Stale()) != 1 {
		t.Errorf("reported %v; want one read", j.Stale())
	}
}

func TestWriteInFlightMakesNoReadStale(t *testing.T) {
	s := newTest(t, Config{})
	j := NewJudge(s)
	var read client
	// The read is sent before the write is answered, so either state is right.
	write := client{t, "tok-owner", j.Transport("owner", roundTripper(func(r *http.Request) (*http.Response, error) {
		cached := &freezer{inProcess{s}, map[string]*http.Response{}, map[string][]byte{}}
		read = client{t, "tok-owner", j.Transport("owner", cached)}
		read.send("GET", "/repos/acme/widgets/issues/3", "")
		resp, err := inProcess{s}.RoundTrip(r)
		read.send("GET", "/repos/acme/widgets/issues/3", "")
		return resp, err
	}))}
	write.send("PATCH", "/repos/acme/widgets/issues/3", `{"title":"x"}`)
	if len(j.Stale()) != 0 {
		t.Errorf("reported %v", j.Stale())
	}
	read.send("GET", "/repos/acme/widgets/issues/3", "")
	if len(j.Stale()) != 1 {
		t.Errorf("reported %v after the write; want one read", j.Stale())
	}
}

func TestRemoteJudge(t *testing.T) {
	s := newTest(t, Config{})
	j := NewRemoteJudge("http://service.test", &http.Client{Transport: inProcess{s}})
	cached := &freezer{inProcess{s}, map[string]*http.Response{}, map[string][]byte{}}
	c := client{t, "tok-owner", j.Transport("owner", cached)}
	c.send("GET", "/user/keys", "")
	c.send("POST", "/user/keys", `{"title":"x"}`)
	c.send("GET", "/user/keys", "")
	if len(j.Stale()) != 1 {
		t.Errorf("reported %v; want one read", j.Stale())
	}
	w := send(t, s, "GET", "/_service/violations", "")
	if got := at(decodeBody(w.Body.Bytes()), "stale_reads"); got != 1.0 {
		t.Errorf("GET /_service/violations: %s", w.Body)
	}
	if w := send(t, s, "DELETE", "/_service/violations", ""); at(decodeBody(w.Body.Bytes()), "stale_reads") != 0.0 {
		t.Errorf("after the reset: %s", w.Body)
	}
	for _, request := range []string{"GET none", "POST violations", "POST judge"} {
		method, name, _ := strings.Cut(request, " ")
		if w := send(t, s, method, "/_service/"+name, "x"); w.Code < 400 {
			t.Errorf("%s: status %d", request, w.Code)
		}
	}
}

// TestHonestServiceIsNeverStale sends random traffic of two callers without a cache. The judge may report nothing.
func TestHonestServiceIsNeverStale(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 9))
	s := newTest(t, Config{})
	j := NewJudge(s)
	clients := []client{{t, "tok-owner", j.Transport("owner", inProcess{s})}, {t, "tok-member", j.Transport("member", inProcess{s})}}
	operations := s.Operations()
	for range 2000 {
		method, target, body := s.Sample(operations[random.IntN(len(operations))].ID, random)
		clients[random.IntN(2)].send(method, target, string(body))
	}
	judged, unjudged := j.Judged()
	if judged < 500 || unjudged != 0 || len(j.Stale()) != 0 {
		t.Errorf("judged %d reads, %d without a revision, stale: %v", judged, unjudged, j.Stale())
	}
}

func TestRevisionOfABody(t *testing.T) {
	for _, n := range []int64{0, 1, 2, 5, 1 << 40} {
		for _, body := range []string{"", "[]", `{"a":"\n"}`, "text\n"} {
			if got, ok := Revision(mark([]byte(body), n)); got != n || !ok {
				t.Errorf("revision %d of %q: %d, %v", n, body, got, ok)
			}
		}
	}
	for _, body := range []string{"", "[]", "{}\n", "a\nb", " \t"} {
		if n, ok := Revision([]byte(body)); ok {
			t.Errorf("%q has revision %d", body, n)
		}
	}
}
