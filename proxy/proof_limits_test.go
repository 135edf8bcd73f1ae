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

// holding answers whoever has the ETag already 304, and all others with a body.
func holding(etag string, body func(*http.Request) string, fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", etag)
		if strings.Contains(r.Header.Get("If-None-Match"), opaque(etag)) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		for _, f := range fields { // which a 304 need not repeat
			name, value, _ := strings.Cut(f, ": ")
			w.Header().Set(name, value)
		}
		_, _ = fmt.Fprint(w, body(r))
	}
}

func language(r *http.Request) string { return r.Header.Get("Accept-Language") }

// TestWhoHasNothingIsNotToldThatItHasNotChanged: what was asked for the cache's sake is
// not taken for the client's own question when it asks again.
func TestWhoHasNothingIsNotToldThatItHasNotChanged(t *testing.T) {
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

// TestWhatAProofLeavesOut: of an answer that another caller has fetched Vary and the
// directives hold on, also where the 304 does not repeat them.
func TestWhatAProofLeavesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			holding(`"`+language(r)+`"`, language, "Vary: Accept-Language", "Cache-Control: max-age=60")(w, r)
		})
		w.get(sbom, "Authorization: Bearer a", "Accept-Language: de")
		w.want("proof", w.get(sbom, "Authorization: Bearer b", "Accept-Language: de").Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=304; stored; ttl=60")
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

// TestAWeakETagChoosesNoVariant: two that differ may have one.
func TestAWeakETagChoosesNoVariant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, holding(`W/"1"`, language, "Vary: Accept-Language", "Cache-Control: max-age=60"))
		w.want("german", w.get("/unknown", "Accept-Language: de").body, "de")
		for range 2 {
			w.want("french", w.get("/unknown", "Accept-Language: fr").body, "fr")
		}
	})
}

// TestTrustIsNotLostToOthers: what is no operation of the documents, no whole answer,
// or no digest says nothing of how ETags are made; nor do mistakes between which
// something is right, or that lie far apart.
func TestTrustIsNotLostToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := digesting(same, false)
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/some/file", "/orgs/acme/members/octocat", "/users/large/subscriptions", "/users/nobody/subscriptions": // the digest of something else
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Etag", `"`+strings.Repeat("0", 64)+`"`)
				switch {
				case strings.Contains(r.URL.Path, "nobody"):
					w.WriteHeader(http.StatusNotFound)
				case strings.Contains(r.URL.Path, "large"):
					_, _ = fmt.Fprint(w, strings.Repeat("x", maxDigested))
				}
				_, _ = fmt.Fprint(w, "x")
			case "/users/octocat/subscriptions":
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Etag", `"5f3759df"`)
				_, _ = fmt.Fprint(w, "x")
			default:
				upstream(w, r)
			}
		}, github)
		for range 2 * maxMistakes {
			for _, path := range []string{"/some/file", "/users/octocat/subscriptions", "/users/large/subscriptions", "/users/nobody/subscriptions"} {
				w.get(path, "Authorization: Bearer x", "Cache-Control: no-cache")
			}
		}
		wrong := func() { w.get("/orgs/acme/members/octocat", "Authorization: Bearer x", "Cache-Control: no-cache") }
		for i := range 2 * maxMistakes {
			wrong()
			w.get("/repos/acme/widgets/subscription", "Authorization: Bearer x"+fmt.Sprint(i)) // is right, or proves it
			w.get(fmt.Sprintf("/repos/acme/w%d/dependency-graph/sbom", i), "Authorization: Bearer x")
		}
		for range 2 * maxMistakes {
			wrong()
			time.Sleep(mistakesIn / (maxMistakes - 1) * 2)
		}
		w.get(sbom, "Authorization: Bearer a")
		w.want("proof", w.get(sbom, "Authorization: Bearer b").Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=304; stored; ttl=60")
	})
}

// TestNothingIsLookedUpForWhoMayNotGo: who is refused costs no work, and learns from no
// pause what others hold.
func TestNothingIsLookedUpForWhoMayNotGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-RateLimit-Limit", "1")
			w.Header().Set("X-RateLimit-Used", "1")
			w.Header().Set("X-RateLimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
			digesting(same, false)(w, r)
		}, github)
		list, tier := w.replicas(1)
		asks(list[0], sbom, "Authorization", "Bearer a")
		asks(list[0], "/repos/acme/widgets/subscription", "Authorization", "Bearer b") // b's only one
		before := tier.asked
		if r := asks(list[0], sbom, "Authorization", "Bearer b", "Prefer", "respond-async"); r.Code != http.StatusTooManyRequests {
			t.Errorf("%d", r.Code)
		}
		w.want("questions who holds it", tier.asked, before)
	})
}

// TestNothingOfACallerStaysInWhatAllShare: reference data is kept without the fields
// that may speak of whoever happened to fetch it, or to validate it.
func TestNothingOfACallerStaysInWhatAllShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Oauth-Scopes", "of "+r.Header.Get("Authorization"))
			w.Header().Set("Content-Language", "en")
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.Header().Set("Connection", "Content-Disposition")
			w.Header().Set("Content-Disposition", "of "+r.Header.Get("Authorization"))
			templates(w, r)
		})
		const path = "/gitignore/templates"
		w.want("who fetches it", w.get(path, "Authorization: Bearer a").Header.Get("X-Oauth-Scopes"), "of Bearer a")
		for range 2 {
			r := w.get(path)
			w.want("who has it from the cache", r.Header.Get("X-Oauth-Scopes"), "")
			w.want("language", r.Header.Get("Content-Language"), "en")
			w.want("who may read it", r.Header.Get("Access-Control-Allow-Origin"), "*")
			w.want("of one connection", r.Header.Get("Content-Disposition"), "")
			time.Sleep(25 * time.Hour)
			w.get(path, "Authorization: Bearer b") // validates it
		}
	})
}

// TestWhatIsOfferedIsBounded: what is no entity tag is not offered, nor one that is very
// long, nor more than a few.
func TestWhatIsOfferedIsBounded(t *testing.T) {
	for _, etag := range []string{"*", "v1", `"a", "b"`, `"` + strings.Repeat("x", 300) + `"`} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, holding(etag, language, "Cache-Control: max-age=1"))
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
			if n := len(r.Header.Get("If-None-Match")); n > maxOffered+2*maxOffered/200 {
				t.Errorf("%d bytes are offered", n)
			}
		}
	})
}

// TestAnUpstreamThatTakesNoConditions is asked without them, and after a few times at
// once.
func TestAnUpstreamThatTakesNoConditions(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusPreconditionFailed, http.StatusRequestHeaderFieldsTooLarge} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("If-None-Match") != "" {
					w.WriteHeader(status)
					return
				}
				holding(`"v1"`, language, "Cache-Control: max-age=60")(w, r)
			})
			for i := range 20 {
				w.want("status", w.get(sbom, fmt.Sprint("Authorization: Bearer ", i)).StatusCode, http.StatusOK)
			}
			w.want("requests upstream", w.upstreamSaw(), 20+maxMistakes)
		})
	}
}

// TestOneClientEndsNobodysProofs: a request that is refused for itself says nothing of
// conditions; nor does one operation whose 304s prove nothing hide behind another.
func TestOneClientEndsNobodysProofs(t *testing.T) {
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
		for range 2 * maxMistakes {
			w.want("itself", w.get(sbom, "Authorization: Bearer b", "Accept-Language: refused").StatusCode, http.StatusBadRequest)
		}
		w.want("proof", w.get(sbom, "Authorization: Bearer c").Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=304; stored; ttl=60")
		time.Sleep(2 * time.Minute)
		before := w.upstreamSaw()
		w.get(sbom, "Authorization: Bearer a", "Accept-Language: refused")
		w.want("requests for what was held and is refused", w.upstreamSaw()-before, 1)
	})
	synctest.Test(t, func(t *testing.T) {
		upstream := holding(`"v1"`, language, "Cache-Control: max-age=60")
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/sbom") {
				w = &untagged{w}
			}
			upstream(w, r)
		})
		for i := range 20 {
			w.get(sbom, fmt.Sprint("Authorization: Bearer ", i))
			w.get("/repos/acme/widgets/subscription", fmt.Sprint("Authorization: Bearer ", i))
		}
		w.want("requests upstream", w.upstreamSaw(), 20+maxMistakes+20)
	})
}

// TestTheSecondAskWaitsAsTheFirst: who waits for it is told in time what it waits for.
func TestTheSecondAskWaitsAsTheFirst(t *testing.T) {
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
			holding(`"v1"`, language, "Cache-Control: max-age=60")(&untagged{w}, r)
		})
		w.get(sbom, "Authorization: Bearer a")
		done := make(chan got)
		go func() { done <- w.get(sbom, "Authorization: Bearer b", "Prefer: wait=60") }()
		synctest.Wait()
		began := time.Now()
		w.want("who has less patience", w.get(sbom, "Authorization: Bearer b", "Prefer: wait=2").StatusCode, http.StatusTooManyRequests)
		w.want("after", time.Since(began), 2*time.Second)
		w.want("who has more", (<-done).StatusCode, http.StatusOK)
	})
}

// TestLargeBodiesAreNotHashed: neither for a proof nor to learn.
func TestLargeBodiesAreNotHashed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := func(string) string { return strings.Repeat("x", maxDigested+1) }
		w := newWorld(t, digesting(large, false), github)
		w.get(sbom, "Authorization: Bearer a")
		w.get(sbom, "Authorization: Bearer b")
		w.want("offered", w.seen.all()[1].Header.Get("If-None-Match"), "")
	})
}

// TestWhoGetsNothingPushesNobodyOut: callers that are told 404 are not among those whose
// answers are offered.
func TestWhoGetsNothingPushesNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := digesting(same, false)
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.Header.Get("Authorization"), "stranger") {
				w.Header().Set("Cache-Control", "max-age=60")
				w.WriteHeader(http.StatusNotFound)
				return
			}
			upstream(w, r)
		}, github)
		w.get(sbom, "Authorization: Bearer a")
		for i := range 10 {
			w.want("stranger", w.get(sbom, fmt.Sprint("Authorization: Bearer stranger ", i)).StatusCode, http.StatusNotFound)
		}
		w.want("proof", w.get(sbom, "Authorization: Bearer b").Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=304; stored; ttl=60")
	})
}

// TestAProofIsNotAskedForInVain: an upstream whose 304s prove nothing is asked twice a
// few times only.
func TestAProofIsNotAskedForInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := holding(`"v1"`, language, "Cache-Control: max-age=60")
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) { upstream(&untagged{w}, r) })
		for i := range 20 {
			w.want("status", w.get(sbom, fmt.Sprint("Authorization: Bearer ", i)).StatusCode, http.StatusOK)
		}
		w.want("requests upstream", w.upstreamSaw(), 20+maxMistakes)
	})
}

// untagged makes the ETag of a 304 a weak one.
type untagged struct{ http.ResponseWriter }

func (u *untagged) WriteHeader(status int) {
	if status == http.StatusNotModified {
		u.Header().Set("Etag", "W/"+u.Header().Get("Etag"))
	}
	u.ResponseWriter.WriteHeader(status)
}

// TestAProofKnowsItsPurges: what was proved before a purge is stale after it, also when
// the 304 came after.
func TestAProofKnowsItsPurges(t *testing.T) {
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
		w.want("a purge of who fetched it", again("b"), "weir; hit; ttl=59")
		w.gateway.Cache.Purge(t.Context(), "account:account of Bearer b")
		w.want("one of who proved it", again("b"), "weir; fwd=stale; fwd-status=304; stored; ttl=59")
		w.want("what was fetched before is proved after", again("c"), "weir; fwd=uri-miss; fwd-status=304; stored; ttl=59")
		w.want("and holds", again("c"), "weir; hit; ttl=59")
	})
}
