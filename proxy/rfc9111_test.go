package proxy

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// step is one client request to a gateway, with the expected results.
type step struct {
	after    time.Duration // the pause before the request
	do       func(*world)  // an action instead of a request
	method   string        // GET by default
	path     string        // the path of the scenario by default
	token    string        // the bearer token of the client, unless empty
	asks     string        // Cache-Control of the client's request, unless empty
	request  []string      // further header fields of the client's request
	status   int           // the status of the upstream's response, or aborted; 200 by default
	control  string        // Cache-Control of the upstream's response, unless empty
	response []string      // further header fields of the upstream's response; those of the scenario by default
	text     string        // the body of the upstream's response; by default the number of responses so far

	cached bool     // whether the gateway must respond without a request upstream
	extra  int      // the number of further requests that the gateway must send upstream
	code   int      // the expected status of the gateway's response, or aborted; by default that of the upstream, and 200 after a 304
	body   string   // the expected body of the gateway's response, unless empty
	cache  string   // the expected Cache-Status, unless empty; see matches
	has    []string // header fields that the gateway's response must have
	lacks  []string // names of header fields that the gateway's response must not have
	sent   []string // header fields that the request to the upstream must have
}

// hasConnection reports whether the upstream's response has a Connection field.
func (s step) hasConnection() bool {
	return slices.ContainsFunc(s.response, func(f string) bool { return strings.HasPrefix(f, "Connection: ") })
}

// aborted is the status of a response that breaks off.
const aborted = 1

// scenario is a sequence of requests to one gateway.
type scenario struct {
	name     string
	path     string           // of the requests; /page by default
	response []string         // the header fields of the upstream's responses
	upstream http.HandlerFunc // by default the upstream responds as the steps say
	options  []option
	steps    []step
}

// scriptedUpstream sends the response of the current step. The rate limit is never exhausted.
type scriptedUpstream struct {
	mu        sync.Mutex
	scenario  scenario
	step      step
	responses int
}

func (u *scriptedUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.scenario.upstream != nil && u.step.status != aborted {
		u.scenario.upstream(w, r)
		return
	}
	setFields(w, rates(1000, 1, time.Hour)...)
	response := u.step.response
	if response == nil {
		response = u.scenario.response
	}
	if u.step.control != "" {
		setFields(w, "Cache-Control: "+u.step.control)
	}
	for _, f := range response {
		name, value, _ := strings.Cut(f, ": ")
		w.Header().Add(name, value)
	}
	switch status := u.step.status; status {
	case aborted:
		panic(http.ErrAbortHandler)
	case http.StatusNotModified, http.StatusNoContent:
		w.WriteHeader(status)
		return
	case 0:
	default:
		w.WriteHeader(status)
	}
	u.responses++
	_, _ = io.WriteString(w, cmp.Or(u.step.text, strconv.Itoa(u.responses)))
}

// runScenarios runs each scenario with a new gateway.
func runScenarios(t *testing.T, list ...scenario) {
	t.Helper()
	for _, s := range list {
		bubble(t, s.name, func(t *testing.T) {
			u := &scriptedUpstream{scenario: s}
			protocol := upstreamProtocol
			if slices.ContainsFunc(s.steps, step.hasConnection) { // HTTP/2 has no Connection field
				protocol = http1
			}
			w := newWorldOver(t, protocol, u.ServeHTTP, s.options...)
			for i, step := range s.steps {
				w.runStep(fmt.Sprintf("request %d", i+1), u, step)
			}
		})
	}
}

// runStep sends the request of a step and reports deviations from the expected results.
func (w *world) runStep(name string, u *scriptedUpstream, step step) {
	w.Helper()
	time.Sleep(step.after)
	if step.do != nil {
		step.do(w)
		return
	}
	u.mu.Lock()
	u.step = step
	u.mu.Unlock()
	method := cmp.Or(step.method, http.MethodGet)
	fields := step.request
	if step.token != "" {
		fields = append(lines(bearer(step.token)), fields...)
	}
	if step.asks != "" {
		fields = append(lines("Cache-Control: "+step.asks), fields...)
	}
	before := w.upstreamSaw()
	r := w.try(method, cmp.Or(step.path, u.scenario.path, "/page"), http.NoBody, fields...)
	seen := w.seen.all()[before:]
	if r.Response == nil {
		w.want(fmt.Sprintf("%s: %v", name, r.err), aborted, step.code)
		return
	}
	label := func(s string) string { return fmt.Sprintf("%s: %s (%s)", name, s, r.Header.Get("Cache-Status")) }
	code := cmp.Or(step.code, http.StatusOK)
	if step.code == 0 && !step.cached && step.status != aborted && step.status != http.StatusNotModified {
		code = cmp.Or(step.status, http.StatusOK)
	}
	forwarded := 1 + step.extra
	if step.status == aborted && method == http.MethodGet {
		forwarded += maxRetries
	}
	if step.cached {
		forwarded = 0
	}
	w.want(label("status"), r.StatusCode, code)
	w.want(label("requests upstream"), len(seen), forwarded)
	w.want(label("error"), r.err, nil)
	if step.body != "" || code == http.StatusNotModified || method == http.MethodHead {
		w.want(label("decoded body"), w.decoded(r), step.body)
	}
	if step.cache != "" {
		w.wantFields(name, r.Header, "Cache-Status: "+step.cache)
	}
	w.wantFields(label(""), r.Header, step.has...)
	for _, name := range step.lacks {
		w.want(label(name), r.Header.Get(name), "")
	}
	for _, f := range step.sent {
		name, value, _ := strings.Cut(f, ": ")
		w.want(label("the upstream request has the right "+name), len(seen) > 0 && strings.Join(seen[0].Header.Values(name), ", ") == value, true)
	}
}

// wantFields compares header fields. A field without a value must be absent. For a * in a value see matches.
func (w *world) wantFields(name string, h http.Header, fields ...string) {
	w.Helper()
	for _, f := range fields {
		field, want, _ := strings.Cut(f, ": ")
		got := strings.Join(h.Values(field), ", ")
		failIf(w, !matches(got, want), "%s: %s: got %q, want %q", name, field, got, want)
	}
}

// matches compares a text with a pattern. A * before or after other text stands for any text.
func matches(text, pattern string) bool {
	start, startsWith := strings.CutSuffix(pattern, "*")
	end, endsWith := strings.CutPrefix(pattern, "*")
	return text == pattern || startsWith && start != "" && strings.HasPrefix(text, start) || endsWith && end != "" && strings.HasSuffix(text, end)
}

// lines returns its arguments, which are header field lines, as a slice.
func lines(s ...string) []string { return s }

// requirement is a rule of RFC 9111 for caches or shared caches.
type requirement struct {
	section, rule string
	steps         []step
}

const (
	testStart   = "Sat, 01 Jan 2000 00:00:00 GMT" // the time at which synctest starts its clock
	beforeStart = "Fri, 31 Dec 1999 23:59:59 GMT"
	fresh       = "Cache-Control: max-age=60"
)

// TestRFC9111 tests each MUST and MUST NOT of RFC 9111 that applies to a shared cache.
// The requests are for a plain upstream resource without a catalogue entry.
// docs/internals/rfc9111.md lists the requirements by section.
func TestRFC9111(t *testing.T) {
	for _, r := range slices.Concat(storing, reusing, validating, heading, invalidating, directives) {
		runScenarios(t, scenario{name: r.section + " " + r.rule, steps: r.steps})
	}
}

// First requests: the response is fresh for a minute, or for a second and has an ETag.
var (
	stored   = step{response: lines(fresh)}
	expiring = step{response: lines("Cache-Control: max-age=1", `Etag: "a"`)}
)

// Digests of a response (RFC 9530): those of its content, and those of the whole representation.
var (
	ofContent = lines("Content-Digest", "Content-MD5")
	ofWhole   = lines("Digest: d", "Repr-Digest: r")
	digests   = append(lines(fresh, `Etag: "a"`, "Content-Digest: c", "Content-MD5: m"), ofWhole...)
)

// fromCache is a second request that must be served from the cache.
var fromCache = step{cached: true, body: "1"}

// fetchedAgain is a second request that must be forwarded.
var fetchedAgain = step{body: "2"}

// storing tests sections 3 to 3.5.
var storing = []requirement{
	{"3", "a fresh response is stored", []step{stored, fromCache}},
	{"3", "a response to an unknown method is not stored", []step{{method: "FOO", response: lines(fresh)}, {method: "FOO", body: "2"}}},
	{"3", "a response to a POST is not stored", []step{{method: "POST", response: lines(fresh)}, fetchedAgain}},
	{"3", "a fresh response with any final status is stored", []step{{path: "/299", status: 299, response: lines(fresh)},
		{cached: true, path: "/299", code: 299}, {path: "/307", status: 307, response: lines(fresh)}, {cached: true, path: "/307", code: 307},
		{path: "/400", status: 400, response: lines(fresh)}, {cached: true, path: "/400", code: 400}, {path: "/503", status: 503, response: lines(fresh)},
		{cached: true, path: "/503", code: 503}}},
	{"3", "202, 401 and 429 are not stored", []step{{status: 202, response: lines(fresh)}, {status: 401, response: lines(fresh)},
		{status: 429, response: lines(fresh)}, {after: 2 * time.Hour}}},
	{"3", "a limit error is not stored", []step{
		{status: 403, response: lines(fresh, "Retry-After: 1"), text: `{"message": "You have exceeded a secondary rate limit."}`, request: lines("Prefer: wait=0")},
		{after: 30 * time.Second}}},
	{"3", "an error to a credential is not stored", []step{{token: "a", status: 403, response: lines(fresh)}, {token: "a", body: "2"}}},
	{"3", "a redirection of a credential is stored for the credential", []step{{token: "a", status: 302, response: lines(fresh)},
		{cached: true, token: "a", code: 302}, {token: "b"}}},
	{"3", "an error is served only to requests with the same standard fields", []step{
		{request: lines("User-Agent: a"), status: 400, response: lines(fresh)}, {cached: true, request: lines("User-Agent: a"), code: 400},
		{request: lines("User-Agent: b"), body: "2"}}},
	{"3", "an error of a long request or a request outside ASCII is not stored", []step{
		{request: lines("Foo: " + strings.Repeat("a", maxPlain)), status: 400, response: lines(fresh)},
		{request: lines("Foo: \x80"), status: 400, response: lines(fresh)}, {body: "3"}}},
	{"3", "a response with no-store is not stored", []step{{control: "no-store, max-age=60"}, fetchedAgain}},
	{"3", "a private response is not shared", []step{{control: "private, max-age=60"}, fetchedAgain}},
	{"3", "a response with private and field names is not shared", []step{{control: `private="X-Foo", max-age=60`, response: lines("X-Foo: 1")},
		fetchedAgain}},
	{"3", "a response without freshness and validator is not stored", []step{{}, fetchedAgain}},
	{"3.1", "unknown header fields are stored", []step{{response: lines(fresh, "X-Unknown: a", "X-Unknown: b")},
		{cached: true, body: "1", has: lines("X-Unknown: a, b")}}},
	{"3.1", "hop-by-hop header fields are not stored", []step{
		{response: lines(fresh, "Connection: X-Hop", "X-Hop: 1", "Proxy-Authenticate: Basic", "Proxy-Authentication-Info: a")},
		{cached: true, body: "1", lacks: lines("Connection", "X-Hop", "Proxy-Authenticate", "Proxy-Authentication-Info")}}},
	{"3.1", "Proxy-Authorization is not stored", []step{{response: lines(fresh, "Proxy-Authorization: Basic eA==")},
		{cached: true, body: "1", lacks: lines("Proxy-Authorization")}}},
	{"3.1", "trailers do not become header fields", []step{
		{response: lines(fresh, "Trailer: X-Late", http.TrailerPrefix+"X-Late: 1"), text: strings.Repeat("long ", 10_000)},
		{cached: true, text: "other", lacks: lines("X-Late")}}},
	{"3.2", "a 304 updates its own header fields and no other fields", []step{
		{control: "max-age=1", response: lines(`Etag: "a"`, "X-One: old", "X-Two: old")},
		{after: 2 * time.Second, status: 304, response: lines(fresh, `Etag: "a"`, "X-One: new"), body: "1", has: lines("X-One: new", "X-Two: old")},
		{cached: true, body: "1", has: lines("X-One: new", "X-Two: old")}}},
	{"3.2", "a 304 does not update Content-Length and Content-Encoding", []step{
		{control: "max-age=1", response: lines(`Etag: "a"`, "Content-Encoding: made-up")},
		{after: 2 * time.Second, status: 304, response: lines(fresh, `Etag: "a"`, "Content-Length: 7", "Content-Encoding: other"), body: "1"},
		{cached: true, body: "1", has: lines("Content-Length: 1", "Content-Encoding: made-up")}}},
	{"3.2", "a 304 does not update the digests of the content", []step{
		{control: "max-age=1", response: lines(`Etag: "a"`, "Content-Digest: whole", "Content-MD5: whole")},
		{after: 2 * time.Second, status: 304, response: lines(fresh, `Etag: "a"`, "Content-Digest: empty", "Content-MD5: empty"), body: "1"},
		{cached: true, body: "1", has: lines("Content-Digest: whole", "Content-MD5: whole")}}},
	{"3.3", "the digests of the content are those of the response", []step{
		{response: digests, text: "abc"}, {cached: true, body: "abc", has: digests},
		{cached: true, request: lines("Range: bytes=1-1"), code: 206, body: "b", has: ofWhole, lacks: ofContent},
		{cached: true, request: lines(`If-None-Match: "a"`), code: 304, has: ofWhole, lacks: ofContent},
		{cached: true, method: "HEAD", has: ofWhole, lacks: ofContent},
		{path: "/part", request: lines("Range: bytes=1-3"), status: 206, response: slices.Concat(digests, lines("Content-Range: bytes 1-3/5")), text: "bcd"},
		{path: "/part", cached: true, request: lines("Range: bytes=1-3"), code: 206, body: "bcd", has: digests},
		{path: "/part", cached: true, request: lines("Range: bytes=2-3"), code: 206, body: "cd", has: ofWhole, lacks: ofContent}}},
	{"3.3", "an incomplete response is not stored", []step{{response: lines(fresh, "Content-Length: 100"), code: 502}, fetchedAgain}},
	{"3.3", "a partial response answers only ranges inside it", []step{
		{request: lines("Range: bytes=1-3"), status: 206, response: lines(fresh, `Etag: "a"`, "Content-Range: bytes 1-3/5"), text: "bcd", body: "bcd"},
		{cached: true, request: lines("Range: bytes=2-3"), code: 206, body: "cd", has: lines("Content-Range: bytes 2-3/5", "Content-Length: 2")},
		{request: lines("Range: bytes=2-4")}, {request: lines("Range: bytes=2-3", `If-Range: "a"`)}, {}}},
	{"3.3", "a stale partial response is not served", []step{
		{request: lines("Range: bytes=0-0"), status: 206, response: lines(fresh, "Content-Range: bytes 0-0/3"), text: "a"},
		{after: time.Minute, request: lines("Range: bytes=0-0")}}},
	{"3.3", "a partial response is not served after a newer complete response or error", []step{
		{request: lines("Range: bytes=0-0"), status: 206, response: lines(fresh, "Content-Range: bytes 0-0/3"), text: "a"},
		{status: 404, control: "max-age=1"}, {request: lines("Range: bytes=0-0"), status: 404},
		{after: 2 * time.Second, request: lines("Range: bytes=0-0")}}},
	{"3.3", "a write makes a partial response stale", []step{
		{request: lines("Range: bytes=0-0"), status: 206, response: lines(fresh, "Content-Range: bytes 0-0/3"), text: "a"}, {method: "PUT"},
		{request: lines("Range: bytes=0-0")}}},
	{"3.3", "a range of a stored response is served as 206", []step{{response: lines(fresh), text: "abc"},
		{cached: true, request: lines("Range: bytes=1-1"), code: 206, body: "b", has: lines("Content-Range: bytes 1-1/3")}}},
	{"3.4", "partial responses are not combined with each other or with a stored response", []step{
		{control: "max-age=1", response: lines(`Etag: "a"`, "X-Part: none"), text: "abc"},
		{after: 2 * time.Second, request: lines("Range: bytes=0-1"), status: 206, response: lines(fresh, `Etag: "a"`, "Content-Range: bytes 0-1/3", "X-Part: first"), text: "ab", body: "ab"},
		{request: lines("Range: bytes=2-2"), status: 206, response: lines(fresh, `Etag: "a"`, "Content-Range: bytes 2-2/3", "X-Part: second"), text: "c", body: "c"},
		{status: 304, response: lines(fresh, `Etag: "a"`), body: "abc", has: lines("X-Part: none")}}},
	{"3.5", "a response to one credential is not served to another credential or to anonymous clients", []step{{token: "a", response: lines(fresh)},
		{token: "b", response: lines(fresh), body: "2"}, {body: "3"}}},
}

// reusing tests sections 4 to 4.2.4 and 5.1.
var reusing = []requirement{
	{"4", "a response is not served for another target", []step{stored, {path: "/page?a=1", body: "2"}, {path: "/Page", body: "3"}}},
	{"4", "a stored GET response answers HEAD", []step{stored, {cached: true, method: "HEAD", has: lines("Content-Length: 1")}}},
	{"4", "a HEAD response does not answer GET", []step{{method: "HEAD", response: lines(fresh)}, fetchedAgain}},
	{"4", "a stale response is revalidated", []step{stored, {after: time.Minute, body: "2"}}},
	{"4", "the gateway replaces Age", []step{{response: lines(fresh, "Age: 20")},
		{cached: true, after: 5 * time.Second, body: "1", has: lines("Age: 25")}}},
	{"4", "unsafe requests are forwarded", []step{stored, {method: "PUT"}, {method: "DELETE"}}},
	{"4", "unsafe requests are forwarded regardless of their Cache-Control", []step{stored, {method: "POST", asks: "only-if-cached, max-stale"}}},
	{"4", "a failed unsafe request is not answered from the cache", []step{{control: "max-age=1, stale-if-error=60"},
		{after: 2 * time.Second, method: "PUT", asks: "max-stale", status: 503}}},
	{"4", "the most recent matching response is served", []step{
		{control: "max-age=60", response: lines("Vary: X-Request-Id"), request: lines("X-Request-Id: 1", "Req-Num: 1")},
		{response: lines(fresh, "Vary: Req-Num"), request: lines("Req-Num: 1", "Cache-Control: no-cache"), body: "2"},
		{cached: true, request: lines("X-Request-Id: 1", "Req-Num: 1"), body: "2"}}},
	{"4", "the most recent response is the one with the latest Date", []step{{response: lines(fresh, "Vary: X-Request-Id"), request: lines("X-Request-Id: 1", "Req-Num: 1")},
		{response: lines(fresh, "Vary: Req-Num", "Date: Fri, 31 Dec 1999 23:59:50 GMT"), request: lines("Req-Num: 1", "Cache-Control: no-cache"), body: "2"},
		{cached: true, request: lines("X-Request-Id: 1", "Req-Num: 1"), body: "1"}, {cached: true, request: lines("X-Request-Id: 2", "Req-Num: 1"), body: "2"}}},
	{"4.1", "Vary: a request with another value does not match", []step{{request: lines("Foo: 1"), response: lines(fresh, "Vary: Foo")},
		{request: lines("Foo: 2"), body: "2"}}},
	{"4.1", "Vary: an empty field does not match an absent field", []step{{response: lines(fresh, "Vary: Foo")}, {request: lines("Foo: "), body: "2"}}},
	{"4.1", "Vary: an absent field does not match a value", []step{{request: lines("Foo: 1"), response: lines(fresh, "Vary: Foo")}, fetchedAgain}},
	{"4.1", "Vary: all named fields must match", []step{{request: lines("Foo: 1", "Bar: 1"), response: lines(fresh, "Vary: Foo", "Vary: Bar")},
		{request: lines("Foo: 1", "Bar: 2"), body: "2"}}},
	{"4.1", "Vary: whitespace and the order of languages have no meaning", []step{
		{request: lines("Accept-Language: en, de", "Foo: 1,2"), response: lines(fresh, "Vary: Accept-Language, Foo")},
		{cached: true, request: lines("Accept-Language: DE,en", "Foo: 1, 2"), body: "1"}}},
	{"4.1", "Vary: * never matches", []step{{response: lines(fresh, "Vary: Foo, *")}, fetchedAgain}},
	{"4.1", "Vary: each request gets its own variant", []step{{request: lines("Foo: 1"), response: lines(fresh, "Vary: Foo")},
		{request: lines("Foo: 2"), response: lines(fresh, "Vary: Foo")}, {cached: true, request: lines("Foo: 1"), body: "1"},
		{cached: true, request: lines("Foo: 2"), body: "2"}}},
	{"4.2.1", "s-maxage has precedence over max-age", []step{{control: "max-age=60, s-maxage=5"}, {after: 6 * time.Second, body: "2"}}},
	{"4.2.1", "max-age has precedence over Expires", []step{{control: "max-age=5", response: lines("Expires: Sun, 02 Jan 2000 00:00:00 GMT")},
		{after: 6 * time.Second, body: "2"}}},
	{"4.2.1", "Expires counts from Date", []step{{response: lines("Date: "+testStart, "Expires: Sat, 01 Jan 2000 00:00:10 GMT")},
		{cached: true, after: 9 * time.Second, body: "1"}, {after: 2 * time.Second, body: "2"}}},
	{"4.2.1", "an invalid max-age means no freshness", []step{{control: "max-age=soon", response: lines(`Etag: "a"`)}, fetchedAgain}},
	{"4.2", "a date in a zone other than GMT is invalid in every local zone", []step{
		{response: lines("Expires: Sunday, 02-Jan-00 00:00:00 CET", `Etag: "a"`)}, fetchedAgain}},
	{"4.2", "a GMT date is valid in all three formats", []step{{response: lines("Expires: Sunday, 02-Jan-00 00:00:00 GMT")}, fromCache,
		{response: lines("Expires: Sun Jan  2 00:00:00 2000"), path: "/c"}, {cached: true, path: "/c", body: "2"}}},
	{"4.2.2", "no heuristic freshness beside explicit freshness", []step{
		{control: "max-age=5", response: lines("Last-Modified: Fri, 01 Jan 1999 00:00:00 GMT")}, {after: 6 * time.Second, body: "2"}}},
	{"4.2.2", "no heuristic freshness for a status that does not allow it", []step{
		{status: 201, response: lines("Last-Modified: Fri, 01 Jan 1999 00:00:00 GMT")}, fetchedAgain}},
	{"4.2.3", "the age includes the time since Date", []step{{response: lines(fresh, "Date: Fri, 31 Dec 1999 23:59:30 GMT")},
		{cached: true, after: 29 * time.Second, body: "1"}, {after: 2 * time.Second, body: "2"}}},
	{"4.2.2", "heuristic freshness for a 405, but not for a 503", []step{
		{path: "/405", status: 405, response: lines("Last-Modified: Fri, 01 Jan 1999 00:00:00 GMT")}, {cached: true, path: "/405", code: 405},
		{path: "/503", status: 503, response: lines("Last-Modified: Fri, 01 Jan 1999 00:00:00 GMT")}, {path: "/503"}}},
	{"5.1", "an invalid Age is ignored", []step{{response: lines(fresh, "Age: -7200")}, fromCache}},
	{"5.1", "the first member of Age counts", []step{{response: lines(fresh, "Age: 0, 7200")}, fromCache,
		{path: "/old", response: lines(fresh, "Age: 7200", "Age: 0")}, {path: "/old"}}},
	{"4.2.3", "the age includes Age", []step{{response: lines(fresh, "Age: 50")}, {cached: true, after: 9 * time.Second, body: "1"},
		{after: 2 * time.Second, body: "2"}}},
	{"1.2.2", "an overflowing max-age is the largest number", []step{{control: "max-age=99999999999999999999"},
		{cached: true, after: 24 * time.Hour, body: "1"}}},
	{"1.2.2", "an overflowing Age is the largest number", []step{
		{control: "max-age=2147483647", response: lines("Age: 99999999999999999999", `Etag: "a"`)}, fetchedAgain}},
	{"1.2.2", "distant dates do not overflow", []step{{response: lines("Expires: Fri, 31 Dec 9999 23:59:59 GMT")},
		{cached: true, after: time.Hour, body: "1"},
		{path: "/old", control: "max-age=3600", response: lines("Date: Mon, 01 Jan 0001 00:00:00 GMT", `Etag: "a"`)},
		{after: time.Second, path: "/old", body: "3"}}},
	{"4.2.4", "must-revalidate: 504 instead of a stale response (section 5.2.2.2)", []step{
		{control: "max-age=1, must-revalidate", response: lines(`Etag: "a"`)}, {after: 2 * time.Second, asks: "max-stale", status: aborted, code: 504}}},
	{"4.2.4", "proxy-revalidate: 504 instead of a stale response (section 5.2.2.8)", []step{
		{control: "max-age=1, proxy-revalidate", response: lines(`Etag: "a"`)}, {after: 2 * time.Second, asks: "max-stale", status: aborted, code: 504}}},
	{"4.2.4", "s-maxage: 504 instead of a stale response (section 5.2.2.10)", []step{{control: "s-maxage=1", response: lines(`Etag: "a"`)},
		{after: 2 * time.Second, asks: "max-stale", status: aborted, code: 504}}},
	{"4.2.4", "no-cache: 504 instead of a stale response", []step{{control: "no-cache, max-age=60", response: lines(`Etag: "a"`)},
		{asks: "max-stale", status: aborted, code: 504}}},
	{"4.2.4", "no stale response for a 503 if neither client nor upstream allows it", []step{expiring, {after: 2 * time.Second, status: 503}}},
	{"4.2.4", "a stale error is not served", []step{
		{status: 503, control: "max-age=1, stale-while-revalidate=60, stale-if-error=60", response: lines(`Etag: "a"`)},
		{after: 2 * time.Second, asks: "max-stale", status: aborted, code: 502}, {sent: lines("If-None-Match: ")}}},
	{"4.2.4", "a stale response if the upstream is unreachable", []step{expiring, {after: 2 * time.Second, status: aborted, body: "1"}}},
}

// validating tests sections 4.3.1 to 4.3.4.
var validating = []requirement{
	{"4.3.1", "revalidation sends the stored ETag and Last-Modified", []step{
		{control: "max-age=1", response: lines(`Etag: W/"a"`, "Last-Modified: "+testStart)},
		{after: 2 * time.Second, status: 304, body: "1", sent: lines(`If-None-Match: W/"a"`, "If-Modified-Since: "+testStart)}}},
	{"4.3.1", "a response with an ETag is not revalidated by date, even if the ETag is too long to send", []step{
		{control: "max-age=1", response: lines(`Etag: "`+strings.Repeat("a", 10_000)+`"`, "Last-Modified: "+testStart)},
		{after: 2 * time.Second, body: "2", sent: lines("If-Modified-Since: ")}}},
	{"4.3.1", "revalidation sends the request's own values of the fields in Vary", []step{
		{request: lines("Foo: 1"), control: "max-age=1", response: lines(`Etag: "a"`, "Vary: Foo")},
		{after: 2 * time.Second, request: lines("Foo: 1"), status: 304, body: "1", sent: lines("Foo: 1", `If-None-Match: "a"`)}}},
	{"4.3.1", "a stored 404 of another variant is not revalidated", []step{
		{request: lines("Foo: 1"), status: 404, response: lines(fresh, `Etag: "a"`, "Vary: Foo")},
		{request: lines("Foo: 2"), sent: lines("If-None-Match: ")}}},
	{"4.3.2", "If-Match and If-Unmodified-Since are forwarded", []step{{response: lines(fresh, `Etag: "a"`)},
		{request: lines(`If-Match: "b"`), status: 412, sent: lines(`If-Match: "b"`)},
		{request: lines("If-Unmodified-Since: " + testStart), status: 412, sent: lines("If-Unmodified-Since: " + testStart)}}},
	{"4.3.2", "conditions without a stored response are forwarded", []step{
		{request: lines(`If-None-Match: "a"`), status: 304, code: 304, sent: lines(`If-None-Match: "a"`)}}},
	{"4.3.2", "a 304 without a stored response is not stored", []step{
		{request: lines(`If-None-Match: "a"`), status: 304, response: lines(fresh, `Etag: "a"`), code: 304}, {body: "1"}}},
	{"4.3.2", "the ETag of a partial response is not added to If-None-Match", []step{
		{request: lines("Range: bytes=0-0"), status: 206, response: lines(fresh, `Etag: "a"`, "Content-Range: bytes 0-0/3")},
		{request: lines(`If-None-Match: "b"`), sent: lines(`If-None-Match: "b"`)}}},
	{"4.3.2", "a stored response answers If-None-Match with a list", []step{{response: lines(fresh, `Etag: "a"`)},
		{cached: true, request: lines(`If-None-Match: "b", W/"a"`), code: 304}}},
	{"4.3.2", "If-None-Match has precedence over If-Modified-Since", []step{{response: lines(fresh, `Etag: "a"`, "Last-Modified: "+testStart)},
		{cached: true, request: lines(`If-None-Match: "b"`, "If-Modified-Since: "+testStart), body: "1"}}},
	{"4.3.2", "a stored response answers If-Modified-Since", []step{{response: lines(fresh, "Last-Modified: "+beforeStart)},
		{cached: true, request: lines("If-Modified-Since: " + beforeStart), code: 304}}},
	{"4.3.2", "a date in the second of the response does not answer If-Modified-Since", []step{{response: lines(fresh, "Last-Modified: "+testStart)},
		{cached: true, request: lines("If-Modified-Since: " + testStart), body: "1"}}},
	{"4.3.2", "If-Range: a date in the second of the response selects no range", []step{
		{response: lines(fresh, "Last-Modified: "+testStart), text: "abc"},
		{cached: true, request: lines("Range: bytes=1-1", "If-Range: "+testStart), body: "abc"}}},
	{"4.3.2", "If-Range: an earlier date selects a range", []step{{response: lines(fresh, "Last-Modified: "+beforeStart), text: "abc"},
		{cached: true, request: lines("Range: bytes=1-1", "If-Range: "+beforeStart), code: 206, body: "b"}}},
	{"4.3.2", "If-Range: a changed response is served complete", []step{{response: lines(fresh, `Etag: "a"`), text: "abc"},
		{cached: true, request: lines("Range: bytes=1-1", `If-Range: "b"`), body: "abc"},
		{cached: true, request: lines("Range: bytes=1-1", `If-Range: "a"`), code: 206, body: "b"}}},
	{"4.3.2", "the client gets 200 if its own ETag differs from that of the 304", []step{expiring,
		{after: 2 * time.Second, request: lines(`If-None-Match: "b"`), status: 304, response: lines(`Etag: "a"`), body: "1"}}},
	{"4.3.3", "an error with explicit freshness does not replace the stored response", []step{
		{control: "max-age=1, stale-if-error=60", response: lines(`Etag: "a"`)}, {after: 2 * time.Second, status: 501, response: lines(fresh)},
		{status: 503, code: 200, body: "1"}}},
	{"4.3.3", "a complete response replaces the stored response", []step{expiring,
		{after: 2 * time.Second, response: lines(fresh, `Etag: "b"`), body: "2"}, {cached: true, body: "2"}}},
	{"4.3.4", "a 304 with an unknown strong ETag updates no field", []step{expiring,
		{after: 2 * time.Second, status: 304, response: lines(`Etag: "other"`, fresh, "X-New: 1"), body: "1", lacks: lines("X-New"), has: lines(`Etag: "a"`)},
		{cached: true, body: "1", lacks: lines("X-New")}, {after: 2 * time.Second, body: "2"}}},
	{"4.3.1", "a 304 to an unconditional request becomes 502", []step{{status: 304, code: 502}}},
	{"4.3.4", "the gateway fetches the response after a 304 to a date with an unknown ETag", []step{
		{control: "max-age=1", response: lines(`Etag: "a"`, "Last-Modified: "+testStart)},
		{after: 2 * time.Second, status: 304, response: lines(`Etag: "other"`), extra: 1, body: "1"}, fetchedAgain}},
	{"4.3.4", "a 304 with a matching weak ETag updates the stored response", []step{{control: "max-age=1", response: lines(`Etag: W/"a"`)},
		{after: 2 * time.Second, status: 304, response: lines(`Etag: W/"a"`, fresh), body: "1"}, fromCache}},
	{"4.3.4", "a 304 updates the variant with its ETag", []step{
		{request: lines("Req-Num: 1"), control: "max-age=30", response: lines(`Etag: "1"`, "Vary: Req-Num")},
		{request: lines("Req-Num: 2"), control: "max-age=30", response: lines(`Etag: "2"`, "Vary: Req-Num")},
		{request: lines("Req-Num: 3"), status: 304, response: lines(fresh, `Etag: "1"`, "Vary: Req-Num"), body: "1", sent: lines(`If-None-Match: "2", "1"`)},
		{cached: true, request: lines("Req-Num: 3"), body: "1"}, {cached: true, request: lines("Req-Num: 2"), body: "2"}}},
}

// heading tests section 4.3.5: the effect of a HEAD response on a stored GET response.
var heading = []requirement{
	{"4.3.5", "a HEAD response with another ETag invalidates", []step{{response: lines(fresh, `Etag: "a"`)},
		{method: "HEAD", asks: "no-cache", response: lines(`Etag: "b"`)}, {body: "3"}}},
	{"4.3.5", "a HEAD response with another length invalidates", []step{stored, {method: "HEAD", asks: "no-cache", response: lines("Content-Length: 7")},
		{body: "3"}}},
	{"4.3.5", "a HEAD response with equal validators does not invalidate", []step{{response: lines(fresh, `Etag: "a"`)},
		{method: "HEAD", asks: "no-cache", response: lines(`Etag: W/"a"`, "Content-Length: 1")}, fromCache}},
}

// invalidating tests section 4.4.
var invalidating = []requirement{
	{"4.4", "a successful unsafe request invalidates its target", []step{stored, {method: "POST"}, {body: "3"}}},
	{"4.4", "a request with an unknown method invalidates its target", []step{stored, {method: "FOO"}, {body: "3"}}},
	{"4.4", "an unsafe request with a 304 invalidates its target", []step{stored, {method: "PUT", status: 304, code: 304}, fetchedAgain}},
	{"4.4", "an unsafe request with a redirect invalidates its target", []step{stored, {method: "DELETE", status: 303}, {body: "3"}}},
	{"4.4", "an unsafe request with an error does not invalidate", []step{stored, {method: "DELETE", status: 500}, fromCache}},
	{"4.4", "a safe request does not invalidate", []step{stored, {method: "OPTIONS"}, fromCache}},
	{"4.4", "Location on the same origin is invalidated", []step{stored,
		{method: "POST", path: "/pages", status: 201, response: lines("Location: /base/page")}, {body: "3"}}},
	{"4.4", "Content-Location on the same origin is invalidated", []step{stored,
		{method: "POST", path: "/pages", response: lines("Content-Location: " + upstreamURL + "/page")}, {body: "3"}}},
	{"4.4", "Location on another host is not invalidated", []step{stored,
		{method: "POST", path: "/pages", status: 201, response: lines("Location: http://other.test/base/page")}, fromCache}},
	{"4.4", "Location on another port or scheme is not invalidated", []step{stored,
		{method: "POST", path: "/pages", status: 201, response: lines("Location: http://upstream.test:8080/base/page", "Content-Location: https://upstream.test/base/page")},
		fromCache}},
}

// directives tests sections 5.2 to 5.3.
var directives = []requirement{
	{"5.2", "known and unknown directives are forwarded", []step{
		{asks: "max-age=0, x-made-up=1", control: `max-age=60, x-other="a, b"`, sent: lines("Cache-Control: max-age=0, x-made-up=1"), has: lines(`Cache-Control: max-age=60, x-other="a, b"`)},
		{cached: true, body: "1", has: lines(`Cache-Control: max-age=60, x-other="a, b"`)}}},
	{"5.2", "directive names ignore case, arguments may be quoted", []step{{control: `MAX-AGE="5"`}, {cached: true, after: 4 * time.Second, body: "1"},
		{after: 2 * time.Second}}},
	{"5.2.3", "unknown directives and their arguments have no effect", []step{
		{control: `x-one, x-two="a, no-store, max-age=0", x-three=private, max-age=60`}, fromCache}},
	{"5.2.1.1", "max-age in a request", []step{stored, {after: 10 * time.Second, asks: "max-age=5", response: lines(fresh), body: "2"}}},
	{"5.2.1.2", "max-stale is an upper bound", []step{expiring, {cached: true, after: 5 * time.Second, asks: "max-stale=10", body: "1"},
		{after: 10 * time.Second, asks: "max-stale=10", body: "2"}}},
	{"5.2.1.3", "min-fresh in a request", []step{stored, {after: 10 * time.Second, asks: "min-fresh=55", body: "2"}}},
	{"5.2.1.4", "no-cache in a request", []step{stored, {asks: "no-cache", body: "2"}}},
	{"5.4", "Pragma in a request", []step{stored, {request: lines("Pragma: no-cache"), body: "2"}}},
	{"5.4", "Pragma in a request, other spelling", []step{stored, {request: lines("Pragma: made-up, No-Cache"), body: "2"}}},
	{"5.2.1.5", "no-store in a request", []step{{asks: "no-store", response: lines(fresh)}, fetchedAgain}},
	{"5.2.1.6", "no-transform: the body is not changed", []step{
		{asks: "no-transform", request: lines("Accept-Encoding: gzip"), response: lines(fresh+", no-transform", "Content-Encoding: made-up"), body: "1", has: lines("Content-Encoding: made-up")}}},
	{"5.2.1.7", "only-if-cached: 504 or the stored response", []step{{cached: true, asks: "only-if-cached", code: 504}, stored,
		{cached: true, asks: "only-if-cached", body: "1"}}},
	{"5.2.2.3", "must-understand overrides no-store for a known status", []step{{control: "must-understand, no-store, max-age=60"}, fromCache}},
	{"5.2.2.3", "must-understand does not override no-store for an unknown status", []step{
		{status: 299, control: "must-understand, no-store, max-age=60"}, fetchedAgain}},
	{"5.2.2.5", "a new response with no-store removes the stored response", []step{expiring, {after: 2 * time.Second, control: "no-store", body: "2"},
		{status: aborted, code: 502}}},
	{"5.2.2.5", "a 304 with no-store removes the stored response", []step{expiring,
		{after: 2 * time.Second, status: 304, control: "no-store", body: "1"}, {status: aborted, code: 502}}},
	{"5.2.2.4", "no-cache: every request is revalidated", []step{{control: "no-cache, max-age=60", response: lines(`Etag: "a"`)},
		{status: 304, body: "1"}}},
	{"5.2.2.4", "no-cache with field names: every request is revalidated", []step{
		{control: `no-cache="X-Foo", max-age=60`, response: lines(`Etag: "a"`, "X-Foo: 1")}, {status: 304, body: "1"}}},
	{"5.3", "an Expires with several spaces, a short hour or several lines is invalid", []step{
		{path: "/a", response: lines("Expires: Sun, 02  Jan 2000 00:00:00 GMT")}, {path: "/a"},
		{path: "/b", response: lines("Expires: Sun, 02 Jan 2000 0:00:00 GMT")}, {path: "/b"},
		{path: "/c", response: lines("Expires: Sun, 02 Jan 2000 00:00:00 GMT", "Expires: Sun, 02 Jan 2000 00:00:01 GMT")}, {path: "/c"}}},
	{"5.3", "an Expires in another case is valid", []step{{response: lines("Expires: SUN, 02 jan 2000 00:00:00 gmt")}, fromCache}},
	{"5.3", "an invalid Expires means stale, without heuristic freshness", []step{
		{response: lines("Expires: 0", "Last-Modified: Fri, 01 Jan 1999 00:00:00 GMT")}, {status: 304, body: "1"}}},
	{"5.3", "max-age and s-maxage have precedence over Expires", []step{
		{control: "s-maxage=5", response: lines("Expires: Sun, 02 Jan 2000 00:00:00 GMT")}, {after: 6 * time.Second, body: "2"}}},
}

// TestMissingDateIsTheTimeOfArrival checks that clients compute the age of a stored response from a Date (RFC 9110 section 6.6.1).
func TestMissingDateIsTheTimeOfArrival(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Date"] = nil
		setFields(w, "Cache-Control: max-age=60", `Etag: "a"`)
		if r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(http.StatusNotModified)
		}
	}).run(t, func(w *world) {
		date := func(after time.Duration) string {
			return "Date: " + time.Now().Add(after).UTC().Format(http.TimeFormat)
		}
		w.wantHeader(w.get("/page"), date(0))
		time.Sleep(10 * time.Second)
		w.wantHeader(w.get("/page"), date(-10*time.Second), "Age: 10")
		time.Sleep(time.Minute)
		w.wantHeader(w.get("/page"), date(0), "Age: 0") // revalidated
		time.Sleep(10 * time.Second)
		w.wantHeader(w.get("/page"), date(-10*time.Second), "Age: 10")
	})
}
