package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// templates is an upstream with one cacheable response that has a validator.
func templates(w http.ResponseWriter, r *http.Request) {
	setFields(w, `Etag: W/"one"`, "Content-Type: application/json")
	if r.Header.Get("If-None-Match") == `W/"one"` {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = fmt.Fprint(w, `["Go"]`)
}

// rateFields returns the fields of the budget that each response has once.
func rateFields(reset int) []string {
	return lines("X-RateLimit-Limit: 60", "X-RateLimit-Remaining: 59", "X-RateLimit-Used: 1", fmt.Sprint("X-RateLimit-Reset: ", reset), "X-RateLimit-Resource: core")
}

func TestCacheOfReferenceData(t *testing.T) {
	const (
		hit       = "weir; hit; ttl=86390"
		missed    = "weir; fwd=uri-miss; fwd-status=200; stored; ttl=86400"
		confirmed = "weir; fwd=request; fwd-status=304; stored; ttl=86400"
		goes      = `["Go"]`
	)
	later := func(control, cache string, forwarded bool) []step {
		return []step{{}, {after: 10 * time.Second, request: lines("Cache-Control: " + control), body: goes, cache: cache, cached: !forwarded}}
	}
	for name, steps := range map[string][]step{
		"miss, then hit": {
			{cache: missed, has: rateFields(946688400)},
			{after: 90 * time.Second, cached: true, cache: "weir; hit; ttl=86310", body: goes, has: append(rateFields(946688490), "Age: 90")},
		},
		"shared by all tokens": {{token: "a", body: goes}, {token: "b", body: goes, cached: true}, {request: lines("Authorization: token c"), body: goes, cached: true}},
		"a stale entry is revalidated": {
			{}, {after: 25 * time.Hour, body: goes, cache: "weir; fwd=stale; fwd-status=304; stored; ttl=86400"}, {cached: true, cache: "weir; hit; ttl=86400"},
		},
		"If-None-Match of clients": {
			{request: lines(`If-None-Match: W/"one"`), code: 304}, {body: goes},
			{request: lines(`If-None-Match: "other", "one"`), cached: true, code: 304, lacks: lines("Content-Length", "Content-Type")},
			{request: lines(`If-None-Match: "on"`), cached: true},
		},
		"no-cache":                       later("no-cache", confirmed, true),
		"no-store":                       later("no-store", "weir; fwd=request; fwd-status=200", true),
		"max-age below the age":          later("max-age=5", confirmed, true),
		"max-age above the age":          later("max-age=60", hit, false),
		"only-if-cached":                 later("only-if-cached", hit, false),
		"only-if-cached fails on miss":   {{request: lines("Cache-Control: only-if-cached"), cached: true, code: 504}},
		"a stored GET response for HEAD": {{}, {method: http.MethodHead, cached: true, has: lines("Content-Length: 6")}},
	} {
		runScenarios(t, scenario{name: name, path: "/gitignore/templates", upstream: templates, steps: steps})
	}
}

// parts is an upstream whose partial responses have the first two bytes.
func parts(w http.ResponseWriter, r *http.Request) {
	setFields(w, `Etag: "one"`, "Last-Modified: "+beforeStart)
	if r.Header.Get("Range") != "" {
		w.Header().Set("Content-Range", "bytes 0-1/5")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = fmt.Fprint(w, "wh")
		return
	}
	_, _ = fmt.Fprint(w, "whole")
}

// Ranges of stored responses are served from the cache (RFC 9110 sections 13.1.5 and 14, RFC 9111 section 3.3), and a partial
// response is not stored. A request with only-if-cached is never forwarded (RFC 9111 section 5.2.1.7).
func TestPartsAndConditions(t *testing.T) {
	ranges := []step{{}}
	for i, c := range []struct {
		fields []string
		status int
		body   string
		part   string
	}{
		{lines("Range: bytes=0-1"), 206, "wh", "bytes 0-1/5"},
		{lines("Range: bytes=3-"), 206, "le", "bytes 3-4/5"},
		{lines("Range: bytes=-2"), 206, "le", "bytes 3-4/5"},
		{lines("Range: bytes=9-"), 416, "invalid range: failed to overlap\n", "bytes */5"},
		{lines("Range: bytes=-0"), 416, "invalid range: failed to overlap\n", "bytes */5"},
		{lines("Range: bytes=-00, -0"), 416, "invalid range: failed to overlap\n", "bytes */5"},
		{lines("Range: bytes=-0, 0-1"), 206, "wh", "bytes 0-1/5"},
		{lines("Range: bytes=0-1", `If-Range: "one"`), 206, "wh", "bytes 0-1/5"},
		{lines("Range: bytes=0-1", `If-Range: "two"`), 200, "whole", ""},
		{lines("Range: bytes=0-1", `If-Range: W/"one"`), 200, "whole", ""},
		{lines("Range: bytes=0-1", "If-Range: "+beforeStart), 206, "wh", "bytes 0-1/5"},
		{lines("Range: bytes=0-1", `If-None-Match: "one"`), 304, "", ""},
		{lines(`If-Range: "two"`), 200, "whole", ""},
	} {
		ranges = append(ranges, step{
			after: time.Second, request: c.fields, cached: true, code: c.status, body: c.body,
			has: lines("Content-Range: "+c.part, fmt.Sprint("Age: ", i+1)),
		})
	}
	all := map[string][]step{
		"ranges of a stored response": ranges,
		"a partial response": {
			{request: lines("Range: bytes=0-1"), code: 206, cache: "weir; fwd=bypass; fwd-status=206"}, {body: "whole"},
		},
	}
	for _, field := range lines("Accept: */*", "Range: bytes=0-1", `If-Match: "one"`) {
		all["only-if-cached with "+field] = []step{{request: lines("Cache-Control: only-if-cached", field), cached: true, code: 504}}
	}
	// The upstream evaluates these conditions. Its responses to them are not stored.
	for _, field := range lines(`If-Match: "other"`, "If-Unmodified-Since: Sat, 01 Jan 2000 00:00:00 GMT", "Range: lines=1-2") {
		code := map[bool]int{true: 206, false: 200}[strings.HasPrefix(field, "Range")]
		conditional := step{request: lines(field), code: code, cache: "weir; fwd=bypass*"}
		all["the cache is bypassed with "+field] = []step{conditional, {body: "whole"}, conditional}
	}
	for name, steps := range all {
		runScenarios(t, scenario{name: name, path: "/gitignore/templates", upstream: parts, steps: steps})
	}
}

func TestResponsesAreKeptApart(t *testing.T) {
	vendor := func(accept string) []string { return lines("Accept: application/vnd.service" + accept) }
	id := func(value string) []string { return lines("X-GitHub-Next-Global-ID: " + value) }
	runScenarios(t,
		// The anonymous response is private, so Weir does not store this response.
		scenario{
			name: "private responses by credential", path: "/repos/acme/secret/subscribers",
			response: lines("Cache-Control: private, max-age=60, s-maxage=60"),
			steps: []step{
				{token: "a", body: "1"}, {token: "b", body: "2"}, {body: "3"},
				{token: "a", body: "1", cached: true}, {token: "b", body: "2", cached: true}, {body: "4"},
			},
		},
		scenario{name: "media types", path: "/gitignore/templates/Go", steps: []step{
			{body: "1"}, {request: vendor("+json"), body: "1", cached: true}, {request: vendor(".raw+json"), body: "2"},
			{body: "1", cached: true}, {request: vendor("+json"), body: "1", cached: true}, {request: vendor(".raw+json"), body: "2", cached: true},
		}},
		scenario{name: "a field of the dialect", path: "/gitignore/templates/Go", options: []option{github}, steps: []step{
			{request: id("0"), body: "1"}, {request: id("1"), body: "2"},
			{request: id("0"), body: "1", cached: true}, {request: id("1"), body: "2", cached: true},
		}},
	)
}

func TestWriteInvalidatesAffectedResponses(t *testing.T) {
	const subscription = "/repos/acme/widgets/subscription"
	runScenarios(t,
		scenario{name: "by the catalogue", response: lines("Cache-Control: private, max-age=60"), steps: []step{
			{token: "a", path: "/repos/Acme/Widgets/subscription"}, {token: "a", path: watchers}, {token: "a", path: "/repositories/7/subscribers"},
			{token: "a", path: "/repos/acme/other/subscribers"},
			{token: "a", method: http.MethodPut, path: subscription},
			{token: "a", path: subscription}, {token: "a", path: watchers}, {token: "a", path: "/repositories/7/subscribers"},
			{token: "a", path: "/repos/acme/other/subscribers", cached: true},
		}},
		scenario{name: "after a write whose response was lost", path: subscription, response: lines("Cache-Control: private, max-age=60"), steps: []step{
			{token: "a"}, {token: "a", method: http.MethodPut, status: aborted, code: 502}, {token: "a", body: "2"},
		}},
	)
}

func TestResponseFetchedDuringAWriteIsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "private, max-age=60")
			if r.Method == http.MethodGet && r.Header.Get("User-Agent") == "slow" {
				<-release
			}
			_, _ = fmt.Fprint(w, r.Header.Get("User-Agent"))
		})
		slow := make(chan got)
		go func() {
			slow <- w.get("/repos/acme/widgets/subscription", "Authorization: Bearer a", "User-Agent: slow")
		}()
		synctest.Wait()
		w.do(http.MethodPut, "/repos/acme/widgets/subscription", nil, "Authorization: Bearer a")
		close(release)
		<-slow
		w.want("after the write", w.get("/repos/acme/widgets/subscription", "Authorization: Bearer a", "User-Agent: new").body, "new")
	})
}

func TestLargeBodyIsForwardedButNotStored(t *testing.T) {
	text := newLargeBody(maxEntry+1<<20, false, false)
	text.compressible = true // by its type
	for name, c := range map[string]struct {
		body   *largeBody
		path   string
		option option
	}{
		"many bytes more":    {newLargeBody(maxEntry+1<<20, false, false), watchers, func(*Config) {}},
		"many bytes in gzip": {text, watchers, func(*Config) {}},
		"may be unfinished":  {newLargeBody(maxEntry+1<<20, false, true), "/repos/acme/widgets/pulls/1", wholeAPI(t, func(*policy.Limits) {})},
		"one byte more, with io.EOF": {newLargeBody(maxEntry+1, false, false), watchers, changingResponses(func(_ int32, resp *http.Response) {
			resp.Body = readCloser{iotest.DataErrReader(bufio.NewReader(resp.Body)), resp.Body} // it expects the EOF alone
		})},
	} {
		setup(c.body.ServeHTTP, c.option).sub(t, name, func(w *world) {
			for range 2 {
				w.want("size", len(w.get(c.path, bearer("a")).body), c.body.size)
			}
			synctest.Wait()
			w.want("bytes in files", w.gateway.Background.files.Used(), int64(0))
			w.want("bytes in memory", w.gateway.Background.buffers.Used(), int64(0))
			w.want("requests upstream", w.upstreamSaw(), 2)
		})
	}
}

// readCloser reads from another reader than that which it closes.
type readCloser struct {
	io.Reader
	io.Closer
}
