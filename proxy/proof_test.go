package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// The operation of sbom has one response. The operation of members is paginated.
const (
	sbom    = "/repos/acme/widgets/dependency-graph/sbom"
	members = "/repos/acme/widgets/subscribers"
)

// digesting returns an upstream that computes ETags like the github dialect. The function
// text returns the body for an Authorization value.
func digesting(text func(token string) string, links bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body := text(r.Header.Get("Authorization"))
		etag := "W/" + digestOf(r, body)
		w.Header().Set("Etag", etag)
		w.Header().Set("Cache-Control", "private, max-age=60, s-maxage=60")
		w.Header().Set("Vary", "Accept, Authorization, Cookie, X-GitHub-OTP")
		w.Header().Set("X-Oauth-Scopes", "of "+r.Header.Get("Authorization"))
		if links {
			w.Header().Set("Link", `<https://elsewhere.test/?page=2>; rel="next"`)
		}
		for tag := range strings.SplitSeq(r.Header.Get("If-None-Match"), ", ") {
			if strings.TrimPrefix(tag, "W/") == strings.TrimPrefix(etag, "W/") {
				w.WriteHeader(http.StatusNotModified)
				return
			}
		}
		_, _ = fmt.Fprint(w, body)
	}
}

func digestOf(r *http.Request, body string) string {
	h := sha256.New()
	for _, name := range []string{"Accept", "Authorization", "Cookie"} {
		if value := r.Header.Get(name); value != "" {
			h.Write([]byte(value + ":"))
		}
	}
	h.Write([]byte(body))
	return `"` + hex.EncodeToString(h.Sum(nil)) + `"`
}

func github(c *Config) {
	d, err := policy.LoadDialect("github")
	if err != nil {
		panic(err) // the file is embedded
	}
	c.Dialect = d
}

// withETags sets the configuration value cache.etags.
func withETags(etags ETags) func(*Config) { return func(c *Config) { c.ETags = etags } }

func same(string) string { return `["octocat"]` }

const proofStatus = "weir; fwd=uri-miss; fwd-status=304; stored; ttl=60" // Cache-Status after a proof of access

func Test304ToAnotherTokenProvesItsAccess(t *testing.T) {
	setup(digesting(same, false), github).run(t, func(w *world) {
		first := w.get(sbom, "Authorization: Bearer a")
		second := w.get(sbom, "Authorization: Bearer b")
		third := w.get(sbom, "Authorization: Bearer b")

		w.want("first", first.Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=200; stored; ttl=60")
		w.want("second", second.Header.Get("Cache-Status"), proofStatus)
		w.want("third", third.Header.Get("Cache-Status"), "weir; hit; ttl=60")
		for _, r := range []got{second, third} {
			w.want("status", r.StatusCode, http.StatusOK)
			w.want("body", r.body, `["octocat"]`)
			w.want("scopes", r.Header.Get("X-Oauth-Scopes"), "of Bearer b")
			w.want("ETag differs", r.Header.Get("Etag") != first.Header.Get("Etag"), true)
			w.want("type", r.Header.Get("Content-Type"), first.Header.Get("Content-Type"))
		}
	})
}

func TestETagsSettingSelectsTheProof(t *testing.T) {
	strong := func(w http.ResponseWriter, r *http.Request) {
		holding(`"v1"`, language, "Cache-Control: max-age=60")(w, r)
	}
	for _, c := range []struct {
		etags    ETags
		upstream http.HandlerFunc
		proof    bool
	}{
		{ETagsComputed, digesting(same, false), true},
		{ETagsUpstream, digesting(same, false), false},
		{ETagsOff, digesting(same, false), false},
		{ETagsComputed, strong, false}, // a computable ETag replaces the strong ETag
		{ETagsUpstream, strong, true},
		{ETagsOff, strong, false},
	} {
		setup(c.upstream, github, withETags(c.etags)).run(t, func(w *world) {
			w.get(sbom, "Authorization: Bearer a")
			status := w.get(sbom, "Authorization: Bearer b").Header.Get("Cache-Status")
			w.want("proof with "+string(c.etags), status == proofStatus, c.proof)
			time.Sleep(2 * time.Minute)
			revalidated := w.get(sbom, "Authorization: Bearer a").Header.Get("Cache-Status")
			w.want("own entry is revalidated", revalidated, "weir; fwd=stale; fwd-status=304; stored; ttl=60")
		})
	}
}

// The computed ETag depends on the spelling of Authorization and Accept. Weir always sends the same spelling.
func TestRevalidationWorksWithAnotherSpellingOfTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, digesting(same, false), github, func(c *Config) {
			identify := c.Identify
			c.Identify = func(r *http.Request) (Identity, error) {
				identity, err := identify(r)
				identity.Caller.Class = strings.TrimPrefix(strings.TrimPrefix(identity.Caller.Class, "account of token "), "account of Bearer ")
				return identity, err
			}
		})
		w.get(sbom, "Authorization: token a", "Accept: application/json")
		time.Sleep(2 * time.Minute)
		again := w.get(sbom, "Authorization: Bearer a", "Accept: application/vnd.github+json")
		w.want("cache", again.Header.Get("Cache-Status"), "weir; fwd=stale; fwd-status=304; stored; ttl=60")
		w.want("body", again.body, `["octocat"]`)
	})
}

func TestCallerWithOtherAccessGetsItsOwnResponse(t *testing.T) {
	own := func(token string) string { return "seen by " + token }
	for name, upstream := range map[string]http.HandlerFunc{
		"other bytes": digesting(own, false),
		"refused": func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer b" {
				http.NotFound(w, r)
				return
			}
			digesting(own, false)(w, r)
		},
	} {
		setup(upstream, github).sub(t, name, func(w *world) {
			w.get(sbom, "Authorization: Bearer a")
			w.want("gets the body of a", w.get(sbom, "Authorization: Bearer b").body == "seen by Bearer a", false)
			seen := w.seen.all()
			w.want("requests upstream", len(seen), 2)
			w.want("quotes in If-None-Match", strings.Count(seen[1].Header.Get("If-None-Match"), `"`), 2)
		})
	}
}

// taggedWith returns an upstream that uses etag to compute its ETags. The ETag for an empty token
// matches requests with any token.
func taggedWith(etag func(token string) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=60")
		w.Header().Set("Etag", etag(r.Header.Get("Authorization")))
		if tag := r.Header.Get("If-None-Match"); tag != "" && strings.Contains(tag, strings.TrimPrefix(etag(""), "W/")) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = fmt.Fprint(w, "for "+r.Header.Get("Authorization"))
	}
}

// Only a strong ETag promises identical bytes (RFC 9110 section 8.8.1).
func TestOnlyStrongETagIsProof(t *testing.T) {
	for _, c := range []struct {
		name         string
		first, later string
		conditional  bool
		body         string
	}{
		{"strong", `"v1"`, `"v1"`, true, "for Bearer a"},
		{"weak", `W/"v1"`, `W/"v1"`, false, "for Bearer b"},
		{"weak in the 304", `"v1"`, `W/"v1"`, true, "for Bearer b"},
	} {
		bubble(t, c.name, func(t *testing.T) {
			w := newWorld(t, taggedWith(func(token string) string {
				if token == "Bearer a" {
					return c.first
				}
				return c.later
			}))
			w.get(sbom, "Authorization: Bearer a")
			second := w.get(sbom, "Authorization: Bearer b")
			w.want("status", second.StatusCode, http.StatusOK)
			w.want("body", second.body, c.body)
			w.want("request is conditional", w.seen.all()[1].Header.Get("If-None-Match") != "", c.conditional)
		})
	}
}

// Callers may see different numbers of pages. A paginated response is shared only if the operation's
// 304s repeat Link.
func TestPagesAreSharedOnlyIf304RepeatsLink(t *testing.T) {
	for name, c := range map[string]struct {
		repeats bool
		proofs  int
	}{"repeated": {true, 4}, "omitted": {false, 0}} {
		bubble(t, name, func(t *testing.T) {
			upstream := digesting(same, true)
			w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
				if !c.repeats {
					w = &unlinked{w}
				}
				upstream(w, r)
			}, github)
			proofs := 0
			get := func(token string) {
				r := w.get(members, "Authorization: Bearer "+token)
				w.want("has Link", r.Header.Get("Link") != "", true)
				w.want("status", r.StatusCode, http.StatusOK)
				if r.Header.Get("Cache-Status") == proofStatus {
					proofs++
				}
			}
			get("a")
			get("b") // no 304 of the operation has arrived yet
			w.want("If-None-Match of b", w.seen.all()[1].Header.Get("If-None-Match"), "")
			time.Sleep(2 * time.Minute)
			get("a") // revalidates its own entry
			for i := range 4 {
				get(fmt.Sprint(i))
			}
			w.want("proofs", proofs, c.proofs)
			w.want("requests upstream", w.upstreamSaw(), 7)
		})
	}
}

// unlinked is a response writer that removes Link from a 304.
type unlinked struct{ http.ResponseWriter }

func (u *unlinked) WriteHeader(status int) {
	if status == http.StatusNotModified {
		u.Header().Del("Link")
	}
	u.ResponseWriter.WriteHeader(status)
}

func TestProofDoesNotShareFieldsAboutTheOtherCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := digesting(same, false)
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Language", "en")
			if r.Header.Get("If-None-Match") == "" {
				w.Header().Set("X-Accepted-Oauth-Scopes", "repo of "+r.Header.Get("Authorization"))
			}
			upstream(w, r)
		}, github)
		w.get(sbom, "Authorization: Bearer a")
		r := w.get(sbom, "Authorization: Bearer b")
		w.want("cache", r.Header.Get("Cache-Status"), proofStatus)
		w.want("language", r.Header.Get("Content-Language"), "en")
		w.want("scopes", r.Header.Get("X-Accepted-Oauth-Scopes"), "")
	})
}

// The upstream may change the undocumented algorithm of its ETags. Responses then remain correct, and Weir logs a
// warning once per hour.
func TestDifferentComputedETagIsLoggedOncePerHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changed atomic.Bool
		upstream := digesting(same, false)
		var log strings.Builder
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if changed.Load() {
				r.Header.Set("Cookie", "session=unknown")
			}
			upstream(w, r)
		}, github, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		n := 0
		get := func(times int) {
			for range times {
				n++
				w.want("body", w.get(sbom, fmt.Sprint("Authorization: Bearer ", n)).body, `["octocat"]`)
			}
		}
		warnings := func() int {
			synctest.Wait() // for the access log
			return strings.Count(log.String(), "computed ETag differs")
		}
		get(3)
		w.want("warnings before the change", warnings(), 0)
		changed.Store(true)
		get(5)
		w.want("warnings", warnings(), 1)
		time.Sleep(61 * time.Minute)
		get(5)
		w.want("warnings after an hour", warnings(), 2)
		w.want("requests upstream", w.upstreamSaw(), 13)
	})
}

func TestProofsWorkAcrossReplicas(t *testing.T) {
	setup(digesting(same, false), github).run(t, func(w *world) {
		list, _ := w.replicas(2)
		sendTo(list[0], sbom, "Authorization", "Bearer a")
		synctest.Wait() // for the writes to the shared tier
		r := sendTo(list[1], sbom, "Authorization", "Bearer b")
		w.want("cache", r.Header().Get("Cache-Status"), proofStatus)
		w.want("body", r.Body.String(), `["octocat"]`)
	})
}

// A request without a matching variant sends the ETags of all variants (RFC 9111 section 4.3.1).
// The 304 selects one variant (section 4.3.4).
func Test304SelectsOneOfTheVariants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			language := r.Header.Get("Accept-Language")
			if language == "de-AT" {
				language = "de"
			}
			etag := strconv.Quote(language)
			w.Header().Set("Vary", "Accept-Language")
			w.Header().Set("Etag", etag)
			w.Header().Set("Cache-Control", "max-age=60")
			if strings.Contains(r.Header.Get("If-None-Match"), etag) {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			_, _ = fmt.Fprint(w, language)
		})
		for _, language := range []string{"de", "fr"} {
			w.get("/unknown", "Accept-Language: "+language)
		}
		austrian := w.get("/unknown", "Accept-Language: de-AT")
		w.want("body", austrian.body, "de")
		w.want("If-None-Match", w.seen.all()[2].Header.Get("If-None-Match"), `"fr", "de"`)
		w.want("again", w.get("/unknown", "Accept-Language: de-AT").body, "de")
		w.want("german", w.get("/unknown", "Accept-Language: de").body, "de")
		w.want("french", w.get("/unknown", "Accept-Language: fr").body, "fr")
		w.want("requests upstream", w.upstreamSaw(), 3)
	})
}
