package proxy

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// turn is one request to a gateway in front of a plain origin, and what must come of
// it.
type turn struct {
	after  time.Duration
	method string   // GET unless it says
	path   string   // /page unless it says
	ask    []string // request fields
	status int      // of the origin's answer, 200 unless it says, or broken off
	answer []string // its fields
	whole  string   // its body, unless it is the number of its answers so far

	asked bool   // whether the origin must see the request
	twice int    // and how many more
	code  int    // of the gateway's answer, 200 unless it says, or broken
	body  string // of the gateway's answer, if it says
	gets  []string
	lacks []string // names of fields that the gateway's answer must not have
	sees  []string // fields that the origin must see
}

// broken is an answer that the client is not given whole.
const broken = 1

// origin answers as the turn says, with a date and a budget without end.
type origin struct {
	mu   sync.Mutex
	turn turn
	n    int
}

func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := w.Header()
	h.Set("X-RateLimit-Limit", "1000")
	h.Set("X-RateLimit-Used", "1")
	h.Set("X-RateLimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
	for _, f := range o.turn.answer {
		name, value, _ := strings.Cut(f, ": ")
		h.Add(name, value)
	}
	switch status := o.turn.status; status {
	case broken:
		panic(http.ErrAbortHandler)
	case http.StatusNotModified, http.StatusNoContent:
		w.WriteHeader(status)
		return
	case 0:
	default:
		w.WriteHeader(status)
	}
	o.n++
	text := o.turn.whole
	if text == "" {
		text = fmt.Sprint(o.n)
	}
	_, _ = fmt.Fprint(w, text)
}

// play lets the turns happen, and says what is wrong.
func (w *world) play(o *origin, turns []turn) {
	w.Helper()
	for i, turn := range turns {
		time.Sleep(turn.after)
		o.mu.Lock()
		o.turn = turn
		o.mu.Unlock()
		method, path := http.MethodGet, "/page"
		if turn.method != "" {
			method = turn.method
		}
		if turn.path != "" {
			path = turn.path
		}
		before := w.upstreamSaw()
		r := w.try(method, path, http.NoBody, turn.ask...)
		seen := w.seen.all()[before:]
		if r.Response == nil {
			w.want(fmt.Sprintf("request %d: %v", i+1, r.err), broken, turn.code)
			continue
		}
		what := func(s string) string { return fmt.Sprintf("request %d: %s (%s)", i+1, s, r.Header.Get("Cache-Status")) }
		code := http.StatusOK
		if turn.code != 0 {
			code = turn.code
		}
		w.want(what("status"), r.StatusCode, code)
		asked := 0
		if turn.asked {
			asked = 1 + turn.twice
		}
		if turn.status == broken {
			asked += maxRetries
		}
		w.want(what("requests of the origin"), len(seen), asked)
		w.want(what("error"), r.err, nil)
		if turn.body != "" {
			w.want(what("body"), r.body, turn.body)
		}
		for _, f := range turn.gets {
			name, value, _ := strings.Cut(f, ": ")
			w.want(what(name), strings.Join(r.Header.Values(name), ", "), value)
		}
		for _, name := range turn.lacks {
			w.want(what(name), r.Header.Get(name), "")
		}
		for _, f := range turn.sees {
			name, value, _ := strings.Cut(f, ": ")
			w.want(what("the origin sees "+name), len(seen) > 0 && strings.Join(seen[0].Header.Values(name), ", ") == value, true)
		}
	}
}

// one returns the only string, as a list.
func one(s ...string) []string { return s }

// requirement is what RFC 9111 says that a cache, or a shared cache, must or must not.
type requirement struct {
	section, what string
	turns         []turn
}

const (
	httpDay = "Sat, 01 Jan 2000 00:00:00 GMT" // when every test begins
	fresh   = "Cache-Control: max-age=60"
)

// TestRFC9111 holds every MUST and MUST NOT of RFC 9111 that a shared cache can meet,
// by section, in front of a plain origin: whatever documents say nothing of.
// docs/rfc9111.md lists them by clause, with tests elsewhere; docs/cache.md what is done
// otherwise and why.
func TestRFC9111(t *testing.T) {
	for _, r := range slices.Concat(storing, reusing, validating, heading, invalidating, directives) {
		t.Run(r.section+" "+r.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &origin{}
				newWorld(t, o.ServeHTTP).play(o, r.turns)
			})
		})
	}
}

// again is a second request, which must be answered from the cache.
var again = turn{asked: false, body: "1"}

// anew is one that must not be.
var anew = turn{asked: true, body: "2"}

// Sections 3 to 3.5.
var storing = []requirement{
	{"3", "an answer that is fresh is stored", []turn{{answer: one(fresh), asked: true}, again}},
	{"3", "a method that the cache does not understand is not", []turn{{method: "FOO", answer: one(fresh), asked: true}, {method: "FOO", asked: true, body: "2"}}},
	{"3", "a POST is not", []turn{{method: "POST", answer: one(fresh), asked: true}, anew}},
	{"3", "a status that the cache does not understand is not stored", []turn{{status: 299, answer: one(fresh), asked: true, code: 299}, anew}},
	{"3", "no-store", []turn{{answer: one("Cache-Control: no-store, max-age=60"), asked: true}, anew}},
	{"3", "private, to a shared cache", []turn{{answer: one("Cache-Control: private, max-age=60"), asked: true}, anew}},
	{"3", "private, with field names", []turn{{answer: one(`Cache-Control: private="X-Foo", max-age=60`, "X-Foo: 1"), asked: true}, anew}},
	{"3", "an answer that says nothing, and has no validator", []turn{{asked: true}, anew}},
	{"3.1", "fields that nobody knows are stored", []turn{
		{answer: one(fresh, "X-Unknown: a", "X-Unknown: b"), asked: true}, {body: "1", gets: one("X-Unknown: a, b")}}},
	{"3.1", "fields of one connection are not", []turn{
		{answer: one(fresh, "Connection: X-Hop", "X-Hop: 1", "Proxy-Authenticate: Basic", "Proxy-Authentication-Info: a"), asked: true},
		{body: "1", lacks: one("Connection", "X-Hop", "Proxy-Authenticate", "Proxy-Authentication-Info")}}},
	{"3.1", "nor is Proxy-Authorization", []turn{{answer: one(fresh, "Proxy-Authorization: Basic eA=="), asked: true}, {body: "1", lacks: one("Proxy-Authorization")}}},
	{"3.1", "trailers are not made fields of the header", []turn{
		{answer: one(fresh, "Trailer: X-Late", http.TrailerPrefix+"X-Late: 1"), whole: strings.Repeat("long ", 10_000), asked: true},
		{whole: "other", lacks: one("X-Late")}}},
	{"3.2", "a 304 renews the fields that it has, and leaves the others", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "a"`, "X-One: old", "X-Two: old"), asked: true},
		{after: 2 * time.Second, status: 304, answer: one(fresh, `Etag: "a"`, "X-One: new"), asked: true, body: "1", gets: one("X-One: new", "X-Two: old")},
		{body: "1", gets: one("X-One: new", "X-Two: old")}}},
	{"3.2", "but for Content-Length, and those by which the body is read", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "a"`, "Content-Encoding: made-up"), asked: true},
		{after: 2 * time.Second, status: 304, answer: one(fresh, `Etag: "a"`, "Content-Length: 7", "Content-Encoding: other"), asked: true, body: "1"},
		{body: "1", gets: one("Content-Length: 1", "Content-Encoding: made-up")}}},
	{"3.3", "an incomplete answer is used for nothing", []turn{
		{answer: one(fresh, "Content-Length: 100"), asked: true, code: 502}, {asked: true, body: "2"}}},
	{"3.3", "a part is stored as nothing", []turn{
		{ask: one("Range: bytes=0-0"), status: 206, answer: one(fresh, "Content-Range: bytes 0-0/3"), asked: true, code: 206}, {asked: true, body: "2"}}},
	{"3.3", "and given as what it is only", []turn{
		{answer: one(fresh), whole: "abc", asked: true}, {ask: one("Range: bytes=1-1"), code: 206, body: "b", gets: one("Content-Range: bytes 1-1/3")}}},
	{"3.4", "parts are not combined, nor with what is stored", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "a"`, "X-Part: none"), whole: "abc", asked: true},
		{after: 2 * time.Second, ask: one("Range: bytes=0-1"), status: 206, answer: one(fresh, `Etag: "a"`, "Content-Range: bytes 0-1/3", "X-Part: first"), whole: "ab", asked: true, code: 206, body: "ab"},
		{ask: one("Range: bytes=2-2"), status: 206, answer: one(fresh, `Etag: "a"`, "Content-Range: bytes 2-2/3", "X-Part: second"), whole: "c", asked: true, code: 206, body: "c"},
		{status: 304, answer: one(fresh, `Etag: "a"`), asked: true, body: "abc", gets: one("X-Part: none")}}},
	{"3.5", "what one credential has fetched no other gets, nor who has none", []turn{
		{ask: one("Authorization: Bearer a"), answer: one(fresh), asked: true},
		{ask: one("Authorization: Bearer b"), answer: one(fresh), asked: true, body: "2"}, {asked: true, body: "3"}}},
}

// Sections 4 to 4.2.4 and 5.1.
var reusing = []requirement{
	{"4", "another target is another answer", []turn{{answer: one(fresh), asked: true}, {path: "/page?a=1", asked: true, body: "2"}, {path: "/Page", asked: true, body: "3"}}},
	{"4", "a HEAD is answered from a GET", []turn{{answer: one(fresh), asked: true}, {method: "HEAD", gets: one("Content-Length: 1")}}},
	{"4", "but a GET not from a HEAD", []turn{{method: "HEAD", answer: one(fresh), asked: true}, {asked: true, body: "2"}}},
	{"4", "what is stale must be validated", []turn{{answer: one(fresh), asked: true}, {after: time.Minute, asked: true, body: "2"}}},
	{"4", "Age is made, in the place of the one that came", []turn{{answer: one(fresh, "Age: 20"), asked: true}, {after: 5 * time.Second, body: "1", gets: one("Age: 25")}}},
	{"4", "an unsafe request is written through", []turn{{answer: one(fresh), asked: true}, {method: "PUT", asked: true}, {method: "DELETE", asked: true}}},
	{"4", "whatever it says", []turn{{answer: one(fresh), asked: true}, {method: "POST", ask: one("Cache-Control: only-if-cached, max-stale"), asked: true}}},
	{"4", "an unsafe request that the origin does not answer is not answered for it", []turn{
		{answer: one("Cache-Control: max-age=1, stale-if-error=60"), asked: true}, {after: 2 * time.Second, method: "PUT", ask: one("Cache-Control: max-stale"), status: 503, asked: true, code: 503}}},
	{"4", "of several that fit the most recent is used", []turn{
		{answer: one("Cache-Control: max-age=60", "Vary: X-A"), ask: one("X-A: 1", "Foo: 1"), asked: true},
		{answer: one(fresh, "Vary: Foo"), ask: one("Foo: 1", "Cache-Control: no-cache"), asked: true, body: "2"},
		{ask: one("X-A: 1", "Foo: 1"), body: "2"}}},
	{"4", "which is so by its Date, not by when it came", []turn{
		{answer: one(fresh, "Vary: A"), ask: one("A: 1", "Foo: 1"), asked: true},
		{answer: one(fresh, "Vary: Foo", "Date: Fri, 31 Dec 1999 23:59:50 GMT"), ask: one("Foo: 1", "Cache-Control: no-cache"), asked: true, body: "2"},
		{ask: one("A: 1", "Foo: 1"), body: "1"}, {ask: one("A: 2", "Foo: 1"), body: "2"}}},
	{"4.1", "Vary: a field that differs", []turn{{ask: one("Foo: 1"), answer: one(fresh, "Vary: Foo"), asked: true}, {ask: one("Foo: 2"), asked: true, body: "2"}}},
	{"4.1", "Vary: a field that is absent is like no other", []turn{{answer: one(fresh, "Vary: Foo"), asked: true}, {ask: one("Foo: "), asked: true, body: "2"}}},
	{"4.1", "Vary: one that is there is not like one that is absent", []turn{{ask: one("Foo: 1"), answer: one(fresh, "Vary: Foo"), asked: true}, {asked: true, body: "2"}}},
	{"4.1", "Vary: all of several must match", []turn{
		{ask: one("Foo: 1", "Bar: 1"), answer: one(fresh, "Vary: Foo", "Vary: Bar"), asked: true}, {ask: one("Foo: 1", "Bar: 2"), asked: true, body: "2"}}},
	{"4.1", "Vary: *", []turn{{answer: one(fresh, "Vary: Foo, *"), asked: true}, anew}},
	{"4.1", "Vary: each variant to whom it is for", []turn{
		{ask: one("Foo: 1"), answer: one(fresh, "Vary: Foo"), asked: true}, {ask: one("Foo: 2"), answer: one(fresh, "Vary: Foo"), asked: true},
		{ask: one("Foo: 1"), body: "1"}, {ask: one("Foo: 2"), body: "2"}}},
	{"4.2.1", "s-maxage before max-age", []turn{{answer: one("Cache-Control: max-age=60, s-maxage=5"), asked: true}, {after: 6 * time.Second, asked: true, body: "2"}}},
	{"4.2.1", "max-age before Expires", []turn{{answer: one("Cache-Control: max-age=5", "Expires: Sun, 02 Jan 2000 00:00:00 GMT"), asked: true}, {after: 6 * time.Second, asked: true, body: "2"}}},
	{"4.2.1", "Expires, from Date on", []turn{{answer: one("Date: "+httpDay, "Expires: Sat, 01 Jan 2000 00:00:10 GMT"), asked: true}, {after: 9 * time.Second, body: "1"}, {after: 2 * time.Second, asked: true, body: "2"}}},
	{"4.2.1", "a lifetime that is no number is none", []turn{{answer: one("Cache-Control: max-age=soon", `Etag: "a"`), asked: true}, {asked: true, body: "2"}}},
	{"4.2", "a date of another zone than GMT is none, whatever zone the cache is in", []turn{
		{answer: one("Expires: Sunday, 02-Jan-00 00:00:00 CET", `Etag: "a"`), asked: true}, {asked: true, body: "2"}}},
	{"4.2", "one of GMT is one in any spelling", []turn{{answer: one("Expires: Sunday, 02-Jan-00 00:00:00 GMT"), asked: true}, again, {answer: one("Expires: Sun Jan  2 00:00:00 2000"), path: "/c", asked: true}, {path: "/c", body: "2"}}},
	{"4.2.2", "nothing is guessed where something is said", []turn{
		{answer: one("Cache-Control: max-age=5", "Last-Modified: Fri, 01 Jan 1999 00:00:00 GMT"), asked: true}, {after: 6 * time.Second, asked: true, body: "2"}}},
	{"4.2.2", "nor of a status for which nothing may be", []turn{
		{status: 201, answer: one("Last-Modified: Fri, 01 Jan 1999 00:00:00 GMT"), asked: true, code: 201}, {asked: true, body: "2"}}},
	{"4.2.3", "the time since Date counts", []turn{{answer: one(fresh, "Date: Fri, 31 Dec 1999 23:59:30 GMT"), asked: true}, {after: 29 * time.Second, body: "1"}, {after: 2 * time.Second, asked: true, body: "2"}}},
	{"4.2.3", "Age counts", []turn{{answer: one(fresh, "Age: 50"), asked: true}, {after: 9 * time.Second, body: "1"}, {after: 2 * time.Second, asked: true, body: "2"}}},
	{"1.2.2", "a number that is too large is a very large one", []turn{
		{answer: one("Cache-Control: max-age=99999999999999999999"), asked: true}, {after: 24 * time.Hour, body: "1"}}},
	{"1.2.2", "so is an Age", []turn{{answer: one("Cache-Control: max-age=2147483647", "Age: 99999999999999999999", `Etag: "a"`), asked: true}, {asked: true, body: "2"}}},
	{"1.2.2", "no time is so far away that it overflows", []turn{
		{answer: one("Expires: Fri, 31 Dec 9999 23:59:59 GMT"), asked: true}, {after: time.Hour, body: "1"},
		{path: "/old", answer: one("Cache-Control: max-age=3600", "Date: Mon, 01 Jan 0001 00:00:00 GMT", `Etag: "a"`), asked: true}, {after: time.Second, path: "/old", asked: true, body: "3"}}},
	{"4.2.4", "nothing stale against must-revalidate, also when the origin is away: 504 (section 5.2.2.2)", []turn{
		{answer: one("Cache-Control: max-age=1, must-revalidate", `Etag: "a"`), asked: true}, {after: 2 * time.Second, ask: one("Cache-Control: max-stale"), status: broken, asked: true, code: 504}}},
	{"4.2.4", "nor against proxy-revalidate (section 5.2.2.8)", []turn{
		{answer: one("Cache-Control: max-age=1, proxy-revalidate", `Etag: "a"`), asked: true}, {after: 2 * time.Second, ask: one("Cache-Control: max-stale"), status: broken, asked: true, code: 504}}},
	{"4.2.4", "nor against s-maxage (section 5.2.2.10)", []turn{
		{answer: one("Cache-Control: s-maxage=1", `Etag: "a"`), asked: true}, {after: 2 * time.Second, ask: one("Cache-Control: max-stale"), status: broken, asked: true, code: 504}}},
	{"4.2.4", "nor against no-cache", []turn{
		{answer: one("Cache-Control: no-cache, max-age=60", `Etag: "a"`), asked: true}, {ask: one("Cache-Control: max-stale"), status: broken, asked: true, code: 504}}},
	{"4.2.4", "nor where neither client nor origin allow it, and the origin answers", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "a"`), asked: true}, {after: 2 * time.Second, status: 503, asked: true, code: 503}}},
	{"4.2.4", "but where the origin cannot be reached", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "a"`), asked: true}, {after: 2 * time.Second, status: broken, asked: true, body: "1"}}},
}

// Sections 4.3.1 to 4.3.4.
var validating = []requirement{
	{"4.3.1", "the ETag that is stored is sent, and Last-Modified", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: W/"a"`, "Last-Modified: "+httpDay), asked: true},
		{after: 2 * time.Second, status: 304, asked: true, body: "1", sees: one(`If-None-Match: W/"a"`, "If-Modified-Since: "+httpDay)}}},
	{"4.3.1", "nothing is asked by its date that has an ETag, be it too long to be sent", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "`+strings.Repeat("a", 10_000)+`"`, "Last-Modified: "+httpDay), asked: true},
		{after: 2 * time.Second, asked: true, body: "2", sees: one("If-Modified-Since: ")}}},
	{"4.3.1", "the fields that Vary names are those of the request", []turn{
		{ask: one("Foo: 1"), answer: one("Cache-Control: max-age=1", `Etag: "a"`, "Vary: Foo"), asked: true},
		{after: 2 * time.Second, ask: one("Foo: 1"), status: 304, asked: true, body: "1", sees: one("Foo: 1", `If-None-Match: "a"`)}}},
	{"4.3.1", "but only what a 304 can choose", []turn{
		{ask: one("Foo: 1"), status: 404, answer: one(fresh, `Etag: "a"`, "Vary: Foo"), asked: true, code: 404},
		{ask: one("Foo: 2"), asked: true, sees: one("If-None-Match: ")}}},
	{"4.3.2", "conditions that only an origin can judge go there", []turn{
		{answer: one(fresh, `Etag: "a"`), asked: true}, {ask: one(`If-Match: "b"`), status: 412, asked: true, code: 412, sees: one(`If-Match: "b"`)},
		{ask: one("If-Unmodified-Since: " + httpDay), status: 412, asked: true, code: 412, sees: one("If-Unmodified-Since: " + httpDay)}}},
	{"4.3.2", "conditions on what is not stored go there, too", []turn{{ask: one(`If-None-Match: "a"`), status: 304, asked: true, code: 304, sees: one(`If-None-Match: "a"`)}}},
	{"4.3.2", "and such a 304 is not stored", []turn{{ask: one(`If-None-Match: "a"`), status: 304, answer: one(fresh, `Etag: "a"`), asked: true, code: 304}, {asked: true, body: "1"}}},
	{"4.3.2", "the ETag of a part is not added to a client's", []turn{
		{ask: one("Range: bytes=0-0"), status: 206, answer: one(fresh, `Etag: "a"`, "Content-Range: bytes 0-0/3"), asked: true, code: 206},
		{ask: one(`If-None-Match: "b"`), asked: true, sees: one(`If-None-Match: "b"`)}}},
	{"4.3.2", "If-None-Match, of a list, against what is stored", []turn{{answer: one(fresh, `Etag: "a"`), asked: true}, {ask: one(`If-None-Match: "b", W/"a"`), code: 304}}},
	{"4.3.2", "If-None-Match before If-Modified-Since", []turn{
		{answer: one(fresh, `Etag: "a"`, "Last-Modified: "+httpDay), asked: true}, {ask: one(`If-None-Match: "b"`, "If-Modified-Since: "+httpDay), body: "1"}}},
	{"4.3.2", "If-Modified-Since", []turn{{answer: one(fresh, "Last-Modified: "+httpDay), asked: true}, {ask: one("If-Modified-Since: " + httpDay), code: 304}}},
	{"4.3.2", "If-Range: all of what has changed", []turn{
		{answer: one(fresh, `Etag: "a"`), whole: "abc", asked: true}, {ask: one("Range: bytes=1-1", `If-Range: "b"`), body: "abc"}, {ask: one("Range: bytes=1-1", `If-Range: "a"`), code: 206, body: "b"}}},
	{"4.3.2", "a 304 for the cache, with an ETag that the client does not have, is 200 for the client", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "a"`), asked: true},
		{after: 2 * time.Second, ask: one(`If-None-Match: "b"`), status: 304, answer: one(`Etag: "a"`), asked: true, body: "1"}}},
	{"4.3.3", "a whole answer is used, in the place of what is stored", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "a"`), asked: true}, {after: 2 * time.Second, answer: one(fresh, `Etag: "b"`), asked: true, body: "2"}, {body: "2"}}},
	{"4.3.4", "a 304 with a strong ETag of nothing that is stored renews no field", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "a"`), asked: true},
		{after: 2 * time.Second, status: 304, answer: one(`Etag: "other"`, fresh, "X-New: 1"), asked: true, body: "1", lacks: one("X-New"), gets: one(`Etag: "a"`)},
		{body: "1", lacks: one("X-New")}, {after: 2 * time.Second, asked: true, body: "2"}}},
	{"4.3.1", "who asked about nothing is not told that it has not changed", []turn{{status: 304, asked: true, code: 502}}},
	{"4.3.4", "and nothing at all where it was judged by a date", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "a"`, "Last-Modified: "+httpDay), asked: true},
		{after: 2 * time.Second, status: 304, answer: one(`Etag: "other"`), asked: true, twice: 1, body: "1"}, {asked: true, body: "2"}}},
	{"4.3.4", "a weak ETag is enough", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: W/"a"`), asked: true}, {after: 2 * time.Second, status: 304, answer: one(`Etag: W/"a"`, fresh), asked: true, body: "1"}, {body: "1"}}},
	{"4.3.4", "a 304 renews the variant that it tells of", []turn{
		{ask: one("Foo: 1"), answer: one("Cache-Control: max-age=30", `Etag: "1"`, "Vary: Foo"), asked: true},
		{ask: one("Foo: 2"), answer: one("Cache-Control: max-age=30", `Etag: "2"`, "Vary: Foo"), asked: true},
		{ask: one("Foo: 3"), status: 304, answer: one(fresh, `Etag: "1"`, "Vary: Foo"), asked: true, body: "1", sees: one(`If-None-Match: "2", "1"`)},
		{ask: one("Foo: 3"), body: "1"}, {ask: one("Foo: 2"), body: "2"}}},
}

// Section 4.3.5: what a HEAD tells of a GET's answer that is stored.
var heading = []requirement{
	{"4.3.5", "another ETag ends it", []turn{
		{answer: one(fresh, `Etag: "a"`), asked: true}, {method: "HEAD", ask: one("Cache-Control: no-cache"), answer: one(`Etag: "b"`), asked: true}, {asked: true, body: "3"}}},
	{"4.3.5", "so does another length", []turn{
		{answer: one(fresh), asked: true}, {method: "HEAD", ask: one("Cache-Control: no-cache"), answer: one("Content-Length: 7"), asked: true}, {asked: true, body: "3"}}},
	{"4.3.5", "the same does not", []turn{
		{answer: one(fresh, `Etag: "a"`), asked: true}, {method: "HEAD", ask: one("Cache-Control: no-cache"), answer: one(`Etag: W/"a"`, "Content-Length: 1"), asked: true}, {body: "1"}}},
}

// Section 4.4.
var invalidating = []requirement{
	{"4.4", "a successful unsafe request ends what is stored", []turn{{answer: one(fresh), asked: true}, {method: "POST", asked: true}, {asked: true, body: "3"}}},
	{"4.4", "so does one of a method that nobody knows", []turn{{answer: one(fresh), asked: true}, {method: "FOO", asked: true}, {asked: true, body: "3"}}},
	{"4.4", "also where its answer is 304", []turn{{answer: one(fresh), asked: true}, {method: "PUT", status: 304, asked: true, code: 304}, {asked: true, body: "2"}}},
	{"4.4", "and a redirect", []turn{{answer: one(fresh), asked: true}, {method: "DELETE", status: 303, asked: true, code: 303}, {asked: true, body: "3"}}},
	{"4.4", "an error does not", []turn{{answer: one(fresh), asked: true}, {method: "DELETE", status: 500, asked: true, code: 500}, {body: "1"}}},
	{"4.4", "nor does a safe request", []turn{{answer: one(fresh), asked: true}, {method: "OPTIONS", asked: true}, {body: "1"}}},
	{"4.4", "what Location names on the same origin", []turn{
		{answer: one(fresh), asked: true}, {method: "POST", path: "/pages", status: 201, answer: one("Location: /base/page"), asked: true, code: 201}, {asked: true, body: "3"}}},
	{"4.4", "and Content-Location", []turn{
		{answer: one(fresh), asked: true}, {method: "POST", path: "/pages", answer: one("Content-Location: " + upstreamURL + "/page"), asked: true}, {asked: true, body: "3"}}},
	{"4.4", "but not on another", []turn{
		{answer: one(fresh), asked: true}, {method: "POST", path: "/pages", status: 201, answer: one("Location: http://other.test/base/page"), asked: true, code: 201}, {body: "1"}}},
	{"4.4", "nor at another port, nor by another scheme", []turn{
		{answer: one(fresh), asked: true}, {method: "POST", path: "/pages", status: 201, answer: one("Location: http://upstream.test:8080/base/page", "Content-Location: https://upstream.test/base/page"), asked: true, code: 201}, {body: "1"}}},
}

// Sections 5.2 to 5.3.
var directives = []requirement{
	{"5.2", "directives pass, known or not", []turn{
		{ask: one("Cache-Control: max-age=0, x-made-up=1"), answer: one(`Cache-Control: max-age=60, x-other="a, b"`), asked: true, sees: one("Cache-Control: max-age=0, x-made-up=1"), gets: one(`Cache-Control: max-age=60, x-other="a, b"`)},
		{body: "1", gets: one(`Cache-Control: max-age=60, x-other="a, b"`)}}},
	{"5.2", "their names in any case, their arguments in quotes", []turn{{answer: one(`Cache-Control: MAX-AGE="5"`), asked: true}, {after: 4 * time.Second, body: "1"}, {after: 2 * time.Second, asked: true}}},
	{"5.2.3", "one that nobody knows changes nothing, nor does what it says", []turn{
		{answer: one(`Cache-Control: x-one, x-two="a, no-store, max-age=0", x-three=private, max-age=60`), asked: true}, again}},
	{"5.2.1.1", "max-age of a request", []turn{{answer: one(fresh), asked: true}, {after: 10 * time.Second, ask: one("Cache-Control: max-age=5"), answer: one(fresh), asked: true, body: "2"}}},
	{"5.2.1.2", "max-stale: no more than it says", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "a"`), asked: true}, {after: 5 * time.Second, ask: one("Cache-Control: max-stale=10"), body: "1"},
		{after: 10 * time.Second, ask: one("Cache-Control: max-stale=10"), asked: true, body: "2"}}},
	{"5.2.1.3", "min-fresh", []turn{{answer: one(fresh), asked: true}, {after: 10 * time.Second, ask: one("Cache-Control: min-fresh=55"), asked: true, body: "2"}}},
	{"5.2.1.4", "no-cache of a request", []turn{{answer: one(fresh), asked: true}, {ask: one("Cache-Control: no-cache"), asked: true, body: "2"}}},
	{"5.2.1.5", "no-store of a request", []turn{{ask: one("Cache-Control: no-store"), answer: one(fresh), asked: true}, anew}},
	{"5.2.1.6", "no-transform: the bytes are those of the origin", []turn{
		{ask: one("Cache-Control: no-transform", "Accept-Encoding: gzip"), answer: one(fresh+", no-transform", "Content-Encoding: made-up"), asked: true, body: "1", gets: one("Content-Encoding: made-up")}}},
	{"5.2.1.7", "only-if-cached: 504, or what is stored", []turn{
		{ask: one("Cache-Control: only-if-cached"), code: 504}, {answer: one(fresh), asked: true}, {ask: one("Cache-Control: only-if-cached"), body: "1"}}},
	{"5.2.2.3", "must-understand, in the place of no-store", []turn{{answer: one("Cache-Control: must-understand, no-store, max-age=60"), asked: true}, again}},
	{"5.2.2.3", "must-understand, of a status that nobody does", []turn{{status: 299, answer: one("Cache-Control: must-understand, no-store, max-age=60"), asked: true, code: 299}, anew}},
	{"5.2.2.5", "no-store, in the place of what is stored, ends it", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "a"`), asked: true}, {after: 2 * time.Second, answer: one("Cache-Control: no-store"), asked: true, body: "2"},
		{status: broken, asked: true, code: 502}}},
	{"5.2.2.5", "so does that of a 304", []turn{
		{answer: one("Cache-Control: max-age=1", `Etag: "a"`), asked: true}, {after: 2 * time.Second, status: 304, answer: one("Cache-Control: no-store"), asked: true, body: "1"},
		{status: broken, asked: true, code: 502}}},
	{"5.2.2.4", "no-cache: for no request but this one", []turn{
		{answer: one("Cache-Control: no-cache, max-age=60", `Etag: "a"`), asked: true}, {status: 304, asked: true, body: "1"}}},
	{"5.2.2.4", "no-cache, with field names", []turn{
		{answer: one(`Cache-Control: no-cache="X-Foo", max-age=60`, `Etag: "a"`, "X-Foo: 1"), asked: true}, {status: 304, asked: true, body: "1"}}},
	{"5.3", "Expires that is no date is over, and nothing is guessed", []turn{
		{answer: one("Expires: 0", "Last-Modified: Fri, 01 Jan 1999 00:00:00 GMT"), asked: true}, {status: 304, asked: true, body: "1"}}},
	{"5.3", "max-age and s-maxage without Expires", []turn{{answer: one("Cache-Control: s-maxage=5", "Expires: Sun, 02 Jan 2000 00:00:00 GMT"), asked: true}, {after: 6 * time.Second, asked: true, body: "2"}}},
}
