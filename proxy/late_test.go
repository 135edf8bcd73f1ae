package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

// shown is an upstream that shows one state at a time, with a lifetime of a minute and an ETag. A 304 has only the fields of
// the ETag and the lifetime, so it lacks Link. Requests other than GET and HEAD, and GraphQL mutations, get the status of writes
// and the body wrote.
type shown struct {
	mu     sync.Mutex
	status int
	body   string
	fields []string
	write  int
	wrote  string
	// wrong304 confirms each validator. fullFields sends all fields in a 304.
	wrong304, fullFields bool
}

// show changes the state of the upstream.
func (s *shown) show(status int, body string, fields ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.body, s.fields = status, body, fields
}

func (s *shown) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, _ := io.ReadAll(r.Body)
	query := r.URL.Path == "/graphql" && !strings.Contains(string(text), "mutation")
	if r.Method != http.MethodGet && r.Method != http.MethodHead && !query {
		setFields(w, "Content-Type: application/json")
		w.WriteHeader(s.write)
		_, _ = io.WriteString(w, s.wrote)
		return
	}
	etag := fmt.Sprintf(`"%d-%x"`, s.status, s.body)
	setFields(w, "Cache-Control: private, max-age=60", "Etag: "+etag)
	if tags := r.Header["If-None-Match"]; s.wrong304 && len(tags) > 0 || cache.MatchesETag(tags, etag) {
		if s.fullFields {
			setFields(w, s.fields...)
		}
		w.WriteHeader(http.StatusNotModified)
		return
	}
	setFields(w, s.fields...)
	w.WriteHeader(s.status)
	_, _ = io.WriteString(w, s.body)
}

// lagging sets the default of cache.lag.
func lagging(c *Config) { c.Lag = 2 * time.Second }

// late starts a gateway of the github dialect in front of a shown upstream, with virtual time. The upstream may be late by two seconds.
func late(t *testing.T, test func(*world, *shown), options ...option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &shown{status: http.StatusOK, write: http.StatusOK}
		many := func(l *policy.Limits) { l.Primary.User, l.Points.REST = 1_000_000, 100_000 }
		options = append([]option{wholeAPI(t, many), lagging}, options...)
		test(newWorld(t, s.ServeHTTP, options...), s)
	})
}

// lateIn calls late in a subtest.
func lateIn(t *testing.T, name string, test func(*world, *shown), options ...option) {
	t.Helper()
	t.Run(name, func(t *testing.T) { late(t, test, options...) })
}

// wantRead reads a path and compares status, body and the end of Cache-Status.
func (w *world) wantRead(path string, status int, body, cacheStatus string, fields ...string) got {
	w.Helper()
	r := w.get(path, append(lines(owner), fields...)...)
	own := r.Header.Get("Cache-Status")
	failIf(w, r.StatusCode != status || r.body != body || !strings.HasSuffix(own, cacheStatus), "GET %s: got %d %q, %s; want %d %q, %s", path, r.StatusCode, r.body, own, status, body, cacheStatus)
	return r
}

const issue7 = issuesOfWidgets + "/7"

// change lets one of the changes happen of which a gateway knows.
var knownChanges = map[string]func(*world){
	"write": func(w *world) { w.do(http.MethodPatch, issue7, strings.NewReader("{}"), lines(owner)...) },
	"event": func(w *world) { deliver(w.gateway, "repo:acme/widgets", "issues", "acme/widgets") },
}

func TestResponsesShortlyAfterAChangeAreRevalidated(t *testing.T) {
	for cause, change := range knownChanges {
		for status, old := range map[int]string{http.StatusOK: "old", http.StatusNotFound: "none"} {
			lateIn(t, fmt.Sprint(cause, " ", status), func(w *world, s *shown) {
				pingAll(w.gateway)
				s.show(status, old)
				w.wantRead(issue7, status, old, "ttl=60")
				change(w)
				time.Sleep(200 * time.Millisecond)
				w.wantRead(issue7, status, old, "stored; ttl=0; detail=suspect-"+cause)
				time.Sleep(1800 * time.Millisecond)
				s.show(http.StatusOK, "new")
				w.wantRead(issue7, http.StatusOK, "new", "fwd-status=200; stored; ttl=60; detail=was-suspect-"+cause)
				w.wantRead(issue7, http.StatusOK, "new", "hit; ttl=60")
				time.Sleep(2 * time.Minute)
				w.wantRead(issue7, http.StatusOK, "new", "detail=webhook")
			}, func(c *Config) { c.WebhookFresh = maxFresh })
		}
	}
}

func TestStoredQueriesShortlyAfterAChangeAreRequestedAgain(t *testing.T) {
	late(t, func(w *world, s *shown) {
		query := func(want string) {
			t.Helper()
			w.want("answer", w.ask(listIssues("widgets")).body, want)
		}
		knownChanges["event"](w)
		s.show(http.StatusOK, `{"data":{"n":1}}`)
		query(`{"data":{"n":1}}`)
		s.show(http.StatusOK, `{"data":{"n":2}}`)
		time.Sleep(3 * time.Second)
		query(`{"data":{"n":2}}`)
	}, storingLists())
}

// The upstream answers some writes before it executes them.
func TestResponsesBeforeTheEndOfAnAsynchronousWriteAreRevalidated(t *testing.T) {
	for _, c := range []struct {
		method, path, read string
		status             int
	}{
		{http.MethodPut, "/repos/acme/widgets/pulls/7/update-branch", "/repos/acme/widgets/pulls/7", http.StatusAccepted},
		{http.MethodDelete, "/repos/acme/widgets/made-up", "/repos/acme/widgets/made-up", http.StatusAccepted},
		{http.MethodPost, "/repos/acme/widgets/actions/workflows/1/dispatches", "/repos/acme/widgets/actions/runs", http.StatusNoContent},
		{http.MethodPost, "/repos/acme/widgets/dispatches", "/repos/acme/widgets/actions/runs", http.StatusNoContent},
		{http.MethodPost, "/repos/acme/widgets/actions/runs/7/rerun", "/repos/acme/widgets/actions/runs/7", http.StatusCreated},
	} {
		lateIn(t, c.method+c.path, func(w *world, s *shown) {
			s.show(http.StatusOK, "old")
			s.write = c.status
			w.do(c.method, c.path, strings.NewReader("{}"), lines(owner)...)
			for range 3 {
				time.Sleep(5 * time.Second)
				w.wantRead(c.read, http.StatusOK, "old", "stored; ttl=0; detail=suspect-write")
			}
			s.show(http.StatusOK, "new")
			w.wantRead(c.read, http.StatusOK, "new", "")
			time.Sleep(time.Minute)
			w.wantRead(c.read, http.StatusOK, "new", "")
			w.wantRead(c.read, http.StatusOK, "new", "hit; ttl=60")
		})
	}
}

// A call that began shortly after a change gives no response to clients that come when the upstream must show the change.
func TestFollowersGetNoSuspectResponseTooLate(t *testing.T) {
	release := make(chan struct{})
	var requests sync.Map
	slow := func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			return
		}
		setFields(w, "Cache-Control: private, max-age=60")
		if _, second := requests.LoadOrStore(r.URL.Path, true); !second {
			<-release
			_, _ = io.WriteString(w, "old")
			return
		}
		_, _ = io.WriteString(w, "new")
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, slow, wholeAPI(t, func(*policy.Limits) {}), lagging)
		release = make(chan struct{})
		knownChanges["write"](w)
		time.Sleep(time.Second)
		var clients sync.WaitGroup
		clients.Go(func() { w.get(issue7, lines(owner)...) })
		time.Sleep(2 * time.Second)
		clients.Go(func() { w.wantRead(issue7, http.StatusOK, "new", "") })
		time.Sleep(time.Second)
		close(release)
		clients.Wait()
	})
}

// TestOwnReadsNeverGoBackwards reads from an upstream whose replicas show the new state, and then the old one.
func TestOwnReadsNeverGoBackwards(t *testing.T) {
	const monday, tuesday = "Last-Modified: Mon, 02 Nov 2026 10:00:00 GMT", "Last-Modified: Tue, 03 Nov 2026 10:00:00 GMT"
	for _, c := range []struct {
		name   string
		known  int // status of the stored response before the write; 0 without one
		fields [2]string
	}{
		{"stored before", http.StatusOK, [2]string{}}, {"missing before", http.StatusNotFound, [2]string{}}, {"not stored before", 0, [2]string{monday, tuesday}},
		{"missing before, but not stored", http.StatusNotFound, [2]string{"Cache-Control: no-cache"}},
	} {
		lateIn(t, c.name, func(w *world, s *shown) {
			old := max(c.known, http.StatusOK)
			if s.show(old, "old", c.fields[0]); c.known != 0 {
				w.get(issue7, lines(owner)...)
			}
			knownChanges["write"](w)
			s.show(http.StatusOK, "new", c.fields[1])
			w.wantRead(issue7, http.StatusOK, "new", "detail=suspect-write")
			s.show(old, "old", c.fields[0])
			w.wantRead(issue7, http.StatusOK, "new", "ttl=0; detail=suspect-lag")
			w.wantRead(issue7, http.StatusOK, "new", "ttl=0; detail=suspect-lag", "Cache-Control: no-cache")
			time.Sleep(3 * time.Second) // after the lag, the state may be old again
			w.wantRead(issue7, old, "old", "")
		})
	}
}

// Without a change that the gateway knows, a state that returns is not stored as an error: the other one is soon requested again.
func TestEarlierStateIsAcceptedAfterTheLag(t *testing.T) {
	late(t, func(w *world, s *shown) {
		for _, state := range []string{"old", "new", "old"} {
			s.show(http.StatusOK, state)
			w.get(issue7, append(lines(owner), "Cache-Control: no-cache")...)
		}
		w.wantRead(issue7, http.StatusOK, "new", "ttl=0; detail=suspect-lag")
		time.Sleep(3 * time.Second)
		w.wantRead(issue7, http.StatusOK, "old", "detail=was-suspect-lag")
	})
}

func TestErrorsAreNotRevalidated(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusGone} {
		lateIn(t, fmt.Sprint(status), func(w *world, s *shown) {
			s.wrong304 = true
			s.show(status, "none", "Last-Modified: Mon, 02 Nov 2026 10:00:00 GMT")
			w.wantRead(issue7, status, "none", "stored; ttl=60")
			s.show(http.StatusOK, "exists")
			w.wantRead(issue7, status, "none", "hit; ttl=60")
			w.wantRead(issue7, http.StatusOK, "exists", "fwd=request; fwd-status=200; stored; ttl=60", "Cache-Control: no-cache")
			s.show(status, "none")
			s.wrong304 = false
			time.Sleep(time.Minute)
			w.wantRead(issue7, status, "none", "")
			s.show(http.StatusOK, "exists")
			s.wrong304 = true
			time.Sleep(time.Minute)
			w.wantRead(issue7, http.StatusOK, "exists", "fwd=stale; fwd-status=200; stored; ttl=60")
		})
	}
}

// pageOf returns a list with a number of items.
func pageOf(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("{},", n), ",") + "]" }

// TestPagesAreNotLost changes the pages of a list without a change of its first page.
func TestPagesAreNotLost(t *testing.T) {
	link := func(last int) string {
		return fmt.Sprintf(`Link: <http://upstream.test/base%s?page=2>; rel="next", <http://upstream.test/base%s?page=%d>; rel="last"`, issuesOfWidgets, issuesOfWidgets, last)
	}
	changes := map[string]func(*world) []string{
		"write": func(w *world) []string {
			w.do(http.MethodPost, issuesOfWidgets, strings.NewReader("{}"), lines(owner)...)
			return nil
		},
		"event":    func(w *world) []string { knownChanges["event"](w); return nil },
		"expiry":   func(*world) []string { time.Sleep(time.Minute); return nil },
		"no-cache": func(*world) []string { return []string{"Cache-Control: no-cache"} },
		"client":   func(w *world) []string { knownChanges["event"](w); return []string{"If-None-Match: *"} },
	}
	for _, c := range []struct {
		name, path, body string
		before, after    string // Link
		want             string // a part of the last Link
	}{
		{"next appears", issuesOfWidgets, pageOf(30), "X: none", link(2), `rel="next"`},
		{"next appears after a small page", issuesOfWidgets + "?per_page=2", pageOf(2), "X: none", link(2), `rel="next"`},
		{"next appears after a page of another size", "/notifications", pageOf(50), "X: none", link(2), `rel="next"`},
		{"next appears after the largest page", "/notifications?per_page=100", pageOf(50), "X: none", link(2), `rel="next"`},
		{"next appears, repeated size", issuesOfWidgets + "?per_page=9&per_page=2", pageOf(2), "X: none", link(2), `rel="next"`},
		{"next appears, size with a sign", issuesOfWidgets + "?per_page=+2", pageOf(2), "X: none", link(2), `rel="next"`},
		{"next appears, size with other text", issuesOfWidgets + "?per_page=2.0", pageOf(2), "X: none", link(2), `rel="next"`},
		{"next appears, other name of the size", issuesOfWidgets + "?first=2", pageOf(2), "X: none", link(2), `rel="next"`},
		{"last moves", issuesOfWidgets, pageOf(30), link(2), link(3), `page=3>; rel="last"`},
		{"next ends", issuesOfWidgets, pageOf(30), link(2), "X: none", ""},
		{"nested list", issuesOfWidgets, `{"items":` + pageOf(30) + `}`, "X: none", link(2), `rel="next"`},
	} {
		for name, change := range changes {
			lateIn(t, c.name+"/"+name, func(w *world, s *shown) {
				for _, first := range []bool{true, false} { // the behavior of the upstream is unknown, and then known
					s.show(http.StatusOK, c.body, c.before)
					w.get(c.path, append(lines(owner), "Cache-Control: no-cache")...)
					time.Sleep(2 * time.Second)
					fields := change(w)
					s.show(http.StatusOK, c.body, c.after)
					r := w.get(c.path, append(lines(owner), fields...)...)
					got := r.Header.Get("Link")
					failIf(w, !strings.Contains(got, c.want) || (c.want == "") != (got == ""), "first %t: got Link %q, want %q in %d %s", first, got, c.want, r.StatusCode, r.Header.Get("Cache-Status"))
					time.Sleep(time.Minute)
				}
			})
		}
	}
}

// TestPagesCostOneRequestForEachChange counts responses other than a 304.
func TestPagesCostOneRequestForEachChange(t *testing.T) {
	const later = `Link: <http://upstream.test/base/x?page=2>; rel="next"`
	for _, c := range []struct {
		name, body, link string
		fullFields       bool
		want             int // spent for the first request, and ten lifetimes
	}{
		{"short page", pageOf(29), "X: none", false, 1},
		{"full page", pageOf(30), "X: none", false, 11},
		{"number of items", `{"total_count":90,"items":` + pageOf(30) + `}`, later, false, 1},
		{"number of commits", `{"total_commits":90,"files":` + pageOf(30) + `}`, later, false, 1},
		{"a later page, Link missing in a 304", pageOf(30), later, false, 11},
		{"a later page, Link in a 304", pageOf(30), later, true, 1},
	} {
		lateIn(t, c.name, func(w *world, s *shown) {
			s.fullFields = c.fullFields
			s.show(http.StatusOK, c.body, c.link)
			spent := 0
			for range 11 {
				w.get(issuesOfWidgets, lines(owner)...)
				w.get(issuesOfWidgets, lines(owner)...)
				time.Sleep(time.Minute)
			}
			for _, r := range w.recent() {
				spent += r.Spent
			}
			w.want("spent", spent, c.want)
		})
	}
}

// TestFailedWritesMakeTheirObjectStale sends a write that fails because the object has changed.
func TestFailedWritesMakeTheirObjectStale(t *testing.T) {
	const (
		pull  = "/repos/acme/widgets/pulls/7"
		other = "/repos/acme/widgets/pulls/8"
	)
	for _, c := range []struct {
		method, path, read string
		statuses           []int
	}{
		{http.MethodPatch, issue7, issue7, []int{404, 405, 409, 410, 412, 422, 423, 451}},
		{http.MethodPost, issue7 + "/comments", issue7, []int{403, 404, 409, 410}}, // 403: a locked issue
		{http.MethodPost, issue7 + "/comments", "/repos/acme/widgets", []int{403}}, // an archived repository
		{http.MethodPatch, "/repos/acme/widgets", "/repos/acme/widgets", []int{403}},
		{http.MethodPut, pull + "/merge", pull, []int{403}},
		{http.MethodPut, pull + "/merge", pull, []int{404, 405, 409}},
		{http.MethodPut, pull + "/update-branch", pull, []int{409, 422}},
		{http.MethodPatch, "/repos/acme/widgets/git/refs/heads/main", "/repos/acme/widgets/git/ref/heads/main", []int{409, 422}},
		{http.MethodPut, "/repos/acme/widgets/contents/docs/a.md", "/repos/acme/widgets/contents/docs/a.md", []int{409, 422}},
		{http.MethodPost, "/repos/acme/widgets/labels", "/repos/acme/widgets/labels", []int{422}},
	} {
		for _, status := range c.statuses {
			lateIn(t, fmt.Sprint(c.method, c.path, " ", status), func(w *world, s *shown) {
				s.show(http.StatusOK, "old")
				w.wantRead(c.read, http.StatusOK, "old", "")
				w.wantRead(other, http.StatusOK, "old", "")
				stranger := w.get(c.read, bearer("stranger"))
				w.want("status", stranger.StatusCode, http.StatusOK)
				s.write = status
				w.do(c.method, c.path, strings.NewReader("{}"), lines(owner)...)
				before := w.upstreamSaw()
				s.show(http.StatusOK, "new")
				w.wantRead(c.read, http.StatusOK, "new", "")
				w.wantRead(other, http.StatusOK, "old", "hit; ttl=60")
				w.want("stranger's response", w.get(c.read, bearer("stranger")).body, "old")
				settled := "hit; ttl=60"
				if w.wantRead(c.read, http.StatusOK, "new", ""); status == http.StatusUnprocessableEntity || status == http.StatusForbidden {
					w.want("revalidations", w.upstreamSaw()-before, 1)
					settled = "hit; ttl=57"
				}
				time.Sleep(3 * time.Second)
				w.wantRead(c.read, http.StatusOK, "new", "")
				w.wantRead(c.read, http.StatusOK, "new", settled)
			})
		}
	}
}

func TestFailedMutationsMakeTheirObjectStale(t *testing.T) {
	failed := func(kind string) string {
		return `{"data":{"a":null},"errors":[{"type":"` + kind + `","path":["a"],"message":"x"}]}`
	}
	const named, node = `repositoryNameWithOwner:"Acme/Widgets"`, `id:"PR_1"`
	for _, c := range []struct {
		name, arguments, answer string
		rest, query             bool // whether the responses to the client become stale
	}{
		{"outdated commit", named, failed("STALE_DATA"), true, true},
		{"conflict", named, failed("UNPROCESSABLE"), true, true},
		{"denied", named, failed("FORBIDDEN"), true, true},
		{"missing", named, failed("NOT_FOUND"), true, true},
		{"conflict of a node", node, failed("UNPROCESSABLE"), true, true},
		{"outdated node", node, failed("STALE_DATA"), true, true},
		{"missing node", node, failed("NOT_FOUND"), false, true},
		{"too fast", named, `{"data":{"a":null},"errors":[{"type":"UNPROCESSABLE","path":["a"],"message":"was submitted too quickly"}]}`, false, false},
		{"invalid", named, failed("ARGUMENT"), false, false},
	} {
		lateIn(t, c.name, func(w *world, s *shown) {
			s.wrote = c.answer
			s.show(http.StatusOK, `{"data":{"n":1}}`)
			read := func(token string) [3]bool {
				return [3]bool{
					len(w.hits(token, issue7)) == 0, len(w.hits(token, "/repos/other/widgets/issues/7")) == 0,
					!strings.HasPrefix(w.ask(listIssues("widgets"), token).Header.Get("Cache-Status"), "weir; hit"),
				}
			}
			for _, token := range []string{lines(owner)[0], reader} {
				read(token)
				w.want("stored", read(token), [3]bool{})
			}
			w.ask(mutation(c.arguments), lines(owner)...)
			w.want("responses to another client are stale", read(reader), [3]bool{})
			byNode := c.rest && c.arguments == node
			w.want("responses to the client are stale", read(lines(owner)[0]), [3]bool{c.rest, byNode, c.query})
		}, storingLists())
	}
}

// The client of a failed write reads the object again, with REST or with GraphQL.
func TestFailedWritesMakeQueriesOfTheirClientStale(t *testing.T) {
	for status, stale := range map[int]bool{409: true, 412: true, 404: true, 403: false, 422: false, 400: false} {
		lateIn(t, strconv.Itoa(status), func(w *world, s *shown) {
			s.show(http.StatusOK, `{"data":{"n":1}}`)
			s.write = status
			isHit := func(token string) bool {
				return strings.HasPrefix(w.ask(listIssues("widgets"), token).Header.Get("Cache-Status"), "weir; hit")
			}
			for _, token := range []string{lines(owner)[0], reader} {
				isHit(token)
				w.want("stored", isHit(token), true)
			}
			w.do(http.MethodPatch, issue7, strings.NewReader("{}"), lines(owner)...)
			w.want("query of another client", isHit(reader), true)
			w.want("query of the client", isHit(lines(owner)[0]), !stale)
		}, storingLists())
	}
}

// A write that the upstream denies like a read may show that the client has lost its access.
func TestDeniedWritesMakeObjectsInsideTheirObjectStale(t *testing.T) {
	const repository, pull = "/repos/acme/widgets", "/repos/acme/widgets/pulls/7"
	for _, c := range []struct {
		path, read string
		status     int
		stale      bool
	}{
		{repository, issue7, 404, true},
		{repository, issue7, 410, true},
		{repository, issue7, 451, true},
		{repository, issue7, 403, false}, // the client may lack only the permission to write
		{repository, issue7, 409, false},
		{pull, pull + "/files", 404, true},
		{pull, issue7, 404, false},
	} {
		lateIn(t, fmt.Sprint(c.status, c.path), func(w *world, s *shown) {
			s.show(http.StatusOK, "old")
			s.write = c.status
			for _, token := range []string{lines(owner)[0], reader} {
				w.get(c.read, token)
			}
			w.do(http.MethodPatch, c.path, strings.NewReader("{}"), lines(owner)...)
			s.show(http.StatusNotFound, "none")
			again := "Cache-Control: max-stale=600"
			w.want("body of another client", w.get(c.read, reader, again).body, "old")
			w.want("stored response is used", w.get(c.read, lines(owner)[0], again).body == "old", !c.stale)
		})
	}
}

// A client that ends the access of another one, or of its own token, leaves no responses usable.
func TestWritesThatEndAccessMakeResponsesStale(t *testing.T) {
	const contents = "/repos/acme/widgets/contents/a"
	for _, c := range []struct {
		path, read string
		stale      bool // for the other client, too
	}{
		{"/repos/acme/widgets/collaborators/ann", contents, true},
		{"/repos/acme/widgets/collaborators/ann", "/repositories/7/contents/a", true},
		{"/orgs/acme/members/ann", contents, true},
		{"/orgs/acme/memberships/ann", contents, true},
		{"/orgs/acme/outside_collaborators/ann", contents, true},
		{"/orgs/acme/teams/core/memberships/ann", contents, true},
		{"/orgs/acme/teams/core/repos/acme/widgets", contents, true},
		{"/orgs/acme/teams/core", contents, true},
		{"/repos/acme/widgets/labels/bug", "/repos/acme/widgets/contents/a", false},
		{"/installation/token", contents, false},
	} {
		lateIn(t, c.path+" "+c.read, func(w *world, s *shown) {
			s.write = http.StatusNoContent
			paths := []string{c.read, "/repos/other/widgets/contents/a"}
			for _, token := range []string{lines(owner)[0], reader} {
				w.hits(token, paths...)
				w.want("stored", len(w.hits(token, paths...)), len(paths))
			}
			w.do(http.MethodDelete, c.path, nil, lines(owner)...)
			own := c.path == "/installation/token"
			w.want("hit of the other client", len(w.hits(reader, c.read)), hitsIf(!c.stale))
			w.want("hit about another object", len(w.hits(reader, paths[1])), 1)
			w.want("hits of the client", len(w.hits(lines(owner)[0], paths...)), hitsIf(!own)+hitsIf(!own && !c.stale))
		})
	}
}
