package proxy

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// secretWords is the body that only callers with access may receive.
const secretWords = "the secret words"

// guarded is an upstream with a private resource.
type guarded struct {
	mu      sync.Mutex
	allowed map[string]bool // by the value of Authorization
	without int             // status of other requests
	control string
	down    bool
	delay   time.Duration
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	delay := g.delay
	g.mu.Unlock()
	time.Sleep(delay) // without the mutex, because virtual time does not advance while a goroutine waits for a mutex
	g.mu.Lock()
	defer g.mu.Unlock()
	token := r.Header.Get("Authorization")
	switch {
	case g.down:
		panic(http.ErrAbortHandler)
	case !g.allowed[token]:
		w.WriteHeader(g.without)
		_, _ = fmt.Fprint(w, "no")
		return
	}
	setFields(w, "Cache-Control: "+g.control, `Etag: "secret"`, "X-Oauth-Scopes: for "+token)
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(secretWords))
}

func (g *guarded) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// newGuarded returns an upstream that grants access to these values of Authorization.
func newGuarded(control string, tokens ...string) *guarded {
	g := &guarded{allowed: map[string]bool{}, without: http.StatusNotFound, control: control}
	for _, token := range tokens {
		g.allowed[token] = true
	}
	return g
}

// checkHidden fails the test if a response reveals that a resource exists.
func (w *world) checkHidden(name string, r got) {
	w.Helper()
	switch status := r.StatusCode; {
	case status < 400, strings.Contains(r.body, "secret"), r.Header.Get("Etag") != "", r.Header.Get("X-Oauth-Scopes") != "",
		r.Header.Get("Age") != "", strings.Contains(r.Header.Get("Cache-Status"), "hit"), strings.Contains(r.Header.Get("Cache-Status"), "collapsed"):
		w.Errorf("%s: the response reveals the resource: %d %q %v", name, status, r.body, r.Header)
	}
}

// No combination of freshness and request fields gives a caller the private response of another caller.
func TestPrivateResponseIsNeverServedToAnotherCaller(t *testing.T) {
	for name, c := range map[string]struct {
		control, method string
		fields          []string
		after           time.Duration
		down            bool
	}{
		"fresh":                     {control: "private, max-age=60"},
		"fresh and shared":          {control: "public, s-maxage=60"},
		"stale":                     {control: "max-age=10", after: time.Minute},
		"stale while revalidating":  {control: "max-age=10, stale-while-revalidate=600", after: time.Minute},
		"stale instead of an error": {control: "max-age=10, stale-if-error=600", after: time.Minute, down: true},
		"stale with max-stale":      {control: "max-age=10", after: time.Minute, fields: lines("Cache-Control: max-stale, stale-if-error=600"), down: true},
		"only-if-cached":            {control: "max-age=60", fields: lines("Cache-Control: only-if-cached")},
		"range":                     {control: "max-age=60", fields: lines("Range: bytes=0-3")},
		"range with If-Range":       {control: "max-age=60", fields: lines("Range: bytes=0-3", `If-Range: "secret"`)},
		"HEAD":                      {control: "max-age=60", method: http.MethodHead},
		"matching If-None-Match":    {control: "max-age=60", fields: lines(`If-None-Match: "secret"`)},
		"any If-None-Match":         {control: "max-age=60", fields: lines("If-None-Match: *")},
		"any If-Match":              {control: "max-age=60", fields: lines("If-Match: *")},
	} {
		api := newGuarded(c.control, "Bearer a")
		setup(api.ServeHTTP).sub(t, name, func(w *world) {
			w.want("body with access", w.get(sbom, bearer("a")).body, secretWords)
			time.Sleep(c.after)
			api.change(func() { api.down = c.down })
			for name, token := range map[string][]string{"another token": lines(bearer("b")), "token with the same prefix": lines(bearer("a2")), "no token": nil} {
				for range 2 {
					w.checkHidden(name, w.do(cmp.Or(c.method, http.MethodGet), sbom, nil, append(token, c.fields...)...))
				}
			}
		})
	}
}

// A refusal by the upstream removes the caller's stored responses, so stale responses are not served.
func TestRevokedAccessRemovesStoredResponses(t *testing.T) {
	for name, c := range map[string]struct {
		control, method string
		fields          []string
		status          int
		servesStale     bool // the client gets the stored response before the refusal arrives
	}{
		"401":                      {control: "max-age=10", status: 401},
		"403":                      {control: "max-age=10", status: 403},
		"404":                      {control: "max-age=10", status: 404},
		"410":                      {control: "max-age=10", status: 410},
		"stale while revalidating": {control: "max-age=10, stale-while-revalidate=600", status: 404, servesStale: true},
		"stale-if-error":           {control: "max-age=10, stale-if-error=600", status: 401},
		"HEAD":                     {control: "max-age=10", method: http.MethodHead, status: 404},
		"range":                    {control: "max-age=10", fields: lines("Range: bytes=0-3"), status: 401},
		"no-cache":                 {control: "max-age=1000", fields: lines("Cache-Control: no-cache"), status: 404},
	} {
		api := newGuarded(c.control, "Bearer a", "Bearer b")
		setup(api.ServeHTTP).sub(t, name, func(w *world) {
			for _, token := range []string{"a", "b"} { // a 304 proves the access of token b
				w.want("body", w.get(sbom, bearer(token)).body, secretWords)
			}
			time.Sleep(time.Minute)
			api.change(func() { clear(api.allowed); api.without = c.status })
			for _, token := range []string{"a", "b"} {
				r := w.do(cmp.Or(c.method, http.MethodGet), sbom, nil, append(c.fields, bearer(token))...)
				if !c.servesStale {
					w.checkHidden("refused request", r)
				}
				synctest.Wait()
				api.change(func() { api.down = true })
				w.checkHidden("while the upstream is down", w.get(sbom, bearer(token), "Cache-Control: max-stale"))
				api.change(func() { api.down = false })
				w.checkHidden("after the outage", w.get(sbom, bearer(token)))
			}
		})
	}
}

// Each kind of token is a separate caller. After a resource becomes private, its entry is not served after a purge or
// the end of the lifetime.
func TestCredentialsAreSeparateCallers(t *testing.T) {
	setup(newGuarded("private, max-age=60", "Bearer ghp_a").ServeHTTP, github).sub(t, "spellings", func(w *world) {
		w.get(sbom, bearer("ghp_a"))
		for _, value := range []string{"Bearer ghs_a", "token ghs_a", "Basic Z2hwX2E6", "Bearer ghp_A", "Bearer", ""} {
			w.checkHidden(value, w.get(sbom, "Authorization: "+value))
		}
		w.checkHidden("no credential", w.get(sbom))
	})
	for name, c := range map[string]struct {
		after time.Duration
		tag   string
		down  bool
	}{
		"expired":                  {after: time.Minute},
		"purged by a webhook":      {tag: "repo:acme/widgets"},
		"purged, upstream is down": {tag: "repo:acme/widgets", down: true},
	} {
		api := newGuarded("public, max-age=60, stale-if-error=600", "", "Bearer a")
		setup(api.ServeHTTP).sub(t, "becomes private: "+name, func(w *world) {
			w.want("body while public", w.get(sbom).body, secretWords)
			api.change(func() { delete(api.allowed, ""); api.down = c.down })
			time.Sleep(c.after)
			if c.tag != "" {
				w.gateway.Cache.Purge(w.Context(), c.tag)
			}
			w.checkHidden("no credential", w.get(sbom))
			api.change(func() { api.down = true })
			w.checkHidden("no credential while the upstream is down", w.get(sbom, "Cache-Control: max-stale"))
		})
	}
}

func TestRepresentationsOfOneCallerAreKeptApart(t *testing.T) {
	media := lines("application/vnd.github.raw", "application/vnd.github.raw+json", "application/vnd.github.diff", "application/vnd.github.v3.html")
	selected := func(r *http.Request) string {
		return r.Header.Get("Accept") + "|" + r.Header.Get("X-GitHub-Api-Version") + "|" + language(r)
	}
	for _, vary := range []string{"", "Accept-Language", "accept, ACCEPT-LANGUAGE", "X-GitHub-Api-Version,accept-language", "*, Foo", "Foo, *"} {
		languages := []string{"de", "fr"}
		if vary == "" {
			languages = []string{"de"}
		}
		setup(repliesWith(selected, fresh, "Vary: "+vary), github).sub(t, vary, func(w *world) {
			for _, path := range []string{"/unknown", "/repos/acme/widgets/readme", sbom} {
				for range 2 {
					for _, accept := range media {
						for _, version := range []string{"2022-11-28", "2099-01-01"} {
							for _, l := range languages {
								got := w.get(path, "Accept: "+accept, "X-GitHub-Api-Version: "+version, "Accept-Language: "+l, "Accept-Encoding: gzip")
								w.want(path, got.body, accept+"|"+version+"|"+l)
							}
						}
					}
				}
			}
		})
	}
}

// A newer response with Vary hides an older response without Vary (RFC 9111 section 4.1).
func TestNewVaryAppliesToOlderResponses(t *testing.T) {
	varies := false
	setup(func(w http.ResponseWriter, r *http.Request) {
		setFields(w, "Cache-Control: max-age=600")
		if varies {
			setFields(w, "Vary: User-Agent")
		}
		_, _ = fmt.Fprint(w, r.UserAgent())
	}).run(t, func(w *world) {
		list, _ := w.replicas(1)
		for i, l := range []string{"de", "fr", "it", "de", "fr"} {
			time.Sleep(time.Second)
			r := newGet("/unknown", "User-Agent: "+l)
			if varies = i > 0; i == 1 {
				r.Header.Set("Cache-Control", "no-cache")
			}
			recorder := httptest.NewRecorder()
			list[0].ServeHTTP(recorder, r)
			w.want(fmt.Sprint("body of request ", i+1), recorder.Body.String(), l)
		}
		w.want("requests upstream", w.upstreamSaw(), 4)
	})
}

func TestVaryAuthorizationDoesNotSharePrivateResponses(t *testing.T) {
	for _, control := range []string{"private, max-age=60", "max-age=60", "public, max-age=60"} {
		for _, first := range []string{"", "a"} {
			upstream := repliesWith(requestField("Authorization"), "Cache-Control: "+control, "Vary: Authorization")
			setup(upstream).sub(t, control+" "+first, func(w *world) {
				get := func(token string) {
					fields := map[bool][]string{true: nil, false: lines(bearer(token))}[token == ""]
					w.want("body", w.get(sbom, fields...).body, strings.TrimPrefix(strings.Join(fields, ""), "Authorization: "))
				}
				get(first)
				for range 2 {
					for _, token := range []string{"a", "", "b", ""} {
						get(token)
					}
				}
				anonymous := 0
				for _, r := range w.seen.all() {
					if r.Header.Get("Authorization") == "" {
						anonymous++
					}
				}
				w.want("one anonymous request", anonymous == 1, !strings.Contains(control, "private"))
			})
		}
	}
}

// Every cache key contains the upstream. TestClientHostAffectsOnlyItsOwnLinks tests the Host of the client.
func TestCacheKeyContainsTheUpstream(t *testing.T) {
	host := func(r *http.Request) string { return r.Host }
	setup(holding(`"v1"`, host, fresh)).run(t, func(w *world) {
		for _, address := range []string{"http://other.test/base", "http://upstream.test:8080/base", "https://upstream.test/base", "http://upstream.test/base/base"} {
			list, tier := w.replicas(1)
			u, err := url.Parse(address)
			noError(w, err)
			config := w.replica(tier).Config
			config.Upstream = u
			if u.Scheme == "https" {
				config.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
					plain := r.Clone(r.Context())
					plain.URL.Scheme = "http"
					return w.gateway.Transport.RoundTrip(plain)
				})
			}
			for range 2 {
				for _, path := range []string{"/unknown", sbom, "/gitignore/templates"} {
					before := w.upstreamSaw()
					for g, host := range map[*Gateway]string{list[0]: "upstream.test", New(config): u.Host} {
						w.want(path+" of "+address, sendTo(g, path, "Authorization", "Bearer a").Body.String(), host)
					}
					for _, r := range w.seen.all()[before:] {
						w.want("validators sent to "+address, r.Header.Get("If-None-Match"), "")
					}
				}
			}
		}
	})
}

// Status, fields, body and duration of a refusal do not depend on other callers' stored responses.
func TestRefusalDoesNotRevealStoredResponses(t *testing.T) {
	observe := func(t *testing.T, dialect option, before func(*world)) (observed string) {
		api := newGuarded("private, max-age=60, stale-while-revalidate=600, stale-if-error=600", "Bearer a")
		setup(api.ServeHTTP, dialect).run(t, func(w *world) {
			before(w)
			api.change(func() { api.delay = time.Second })
			for _, field := range []string{"Accept: */*", `If-None-Match: "secret"`, "Range: bytes=0-3", "Cache-Control: only-if-cached", "Cache-Control: max-stale"} {
				for _, token := range [][]string{lines(bearer("b")), nil} {
					start := time.Now()
					r := w.get(sbom, append(token, field)...)
					for name := range r.Header {
						// The reset depends on the time of the first request.
						if name == "Date" || strings.HasSuffix(name, "-Request-Id") || strings.HasSuffix(name, "-Reset") {
							r.Header.Del(name)
						}
					}
					observed += fmt.Sprintln(r.StatusCode, r.Header, r.body, time.Since(start))
				}
			}
		})
		return observed
	}
	store := func(w *world) { w.get(sbom, bearer("a")) }
	for name, before := range map[string]func(*world){
		"fresh":  store,
		"stale":  func(w *world) { store(w); time.Sleep(2 * time.Minute) },
		"purged": func(w *world) { store(w); w.gateway.Cache.Purge(w.Context(), "repo:acme/widgets") },
	} {
		for dialect, o := range map[string]option{"service": func(*Config) {}, "github": github} {
			t.Run(name+", "+dialect, func(t *testing.T) {
				with, without := observe(t, o, before), observe(t, o, func(*world) {})
				failIf(t, with != without, "with a stored response:\n%s\nwithout:\n%s", with, without)
			})
		}
	}
}

// A request does not wait for another caller's request for the same resource.
func TestRefusalDoesNotRevealRequestsInProgress(t *testing.T) {
	api := newGuarded("max-age=60", "Bearer a")
	setup(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer a" {
			time.Sleep(10 * time.Second)
		}
		api.ServeHTTP(w, r)
	}).run(t, func(w *world) {
		list, _ := w.replicas(2)
		var clients sync.WaitGroup
		for _, g := range list {
			clients.Go(func() { sendTo(g, sbom, "Authorization", "Bearer a") })
		}
		time.Sleep(time.Second)
		start := time.Now()
		for _, g := range list {
			r := sendTo(g, sbom, "Authorization", "Bearer b")
			w.want("status", r.Code, http.StatusNotFound)
			w.want("Cache-Status", r.Header().Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=404")
		}
		took := time.Since(start)
		failIf(w, took > time.Second, "got the response after %v", took)
		clients.Wait()
	})
}
