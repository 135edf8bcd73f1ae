package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestErrorsAreNotStored(t *testing.T) {
	for _, status := range []int{202, 400, 401, 403, 409, 418, 422, 429, 451, 500, 502, 503, 504} {
		bubble(t, fmt.Sprint(status), func(t *testing.T) {
			failing := true
			w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Cache-Control", "public, max-age=3600, s-maxage=3600")
				w.Header().Set("Etag", `"v1"`)
				if failing {
					w.WriteHeader(status)
				}
				_, _ = fmt.Fprint(w, "good: ", !failing)
			})
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
	for name, c := range map[string]struct {
		control string
		before  func(*world)
	}{
		"no Cache-Control": {"", func(*world) {}},
		"expired":          {"private, max-age=60", func(*world) { time.Sleep(time.Minute) }},
		"purged":           {"private, max-age=60", func(w *world) { w.gateway.Cache.Purge(w.Context(), "repo:acme/widgets") }},
	} {
		bubble(t, name, func(t *testing.T) {
			allowed := map[string]bool{"Bearer b": true}
			w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
				if c.control != "" {
					w.Header().Set("Cache-Control", c.control)
				}
				if !allowed[r.Header.Get("Authorization")] {
					w.WriteHeader(http.StatusNotFound)
				}
				_, _ = fmt.Fprint(w, "for ", r.Header.Get("Authorization"))
			})
			w.want("status before", w.get(sbom, "Authorization: Bearer a").StatusCode, http.StatusNotFound)
			w.want("status of another caller", w.get(sbom, "Authorization: Bearer b").StatusCode, http.StatusOK)
			allowed["Bearer a"] = true
			c.before(w)
			w.want("status after", w.get(sbom, "Authorization: Bearer a").StatusCode, http.StatusOK)
		})
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
		bubble(t, name, func(t *testing.T) {
			w := newWorld(t, holding(etag, func(*http.Request) string { return "whole" }, "Cache-Control: max-age=60", "Last-Modified: "+testStart))
			w.get(sbom, append(c.before, "Authorization: Bearer a")...)
			time.Sleep(c.after)
			for _, token := range []string{"a", "b", "a"} {
				r := w.get(sbom, append(c.fields, "Authorization: Bearer "+token)...)
				w.want("status for "+token, r.StatusCode, http.StatusOK)
				w.want("body for "+token, r.body, "whole")
			}
		})
	}
}

// If-None-Match compares whole tags weakly (RFC 9110 section 13.1.2).
func TestIfNoneMatchComparesWholeTagsWeakly(t *testing.T) {
	for _, c := range []struct {
		condition string
		status    int
	}{
		{`"v1"`, 304}, {`W/"v1"`, 304}, {`"v0", "v1"`, 304}, {`"v0",W/"v1"`, 304}, {`*`, 304},
		{`"v"`, 200}, {`"v11"`, 200}, {`"xv1"`, 200}, {`v1`, 200}, {`"v0"`, 200}, {`"*"`, 200}, {`"v0, v1"`, 200}, {`W/v1`, 200}, {`"v1`, 200}, {`""`, 200},
	} {
		for _, etag := range []string{`"v1"`, `W/"v1"`} {
			bubble(t, c.condition+" against "+etag, func(t *testing.T) {
				w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					w.Header().Set("Etag", etag)
					_, _ = fmt.Fprint(w, "whole")
				})
				w.get("/users/octocat")
				r := w.get("/users/octocat", "If-None-Match: "+c.condition)
				w.want("status", r.StatusCode, c.status)
				w.want("empty", r.body == "", c.status == 304)
				w.want("requests upstream", w.upstreamSaw(), 1)
			})
		}
	}
}

// A 304 updates the stored fields (RFC 9111 section 3.2).
func Test304UpdatesStoredFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			if r.Header.Get("If-None-Match") == "" {
				h.Set("Cache-Control", "max-age=10")
				h.Set("Etag", `W/"v1"`)
				h.Add("Link", `<https://elsewhere.test/?page=2>; rel="next"`)
				h.Add("Link", `<https://elsewhere.test/?page=9>; rel="last"`)
				h.Set("X-Oauth-Scopes", "repo")
				h.Set("X-Accepted-Oauth-Scopes", "unchanged")
				h.Set("Content-Type", "application/json")
				_, _ = fmt.Fprint(w, "whole")
				return
			}
			h.Set("Cache-Control", "max-age=100")
			h.Set("Etag", `"v1"`)
			h.Set("Link", `<https://elsewhere.test/?page=3>; rel="next"`)
			h.Set("X-Oauth-Scopes", "")
			h.Set("Content-Length", "0")
			h.Set("Content-Encoding", "gzip")
			h.Set("Content-Range", "bytes 0-0/1")
			w.WriteHeader(http.StatusNotModified)
		})
		w.get(watchers, "Authorization: Bearer a")
		time.Sleep(20 * time.Second)
		for range 3 { // a revalidation and two hits
			r := w.get(watchers, "Authorization: Bearer a")
			for name, want := range map[string]string{
				"Cache-Control": "max-age=100", "Etag": `W/"v1"`, "Link": `<https://elsewhere.test/?page=3>; rel="next"`, "X-Oauth-Scopes": "",
				"X-Accepted-Oauth-Scopes": "unchanged", "Content-Type": "application/json", "Content-Length": "5", "Content-Encoding": "", "Content-Range": "",
			} {
				w.want(name, strings.Join(r.Header.Values(name), " and "), want)
			}
			w.want("body", r.body, "whole")
			time.Sleep(30 * time.Second)
		}
		w.want("requests upstream", w.upstreamSaw(), 2)
	})
}

// If an entry is purged before or during its revalidation, Weir fetches the response again.
func TestEntryPurgedDuringRevalidationIsFetchedAgain(t *testing.T) {
	for name, when := range map[string]time.Duration{"before": -time.Second, "during": 500 * time.Millisecond} {
		bubble(t, name, func(t *testing.T) {
			upstream := holding(`"v1"`, func(*http.Request) string { return "whole" }, "Cache-Control: max-age=10")
			w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				upstream(w, r)
			})
			w.get(sbom, "Authorization: Bearer a")
			time.Sleep(20 * time.Second)
			go func() {
				time.Sleep(time.Second + when)
				w.gateway.Cache.PurgeHard(t.Context(), "repo:acme/widgets")
			}()
			time.Sleep(time.Second)
			for range 2 {
				r := w.get(sbom, "Authorization: Bearer a")
				w.want("status", r.StatusCode, http.StatusOK)
				w.want("body", r.body, "whole")
			}
		})
	}
}

// A client that presents another caller's ETag gets the upstream's own response.
func TestForeignETagGrantsNoAccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newGuarded("private, max-age=60", "Bearer a")
		w := newWorld(t, api.ServeHTTP)
		etag := w.get(sbom, "Authorization: Bearer a").Header.Get("Etag")
		for _, condition := range []string{"If-None-Match: " + etag, "If-None-Match: W/" + etag, "If-None-Match: *", "If-Match: " + etag, "If-Modified-Since: " + testStart} {
			before := w.upstreamSaw()
			w.checkHidden(condition, w.get(sbom, "Authorization: Bearer b", condition))
			w.checkHidden("HEAD, "+condition, w.do(http.MethodHead, sbom, nil, "Authorization: Bearer b", condition))
			w.want("requests upstream for "+condition, w.upstreamSaw()-before, 2)
		}
	})
}

// A stale response is served until the documented second, and only if Cache-Control allows a stale response.
func TestStaleResponsesEndAtTheDocumentedSecond(t *testing.T) {
	const lifetime = 10 * time.Second
	for _, c := range []struct {
		control string
		token   string
		after   time.Duration // since the response was stored
		status  int           // of the upstream; 0 if the upstream is unreachable
		stale   bool
	}{
		{"max-age=10, stale-if-error=60", "", lifetime + time.Minute, 503, true},
		{"max-age=10, stale-if-error=60", "", lifetime + time.Minute + time.Second, 503, false},
		{"max-age=10, stale-if-error=0", "", lifetime + time.Second, 503, false},
		{"max-age=10, stale-if-error=60, must-revalidate", "", lifetime + time.Second, 503, false},
		{"no-cache, max-age=10, stale-if-error=60", "", time.Second, 503, false},
		{"max-age=10, stale-if-error=60, no-cache", "", lifetime + time.Second, 0, false},
		{"max-age=10, must-revalidate", "", lifetime + time.Second, 0, false},
		{"max-age=10, must-revalidate, stale-while-revalidate=60", "", lifetime + time.Second, 0, false},
		{"s-maxage=10", "", lifetime + time.Second, 0, false},
		{"s-maxage=10, max-age=10, stale-if-error=60", "", lifetime + time.Second, 503, false},
		{"max-age=10, proxy-revalidate", "", lifetime + time.Second, 0, false},
		{"max-age=10, must-revalidate", "Bearer a", lifetime + time.Second, 0, false},
		{"max-age=10", "", lifetime + time.Second, 0, true},
		{"max-age=10", "", lifetime - time.Second, 0, true}, // fresh
	} {
		bubble(t, fmt.Sprint(c.control, " ", c.token, " ", c.after, " ", c.status), func(t *testing.T) {
			down := false
			w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
				switch {
				case down && c.status == 0:
					panic(http.ErrAbortHandler)
				case down:
					w.WriteHeader(c.status)
					return
				}
				w.Header().Set("Cache-Control", c.control)
				w.Header().Set("Etag", `"v1"`)
				_, _ = fmt.Fprint(w, "stored")
			})
			w.get("/users/octocat", "Authorization: "+c.token)
			time.Sleep(c.after)
			down = true
			for _, field := range []string{"Prefer: wait=1", "Cache-Control: max-stale"} {
				if field == "Cache-Control: max-stale" && !strings.Contains(c.control, "revalidate") && !strings.Contains(c.control, "s-maxage") {
					continue // the client accepts stale responses
				}
				r := w.get("/users/octocat", "Authorization: "+c.token, field)
				w.want("stale for "+field+" ("+r.Header.Get("Cache-Status")+")", r.body == "stored", c.stale)
			}
		})
	}
}
