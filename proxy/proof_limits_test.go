package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// holding returns an upstream with one response. The upstream sends 304 to a request with the ETag, and the body to all
// other requests.
func holding(etag string, body func(*http.Request) string, fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		setFields(w, "Etag: "+etag)
		if strings.Contains(r.Header.Get("If-None-Match"), opaqueTag(etag)) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		setFields(w, fields...) // a 304 may omit these fields
		_, _ = fmt.Fprint(w, body(r))
	}
}

var language = requestField("Accept-Language")

func inLanguage(language string) []string { return lines("Accept-Language: " + language) }

// A repeated request must not contain a condition that Weir added to the first attempt.
func TestClientWithoutValidatorsNeverGets304(t *testing.T) {
	const contributors = "/repos/acme/widgets/stats/contributors"
	var n atomic.Int32
	upstream := holding(`"v1"`, same, fresh)
	setup(func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) {
		case 2:
			w.WriteHeader(http.StatusAccepted)
		case 3: // the poll
			w.WriteHeader(http.StatusInternalServerError)
		default:
			upstream(w, r)
		}
	}).run(t, func(w *world) {
		w.get(contributors, bearer("a"))
		r := w.get(contributors, bearer("b"))
		w.want("status", r.StatusCode, http.StatusOK)
		w.want("body", r.body, octocat)
	})
}

func TestProofsOfScriptedUpstreams(t *testing.T) {
	validated := lines(`Etag: "x"`, "Cache-Control: private, max-age=0, must-revalidate")
	weak := lines(`Etag: W/"1"`, "Vary: Accept-Language", fresh)
	runScenarios(t,
		scenario{name: "Vary of another caller's response applies", path: sbom, steps: []step{
			{token: "a", request: inLanguage("de"), response: lines(`Etag: "de"`, "Vary: Accept-Language", fresh)},
			{token: "b", request: inLanguage("de"), status: 304, response: lines(`Etag: "de"`), cache: proofStatus},
			{token: "b", request: inLanguage("fr"), response: lines(`Etag: "fr"`, "Vary: Accept-Language", fresh), body: "2"},
		}},
		scenario{name: "Cache-Control of another caller's response applies", path: sbom, steps: []step{
			{token: "a", response: validated}, {token: "b", status: 304, response: validated[:1]}, {token: "b", status: aborted, code: 504},
		}},
		// Two different variants may have the same weak ETag.
		scenario{name: "a weak ETag selects no variant", path: "/unknown", steps: []step{
			{request: inLanguage("de"), response: weak, body: "1"}, {request: inLanguage("fr"), response: weak, body: "2", sent: lines("If-None-Match: ")},
			{request: inLanguage("fr"), cached: true, body: "2"},
		}},
	)
}

// The duration of candidate reads before a refusal could reveal which responses are stored.
func TestRequestWithoutPermitReadsNoCandidates(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		setFields(w, rates(1, 1, time.Hour)...)
		digesting(same)(w, r)
	}, github).run(t, func(w *world) {
		list, tier := w.replicas(1)
		sendTo(list[0], sbom, "Authorization", "Bearer a")
		sendTo(list[0], "/repos/acme/widgets/subscription", "Authorization", "Bearer b") // uses the only permit of token b
		before := tier.lookups
		r := sendTo(list[0], sbom, "Authorization", "Bearer b", "Prefer", "respond-async")
		w.want("status", r.Code, http.StatusTooManyRequests)
		w.want("reads of candidates", tier.lookups, before)
	})
}

// Reference data is stored without the fields about the caller that fetched or revalidated it.
func TestReferenceDataIsStoredWithoutFieldsAboutItsCaller(t *testing.T) {
	about := func(token string) []string {
		return lines("X-Oauth-Scopes: of "+token, "Content-Language: en", "Access-Control-Allow-Origin: *", "Connection: Content-Disposition",
			"Content-Disposition: of "+token, `Etag: W/"one"`)
	}
	hit := step{cached: true, has: lines("Content-Language: en", "Access-Control-Allow-Origin: *"), lacks: lines("X-Oauth-Scopes", "Content-Disposition")}
	runScenarios(t, scenario{name: "fetched and revalidated", path: "/gitignore/templates", steps: []step{
		{token: "a", response: about("a"), has: lines("X-Oauth-Scopes: of a")}, hit,
		{token: "b", after: 25 * time.Hour, response: about("b"), status: 304}, hit,
	}})
}

// Weir does not send invalid or very long ETags, and bounds the size of If-None-Match.
func TestIfNoneMatchIsBounded(t *testing.T) {
	for _, etag := range []string{"*", "v1", `"a", "b"`, `"` + strings.Repeat("x", 300) + `"`} {
		unconditional := lines("If-None-Match: ")
		runScenarios(t, scenario{name: fmt.Sprintf("%.10s", etag), path: sbom, response: lines("Cache-Control: max-age=1", "Etag: "+etag), steps: []step{
			{token: "a", sent: unconditional}, {token: "b", request: inLanguage("fr"), sent: unconditional}, {token: "a", after: 2 * time.Second, sent: unconditional},
		}})
	}
	setup(func(w http.ResponseWriter, r *http.Request) {
		text := r.Header.Get("Authorization")
		setFields(w, fresh, `Etag: "`+strings.Repeat(text[len(text)-1:]+language(r), 80)+`"`, "Vary: Accept-Language")
	}).sub(t, "many variants", func(w *world) {
		for _, token := range strings.Split("abcdefghijklmnopqrst", "") {
			for _, language := range []string{"de", "fr", "it"} {
				w.want("status", w.get(sbom, append(inLanguage(language), bearer(token))...).StatusCode, http.StatusOK)
			}
		}
		for _, r := range w.seen.all() {
			n := len(r.Header.Get("If-None-Match"))
			failIf(t, n > maxETags+2*maxETags/200, "If-None-Match has %d bytes", n)
		}
	})
}

// If the upstream refuses conditional requests, or sends a 304 that proves nothing because its ETag is weak, Weir repeats each
// request without conditions. With cache.etags: off, Weir sends each request once.
func TestUselessConditionalRequestIsRepeatedWithoutConditions(t *testing.T) {
	upstream := holding(`"v1"`, language, fresh)
	for _, status := range []int{http.StatusNotModified, http.StatusBadRequest, http.StatusPreconditionFailed, http.StatusRequestHeaderFieldsTooLarge} {
		for etags, requests := range map[ETags]int{ETagsUpstream: 1 + 2*4, ETagsOff: 5} {
			setup(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("If-None-Match") != "" && status != http.StatusNotModified {
					w.WriteHeader(status)
					return
				}
				upstream(&changing304{w, weakTag}, r)
			}, withETags(etags)).sub(t, fmt.Sprint(status, " ", etags), func(w *world) {
				for i := range 5 {
					w.want("status", w.get(sbom, bearer(fmt.Sprint(i))).StatusCode, http.StatusOK)
				}
				w.want("requests upstream", w.upstreamSaw(), requests)
			})
		}
	}
}

// weakTag makes the ETag of a 304 weak.
func weakTag(h http.Header) { h.Set("Etag", "W/"+h.Get("Etag")) }

// A request that the upstream refuses for its own fields, or with a 404, does not affect other callers' proofs.
func TestRefusedRequestDoesNotEndProofs(t *testing.T) {
	upstream := digesting(same)
	for _, status := range []int{http.StatusBadRequest, http.StatusNotFound} {
		setup(func(w http.ResponseWriter, r *http.Request) {
			if language(r) == "refused" {
				setFields(w, fresh)
				w.WriteHeader(status)
				return
			}
			upstream(w, r)
		}, github).sub(t, fmt.Sprint(status), func(w *world) {
			refused := func(token string) {
				w.want("status", w.get(sbom, append(inLanguage("refused"), bearer(token))...).StatusCode, status)
			}
			w.get(sbom, bearer("a"))
			for i := range 10 {
				refused("b")
				refused(fmt.Sprint("without access ", i))
			}
			w.want("proof", w.get(sbom, bearer("c")).Header.Get("Cache-Status"), proofStatus)
			time.Sleep(2 * time.Minute)
			before := w.upstreamSaw()
			refused("a")
			w.want("requests for a refused revalidation", w.upstreamSaw()-before, 1)
		})
	}
}

// A follower with an early deadline is refused in time while the repeated request waits for a permit.
func TestRepeatedRequestWaitsForAPermit(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		used := 1
		if r.Header.Get("If-None-Match") != "" {
			time.Sleep(time.Second)
			used = 5000
		}
		setFields(w, rates(5000, used, 40*time.Second)...)
		holding(`"v1"`, language, fresh)(&changing304{w, weakTag}, r)
	}).run(t, func(w *world) {
		w.get(sbom, bearer("a"))
		done := make(chan got)
		go func() { done <- w.get(sbom, bearer("b"), "Prefer: wait=60") }()
		synctest.Wait()
		began := time.Now()
		w.want("status with an early deadline", w.get(sbom, bearer("b"), "Prefer: wait=2").StatusCode, http.StatusTooManyRequests)
		w.want("refused after", time.Since(began), 2*time.Second)
		w.want("status with a late deadline", (<-done).StatusCode, http.StatusOK)
	})
}

func TestLargeBodiesAreNotHashed(t *testing.T) {
	large := digesting(func(*http.Request) string { return strings.Repeat("x", maxHashed+1) })
	runScenarios(t, scenario{name: "large", path: sbom, upstream: large, options: []option{github}, steps: []step{
		{token: "a"}, {token: "b", sent: lines("If-None-Match: ")},
	}})
}

// A response whose proof began before a purge is stale after the purge, even if the 304 arrived later.
func TestPurgeMakesProvedResponseStale(t *testing.T) {
	setup(delayed(digesting(same)), github).run(t, func(w *world) {
		w.get(sbom, bearer("a"))
		done := make(chan got)
		go func() { done <- w.get(sbom, bearer("b")) }()
		time.Sleep(500 * time.Millisecond)
		w.gateway.Cache.Purge(w.Context(), "repo:acme/widgets")
		<-done
		again := func(name, token, want string) {
			w.Helper()
			w.want(name, w.get(sbom, bearer(token)).Header.Get("Cache-Status"), want)
		}
		const hit, stale = "weir; hit; ttl=59", "weir; fwd=stale; fwd-status=304; stored; ttl=59"
		again("after", "b", stale)
		w.gateway.Cache.Purge(w.Context(), "account:account of Bearer a")
		again("after a purge of the caller that fetched it", "b", hit)
		w.gateway.Cache.Purge(w.Context(), "account:account of Bearer b")
		again("after a purge of the caller that proved its access", "b", stale)
		again("a proof by a response from before the purge", "c", "weir; fwd=uri-miss; fwd-status=304; stored; ttl=59")
		again("a hit after that proof", "c", hit)
	})
}
