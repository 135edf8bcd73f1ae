package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/learned"
	"github.com/weirgate/weir/proxy/tags"
)

// The stored responses of the tests about writes.
const (
	namedTarget = "/repos/acme/w"
	otherLabels = "/repos/other/z/labels"
	reference   = "/gitignore/templates"
	reader      = "Authorization: Bearer reader"
)

// mutation returns the body of a mutation with these arguments.
func mutation(arguments string) string {
	return `{"query":` + strconv.Quote(`mutation{a(input:{`+arguments+`}){b}}`) + `}`
}

// manyNames returns a mutation that names acme/w and 129 other repositories.
func manyNames() string {
	var text strings.Builder
	for i := range 130 {
		name := fmt.Sprint("gears-", i)
		if i == 0 {
			name = "w"
		}
		_, _ = fmt.Fprintf(&text, "f%d:x(owner:\"acme\",name:%q,repositoryNameWithOwner:\"acme/%s\"){b}", i, name, name)
	}
	return `{"query":` + strconv.Quote("mutation{"+text.String()+"}") + `}`
}

// writes describes a world whose upstream responds to reads with storable responses, and to writes as write does.
func writes(t *testing.T, write http.HandlerFunc) worldSetup {
	t.Helper()
	return setup(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			write(rw, r)
		case strings.Contains(r.Header.Get("Authorization"), "refused"):
			rw.WriteHeader(http.StatusUnauthorized)
		default:
			replies("{}", "Cache-Control: private, max-age=3600")(rw, r)
		}
	}, wholeAPI(t, unchanged), limitAddresses, identifying(func(r *http.Request, id *caller.Identity) {
		if value := r.Header.Get("Authorization"); strings.Contains(value, "held") {
			id.Passed, id.Credential = false, fixedCredential{value: value}
		}
	}), func(c *Config) { c.Timeout = 5 * time.Second })
}

// hitsIf returns the number of hits of one path.
func hitsIf(stored bool) int {
	if stored {
		return 1
	}
	return 0
}

// hits returns the paths whose responses are hits, of these.
func (w *world) hits(token string, paths ...string) (list []string) {
	w.Helper()
	for _, path := range paths {
		if strings.HasPrefix(w.get(path, token).Header.Get("Cache-Status"), "weir; hit") {
			list = append(list, path)
		}
	}
	return list
}

func TestUncertainAndFailedWritesPurgeWhatTheirCallersCouldChange(t *testing.T) {
	const (
		nothing = iota
		unsure
		done
	)
	type end struct {
		name     string
		effect   int
		protocol string // of the upstream
		write    http.HandlerFunc
		ok       bool // the status is 200, so the upstream accepts the credential
	}
	// A complete response needs no connection with HTTP/2, which costs most of the time of these tests.
	status := func(code int, effect int) end { return end{strconv.Itoa(code), effect, http1, responds(code), false} }
	body := func(name, text string, effect int) end { return end{name, effect, http1, replies(text), true} }
	ends := []end{
		{"disconnect", unsure, upstreamProtocol, hang, false}, {"timeout", unsure, upstreamProtocol, hang, false},
		status(500, unsure), status(502, unsure), status(503, unsure), status(504, unsure), status(408, unsure),
		status(401, nothing), status(403, nothing), status(404, nothing), status(422, nothing), status(201, done),
	}
	graphQLEnds := append(slices.Clone(ends[:len(ends)-1]),
		body("errors and no data", `{"errors":[{"type":"NOT_FOUND","path":["a"]}],"data":null}`, nothing),
		body("errors only", `{"errors":[{"message":"`+strings.Repeat("no ", 5000)+`"}]}`, nothing),
		body("each field null", `{"data":{"a":null,"c":null},"errors":[{"type":"FORBIDDEN","path":["a"]},{"type":"FORBIDDEN","path":["c"]}]}`, nothing),
		body("null because of a part", `{"data":{"a":null},"errors":[{"path":["a","b"]}]}`, unsure),
		body("timeout", `{"data":null,"errors":[{"message":"Something went wrong while executing your query. This may be the result of a timeout."}]}`, unsure),
		body("internal error", `{"data":{"a":null},"errors":[{"type":"INTERNAL","path":["a"],"message":"x"}]}`, unsure),
		body("not JSON", `oops`, unsure),
		body("partial data", `{"errors":[{"path":["a"]}],"data":{"a":null,"c":{"b":1}}}`, done),
		body("success", `{"data":{"a":{"b":1}}}`, done),
	)
	for _, c := range []struct {
		name, method, path, body string
		ends                     []end
		named, all               bool // whether the request names namedTarget, and whether its success purges all responses
	}{
		{"known route", http.MethodPost, "/repos/acme/w/labels", "{}", ends, true, false},
		{"unknown route", http.MethodPost, "/repos/acme/w/made-up", "{}", ends, true, false},
		{"unknown method", "PROPFIND", "/repos/acme/w/made-up", "", ends, true, false},
		{"unknown route of reference data", http.MethodPost, reference, "{}", ends, false, false},
		{"mutation with a name", http.MethodPost, "/graphql", mutation(`repositoryNameWithOwner:"Acme/W"`), graphQLEnds, true, false},
		{"mutation with a node", http.MethodPost, "/graphql", mutation(`id:"I_1"`), graphQLEnds, false, false},
		{"mutation with a long node", http.MethodPost, "/graphql", mutation(`id:"` + strings.Repeat("I", 300) + `"`), graphQLEnds, false, false},
		{"mutation with 130 fields", http.MethodPost, "/graphql", manyNames(), graphQLEnds, true, true},
	} {
		for _, e := range c.ends {
			for _, caller := range []string{"", "unverified", "refused", "accepted", "held"} {
				if caller == "" && c.path == "/graphql" {
					continue // the gateway refuses it
				}
				bubble(t, fmt.Sprint(c.name, "/", e.name, "/caller ", caller), func(t *testing.T) {
					description := writes(t, e.write)
					w := newWorldOver(t, e.protocol, description.upstream, description.options...)
					var fields []string
					if caller != "" {
						fields = append(fields, "Authorization: Bearer "+caller)
					}
					if caller != "" && caller != "unverified" {
						w.get("/user", fields...)
						time.Sleep(2 * time.Second) // longer than a first refusal
					}
					unnamed := []string{otherLabels, "/user/issues", "/repositories/7/labels"}
					all := append([]string{namedTarget, reference}, unnamed...)
					w.hits(reader, all...)
					w.want("stored", len(w.hits(reader, all...)), len(all))
					stay := time.Minute
					if e.name == "disconnect" {
						stay = 10 * time.Millisecond
					}
					sent := w.upstreamSaw()
					w.leave(w.client, stay, c.method, c.path, c.body, fields...)
					w.want("writes upstream", w.upstreamSaw()-sent, 1)
					time.Sleep(2 * stoppedWorking)

					trusted := caller == "accepted" || caller == "held" || strings.HasPrefix(c.path, "/graphql") && e.ok
					stale := c.named && (e.effect == done || e.effect == unsure && trusted)
					w.want("hits of the named object", len(w.hits(reader, namedTarget)), hitsIf(!stale))
					w.want("hits of reference data", len(w.hits(reader, reference)), 1)
					w.want("hits of another repository", len(w.hits(reader, otherLabels)), hitsIf(!c.all || e.effect != done))
					if e.effect != done {
						w.want("hits of objects without a name", len(w.hits(reader, unnamed...)), len(unnamed))
					}
				})
			}
		}
	}
}

// A client finds its own uncertain write in each of its later reads.
func TestUncertainWriteIsSeenByItsClient(t *testing.T) {
	for _, c := range []struct{ path, body, stale string }{
		{"/repos/acme/w/labels", "{}", "/repos/acme/w/labels?page=2"},
		{"/repos/acme/w/labels", "{}", "/repositories/7/labels"},
		{"/repos/acme/w/labels", "{}", "/user/issues"},
		{"/repos/acme/w/labels", "{}", "/issues"},
		{"/repositories/7/labels", "{}", "/repos/acme/w/labels"},
		{"/repositories/7/labels", "{}", "/repos/acme/w/issues"},
		{"/user/repos", "{}", "/user/repos?page=2"},
		{"/user/repos", "{}", "/orgs/acme/repos"},
		{"/graphql", mutation(`id:"I_1"`), "/repos/acme/w/labels"},
		{"/graphql", manyNames(), "/repos/acme/gears-129/labels"},
		{"/graphql", mutation(`ids:[` + manyIDs(tags.MaxUncertain+1) + `]`), "/repos/acme/w/labels"},
	} {
		for _, token := range []string{"Authorization: Bearer accepted", "Authorization: Bearer held"} {
			writes(t, hang).sub(t, c.path+" and "+c.stale+" of "+token, func(w *world) {
				w.hits(token, c.stale)
				w.want("stored", len(w.hits(token, c.stale)), 1)
				w.leave(w.client, 10*time.Millisecond, http.MethodPost, c.path, c.body, token)
				time.Sleep(time.Second)
				w.want("hits", len(w.hits(token, c.stale)), 0)
			})
		}
	}
}

// An uncertain write purges the objects that it names. A name such as * must not select the tags of other objects.
func TestNamesInUncertainWritesAreNoPatterns(t *testing.T) {
	for _, c := range []struct{ path, body string }{
		{"/graphql", mutation(`owner:"*",name:"labels"`)},
		{"/graphql", mutation(`repositoryNameWithOwner:"*/labels"`)},
		{"/graphql", mutation(`owner:"other",name:"*/labels"`)},
		{"/graphql", mutation(`repositoryNameWithOwner:"?"`)},
		{"/repos/*/labels/labels", "{}"},
		{"/repos/%2A/labels/made-up", "{}"},
		{"/repos/%3F/labels/labels", "{}"},
		{"/orgs/*/hooks", "{}"},
		{"/orgs/%3F/hooks", "{}"},
		{"/user/repos", "{}"},
		{"/repositories/8", "{}"},
	} {
		writes(t, hang).sub(t, c.path+" "+c.body, func(w *world) {
			w.get("/user", owner)
			paths := []string{otherLabels, "/repositories/7/labels", "/orgs/other/hooks", "/user/repos", "/orgs/other/repos", reference}
			w.hits(reader, paths...)
			for _, method := range []string{http.MethodPost, http.MethodPatch} {
				w.leave(w.client, 10*time.Millisecond, method, c.path, c.body, owner)
			}
			time.Sleep(time.Second)
			w.want("hits of another caller", fmt.Sprint(w.hits(reader, paths...)), fmt.Sprint(paths))
		})
	}
}

// Strangers abort eight writes each second for two minutes, while a client reads its stored responses.
func TestAbortedWritesOfStrangersLeaveHits(t *testing.T) {
	writes(t, hang).run(t, func(w *world) {
		paths := []string{namedTarget, "/repos/acme/w/labels", otherLabels, "/user/issues", "/issues", "/repositories/7/labels", "/orgs/acme/repos", reference}
		w.hits(reader, paths...)
		w.get(namedTarget)
		began := time.Now()
		var strangers sync.WaitGroup
		for i := range 8 {
			strangers.Go(func() {
				time.Sleep(time.Duration(i) * 125 * time.Millisecond)
				for n := 0; time.Since(began) < 2*time.Minute; n++ {
					var fields []string
					if i%2 == 0 {
						fields = []string{fmt.Sprintf("Authorization: Bearer made up %d of %d", n, i)}
					}
					switch i % 4 {
					case 0, 1:
						w.leave(w.client, 10*time.Millisecond, http.MethodPost, "/repos/acme/w/labels", "{}", fields...)
					default:
						w.leave(w.client, 10*time.Millisecond, http.MethodPost, "/graphql", manyNames(), fields...)
					}
					time.Sleep(990 * time.Millisecond)
				}
			})
		}
		reads, hits := 0, 0
		for time.Since(began) < 2*time.Minute {
			reads, hits = reads+len(paths), hits+len(w.hits(reader, paths...))
			time.Sleep(time.Second)
		}
		strangers.Wait()
		failIf(w, w.upstreamSaw() < 3*learned.MaxUnverified || hits*100 < reads*99, "%d hits of %d reads, %d requests upstream", hits, reads, w.upstreamSaw())
	})
}

// The upstream may apply a write although its response is an error, or arrives too late.
func TestWriteWithoutAResultMakesResponsesStale(t *testing.T) {
	for name, delay := range map[string]time.Duration{"error": 0, "timeout": 35 * time.Second} {
		var changed atomic.Bool
		setup(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				w.Header().Set("Cache-Control", "private, max-age=300")
				_, _ = fmt.Fprint(w, map[bool]string{false: "old", true: "new"}[changed.Load()])
				return
			}
			time.Sleep(delay)
			changed.Store(true)
			w.WriteHeader(http.StatusGatewayTimeout)
		}, wholeAPI(t, unchanged)).sub(t, name, func(w *world) {
			w.get(issuesOfWidgets, owner)
			w.do(http.MethodPost, issuesOfWidgets, strings.NewReader("{}"), owner)
			w.get(issuesOfWidgets, owner) // may be stored before the upstream applies the write
			time.Sleep(stoppedWorking + time.Second)
			w.want("body", w.get(issuesOfWidgets, owner).body, "new")
		})
	}
}

func TestCompleteResponseEndsAnOlderPart(t *testing.T) {
	for _, method := range []string{http.MethodHead, http.MethodGet} {
		version := "1"
		setup(func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Cache-Control", "max-age=600")
			h.Set("Etag", `"`+version+`"`)
			if r.Header.Get("Range") != "" {
				h.Set("Content-Range", fmt.Sprint("bytes 0-3/", maxEntry+1))
				w.WriteHeader(http.StatusPartialContent)
				_, _ = fmt.Fprint(w, strings.Repeat(version, 4))
				return
			}
			h.Set("Content-Length", fmt.Sprint(maxEntry+1))
			if r.Method == http.MethodGet {
				_, _ = w.Write(bytes.Repeat([]byte(version), maxEntry+1))
			}
		}).sub(t, method, func(w *world) {
			w.want("part", w.get("/page", "Range: bytes=0-3").body, "1111")
			version = "2"
			w.want("stored part", w.get("/page", "Range: bytes=0-3").body, "1111")
			w.do(method, "/page", nil)
			w.want("part after the complete response", w.get("/page", "Range: bytes=0-3").body, "2222")
			w.want("status with a condition", w.get("/page", "Range: bytes=0-3", `If-None-Match: "2"`).Header.Get("Cache-Status"), "weir; fwd=bypass; fwd-status=206; stored; ttl=600")
		})
	}
}

func TestIfMatchAcceptsTheETagOfACodedResponse(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			_, _ = fmt.Fprint(w, r.Header.Get("If-Match"))
			return
		}
		listing(longList)(w, r)
	}).run(t, func(w *world) {
		etag := w.get("/made-up", "Accept-Encoding: gzip").Header.Get("Etag")
		w.want("ETag", etag, `W/"v1"`)
		w.want("If-Match upstream", w.do(http.MethodPut, "/made-up", nil, "If-Match: "+etag+`, "W/x", W/"y"`).body, `"v1", "W/x", "y"`)
	})
}
