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
		w.Header().Set("Etag", etag)
		if strings.Contains(r.Header.Get("If-None-Match"), opaqueTag(etag)) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		for _, f := range fields { // a 304 may omit these fields
			name, value, _ := strings.Cut(f, ": ")
			w.Header().Set(name, value)
		}
		_, _ = fmt.Fprint(w, body(r))
	}
}

func language(r *http.Request) string { return r.Header.Get("Accept-Language") }

// A repeated request must not contain a condition that Weir added to the first attempt.
func TestClientWithoutValidatorsNeverGets304(t *testing.T) {
	const contributors = "/repos/acme/widgets/stats/contributors"
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		upstream := holding(`"v1"`, func(*http.Request) string { return "all" }, "Cache-Control: max-age=60")
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			switch n.Add(1) {
			case 2:
				w.WriteHeader(http.StatusAccepted)
			case 3: // the poll
				w.WriteHeader(http.StatusInternalServerError)
			default:
				upstream(w, r)
			}
		})
		w.get(contributors, "Authorization: Bearer a")
		r := w.get(contributors, "Authorization: Bearer b")
		w.want("status", r.StatusCode, http.StatusOK)
		w.want("body", r.body, "all")
	})
}

// Vary and Cache-Control of another caller's response still apply if the 304 does not repeat them.
func TestProofKeepsVaryAndDirectives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			holding(`"`+language(r)+`"`, language, "Vary: Accept-Language", "Cache-Control: max-age=60")(w, r)
		})
		w.get(sbom, "Authorization: Bearer a", "Accept-Language: de")
		w.want("proof", w.get(sbom, "Authorization: Bearer b", "Accept-Language: de").Header.Get("Cache-Status"), proofStatus)
		w.want("another variant", w.get(sbom, "Authorization: Bearer b", "Accept-Language: fr").body, "fr")
	})
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		upstream := holding(`"x"`, language, "Cache-Control: private, max-age=0, must-revalidate")
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if away.Load() {
				panic(http.ErrAbortHandler)
			}
			upstream(w, r)
		})
		w.get(sbom, "Authorization: Bearer a")
		w.get(sbom, "Authorization: Bearer b")
		away.Store(true)
		w.want("must be validated", w.get(sbom, "Authorization: Bearer b").StatusCode, http.StatusGatewayTimeout)
	})
}

// Two different variants may have the same weak ETag.
func TestWeakETagSelectsNoVariant(t *testing.T) {
	setup(holding(`W/"1"`, language, "Vary: Accept-Language", "Cache-Control: max-age=60")).run(t, func(w *world) {
		w.want("german", w.get("/unknown", "Accept-Language: de").body, "de")
		for range 2 {
			w.want("french", w.get("/unknown", "Accept-Language: fr").body, "fr")
		}
	})
}

// The duration of candidate reads before a refusal could reveal which responses are stored.
func TestRequestWithoutPermitReadsNoCandidates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-RateLimit-Limit", "1")
			w.Header().Set("X-RateLimit-Used", "1")
			w.Header().Set("X-RateLimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
			digesting(same, false)(w, r)
		}, github)
		list, tier := w.replicas(1)
		sendTo(list[0], sbom, "Authorization", "Bearer a")
		sendTo(list[0], "/repos/acme/widgets/subscription", "Authorization", "Bearer b") // uses the only permit of token b
		before := tier.lookups
		if r := sendTo(list[0], sbom, "Authorization", "Bearer b", "Prefer", "respond-async"); r.Code != http.StatusTooManyRequests {
			t.Errorf("got %d, want 429", r.Code)
		}
		w.want("reads of candidates", tier.lookups, before)
	})
}

// Reference data is stored without the fields about the caller that fetched or revalidated it.
func TestReferenceDataIsStoredWithoutFieldsAboutItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHTTP1World(t, func(w http.ResponseWriter, r *http.Request) { // HTTP/2 has no Connection field
			w.Header().Set("X-Oauth-Scopes", "of "+r.Header.Get("Authorization"))
			w.Header().Set("Content-Language", "en")
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.Header().Set("Connection", "Content-Disposition")
			w.Header().Set("Content-Disposition", "of "+r.Header.Get("Authorization"))
			templates(w, r)
		})
		const path = "/gitignore/templates"
		w.want("scopes of the fetching caller", w.get(path, "Authorization: Bearer a").Header.Get("X-Oauth-Scopes"), "of Bearer a")
		for range 2 {
			r := w.get(path)
			w.want("scopes of a hit", r.Header.Get("X-Oauth-Scopes"), "")
			w.want("language", r.Header.Get("Content-Language"), "en")
			w.want("allowed origin", r.Header.Get("Access-Control-Allow-Origin"), "*")
			w.want("field of one connection", r.Header.Get("Content-Disposition"), "")
			time.Sleep(25 * time.Hour)
			w.get(path, "Authorization: Bearer b") // revalidates the response
		}
	})
}

// Weir does not send invalid or very long ETags, and bounds the size of If-None-Match.
func TestIfNoneMatchIsBounded(t *testing.T) {
	for _, etag := range []string{"*", "v1", `"a", "b"`, `"` + strings.Repeat("x", 300) + `"`} {
		setup(holding(etag, language, "Cache-Control: max-age=1")).run(t, func(w *world) {
			w.get(sbom, "Authorization: Bearer a")
			w.get(sbom, "Authorization: Bearer b", "Accept-Language: fr")
			time.Sleep(2 * time.Second)
			w.get(sbom, "Authorization: Bearer a")
			for i, r := range w.seen.all() {
				w.want(fmt.Sprint("condition of request ", i+1), r.Header.Get("If-None-Match"), "")
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			text := r.Header.Get("Authorization")
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Etag", `"`+strings.Repeat(text[len(text)-1:]+language(r), 80)+`"`)
			w.Header().Set("Vary", "Accept-Language")
			_, _ = fmt.Fprint(w, text)
		})
		for _, token := range strings.Split("abcdefghijklmnopqrst", "") {
			for _, language := range []string{"de", "fr", "it"} {
				w.want("status", w.get(sbom, "Authorization: Bearer "+token, "Accept-Language: "+language).StatusCode, http.StatusOK)
			}
		}
		for _, r := range w.seen.all() {
			if n := len(r.Header.Get("If-None-Match")); n > maxETags+2*maxETags/200 {
				t.Errorf("If-None-Match has %d bytes", n)
			}
		}
	})
}

// If the upstream refuses conditional requests, Weir repeats each request without conditions. With cache.etags: off,
// Weir sends each request once.
func TestRefusedConditionalRequestIsRepeatedWithoutConditions(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusPreconditionFailed, http.StatusRequestHeaderFieldsTooLarge} {
		for etags, requests := range map[ETags]int{ETagsUpstream: 1 + 2*4, ETagsOff: 5} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("If-None-Match") != "" {
						w.WriteHeader(status)
						return
					}
					holding(`"v1"`, language, "Cache-Control: max-age=60")(w, r)
				}, withETags(etags))
				for i := range 5 {
					w.want("status", w.get(sbom, fmt.Sprint("Authorization: Bearer ", i)).StatusCode, http.StatusOK)
				}
				w.want("requests upstream with "+string(etags), w.upstreamSaw(), requests)
			})
		}
	}
}

// A request that the upstream refuses for its own fields does not affect other callers' proofs.
func TestRefusedRequestDoesNotEndProofs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := digesting(same, false)
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if language(r) == "refused" {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			upstream(w, r)
		}, github)
		w.get(sbom, "Authorization: Bearer a")
		for range 6 {
			w.want("status", w.get(sbom, "Authorization: Bearer b", "Accept-Language: refused").StatusCode, http.StatusBadRequest)
		}
		w.want("proof", w.get(sbom, "Authorization: Bearer c").Header.Get("Cache-Status"), proofStatus)
		time.Sleep(2 * time.Minute)
		before := w.upstreamSaw()
		w.get(sbom, "Authorization: Bearer a", "Accept-Language: refused")
		w.want("requests for a refused revalidation", w.upstreamSaw()-before, 1)
	})
}

// A follower with an early deadline is refused in time while the repeated request waits for a permit.
func TestRepeatedRequestWaitsForAPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			used := "1"
			if r.Header.Get("If-None-Match") != "" {
				time.Sleep(time.Second)
				used = "5000"
			}
			w.Header().Set("X-RateLimit-Limit", "5000")
			w.Header().Set("X-RateLimit-Used", used)
			w.Header().Set("X-RateLimit-Reset", fmt.Sprint(time.Now().Add(40*time.Second).Unix()))
			holding(`"v1"`, language, "Cache-Control: max-age=60")(&weakTag{w}, r)
		})
		w.get(sbom, "Authorization: Bearer a")
		done := make(chan got)
		go func() { done <- w.get(sbom, "Authorization: Bearer b", "Prefer: wait=60") }()
		synctest.Wait()
		began := time.Now()
		w.want("status with an early deadline", w.get(sbom, "Authorization: Bearer b", "Prefer: wait=2").StatusCode, http.StatusTooManyRequests)
		w.want("refused after", time.Since(began), 2*time.Second)
		w.want("status with a late deadline", (<-done).StatusCode, http.StatusOK)
	})
}

func TestLargeBodiesAreNotHashed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := func(string) string { return strings.Repeat("x", maxHashed+1) }
		w := newWorld(t, digesting(large, false), github)
		w.get(sbom, "Authorization: Bearer a")
		w.get(sbom, "Authorization: Bearer b")
		w.want("If-None-Match", w.seen.all()[1].Header.Get("If-None-Match"), "")
	})
}

func Test404IsNoCandidateAndReplacesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := digesting(same, false)
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.Header.Get("Authorization"), "without access") {
				w.Header().Set("Cache-Control", "max-age=60")
				w.WriteHeader(http.StatusNotFound)
				return
			}
			upstream(w, r)
		}, github)
		w.get(sbom, "Authorization: Bearer a")
		for i := range 10 {
			w.want("status without access", w.get(sbom, fmt.Sprint("Authorization: Bearer without access ", i)).StatusCode, http.StatusNotFound)
		}
		w.want("proof", w.get(sbom, "Authorization: Bearer b").Header.Get("Cache-Status"), proofStatus)
	})
}

// A 304 with a weak ETag does not prove access, so Weir repeats the request without conditions.
func TestWeak304IsFollowedByAnUnconditionalRequest(t *testing.T) {
	for etags, requests := range map[ETags]int{ETagsUpstream: 1 + 2*4, ETagsOff: 5} {
		synctest.Test(t, func(t *testing.T) {
			upstream := holding(`"v1"`, language, "Cache-Control: max-age=60")
			w := newWorld(t, func(w http.ResponseWriter, r *http.Request) { upstream(&weakTag{w}, r) }, withETags(etags))
			for i := range 5 {
				w.want("status", w.get(sbom, fmt.Sprint("Authorization: Bearer ", i)).StatusCode, http.StatusOK)
			}
			w.want("requests upstream with "+string(etags), w.upstreamSaw(), requests)
		})
	}
}

// weakTag is a response writer that makes the ETag of a 304 weak.
type weakTag struct{ http.ResponseWriter }

func (u *weakTag) WriteHeader(status int) {
	if status == http.StatusNotModified {
		u.Header().Set("Etag", "W/"+u.Header().Get("Etag"))
	}
	u.ResponseWriter.WriteHeader(status)
}

// A response whose proof began before a purge is stale after the purge, even if the 304 arrived later.
func TestPurgeMakesProvedResponseStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := digesting(same, false)
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			upstream(w, r)
		}, github)
		w.get(sbom, "Authorization: Bearer a")
		done := make(chan got)
		go func() { done <- w.get(sbom, "Authorization: Bearer b") }()
		time.Sleep(500 * time.Millisecond)
		w.gateway.Cache.Purge(t.Context(), "repo:acme/widgets")
		<-done
		w.want("after", w.get(sbom, "Authorization: Bearer b").Header.Get("Cache-Status"), "weir; fwd=stale; fwd-status=304; stored; ttl=59")
		w.gateway.Cache.Purge(t.Context(), "account:account of Bearer a")
		again := func(token string) string {
			return w.get(sbom, "Authorization: Bearer "+token).Header.Get("Cache-Status")
		}
		w.want("after a purge of the caller that fetched it", again("b"), "weir; hit; ttl=59")
		w.gateway.Cache.Purge(t.Context(), "account:account of Bearer b")
		w.want("after a purge of the caller that proved its access", again("b"), "weir; fwd=stale; fwd-status=304; stored; ttl=59")
		w.want("a proof by a response from before the purge", again("c"), "weir; fwd=uri-miss; fwd-status=304; stored; ttl=59")
		w.want("a hit after that proof", again("c"), "weir; hit; ttl=59")
	})
}
