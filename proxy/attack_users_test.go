package proxy

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// secretWords are what only those may see who are let in.
const secretWords = "the secret words"

// guarded is an API with a private answer.
type guarded struct {
	mu      sync.Mutex
	in      map[string]bool // by Authorization: who is let in
	without int             // status for all others
	control string
	down    bool
	fields  []string
	delay   time.Duration
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	delay := g.delay
	g.mu.Unlock()
	time.Sleep(delay) // without the lock: who waits for one holds virtual time up
	g.mu.Lock()
	defer g.mu.Unlock()
	token, h := r.Header.Get("Authorization"), w.Header()
	switch {
	case g.down:
		panic(http.ErrAbortHandler)
	case !g.in[token]:
		w.WriteHeader(g.without)
		_, _ = fmt.Fprint(w, "no")
		return
	}
	h.Set("Cache-Control", g.control)
	h.Set("Etag", `"of the secret"`)
	h.Set("X-Oauth-Scopes", "of "+token)
	for _, f := range g.fields {
		name, value, _ := strings.Cut(f, ": ")
		h.Set(name, value)
	}
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(secretWords))
}

func (g *guarded) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// letting lets these tokens in.
func letting(control string, tokens ...string) *guarded {
	g := &guarded{in: map[string]bool{}, without: http.StatusNotFound, control: control}
	for _, token := range tokens {
		g.in[token] = true
	}
	return g
}

// learnsNothing holds that an answer tells nothing of what others may see.
func (w *world) learnsNothing(who string, r got) {
	w.Helper()
	switch status := r.StatusCode; {
	case status < 400, strings.Contains(r.body, "secret"), r.Header.Get("Etag") != "", r.Header.Get("X-Oauth-Scopes") != "",
		r.Header.Get("Age") != "", strings.Contains(r.Header.Get("Cache-Status"), "hit"), strings.Contains(r.Header.Get("Cache-Status"), "collapsed"):
		w.Errorf("%s: %d %q %v", who, status, r.body, r.Header)
	}
}

// TestAttack19NobodyGetsWhatAnotherHasFetched, in whatever way it could be had from the
// cache; nor, in the same ways, who was let in before, once the API has said no.
func TestAttack19NobodyGetsWhatAnotherHasFetched(t *testing.T) {
	for name, c := range map[string]struct {
		control, method string
		fields          []string
		after           time.Duration
		down            bool
	}{
		"fresh":                         {control: "private, max-age=60"},
		"fresh, and not private":        {control: "public, s-maxage=60"},
		"stale":                         {control: "max-age=10", after: time.Minute},
		"stale, while it is validated":  {control: "max-age=10, stale-while-revalidate=600", after: time.Minute},
		"stale, instead of an error":    {control: "max-age=10, stale-if-error=600", after: time.Minute, down: true},
		"stale, if the client takes it": {control: "max-age=10", after: time.Minute, fields: one("Cache-Control: max-stale, stale-if-error=600"), down: true},
		"only if it is cached":          {control: "max-age=60", fields: one("Cache-Control: only-if-cached")},
		"a part":                        {control: "max-age=60", fields: one("Range: bytes=0-3")},
		"a part, if it is the same":     {control: "max-age=60", fields: one("Range: bytes=0-3", `If-Range: "of the secret"`)},
		"HEAD":                          {control: "max-age=60", method: http.MethodHead},
		"with its ETag":                 {control: "max-age=60", fields: one(`If-None-Match: "of the secret"`)},
		"with any ETag":                 {control: "max-age=60", fields: one("If-None-Match: *")},
		"if it is there":                {control: "max-age=60", fields: one("If-Match: *")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := letting(c.control, "Bearer a")
				w := newWorld(t, api.ServeHTTP)
				w.want("who may see it", w.get(sbom, "Authorization: Bearer a").body, secretWords)
				time.Sleep(c.after)
				api.change(func() { api.down = c.down })
				method := http.MethodGet
				if c.method != "" {
					method = c.method
				}
				for who, token := range map[string][]string{"another token": one("Authorization: Bearer b"), "a longer token": one("Authorization: Bearer a2"), "none": nil} {
					for range 2 {
						w.learnsNothing(who, w.do(method, sbom, nil, append(token, c.fields...)...))
					}
				}
			})
		})
	}
}

// TestAttack19WhoIsNotLetInAnyMoreHasNothingLeft: once the API has said so, in answer to
// whatever request, what was kept for a caller is gone, also while the API is away.
func TestAttack19WhoIsNotLetInAnyMoreHasNothingLeft(t *testing.T) {
	for name, c := range map[string]struct {
		control, method string
		fields          []string
		status          int
		lets            bool // one more answer, that was stale
	}{
		"401":                      {control: "max-age=10", status: 401},
		"403":                      {control: "max-age=10", status: 403},
		"404":                      {control: "max-age=10", status: 404},
		"410":                      {control: "max-age=10", status: 410},
		"while it is validated":    {control: "max-age=10, stale-while-revalidate=600", status: 404, lets: true},
		"stale instead of errors":  {control: "max-age=10, stale-if-error=600", status: 401},
		"to a HEAD":                {control: "max-age=10", method: http.MethodHead, status: 404},
		"to a request for a part":  {control: "max-age=10", fields: one("Range: bytes=0-3"), status: 401},
		"to one that is validated": {control: "max-age=1000", fields: one("Cache-Control: no-cache"), status: 404},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := letting(c.control, "Bearer a", "Bearer b")
				w := newWorld(t, api.ServeHTTP)
				for _, token := range []string{"a", "b"} { // one has fetched it, the other has proved that it may see it
					w.want("body", w.get(sbom, "Authorization: Bearer "+token).body, secretWords)
				}
				time.Sleep(time.Minute)
				api.change(func() { clear(api.in); api.without = c.status })
				method := http.MethodGet
				if c.method != "" {
					method = c.method
				}
				for _, token := range []string{"a", "b"} {
					field := "Authorization: Bearer " + token
					r := w.do(method, sbom, nil, append(c.fields, field)...)
					if !c.lets {
						w.learnsNothing("who is told so", r)
					}
					synctest.Wait()
					api.change(func() { api.down = true })
					w.learnsNothing("while the API is away", w.get(sbom, field, "Cache-Control: max-stale"))
					api.change(func() { api.down = false })
					w.learnsNothing("again", w.get(sbom, field))
				}
			})
		})
	}
}

// TestAttack20AnotherCredentialIsAnotherCaller: what was fetched with one kind of token is
// not given to another kind, nor to none, and a repository that was public is not after
// its lifetime or a purge.
func TestAttack20AnotherCredentialIsAnotherCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := letting("private, max-age=60", "Bearer ghp_a")
		w := newWorld(t, api.ServeHTTP, github)
		w.get(sbom, "Authorization: Bearer ghp_a")
		for _, value := range []string{"Bearer ghs_a", "token ghs_a", "Basic Z2hwX2E6", "Bearer ghp_A", "Bearer"} {
			w.learnsNothing(value, w.get(sbom, "Authorization: "+value))
		}
		w.learnsNothing("none", w.get(sbom))
		w.learnsNothing("none that says so", w.get(sbom, "Authorization: "))
	})
	for name, c := range map[string]struct {
		after time.Duration
		tag   string
		down  bool
	}{
		"its lifetime is over":            {after: time.Minute},
		"a webhook tells":                 {tag: "repo:acme/widgets"},
		"a webhook tells, and it is away": {tag: "repo:acme/widgets", down: true},
	} {
		t.Run("private from now on: "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := letting("public, max-age=60, stale-if-error=600", "", "Bearer a")
				w := newWorld(t, api.ServeHTTP)
				w.want("while it is public", w.get(sbom).body, secretWords)
				api.change(func() { delete(api.in, ""); api.down = c.down })
				time.Sleep(c.after)
				if c.tag != "" {
					w.gateway.Cache.Purge(t.Context(), c.tag)
				}
				w.learnsNothing("none", w.get(sbom))
				api.change(func() { api.down = true })
				w.learnsNothing("none, while the API is away", w.get(sbom, "Cache-Control: max-stale"))
			})
		})
	}
}

// TestAttack22EachGetsTheRepresentationThatItAskedFor: what selects it is in the key, or
// in Vary.
func TestAttack22EachGetsTheRepresentationThatItAskedFor(t *testing.T) {
	asked := func(r *http.Request) string {
		return r.Header.Get("Accept") + "|" + r.Header.Get("X-GitHub-Api-Version") + "|" + language(r)
	}
	for _, vary := range []string{"", "Accept-Language", "accept, ACCEPT-LANGUAGE", "X-GitHub-Api-Version,accept-language", "*, Foo", "Foo, *"} {
		for _, path := range []string{"/unknown", "/repos/acme/widgets/readme", sbom} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					w.Header().Set("Vary", vary)
					_, _ = fmt.Fprint(w, asked(r))
				}, github)
				languages := []string{"de", "fr"}
				if vary == "" {
					languages = []string{"de"}
				}
				for range 2 {
					for _, accept := range []string{"application/vnd.github.raw", "application/vnd.github.raw+json", "application/vnd.github.diff", "application/vnd.github.v3.html"} {
						for _, version := range []string{"2022-11-28", "2099-01-01"} {
							for _, l := range languages {
								got := w.get(path, "Accept: "+accept, "X-GitHub-Api-Version: "+version, "Accept-Language: "+l, "Accept-Encoding: gzip")
								w.want(path+" by "+vary, got.body, accept+"|"+version+"|"+l)
							}
						}
					}
				}
			})
		}
	}
}

// TestAttack22WhatVariesFromNowOnIsAskedForAgain: an answer that did not say that it varies
// is not given to those who ask for another variant once a later one has said so (RFC
// 9111 section 4.1).
func TestAttack22WhatVariesFromNowOnIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		varies := false
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=600")
			if varies {
				w.Header().Set("Vary", "Accept-Language")
			}
			_, _ = fmt.Fprint(w, language(r))
		})
		list, _ := w.replicas(1)
		ask := func(l string, fields ...string) string {
			return asks(list[0], "/unknown", append(fields, "Accept-Language", l)...).Body.String()
		}
		w.want("the first", ask("de"), "de")
		time.Sleep(time.Second)
		varies = true
		w.want("when it varies", ask("fr", "Cache-Control", "no-cache"), "fr")
		w.want("another variant", ask("it"), "it")
		w.want("that of the first", ask("de"), "de")
		w.want("and again", ask("fr"), "fr")
		w.want("requests upstream", w.upstreamSaw(), 4)
	})
}

// TestAttack23VaryOpensNothing: Vary: Authorization does not make for others what is
// private, or was fetched with a credential.
func TestAttack23VaryOpensNothing(t *testing.T) {
	for _, control := range []string{"private, max-age=60", "max-age=60", "public, max-age=60"} {
		for _, first := range [][]string{nil, one("Authorization: Bearer a")} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", control)
					w.Header().Set("Vary", "Authorization")
					_, _ = fmt.Fprint(w, "of "+r.Header.Get("Authorization"))
				})
				w.get(sbom, first...)
				for range 2 {
					for _, token := range []string{"Bearer a", "Bearer b"} {
						w.want(control, w.get(sbom, "Authorization: "+token).body, "of "+token)
					}
					w.want(control, w.get(sbom).body, "of ")
				}
				anonymous := 0
				for _, r := range w.seen.all() {
					if r.Header.Get("Authorization") == "" {
						anonymous++
					}
				}
				kept := !strings.Contains(control, "private")
				w.want(control+": what is private is kept for nobody", anonymous == 1, kept)
			})
		}
	}
}

// TestAttack24TheUpstreamIsInTheKey, also in that of what others hold, and the name by
// which a client calls the gateway is in none.
func TestAttack24TheUpstreamIsInTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			holding(`"v1"`, func(r *http.Request) string { return r.Host }, "Cache-Control: max-age=60")(w, r)
		})
		first, tier := w.replicas(1)
		for _, address := range []string{"http://other.test/base", "http://upstream.test:8080/base", "https://upstream.test/base", "http://upstream.test/base/base"} {
			second := w.replica(tier)
			u, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			config := second.Config
			config.Upstream = u
			if u.Scheme == "https" {
				config.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
					plain := r.Clone(r.Context())
					plain.URL.Scheme = "http"
					return w.gateway.Transport.RoundTrip(plain)
				})
			}
			second = New(config)
			for range 2 {
				for _, path := range []string{"/unknown", sbom, "/gitignore/templates"} {
					before := w.upstreamSaw()
					for g, host := range maps.All(map[*Gateway]string{first[0]: "upstream.test", second: u.Host}) {
						w.want(path+" of "+address, asks(g, path, "Authorization", "Bearer a").Body.String(), host)
					}
					for _, r := range w.seen.all()[before:] {
						w.want("offered to "+address, r.Header.Get("If-None-Match"), "")
					}
				}
			}
			tier.mu.Lock()
			clear(tier.entries)
			tier.mu.Unlock()
			first[0] = w.replica(tier)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.Host) })
		for _, host := range []string{"gateway.test", "evil.test", "upstream.test", "UPSTREAM.TEST:80"} {
			text := w.raw("GET /gitignore/templates HTTP/1.1\r\nHost: " + host + "\r\nX-Forwarded-Host: evil.test\r\nConnection: close\r\n\r\n")
			w.want("body for "+host, strings.HasSuffix(text, "\r\n\r\nupstream.test"), true)
		}
		w.want("requests upstream", w.upstreamSaw(), 1)
	})
}

// TestAttack28WhoMaySeeNothingLearnsNothing: neither from the answer, nor from how long it
// takes, nor from what goes upstream, whatever others hold or ask at the moment.
func TestAttack28WhoMaySeeNothingLearnsNothing(t *testing.T) {
	look := func(dialect option, before func(*world)) (seen string) {
		synctest.Test(t, func(t *testing.T) {
			api := letting("private, max-age=60, stale-while-revalidate=600, stale-if-error=600", "Bearer a")
			w := newWorld(t, api.ServeHTTP, dialect)
			before(w)
			api.change(func() { api.delay = time.Second })
			for _, fields := range [][]string{nil, one(`If-None-Match: "of the secret"`), one("Range: bytes=0-3"), one("Cache-Control: only-if-cached"), one("Cache-Control: max-stale")} {
				for _, token := range [][]string{one("Authorization: Bearer b"), nil} {
					began := time.Now()
					r := w.get(sbom, append(token, fields...)...)
					r.Header.Del("Date")
					r.Header.Del("Weir-Request-Id")
					for name := range r.Header {
						if strings.HasSuffix(name, "-Reset") { // windows begin when they are first used
							r.Header.Del(name)
						}
					}
					seen += fmt.Sprintln(r.StatusCode, r.Header, r.body, time.Since(began))
				}
			}
		})
		return seen
	}
	for name, before := range map[string]func(*world){
		"held":        func(w *world) { w.get(sbom, "Authorization: Bearer a") },
		"held, stale": func(w *world) { w.get(sbom, "Authorization: Bearer a"); time.Sleep(2 * time.Minute) },
		"purged": func(w *world) {
			w.get(sbom, "Authorization: Bearer a")
			w.gateway.Cache.Purge(w.Context(), "repo:acme/widgets")
		},
	} {
		for dialect, o := range map[string]option{"service": func(*Config) {}, "github": github} {
			t.Run(name+", "+dialect, func(t *testing.T) {
				if with, without := look(o, before), look(o, func(*world) {}); with != without {
					t.Errorf("where another holds it:\n%s\nwhere nobody does:\n%s", with, without)
				}
			})
		}
	}
}

// TestAttack28WhoAsksAtTheSameTimeLearnsNothing: a question of another's that is on its
// way holds nobody up.
func TestAttack28WhoAsksAtTheSameTimeLearnsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer a" {
				time.Sleep(10 * time.Second)
			}
			letting("max-age=60", "Bearer a").ServeHTTP(w, r)
		})
		list, _ := w.replicas(2)
		var clients sync.WaitGroup
		for _, g := range list {
			clients.Go(func() { asks(g, sbom, "Authorization", "Bearer a") })
		}
		time.Sleep(time.Second)
		began := time.Now()
		for _, g := range list {
			r := asks(g, sbom, "Authorization", "Bearer b")
			w.want("status", r.Code, http.StatusNotFound)
			w.want("Cache-Status", r.Header().Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=404")
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("after %v", took)
		}
		clients.Wait()
	})
}
