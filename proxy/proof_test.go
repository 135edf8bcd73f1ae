package proxy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// sbom is one answer, members has pages.
const (
	sbom    = "/repos/acme/widgets/dependency-graph/sbom"
	members = "/repos/acme/widgets/subscribers"
)

// digesting is an upstream that makes ETags as the github dialect says, over what
// text returns for a token.
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
		panic(err) // embedded
	}
	c.Dialect = d
}

func same(string) string { return `["octocat"]` }

func TestWhatOneTokenHasFetchedAnotherProvesToSee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, digesting(same, false), github)
		first := w.get(sbom, "Authorization: Bearer a")
		second := w.get(sbom, "Authorization: Bearer b")
		third := w.get(sbom, "Authorization: Bearer b")

		w.want("first", first.Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=200; stored; ttl=60")
		w.want("second", second.Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=304; stored; ttl=60")
		w.want("third", third.Header.Get("Cache-Status"), "weir; hit; ttl=60")
		for _, r := range []got{second, third} {
			w.want("status", r.StatusCode, http.StatusOK)
			w.want("body", r.body, `["octocat"]`)
			w.want("scopes", r.Header.Get("X-Oauth-Scopes"), "of Bearer b")
			w.want("ETag is another", r.Header.Get("Etag") != first.Header.Get("Etag"), true)
			w.want("type", r.Header.Get("Content-Type"), first.Header.Get("Content-Type"))
		}
	})
}

// A hit survives that one token writes Authorization and Accept in another way.
func TestOneTokenInTwoSpellings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, digesting(same, false), github, func(c *Config) {
			identify := c.Identify
			c.Identify = func(r *http.Request) (Identity, error) {
				who, err := identify(r)
				who.Caller.Class = strings.TrimPrefix(strings.TrimPrefix(who.Caller.Class, "account of token "), "account of Bearer ")
				return who, err
			}
		})
		w.get(sbom, "Authorization: token a", "Accept: application/json")
		time.Sleep(2 * time.Minute)
		again := w.get(sbom, "Authorization: Bearer a", "Accept: application/vnd.github+json")
		w.want("cache", again.Header.Get("Cache-Status"), "weir; fwd=stale; fwd-status=304; stored; ttl=60")
		w.want("body", again.body, `["octocat"]`)
	})
}

func TestWhoMaySeeOtherThingsGetsThem(t *testing.T) {
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, upstream, github)
				w.get(sbom, "Authorization: Bearer a")
				w.want("offered", w.get(sbom, "Authorization: Bearer b").body == "seen by Bearer a", false)
				seen := w.seen.all()
				w.want("requests upstream", len(seen), 2)
				w.want("ETags offered", strings.Count(seen[1].Header.Get("If-None-Match"), `"`), 2)
			})
		})
	}
}

// tagged is an upstream whose ETags do not hang on the token.
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

// Without a digest only a strong ETag proves that two answers are the same bytes (RFC
// 9110 section 8.8.1); one that is weak, or comes weak in the 304, does not.
func TestOnlyAStrongETagIsProof(t *testing.T) {
	for _, c := range []struct {
		name         string
		first, later string
		offered      bool
		body         string
	}{
		{"strong", `"v1"`, `"v1"`, true, "for Bearer a"}, // by its own word these are the same bytes
		{"weak", `W/"v1"`, `W/"v1"`, false, "for Bearer b"},
		{"weak in the 304", `"v1"`, `W/"v1"`, true, "for Bearer b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				w.want("offered", w.seen.all()[1].Header.Get("If-None-Match") != "", c.offered)
			})
		})
	}
}

// Whether a 304 repeats Link nobody promises. Where it has not been seen to do so, no
// answer that may have pages is shared: another caller may have more of them.
func TestPagesAreSharedWhereA304TellsThem(t *testing.T) {
	for name, c := range map[string]struct {
		tells bool
		saved int // requests that were answered 304 to a caller that had nothing
	}{"it does": {true, 4}, "it does not": {false, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				upstream := digesting(same, true)
				w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
					if !c.tells {
						w = &unlinked{w}
					}
					upstream(w, r)
				}, github)
				saved := 0
				ask := func(token string) {
					r := w.get(members, "Authorization: Bearer "+token)
					w.want("Link", r.Header.Get("Link") != "", true)
					w.want("status", r.StatusCode, http.StatusOK)
					if r.Header.Get("Cache-Status") == "weir; fwd=uri-miss; fwd-status=304; stored; ttl=60" {
						saved++
					}
				}
				ask("a")
				ask("b") // has nothing, and gets nothing of a's: nobody knows yet
				w.want("offered", w.seen.all()[1].Header.Get("If-None-Match"), "")
				time.Sleep(2 * time.Minute)
				ask("a") // validates its own
				for i := range 4 {
					ask(fmt.Sprint(i))
				}
				w.want("saved", saved, c.saved)
				w.want("requests upstream", w.upstreamSaw(), 7)
			})
		})
	}
}

// unlinked drops Link from a 304.
type unlinked struct{ http.ResponseWriter }

func (u *unlinked) WriteHeader(status int) {
	if status == http.StatusNotModified {
		u.Header().Del("Link")
	}
	u.ResponseWriter.WriteHeader(status)
}

// Nothing that a 304 does not tell of one caller is told to it of another.
func TestFieldsOfAnotherCallerStayWithIt(t *testing.T) {
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
		w.want("fwd-status", strings.Contains(r.Header.Get("Cache-Status"), "fwd-status=304"), true)
		w.want("language", r.Header.Get("Content-Language"), "en")
		w.want("scopes", r.Header.Get("X-Accepted-Oauth-Scopes"), "")
	})
}

// The digest is documented nowhere: when it is another, what it was good for ends by
// itself, is tried again after an hour, and comes back.
func TestComputedETagsAreGivenUpAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var drifted atomic.Bool
		upstream := digesting(same, false)
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if drifted.Load() {
				r.Header.Set("Cookie", "session=unknown")
			}
			upstream(w, r)
		}, github)
		n := 0
		offered := func() bool { // by a caller that has nothing
			n++
			w.want("body", w.get(sbom, fmt.Sprint("Authorization: Bearer ", n)).body, `["octocat"]`)
			seen := w.seen.all()
			return seen[len(seen)-1].Header.Get("If-None-Match") != ""
		}
		offered()
		w.want("offered", offered(), true)
		drifted.Store(true)
		for range maxMistakes {
			w.want("offered while it is found out", offered(), true)
		}
		w.want("offered after that", offered(), false)
		time.Sleep(59 * time.Minute)
		w.want("offered before the hour is over", offered(), false)
		time.Sleep(2 * time.Minute)
		for range maxMistakes {
			w.want("offered after an hour", offered(), true)
		}
		w.want("offered after that", offered(), false)
		drifted.Store(false)
		time.Sleep(61 * time.Minute)
		w.want("tried again", offered(), true)
		w.want("and trusted", offered(), true)
	})
}

// What another caller has is found at other replicas, too.
func TestProofAcrossReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, digesting(same, false), github)
		list, _ := w.replicas(2)
		asks(list[0], sbom, "Authorization", "Bearer a")
		r := asks(list[1], sbom, "Authorization", "Bearer b")
		w.want("cache", r.Header().Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=304; stored; ttl=60")
		w.want("body", r.Body.String(), `["octocat"]`)
	})
}

// Variants that no request selects are validated all at once (RFC 9111 section
// 4.3.1), and the 304 says which one it is (section 4.3.4).
func TestA304ChoosesAmongVariants(t *testing.T) {
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
		w.want("offered", w.seen.all()[2].Header.Get("If-None-Match"), `"fr", "de"`)
		w.want("again", w.get("/unknown", "Accept-Language: de-AT").body, "de")
		w.want("german", w.get("/unknown", "Accept-Language: de").body, "de")
		w.want("french", w.get("/unknown", "Accept-Language: fr").body, "fr")
		w.want("requests upstream", w.upstreamSaw(), 3)
	})
}
