package proxy

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/screen"
	"github.com/weirgate/weir/proxy/wire"
)

// An error that a malformed request provokes is not served to other clients.
func TestErrorsOfMalformedRequestsAreNotShared(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		fields []string
	}{
		"large header":          {431, []string{"X-A: " + strings.Repeat("a", screen.MaxHeader-1<<10)}},
		"large forwarded field": {400, []string{"A: " + strings.Repeat("a", screen.MaxHeader-1<<10)}},
		"meta characters":       {400, []string{"A: \x80"}},
		"invalid Accept":        {406, []string{"Accept: text/*;q=2, \x80"}},
		"unknown media type":    {415, []string{"Accept: nothing/at-all"}},
		"invalid Range":         {416, []string{"Range: bytes=9-1"}},
		"unknown range unit":    {400, []string{"Range: lines=1-2"}},
		"method override":       {405, []string{"X-Http-Method-Override: POST", "X-Method-Override: PUT"}},
		"invalid language":      {400, []string{"Accept-Language: \x80"}},
		"invalid content type":  {415, []string{"Content-Type: text/evil"}},
		"invalid condition":     {400, []string{"If-None-Match: \"\x80"}},
		"invalid version":       {400, []string{"X-Service-Api-Version: 1"}},
		"upstream error":        {500, []string{"User-Agent: evil"}},
	} {
		setup(func(w http.ResponseWriter, r *http.Request) {
			setFields(w, "Cache-Control: max-age=600")
			malformed := slices.ContainsFunc(c.fields, func(field string) bool {
				name, value, _ := strings.Cut(field, ": ")
				return r.Header.Get(name) == value
			})
			if malformed {
				w.WriteHeader(c.status)
			}
			_, _ = fmt.Fprint(w, malformed)
		}).sub(t, name, func(w *world) {
			for _, path := range []string{"/gitignore/templates", "/repos/a/b/subscribers", "/made/up"} {
				w.get(path, c.fields...)
				r := w.get(path)
				w.want(path+" after the error", fmt.Sprint(r.StatusCode, " ", r.body), "200 false")
			}
		})
	}
}

// The same caching rules apply to a path with the extension of a static file and to other paths.
func TestFileExtensionsDoNotAffectCaching(t *testing.T) {
	setup(repliesWith(requestField("Authorization"))).run(t, func(w *world) {
		for _, path := range strings.Fields("/user/x.css /user;x.js /user%2ejs /user.json /user/%2e.css.png /user%3fx.js /user%23.css /robots.txt /favicon.ico") {
			for range 2 {
				w.want(path, w.get(path, bearer("a")).body, "Bearer a")
				r := w.get(path)
				w.want(path, r.body, "")
				w.want(path+": hit", strings.Contains(r.Header.Get("Cache-Status"), "hit"), false)
			}
		}
	})
}

// A partial response with status 206 or 200 is never stored as a complete response.
func TestPartialResponsesAreNotServedAsWhole(t *testing.T) {
	for _, part := range []string{"bytes=0-1", "bytes=0-0,2-3", "bytes=-1", "bytes=0-18446744073709551615", "lines=1-2"} {
		for _, status := range []int{206, 200} {
			runScenarios(t, scenario{name: fmt.Sprint(part, " ", status), path: "/gitignore/templates", response: lines("Cache-Control: max-age=600"), steps: []step{
				{request: lines("Range: " + part), status: status, text: "wh"}, {text: "whole", body: "whole"},
			}})
		}
	}
}

// A flood of entries with one request each does not evict an entry with repeated hits.
func TestFloodDoesNotEvictFrequentEntries(t *testing.T) {
	small := func(c *Config) { c.Cache = cache.NewStore(cache.NewMemory(1<<20), nil) }
	setup(replies(strings.Repeat("x", 4<<10), "Cache-Control: max-age=3600"), small).run(t, func(w *world) {
		hot := func() string { return w.get("/gitignore/templates").Header.Get("Cache-Status") }
		misses := 0
		for n := range 2000 {
			if n%20 == 0 && !strings.Contains(hot(), "hit") {
				misses++
			}
			w.from("192.0.2.1:1000", "GET", fmt.Sprintf("/made/up?_=%d", n), fmt.Sprint("Authorization: Bearer ", n/50))
		}
		_, size := w.gateway.Cache.Size()
		failIf(w, size > 1<<20, "the cache has %d bytes", size)
		if misses > 10 { // of 100 requests; the first hits do not make the entry frequent
			w.Errorf("the frequent entry was fetched %d times", misses)
		}
	})
}

// Tokens in any part of a request appear neither in logs nor in records, even after a panic.
func TestTokensAreNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
		var log bytes.Buffer
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/made/panic":
				panic(http.ErrAbortHandler)
			case "/made/401":
				w.WriteHeader(http.StatusUnauthorized)
			}
		}, func(c *Config) {
			c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			identify := c.Identify
			c.Identify = func(r *http.Request) (*caller.Identity, error) {
				if r.Header.Get("User-Agent") == "panic" {
					panic("a bug")
				}
				id, err := identify(r)
				id.Account, id.Class = "known", "known" // internal/credential uses hashes of the token here
				return id, err
			}
		})
		for _, path := range []string{"/user?access_token=" + token, "/made/" + token, "/made/panic?t=" + token, "/made/401", "/made/up;" + token, "/repos/" + token + "/x/subscribers", "//" + token, "/" + token + "%zz", "/user?" + token + "=%zz"} {
			for _, agent := range []string{"test", "panic"} {
				response := w.raw("GET " + path + " HTTP/1.1\r\nHost: g\r\nUser-Agent: " + agent + "\r\nConnection: close\r\nAuthorization: Bearer " + token + "\r\nX-Token: " + token + "\r\nCookie: " + token + "\r\n\r\n")
				failIf(t, strings.Contains(response, token), "%s: the response contains the token: %s", path, response)
			}
		}
		body := `{"query":"query ` + token + ` {viewer{login}}"}`
		w.do(http.MethodPost, "/graphql", strings.NewReader(body), "Authorization: Bearer a")
		text := log.String() + fmt.Sprintf("%+v", w.recent())
		failIf(t, strings.Contains(text, token) || !strings.Contains(text, "panic"), "logs or records contain the token: %s", text)
	})
}

// Neither the environment nor a client can redirect requests to another host.
func TestEnvironmentProxiesAreIgnored(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"} {
		t.Setenv(name, "http://evil.test:3128")
	}
	failIf(t, wire.NewTransport().Proxy != nil, "the transport uses a proxy")
	setup(nothing).run(t, func(w *world) {
		for i, request := range []string{"GET /user HTTP/1.1\r\nHost: evil.test\r\nX-Forwarded-Host: evil.test\r\nX-Upstream: http://evil.test\r\n", "GET /user?url=http://evil.test&webhook=http://evil.test HTTP/1.1\r\nHost: 169.254.169.254\r\nProxy: http://evil.test\r\n"} {
			w.want("status", parseResponse(w.T, w.raw(request+"Connection: close\r\n\r\n")).StatusCode, 200)
			w.want("host", w.seen.all()[i].Host, "upstream.test")
		}
	})
}

// Only reference data itself is for all callers. Another response to a credential may concern the credential: it is neither stored
// nor shared, and does not end the stored data.
func TestErrorsAboutReferenceDataReachTheirCallerOnly(t *testing.T) {
	for _, status := range []int{301, 308, 400, 404, 410, 422} {
		for _, control := range []string{"private, max-age=60", "public, max-age=60", "max-age=60", ""} {
			setup(delayed(func(w http.ResponseWriter, r *http.Request) {
				setFields(w, "Cache-Control: "+control, `Etag: "v1"`, "Location: http://sso.test/"+r.Header.Get("Authorization"))
				if r.Header.Get("Authorization") == "Bearer bad" {
					w.WriteHeader(status)
				}
			})).sub(t, fmt.Sprint(status, control), func(w *world) {
				const path = "/gitignore/templates/Go"
				callers := [][]string{lines(bearer("bad")), lines(bearer("good")), nil}
				want := []int{status, 200, 200}
				together(len(callers), func(i int) {
					time.Sleep(time.Duration(i) * time.Millisecond)
					w.want("status of a call", w.get(path, callers[i]...).StatusCode, want[i])
				})
				w.want("status of no-cache", w.get(path, append(callers[0], "Cache-Control: no-cache")...).StatusCode, status)
				sent := w.upstreamSaw()
				for _, caller := range callers {
					w.want("status of a hit", w.get(path, caller...).StatusCode, 200)
				}
				w.want("requests for hits", w.upstreamSaw()-sent, 0)
			})
		}
	}
}
