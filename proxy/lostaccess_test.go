package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestLostAccessEndsStoredResponses checks that no request field gets a stored response after the upstream has refused the
// credential, or has denied the resource to it.
func TestLostAccessEndsStoredResponses(t *testing.T) {
	const secret = "/repos/acme/secret"
	for _, storage := range []string{"private, max-age=60", "private, max-age=60, s-maxage=60", "private, max-age=60, stale-if-error=86400", "private, max-age=60, stale-while-revalidate=86400"} {
		for _, loss := range []struct {
			name, method, path string
			status             int
			fields             []string
		}{
			{"401", "GET", secret, 401, nil},
			{"401 elsewhere", "GET", "/user", 401, nil},
			{"401 to a write", "PATCH", "/repos/acme/widgets", 401, nil},
			{"401 to GraphQL", "POST", "/graphql", 401, nil},
			{"401 without storage", "GET", "/user", 401, []string{"Cache-Control: no-store"}},
			{"404", "GET", secret, 404, nil},
			{"410", "GET", secret, 410, nil},
			{"403", "GET", secret, 403, nil},
			{"404 without storage", "GET", secret, 404, []string{"Cache-Control: no-store"}},
			{"404 to another form", "GET", secret, 404, []string{"Accept: application/vnd.service.raw"}},
			{"404 to HEAD", "HEAD", secret, 404, nil},
			{"404 to a range", "GET", secret, 404, []string{"Range: bytes=0-3"}},
		} {
			for _, fresh := range []bool{false, true} {
				if fresh && loss.path == secret && (loss.fields == nil || strings.HasPrefix(loss.fields[0], "Range")) {
					continue // a hit, of which the upstream knows nothing
				}
				for _, again := range []string{"max-stale=86400", "max-stale", "stale-if-error=86400", "only-if-cached", "only-if-cached, max-stale", "max-age=86400, max-stale=86400", ""} {
					bubble(t, strings.Join([]string{storage, loss.name, map[bool]string{true: "fresh", false: "stale"}[fresh], again}, "/"), func(t *testing.T) {
						var lost, broken atomic.Bool
						w := newWorld(t, deniable(&lost, &broken, loss.status, storage), wholeAPI(t, unchanged))
						w.want("first body", w.get(secret, owner).body, "private body")
						other := w.get(secret, bearer("tok-other"))
						w.want("body of another", other.body, "private body")
						lost.Store(true)
						if !fresh {
							time.Sleep(2 * time.Minute)
						}
						w.do(loss.method, loss.path, nil, append(loss.fields, owner)...)
						synctest.Wait() // a revalidation in the background
						broken.Store(strings.Contains(again, "error"))
						r := w.get(secret, owner, "Cache-Control: "+again)
						failIf(t, strings.Contains(r.body, "private"), "got %d %q with %s", r.StatusCode, r.body, r.Header.Get("Cache-Status"))
						kept := w.get(secret, bearer("tok-other"), "Cache-Control: only-if-cached, max-stale")
						w.want("body of another", kept.body, "private body")
					})
				}
			}
		}
	}
}

// deniable returns an upstream that denies access with a status after lost is set, and fails after broken is set.
func deniable(lost, broken *atomic.Bool, status int, storage string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case broken.Load():
			w.WriteHeader(http.StatusBadGateway)
		case lost.Load():
			w.WriteHeader(status)
		default:
			setFields(w, "Cache-Control: "+storage)
			_, _ = io.WriteString(w, "private body")
		}
	}
}

// TestDenialEndsResponsesInsideTheObject checks which other stored responses of a caller end with a denial.
func TestDenialEndsResponsesInsideTheObject(t *testing.T) {
	const secret, issue = "/repos/acme/secret", "/repos/acme/secret/issues/1"
	for _, c := range []struct {
		denied string
		status int
		stored string
		ends   bool
		before bool // a replica has fetched the denied path before
	}{
		{secret, 404, secret + "/issues", true, false},
		{secret, 403, secret + "/contents/a/b/c", true, false},
		{secret, 410, issue, true, false},
		{secret, 451, issue, true, false},
		{secret + "?a=b", 404, issue, true, false},
		{"/repositories/7", 404, "/repositories/7/issues", true, false},
		{secret, 404, "/repositories/7/issues", true, false},
		{"/organizations/7", 404, "/orgs/acme/teams/core", true, true},
		{"/repositories/7", 404, issue, true, true},
		{"/repositories/7", 404, issue, false, false},
		{secret + "/labels", 404, "/repositories/7/issues", false, false},
		{"/orgs/acme", 403, issue, true, false},
		{"/users/acme", 404, issue, true, false},
		{"/orgs/acme/teams/core", 404, "/orgs/acme/teams/core/members", true, true},
		{issue, 404, issue + "/comments", true, true},
		{secret, 404, "/repos/Acme/Secret/issues", true, false},
		{"/repos/ACME/Secret", 404, issue, true, false},
		{"/orgs/Acme", 403, issue, true, false},
		{issue, 401, secret + "/labels", true, true},
		{issue, 404, secret + "/issues", false, false},
		{issue, 404, secret + "/issues/2", false, false},
		{issue, 404, secret + "/issues/10", false, false},
		{secret + "/commits?sha=gone", 404, secret + "/commits/main", false, false},
		{secret, 429, issue, false, false},
		{secret, 500, issue, false, false},
		{secret, 409, issue, false, false},
		{"/repos/acme/secret2", 404, issue, false, false},
		{"/orgs/other", 404, issue, false, false},
		{"/repos/acme", 404, issue, false, false},
	} {
		for _, again := range []string{"max-stale=86400", "only-if-cached, max-stale", "stale-if-error=86400"} {
			for _, replicas := range []int{1, 2} { // the second one gets the denial
				bubble(t, fmt.Sprintf("%d to %s, %s, %s, %d", c.status, c.denied, c.stored, again, replicas), func(t *testing.T) {
					var lost, broken atomic.Bool
					w := newWorld(t, deniable(&lost, &broken, c.status, "private, max-age=60"), wholeAPI(t, unchanged))
					list, _ := w.replicas(replicas)
					get := func(replica int, path, token, cacheControl string) string {
						return sendTo(list[replica%replicas], path, "Authorization", "Bearer "+token, "Cache-Control", cacheControl).Body.String()
					}
					get(0, c.stored, "tok-owner", "")
					get(0, c.stored, "tok-other", "")
					if c.before {
						get(0, c.denied, "tok-owner", "")
					}
					lost.Store(true)
					time.Sleep(2 * time.Minute)
					get(1, c.denied, "tok-owner", "")
					broken.Store(strings.Contains(again, "error"))
					w.want("stored response is used", get(0, c.stored, "tok-owner", again) == "private body", !c.ends)
					w.want("body of another", get(0, c.stored, "tok-other", "only-if-cached, max-stale"), "private body")
				})
			}
		}
	}
}

// A query that the upstream denies the only repository that it names ends the responses about the repository.
func TestDenialOfAQueryEndsResponsesAboutItsRepository(t *testing.T) {
	const secret, issue = "/repos/acme/secret", "/repos/acme/secret/issues/1"
	const query = `{"query":"query{repository(owner:\"Acme\",name:\"secret\"){id}}"}`
	denied := func(kind, path string) string {
		return `{"data":{"repository":null},"errors":[{"type":"` + kind + `","path":[` + path + `],"message":"Could not resolve to a Repository with the name 'acme/secret'."}]}`
	}
	for _, c := range []struct {
		name, query, answer, stored string
		ends                        bool
	}{
		{"missing", query, denied("NOT_FOUND", `"repository"`), secret, true},
		{"missing, issue", query, denied("NOT_FOUND", `"repository"`), issue, true},
		{"missing, number", query, denied("NOT_FOUND", `"repository"`), "/repositories/7/issues", true},
		{"forbidden", query, denied("FORBIDDEN", `"repository"`), issue, true},
		{"field of the repository", query, denied("NOT_FOUND", `"repository","issue"`), secret, false},
		{"another error", query, denied("SERVICE_UNAVAILABLE", `"repository"`), secret, false},
		{"limit", query, denied("RATE_LIMITED", `"repository"`), secret, false},
		{"no error", query, `{"data":{"repository":{"id":"R_1"}}}`, secret, false},
		{"another repository", strings.Replace(query, "secret", "other", 1), denied("NOT_FOUND", `"repository"`), secret, false},
		{"two repositories", strings.Replace(query, "query{", `query{a:repository(owner:\"acme\",name:\"a\"){id} `, 1), denied("NOT_FOUND", `"repository"`), secret, false},
		{"mutation", strings.Replace(query, "query{", "mutation{", 1), denied("NOT_FOUND", `"addStar"`), "/repos/acme/other", false},
	} {
		for _, replicas := range []int{1, 2} { // the second one gets the denial
			setup(byPath(replies("private body", "Cache-Control: private, max-age=600"), map[string]http.HandlerFunc{
				"/graphql": replies(c.answer, "Content-Type: application/json"),
			}), wholeAPI(t, unchanged)).sub(t, fmt.Sprint(c.name, " ", replicas), func(w *world) {
				list, _ := w.replicas(replicas)
				get := func(token string) bool {
					r := sendTo(list[0], c.stored, "Authorization", "Bearer "+token, "Cache-Control", "only-if-cached")
					return r.Body.String() == "private body"
				}
				for _, token := range []string{"tok-owner", "tok-other"} {
					sendTo(list[0], c.stored, "Authorization", "Bearer "+token)
				}
				r := httptest.NewRequest(http.MethodPost, "/graphql", strings.NewReader(c.query))
				r.Header.Set("Authorization", "Bearer tok-owner")
				list[replicas-1].ServeHTTP(httptest.NewRecorder(), r)
				w.want("stored response is used", get("tok-owner"), !c.ends)
				w.want("response to another is used", get("tok-other"), true)
			})
		}
	}
}

func TestFollowersShareTheDenialOfAQuery(t *testing.T) {
	answer := `{"data":{"repository":null},"errors":[{"type":"NOT_FOUND","path":["repository"],"message":"Could not resolve"}]}`
	setup(delayed(replies(answer, "Content-Type: application/json")), wholeAPI(t, unchanged)).run(t, func(w *world) {
		list, _ := w.replicas(2)
		together(10, func(int) {
			r := httptest.NewRequest(http.MethodPost, "/graphql", strings.NewReader(`{"query":"query{repository(owner:\"acme\",name:\"secret\"){id}}"}`))
			r.Header.Set("Authorization", "Bearer tok-owner")
			list[0].ServeHTTP(httptest.NewRecorder(), r)
		})
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// A response that arrives after a denial, and was requested before, is not used again.
func TestDenialEndsResponsesThatArriveLater(t *testing.T) {
	const secret, issue = "/repos/acme/secret", "/repos/acme/secret/issues/1"
	for _, c := range []struct {
		denied, arriving string
		ends             bool
	}{
		{secret, issue, true},
		{secret, "/repositories/7/issues", true},
		{issue, issue + "/comments", true},
		{issue, issue, true},
		{issue, secret + "/issues/10", false},
		{"/repos/acme/other", issue, false},
	} {
		bubble(t, c.denied+" "+c.arriving, func(t *testing.T) {
			var lost, broken atomic.Bool
			others := deniable(&lost, &broken, http.StatusNotFound, "private, max-age=60")
			w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Req-Num") == "1" {
					deniable(new(atomic.Bool), new(atomic.Bool), 0, "private, max-age=60")(w, r)
					_ = http.NewResponseController(w).Flush()
					time.Sleep(2 * time.Second)
					return
				}
				others(w, r)
			}, wholeAPI(t, unchanged))
			var arriving sync.WaitGroup
			arriving.Go(func() { w.get(c.arriving, owner, "Req-Num: 1") })
			time.Sleep(time.Second)
			lost.Store(true)
			w.want("status", w.get(c.denied, owner, "Cache-Control: no-cache").StatusCode, http.StatusNotFound)
			arriving.Wait()
			r := w.get(c.arriving, owner, "Cache-Control: max-stale=86400")
			w.want("response is used", r.body == "private body", !c.ends)
		})
	}
}

// A stored denial stays a hit, and repeated denials purge nothing.
func TestDenialsAreStored(t *testing.T) {
	setup(responds(http.StatusNotFound, "Cache-Control: private, max-age=60"), wholeAPI(t, unchanged)).run(t, func(w *world) {
		list, _ := w.replicas(2)
		for i := range 4 {
			sendTo(list[i%2], "/repos/acme/secret", "Authorization", "Bearer tok-owner")
			synctest.Wait() // until the response is in the shared tier
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// After two 401s, of which the first may concern only its operation, the leader of a call gets no stored response either.
func TestLeaderGetsNoResponseAfterLostAccess(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		var lost, broken atomic.Bool
		w := newWorld(t, deniable(&lost, &broken, http.StatusUnauthorized, "private, max-age=3600"), wholeAPI(t, unchanged))
		w.get("/repos/acme/secret", owner)
		lost.Store(true)
		w.get("/app", owner)  // only for apps
		w.get("/user", owner) // for every credential
		time.Sleep(10 * time.Second)
		r := w.get("/repos/acme/secret", owner)
		w.want("status", r.StatusCode, http.StatusUnauthorized)
	})
}
