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
	"github.com/weirgate/weir/proxy/caller"
)

// The operation of sbom has one response. The operation of members is paginated.
const (
	sbom    = "/repos/acme/widgets/dependency-graph/sbom"
	members = "/repos/acme/widgets/subscribers"
)

// digesting returns an upstream that computes ETags like the github dialect. Further fields are part of each response.
func digesting(text func(*http.Request) string, fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body := text(r)
		etag := digestOf(r, body)
		setFields(w, "Etag: W/"+etag, "Cache-Control: private, max-age=60, s-maxage=60", "Vary: Accept, Authorization, Cookie, X-GitHub-OTP",
			"X-Oauth-Scopes: of "+r.Header.Get("Authorization"))
		setFields(w, fields...)
		for tag := range strings.SplitSeq(r.Header.Get("If-None-Match"), ", ") {
			if strings.TrimPrefix(tag, "W/") == etag {
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

const octocat = `["octocat"]`

func same(*http.Request) string { return octocat }

// Cache-Status after a proof of access, and after a revalidation.
const (
	proofStatus = "weir; fwd=uri-miss; fwd-status=304; stored; ttl=60"
	confirmed   = "weir; fwd=stale; fwd-status=304; stored; ttl=60"
)

func Test304ToAnotherTokenProvesItsAccess(t *testing.T) {
	setup(digesting(same), github).run(t, func(w *world) {
		first := w.get(sbom, bearer("a"))
		second := w.get(sbom, bearer("b"))
		third := w.get(sbom, bearer("b"))

		w.want("first", first.Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=200; stored; ttl=60")
		w.want("second", second.Header.Get("Cache-Status"), proofStatus)
		w.want("third", third.Header.Get("Cache-Status"), "weir; hit; ttl=60")
		for _, r := range []got{second, third} {
			w.want("status", r.StatusCode, http.StatusOK)
			w.want("body", r.body, octocat)
			w.want("scopes", r.Header.Get("X-Oauth-Scopes"), "of Bearer b")
			w.want("ETag differs", r.Header.Get("Etag") != first.Header.Get("Etag"), true)
			w.want("type", r.Header.Get("Content-Type"), first.Header.Get("Content-Type"))
		}
	})
}

func TestETagsSettingSelectsTheProof(t *testing.T) {
	strong := holding(`"v1"`, language, fresh)
	for _, c := range []struct {
		name     string
		etags    ETags
		upstream http.HandlerFunc
		proof    bool
	}{
		{"computable", ETagsComputed, digesting(same), true},
		{"computable", ETagsUpstream, digesting(same), false},
		{"computable", ETagsOff, digesting(same), false},
		{"strong", ETagsComputed, strong, false}, // a computable ETag replaces the strong ETag
		{"strong", ETagsUpstream, strong, true},
		{"strong", ETagsOff, strong, false},
	} {
		status := map[bool]string{true: proofStatus, false: "weir; fwd=uri-miss; fwd-status=200; stored; ttl=60"}[c.proof]
		runScenarios(t, scenario{
			name: c.name + " with " + string(c.etags), path: sbom, upstream: c.upstream, options: []option{github, withETags(c.etags)},
			steps: []step{{token: "a"}, {token: "b", cache: status}, {token: "a", after: 2 * time.Minute, cache: confirmed}},
		})
	}
}

// The computed ETag depends on the spelling of Authorization and Accept. Weir always sends the same spelling.
func TestRevalidationWorksWithAnotherSpellingOfTheToken(t *testing.T) {
	oneClass := identifying(func(_ *http.Request, id *caller.Identity) { id.Class = "a" })
	runScenarios(t, scenario{name: "token and Bearer", path: sbom, upstream: digesting(same), options: []option{github, oneClass}, steps: []step{
		{request: lines("Authorization: token a", "Accept: application/json")},
		{token: "a", after: 2 * time.Minute, request: lines("Accept: application/vnd.github+json"), cache: confirmed, body: octocat},
	}})
}

func TestCallerWithOtherAccessGetsItsOwnResponse(t *testing.T) {
	own := digesting(requestField("Authorization"))
	for name, upstream := range map[string]http.HandlerFunc{
		"other bytes": own,
		"refused": func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer b" {
				http.NotFound(w, r)
				return
			}
			own(w, r)
		},
	} {
		setup(upstream, github).sub(t, name, func(w *world) {
			w.get(sbom, bearer("a"))
			w.want("gets the body of a", w.get(sbom, bearer("b")).body == "Bearer a", false)
			seen := w.seen.all()
			w.want("requests upstream", len(seen), 2)
			w.want("quotes in If-None-Match", strings.Count(seen[1].Header.Get("If-None-Match"), `"`), 2)
		})
	}
}

// Only a strong ETag promises identical bytes (RFC 9110 section 8.8.1). The upstream sends a 304 to the second token in each case.
func TestOnlyStrongETagIsProof(t *testing.T) {
	for _, c := range []struct {
		name         string
		first, later string // ETags
		condition    string
		body         string
	}{
		{"strong", `"v1"`, `"v1"`, `"v1"`, "for Bearer a"},
		{"weak", `W/"v1"`, `W/"v1"`, "", "for Bearer b"},
		{"weak in the 304", `"v1"`, `W/"v1"`, `"v1"`, "for Bearer b"},
	} {
		setup(func(w http.ResponseWriter, r *http.Request) {
			token := r.Header.Get("Authorization")
			setFields(w, "Cache-Control: private, max-age=60", "Etag: "+map[bool]string{true: c.first, false: c.later}[token == "Bearer a"])
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			_, _ = fmt.Fprint(w, "for "+token)
		}).sub(t, c.name, func(w *world) {
			w.get(sbom, bearer("a"))
			second := w.get(sbom, bearer("b"))
			w.want("status", second.StatusCode, http.StatusOK)
			w.want("body", second.body, c.body)
			w.want("If-None-Match", w.seen.all()[1].Header.Get("If-None-Match"), c.condition)
		})
	}
}

// A body with the number of all items shows that another caller has the same pages. Other callers do not get Link.
func TestPagesWithANumberOfItemsAreShared(t *testing.T) {
	const next = `Link: <https://elsewhere.test/?page=2>; rel="next"`
	for name, c := range map[string]struct {
		body, link string
		proof      bool
	}{
		"number of items":          {`{"total_count":1,"items":[{}]}`, "X: none", true},
		"number of commits":        {`{"total_commits":1,"commits":[{}]}`, "X: none", true},
		"a later page":             {`{"total_count":31,"items":[{}]}`, next, false},
		"no number":                {`{"items":[{}]}`, "X: none", false},
		"a number within the list": {`[{"total_count":1}]`, "X: none", false},
	} {
		setup(digesting(func(*http.Request) string { return c.body }, "Content-Type: application/json", c.link), github).sub(t, name, func(w *world) {
			w.get(members, bearer("a"))
			r := w.get(members, bearer("b"))
			w.want("proof", r.Header.Get("Cache-Status") == proofStatus, c.proof)
			w.want("body", r.body, c.body)
		})
	}
}

// Callers may see different numbers of pages. A paginated response is shared only if the operation's 304s repeat Link.
func TestPagesAreSharedOnlyIf304RepeatsLink(t *testing.T) {
	upstream := digesting(same, `Link: <https://elsewhere.test/?page=2>; rel="next"`)
	for name, c := range map[string]struct {
		omits            func(token string) bool
		proofs, requests int
	}{
		"repeated":                  {func(string) bool { return false }, 4, 7},
		"omitted":                   {func(string) bool { return true }, 0, 8},                      // the first 304 confirms nothing
		"omitted for other callers": {func(token string) bool { return token != "Bearer a" }, 0, 8}, // likewise
	} {
		setup(func(w http.ResponseWriter, r *http.Request) {
			if c.omits(r.Header.Get("Authorization")) {
				w = &changing304{w, func(h http.Header) { h.Del("Link") }}
			}
			upstream(w, r)
		}, github).sub(t, name, func(w *world) {
			proofs := 0
			get := func(token string) {
				r := w.get(members, bearer(token))
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
			w.want("requests upstream", w.upstreamSaw(), c.requests)
		})
	}
}

// changing304 is a response writer that changes the fields of a 304.
type changing304 struct {
	http.ResponseWriter
	change func(http.Header)
}

func (c *changing304) WriteHeader(status int) {
	if status == http.StatusNotModified {
		c.change(c.Header())
	}
	c.ResponseWriter.WriteHeader(status)
}

func TestProofDoesNotShareFieldsAboutTheOtherCaller(t *testing.T) {
	upstream := digesting(same, "Content-Language: en")
	runScenarios(t, scenario{
		name: "scopes", path: sbom, options: []option{github}, upstream: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-None-Match") == "" {
				setFields(w, "X-Accepted-Oauth-Scopes: repo of "+r.Header.Get("Authorization"))
			}
			upstream(w, r)
		},
		steps: []step{{token: "a"}, {token: "b", cache: proofStatus, has: lines("Content-Language: en"), lacks: lines("X-Accepted-Oauth-Scopes")}},
	})
}

// The upstream may change the undocumented algorithm of its ETags. Responses then remain correct, and Weir logs a
// warning once per hour.
func TestDifferentComputedETagIsLoggedOncePerHour(t *testing.T) {
	var changed atomic.Bool
	var log strings.Builder
	upstream := digesting(same)
	setup(func(w http.ResponseWriter, r *http.Request) {
		if changed.Load() {
			r.Header.Set("Cookie", "session=unknown")
		}
		upstream(w, r)
	}, github, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }).run(t, func(w *world) {
		n := 0
		get := func(times, warnings int) {
			for range times {
				n++
				w.want("body", w.get(sbom, bearer(strconv.Itoa(n))).body, octocat)
			}
			synctest.Wait() // for the access log
			w.want("warnings", strings.Count(log.String(), "computed ETag differs"), warnings)
		}
		get(3, 0)
		changed.Store(true)
		get(5, 1)
		time.Sleep(61 * time.Minute)
		get(5, 2)
		w.want("requests upstream", w.upstreamSaw(), 13)
	})
}

func TestProofsWorkAcrossReplicas(t *testing.T) {
	setup(digesting(same), github).run(t, func(w *world) {
		list, _ := w.replicas(2)
		sendTo(list[0], sbom, "Authorization", "Bearer a")
		synctest.Wait() // for the writes to the shared tier
		r := sendTo(list[1], sbom, "Authorization", "Bearer b")
		w.want("cache", r.Header().Get("Cache-Status"), proofStatus)
		w.want("body", r.Body.String(), octocat)
	})
}

// A request without a matching variant sends the ETags of all variants (RFC 9111 section 4.3.1).
// The 304 selects one variant (section 4.3.4).
func Test304SelectsOneOfTheVariants(t *testing.T) {
	in := func(language string) []string { return lines("User-Agent: " + language) }
	german, french := lines("Vary: User-Agent", `Etag: "de"`, fresh), lines("Vary: User-Agent", `Etag: "fr"`, fresh)
	runScenarios(t, scenario{name: "de-AT", path: "/unknown", steps: []step{
		{request: in("de"), response: german, body: "1"},
		{request: in("fr"), response: french, body: "2"},
		{request: in("de-AT"), status: 304, response: german, body: "1", sent: lines(`If-None-Match: "fr", "de"`)},
		{request: in("de-AT"), cached: true, body: "1"},
		{request: in("de"), cached: true, body: "1"},
		{request: in("fr"), cached: true, body: "2"},
	}})
}
