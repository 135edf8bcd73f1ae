package proxy

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

func TestErrorsAreNotStored(t *testing.T) {
	for _, status := range []int{202, 400, 401, 403, 409, 418, 422, 429, 451, 500, 502, 503, 504} {
		failing := true
		setup(func(w http.ResponseWriter, _ *http.Request) {
			setFields(w, "Cache-Control: public, max-age=3600, s-maxage=3600", `Etag: "v1"`)
			if failing {
				w.WriteHeader(status)
			}
			_, _ = fmt.Fprint(w, "good: ", !failing)
		}).sub(t, fmt.Sprint(status), func(w *world) {
			list, _ := w.replicas(2)
			for _, path := range []string{"/users/octocat", "/gitignore/templates", sbom} {
				failing = true
				w.want("status", sendTo(list[0], path, "Authorization", "Bearer a", "Prefer", "wait=0").Code, status)
				failing = false
				time.Sleep(5 * time.Minute) // longer than any cool-down
				for _, g := range list {
					w.want("body after the error", sendTo(g, path, "Authorization", "Bearer a").Body.String(), "good: true")
				}
			}
		})
	}
}

// A stored 404 is served only to its caller, and not after a purge or the end of the lifetime.
func TestStored404EndsWhenAccessIsGranted(t *testing.T) {
	private := lines("Cache-Control: private, max-age=60")
	for name, c := range map[string]struct {
		response []string
		before   func(*world)
	}{
		"no Cache-Control": {nil, func(*world) {}},
		"expired":          {private, func(*world) { time.Sleep(time.Minute) }},
		"purged":           {private, func(w *world) { w.gateway.Cache.Purge(w.Context(), "repo:acme/widgets") }},
	} {
		runScenarios(t, scenario{name: name, path: sbom, response: c.response, steps: []step{
			{token: "a", status: 404}, {token: "b"}, {do: c.before}, {token: "a"},
		}})
	}
}

// A 304 to another client or to a revalidation by Weir does not reach a client that sent no validator.
func TestClientWithoutValidatorGetsNo304(t *testing.T) {
	const etag = `"v1"`
	for name, c := range map[string]struct {
		before []string // fields of the first request
		after  time.Duration
		fields []string
	}{
		"miss after a validator":  {lines("If-None-Match: " + etag), 0, nil},
		"miss after a date":       {lines("If-Modified-Since: " + testStart), 0, nil},
		"fresh":                   {nil, 0, nil},
		"stale":                   {nil, 2 * time.Minute, nil},
		"no-cache":                {nil, 0, lines("Cache-Control: no-cache")},
		"no-store":                {nil, 2 * time.Minute, lines("Cache-Control: no-store")},
		"stale after a validator": {lines("If-None-Match: " + etag), 2 * time.Minute, nil},
	} {
		setup(holding(etag, same, fresh, "Last-Modified: "+testStart)).sub(t, name, func(w *world) {
			w.get(sbom, append(c.before, bearer("a"))...)
			time.Sleep(c.after)
			for _, token := range []string{"a", "b", "a"} {
				r := w.get(sbom, append(c.fields, bearer(token))...)
				w.want("status for "+token, r.StatusCode, http.StatusOK)
				w.want("body for "+token, r.body, octocat)
			}
		})
	}
}

// If-None-Match compares whole tags weakly (RFC 9110 section 13.1.2).
func TestIfNoneMatchComparesWholeTagsWeakly(t *testing.T) {
	steps := []step{{text: "whole"}}
	for status, conditions := range map[int][]string{
		304: {`"v1"`, `W/"v1"`, `"v0", "v1"`, `"v0",W/"v1"`, `*`},
		200: {`"v"`, `"v11"`, `"xv1"`, `v1`, `"v0"`, `"*"`, `"v0, v1"`, `W/v1`, `"v1`, `""`},
	} {
		for _, condition := range conditions {
			body := map[int]string{200: "whole"}[status]
			steps = append(steps, step{request: lines("If-None-Match: " + condition), cached: true, code: status, body: body})
		}
	}
	for _, etag := range []string{`"v1"`, `W/"v1"`} {
		runScenarios(t, scenario{name: etag, path: "/users/octocat", response: lines(fresh, "Etag: "+etag), steps: steps})
	}
}

// A 304 updates the stored fields (RFC 9111 section 3.2).
func Test304UpdatesStoredFields(t *testing.T) {
	const next = `Link: <https://elsewhere.test/?page=3>; rel="next"`
	updated := step{
		token: "a", after: 20 * time.Second, cached: true, body: "1", lacks: lines("X-Oauth-Scopes", "Content-Encoding", "Content-Range"), has: lines(
			"Cache-Control: max-age=100", `Etag: W/"v1"`, next, "X-Accepted-Oauth-Scopes: unchanged", "Content-Type: application/json", "Content-Length: 1"),
	}
	revalidated := updated
	revalidated.cached, revalidated.status, revalidated.response = false, 304, lines("Cache-Control: max-age=100", `Etag: "v1"`, next, "X-Oauth-Scopes: ",
		"Content-Length: 0", "Content-Encoding: gzip", "Content-Range: bytes 0-0/1")
	runScenarios(t, scenario{name: "a revalidation and two hits", path: watchers, steps: []step{
		{token: "a", response: lines("Cache-Control: max-age=10", `Etag: W/"v1"`, `Link: <https://elsewhere.test/?page=2>; rel="next"`,
			`Link: <https://elsewhere.test/?page=9>; rel="last"`, "X-Oauth-Scopes: repo", "X-Accepted-Oauth-Scopes: unchanged", "Content-Type: application/json")},
		revalidated, updated, updated,
	}})
}

// If an entry is purged before or during its revalidation, Weir fetches the response again.
func TestEntryPurgedDuringRevalidationIsFetchedAgain(t *testing.T) {
	for name, when := range map[string]time.Duration{"before": 0, "during": 1500 * time.Millisecond} {
		setup(delayed(holding(`"v1"`, same, "Cache-Control: max-age=10"))).sub(t, name, func(w *world) {
			w.get(sbom, bearer("a"))
			time.Sleep(20 * time.Second)
			go func() {
				time.Sleep(when)
				w.gateway.Cache.PurgeHard(w.Context(), "repo:acme/widgets")
			}()
			time.Sleep(time.Second)
			for range 2 {
				r := w.get(sbom, bearer("a"))
				w.want("status", r.StatusCode, http.StatusOK)
				w.want("body", r.body, octocat)
			}
		})
	}
}

// A client that presents another caller's ETag gets the upstream's own response.
func TestForeignETagGrantsNoAccess(t *testing.T) {
	setup(newGuarded("private, max-age=60", "Bearer a").ServeHTTP).run(t, func(w *world) {
		etag := w.get(sbom, bearer("a")).Header.Get("Etag")
		for _, condition := range []string{"If-None-Match: " + etag, "If-None-Match: W/" + etag, "If-None-Match: *", "If-Match: " + etag, "If-Modified-Since: " + testStart} {
			before := w.upstreamSaw()
			w.checkHidden(condition, w.get(sbom, bearer("b"), condition))
			w.checkHidden("HEAD, "+condition, w.do(http.MethodHead, sbom, nil, bearer("b"), condition))
			w.want("requests upstream for "+condition, w.upstreamSaw()-before, 2)
		}
	})
}
