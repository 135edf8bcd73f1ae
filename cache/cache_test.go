package cache

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/testservers"
)

var now = time.Unix(1_000_000, 0)

// response returns a response that arrives at now. Fields have the form "Name: value".
func response(status int, fields ...string) Response {
	return Response{Status: status, Header: header(fields...), Requested: now, Answered: now}
}

func header(fields ...string) http.Header {
	h := http.Header{}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		h.Add(name, value)
	}
	return h
}

func TestKeysDifferIfTheirPartsDiffer(t *testing.T) {
	for _, c := range [][2][]string{
		{{"ab", "c"}, {"a", "bc"}},
		{{"a", ""}, {"a"}},
		{{"", "a"}, {"a", ""}},
		{{"a|b"}, {"a", "b"}},
		{{"a", "b"}, {"b", "a"}},
	} {
		failIf(t, NewKey(c[0]...) == NewKey(c[1]...), "%q and %q have the same key", c[0], c[1])
	}
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.SliceOf(rapid.SampledFrom([]string{"", "a", "aa", "|", ":", "\x00", "\x00\x00\x00\x01"}))
		a, b := part.Draw(t, "a"), part.Draw(t, "b")
		if same := cmp.Equal(a, b) || len(a) == 0 && len(b) == 0; same != (NewKey(a...) == NewKey(b...)) {
			t.Fatalf("%q and %q", a, b)
		}
	})
}

func TestParseDirectives(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []string
		want   Directives
	}{
		{"none", nil, nil},
		{"several", []string{"private, max-age=60, s-maxage=30"}, Directives{{"private", ""}, {"max-age", "60"}, {"s-maxage", "30"}}},
		{"several fields", []string{"no-cache", "max-age=1"}, Directives{{"no-cache", ""}, {"max-age", "1"}}},
		{"case and spaces", []string{" Max-Age = 60 ,NO-STORE"}, Directives{{"max-age", "60"}, {"no-store", ""}}},
		{"quoted with commas", []string{`private="set-cookie, x", no-store`}, Directives{{"private", "set-cookie, x"}, {"no-store", ""}}},
		{"escapes", []string{`ext="a\"b", max-age=1`}, Directives{{"ext", `a"b`}, {"max-age", "1"}}},
		{"unterminated quote", []string{`ext="a, no-store`}, Directives{{"ext", "a, no-store"}}},
		{"empty members", []string{",, ,no-store,"}, Directives{{"no-store", ""}}},
	} {
		diff := cmp.Diff(c.want, ParseDirectives(c.values))
		failIf(t, diff != "", "%s: %v", c.name, diff)
	}
}

func TestSecondsParsesDirective(t *testing.T) {
	for argument, want := range map[string]time.Duration{
		"60": time.Minute, "0": 0, "": 0, "-5": 0, "1.5": 0, "soon": 0,
		"2147483648":             longestTime,
		"99999999999999999999":   longestTime,
		strings.Repeat("9", 100): longestTime,
	} {
		got, ok := (Directives{{"max-age", argument}}).Seconds("max-age")
		failIf(t, got != want || !ok, "%q: got %v, %v", argument, got, ok)
	}
	got, _ := ParseDirectives([]string{"max-age=1, max-age=100"}).Seconds("max-age")
	failIf(t, got != time.Second, "repeated directive: got %v", got)
	_, ok := (Directives{}).Seconds("max-age")
	failIf(t, ok, "Has reports an absent directive")
}

func FuzzParseDirectives(f *testing.F) {
	for _, s := range []string{"", "max-age=60", `private="a, b"`, `x="\`, "a==b,,", "\x00=\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, d := range ParseDirectives([]string{s}) {
			failIf(t, d.Name == "" || d.Name != strings.TrimSpace(d.Name) || len(d.Argument) > len(s), "%q is parsed as %q", s, d)
		}
		// Malformed text does not hide an earlier directive.
		failIf(t, !ParseDirectives([]string{"no-store", s}).Has("no-store"), "malformed text %q hides no-store", s)
	})
}

func TestStorableReportsLifetime(t *testing.T) {
	expires := "Expires: " + now.Add(time.Minute).UTC().Format(http.TimeFormat)
	date := "Date: " + now.UTC().Format(http.TimeFormat)
	modified := "Last-Modified: " + now.Add(-time.Hour).UTC().Format(http.TimeFormat)
	shared, own, reference := Rule{}, Rule{OneCaller: true}, Rule{TTL: time.Hour}
	anyStatus, heuristic := Rule{AnyStatus: true}, Rule{AnyStatus: true, Heuristic: true}
	for _, c := range []struct {
		name     string
		a        Response
		request  Directives
		rule     Rule
		lifetime time.Duration
		ok       bool
	}{
		{"max-age", response(200, "Cache-Control: max-age=60"), nil, shared, time.Minute, true},
		{"s-maxage precedes max-age for a shared key (RFC 9111 4.2.1)", response(200, "Cache-Control: max-age=60, s-maxage=30"), nil, shared, 30 * time.Second, true},
		{"s-maxage is ignored for one caller", response(200, "Cache-Control: max-age=60, s-maxage=30"), nil, own, time.Minute, true},
		{"Expires minus Date", response(200, expires, date), nil, shared, time.Minute, true},
		{"max-age precedes Expires", response(200, expires, date, "Cache-Control: max-age=5"), nil, shared, 5 * time.Second, true},
		{"an invalid Expires is in the past (RFC 9111 5.3)", response(200, "Expires: 0", `Etag: "a"`), nil, shared, 0, true},
		{"no heuristic lifetime by default", response(200, "Last-Modified: "+now.Add(-time.Hour).UTC().Format(http.TimeFormat)), nil, shared, 0, true},
		{"a heuristic lifetime of a tenth (RFC 9111 4.2.2)", response(200, "Last-Modified: "+now.Add(-time.Hour).UTC().Format(http.TimeFormat)), nil, Rule{Heuristic: true}, 6 * time.Minute, true},
		{"no heuristic lifetime beside max-age", response(200, "Last-Modified: "+now.Add(-time.Hour).UTC().Format(http.TimeFormat), "Cache-Control: max-age=1"), nil, Rule{Heuristic: true}, time.Second, true},
		{"no heuristic lifetime with no-cache", response(200, "Last-Modified: "+now.Add(-time.Hour).UTC().Format(http.TimeFormat), "Cache-Control: no-cache"), nil, Rule{Heuristic: true}, 0, true},
		{"the heuristic lifetime is bounded", response(404, "Last-Modified: "+now.AddDate(-1, 0, 0).UTC().Format(http.TimeFormat)), nil, Rule{Heuristic: true}, maxHeuristic, true},
		{"neither lifetime nor validator", response(200), nil, shared, 0, false},
		{"private for a shared key (RFC 9111 5.2.2.7)", response(200, "Cache-Control: private, max-age=60"), nil, shared, 0, false},
		{"private for one caller", response(200, "Cache-Control: private, max-age=60"), nil, own, time.Minute, true},
		{"no-store in the response (RFC 9111 5.2.2.5)", response(200, "Cache-Control: no-store, max-age=60"), nil, own, 0, false},
		{"no-store in the request (RFC 9111 5.2.1.5)", response(200, "Cache-Control: max-age=60"), Directives{{"no-store", ""}}, own, 0, false},
		{"no-cache is stored for revalidation (RFC 9111 5.2.2.4)", response(200, "Cache-Control: no-cache, max-age=60", `Etag: "a"`), nil, own, 0, true},
		{"no-cache without a validator", response(200, "Cache-Control: no-cache, max-age=60"), nil, own, 0, false},
		{"Vary: * (RFC 9111 4.1)", response(200, "Cache-Control: max-age=60", "Vary: *"), nil, own, 0, false},
		{"Set-Cookie", response(200, "Cache-Control: max-age=60", "Set-Cookie: a=b"), nil, own, 0, false},
		{"private reference data", response(200, "Cache-Control: private, max-age=60"), nil, reference, time.Hour, true},
		{"reference data with a longer max-age", response(200, "Cache-Control: max-age=7200"), nil, reference, 2 * time.Hour, true},
		{"reference data with no-store", response(200, "Cache-Control: no-store"), nil, reference, 0, false},
		{"reference data with no-cache", response(200, "Cache-Control: no-cache", `Etag: "a"`), nil, reference, 0, true},
		{"a 404 of reference data", response(404, "Cache-Control: max-age=5"), nil, reference, 5 * time.Second, true},
		{"a targeted field precedes Cache-Control (RFC 9213 2.2)", response(200, "CDN-Cache-Control: max-age=5", "Cache-Control: no-store"), nil, shared, 5 * time.Second, true},
		{"a targeted field precedes Expires", response(200, "CDN-Cache-Control: no-cache", expires, date, `Etag: "a"`), nil, shared, 0, true},
		{"a targeted no-store", response(200, "CDN-Cache-Control: no-store", "Cache-Control: max-age=60"), nil, shared, 0, false},
		{"an invalid targeted field is ignored (RFC 9213 2.1)", response(200, "CDN-Cache-Control: max-age=5, &", "Cache-Control: max-age=60"), nil, shared, time.Minute, true},
		{"a targeted directive of the wrong type is ignored (RFC 9213 2.1)", response(200, `CDN-Cache-Control: max-age="60"`, "Cache-Control: no-store"), nil, shared, 0, false},
		{"an empty targeted field is ignored", response(200, "CDN-Cache-Control: ", "Cache-Control: max-age=60"), nil, shared, time.Minute, true},
		{"the first of two targeted fields", response(200, "Surrogate-Control: max-age=7", "CDN-Cache-Control: max-age=5"), nil, shared, 5 * time.Second, true},
		{"Surrogate-Control for this cache", response(200, "Surrogate-Control: max-age=7;weir, no-store;other", "Cache-Control: no-store"), nil, shared, 7 * time.Second, true},
		{"Surrogate-Control for another cache", response(200, "Surrogate-Control: max-age=7;other", "Cache-Control: max-age=60"), nil, shared, 0, false},
		{"404 with a lifetime", response(404, "Cache-Control: max-age=60"), nil, own, time.Minute, true},
		{"404 without a lifetime", response(404, `Etag: "a"`), nil, own, 0, false},
		{"202", response(202, "Cache-Control: max-age=60"), nil, own, 0, false},
		{"206", response(206, "Cache-Control: max-age=60"), nil, own, 0, false},
		{"403", response(403, "Cache-Control: max-age=60"), nil, own, 0, false},
		{"429", response(429, "Cache-Control: max-age=60"), nil, own, 0, false},
		{"500", response(500, "Cache-Control: max-age=60"), nil, own, 0, false},
		{"any status: 302 with a lifetime", response(302, "Cache-Control: max-age=60"), nil, anyStatus, time.Minute, true},
		{"any status: 302 that is stale on arrival", response(302, "Cache-Control: max-age=0", `Etag: "a"`), nil, anyStatus, 0, false},
		{"any status: 503 with a lifetime", response(503, "Cache-Control: max-age=60"), nil, anyStatus, time.Minute, true},
		{"any status: an unregistered status", response(599, "Cache-Control: max-age=60"), nil, anyStatus, time.Minute, true},
		{"any status: must-understand with a registered status", response(503, "Cache-Control: max-age=60, no-store, must-understand"), nil, anyStatus, time.Minute, true},
		{"any status: must-understand with an unregistered status", response(599, "Cache-Control: max-age=60, must-understand"), nil, anyStatus, 0, false},
		{"any status: 101 is not final", response(101, "Cache-Control: max-age=60"), nil, anyStatus, 0, false},
		{"any status: 202", response(202, "Cache-Control: max-age=60"), nil, anyStatus, 0, false},
		{"any status: 206 without a range request", response(206, "Cache-Control: max-age=60"), nil, anyStatus, 0, false},
		{"any status: 304", response(304, "Cache-Control: max-age=60"), nil, anyStatus, 0, false},
		{"any status: 401", response(401, "Cache-Control: max-age=60"), nil, anyStatus, 0, false},
		{"any status: 429 (RFC 6585)", response(429, "Cache-Control: max-age=60"), nil, anyStatus, 0, false},
		{"206 of a range request", response(206, "Cache-Control: max-age=60"), nil, Rule{Partial: true}, time.Minute, true},
		{"206 of a range request without a lifetime", response(206, `Etag: "a"`), nil, Rule{Partial: true}, 0, false},
		{"a heuristic lifetime of a 405 (RFC 9110 15.1)", response(405, modified), nil, heuristic, 6 * time.Minute, true},
		{"no heuristic lifetime of a 503", response(503, modified), nil, heuristic, 0, false},
		{"a heuristic lifetime of a public 503 (RFC 9111 4.2.2)", response(503, modified, "Cache-Control: public"), nil, heuristic, 6 * time.Minute, true},
	} {
		lifetime, ok := Storable(c.a, c.request, c.rule)
		failIf(t, lifetime != c.lifetime || ok != c.ok, "%s: got %v, %v; want %v, %v", c.name, lifetime, ok, c.lifetime, c.ok)
	}
}

func TestAgeIncludesDelays(t *testing.T) {
	for _, c := range []struct {
		name string
		a    Response
		want time.Duration // ten seconds after the arrival
	}{
		{"straight from the upstream", response(200), 10 * time.Second},
		{"dated a minute ago", response(200, "Date: "+now.Add(-time.Minute).UTC().Format(http.TimeFormat)), 70 * time.Second},
		{"from another cache", response(200, "Age: 100"), 110 * time.Second},
		{"with a slow response", Response{Status: 200, Header: header("Age: 100"), Requested: now.Add(-5 * time.Second), Answered: now}, 115 * time.Second},
		{"an invalid Age is ignored (RFC 9111 5.1)", response(200, "Age: old"), 10 * time.Second},
		{"a negative Age is ignored", response(200, "Age: -7200"), 10 * time.Second},
		{"a fractional Age is ignored", response(200, "Age: 7200.0"), 10 * time.Second},
		{"the first member of Age counts", response(200, "Age: 100, 0"), 110 * time.Second},
		{"the first line of Age counts", response(200, "Age: 100", "Age: 0"), 110 * time.Second},
		{"an overflowing Age (RFC 9111 1.2.2)", response(200, "Age: 99999999999999999999"), longestTime + 10*time.Second},
	} {
		got := NewEntry(c.a, nil, 0).Age(now.Add(10 * time.Second))
		failIf(t, got != c.want, "%s: got %v, want %v", c.name, got, c.want)
	}
}

// A difference between the clocks of two replicas changes the age and lifetime of a shared entry by at
// most this difference. The age is never negative.
func TestReplicasWithDifferentClocksDisagreeByTheDifference(t *testing.T) {
	e := NewEntry(response(200), nil, 5*time.Minute)
	for _, c := range []struct {
		name   string
		offset time.Duration // of the reading replica's clock
		age    time.Duration // half a minute after the arrival
		until  time.Duration
	}{
		{"the same", 0, 30 * time.Second, 5 * time.Minute},
		{"a minute slow", -time.Minute, 0, 6 * time.Minute},
		{"a minute fast", time.Minute, 90 * time.Second, 4 * time.Minute},
	} {
		got := e.Age(now.Add(30*time.Second + c.offset))
		failIf(t, got != c.age, "%s: got age %v", c.name, got)
		failIf(t, !e.Fresh(now.Add(c.until+c.offset-1)) || e.Fresh(now.Add(c.until+c.offset)), "%s: fresh at the wrong time", c.name)
	}
}

func TestMatchesETag(t *testing.T) {
	for _, c := range []struct {
		list, etag string
		want       bool
	}{
		{`"a"`, `"a"`, true},
		{`W/"a"`, `"a"`, true},
		{`"a"`, `W/"a"`, true},
		{`"b", W/"a"`, `"a"`, true},
		{`"a,b"`, `"a,b"`, true},
		{`"x,"`, `","`, false},
		{`*`, `"a"`, true},
		{` * `, `"a"`, true},
		{`"*"`, `"a"`, false},
		{`"ab"`, `"a"`, false},
		{`"a`, `"a"`, false},
		{`a`, `"a"`, false},
		{`a, "a"`, `"a"`, true},
		{``, `"a"`, false},
		{`""`, ``, false},
		{`w/"a"`, `"a"`, false},
	} {
		got := MatchesETag([]string{c.list}, c.etag)
		failIf(t, got != c.want, "%s against %s: got %v", c.list, c.etag, got)
	}
}

func FuzzMatchesETag(f *testing.F) {
	f.Add(`"a", W/"b"`, "a")
	f.Add(`a"",,*`, "")
	f.Fuzz(func(t *testing.T, list, tag string) {
		if strings.ContainsAny(tag, "\"\x00") {
			return
		}
		quoted := `"` + tag + `"`
		failIf(t, !MatchesETag([]string{list, quoted}, quoted), "%q hides %s", list, quoted)
		failIf(t, MatchesETag([]string{list}, quoted) && strings.TrimSpace(list) != "*" && !strings.Contains(list, quoted), "%q matches %s", list, quoted)
	})
}

func TestNotModifiedComparesValidators(t *testing.T) {
	modified := now.Add(-time.Hour)
	at := func(d time.Duration) string { return modified.Add(d).UTC().Format(http.TimeFormat) }
	e := NewEntry(response(200, `Etag: "a"`, "Last-Modified: "+at(0)), nil, 0)
	for _, c := range []struct {
		name    string
		request http.Header
		want    bool
	}{
		{"no condition", header(), false},
		{"tag", header(`If-None-Match: "a"`), true},
		{"other tag, matching date: the tag decides (RFC 9110 13.2.2)", header(`If-None-Match: "b"`, "If-Modified-Since: "+at(0)), false},
		{"same second", header("If-Modified-Since: " + at(0)), true},
		{"a second before", header("If-Modified-Since: " + at(-time.Second)), false},
		{"invalid date", header("If-Modified-Since: yesterday"), false},
		{"other case", header("If-Modified-Since: " + strings.ToLower(at(0))), true},
	} {
		got := e.NotModified(c.request)
		failIf(t, got != c.want, "%s: got %v", c.name, got)
	}
	failIf(t, NewEntry(response(404, `Etag: "a"`), nil, 0).NotModified(header(`If-None-Match: "a"`)), "a stored 404 matched a condition")
	undated := NewEntry(response(200, "Date: "+at(0)), nil, 0)
	failIf(t, !undated.NotModified(header("If-Modified-Since: "+at(time.Second))) || undated.NotModified(header("If-Modified-Since: "+at(0))), "Date does not replace a missing Last-Modified (RFC 9111 4.3.2)")
}

// A response that was modified in the second of its Date may have changed again in this second (RFC 9110 section 8.8.2.2).
func TestWeakLastModifiedHidesNoChange(t *testing.T) {
	at := func(d time.Duration) string { return now.Add(d).UTC().Format(http.TimeFormat) }
	for _, c := range []struct {
		name, modified, since string
		want                  bool
	}{
		{"modified in the second of Date", at(0), at(0), false},
		{"modified after Date", at(time.Second), at(time.Second), false},
		{"the client's copy is newer", at(0), at(time.Second), true},
		{"modified a second before Date", at(-time.Second), at(-time.Second), true},
		{"invalid date", "yesterday", at(0), false},
	} {
		e := NewEntry(response(200, "Date: "+at(0), "Last-Modified: "+c.modified), nil, 0)
		testservers.Equal(t, c.name, e.NotModified(header("If-Modified-Since: "+c.since)), c.want)
	}
}

func TestDatesHaveOneOfThreeFormats(t *testing.T) {
	want := time.Date(2050, time.August, 8, 2, 1, 18, 0, time.UTC)
	for value, valid := range map[string]bool{
		"Mon, 08 Aug 2050 02:01:18 GMT": true, "Monday, 08-Aug-50 02:01:18 GMT": true, "Mon Aug  8 02:01:18 2050": true,
		"MON, 08 aug 2050 02:01:18 gMT": true, "Tue, 08 Aug 2050 02:01:18 GMT": true,
		"Mon, 08  Aug  2050 02:01:18 GMT": false, "Mon, 08 Aug 2050 2:01:18 GMT": false, "Mon, 08 Aug 2050 2:01:18  GMT": false,
		"Mon, 8 Aug 2050 02:01:18 GMT": false, "Mon, 08 Aug 2050 02:01:18 UTC": false, "Mon, 08 Aug 2050 02:01:18 +0000": false,
		"Mon, 08-Aug-2050 02:01:18 GMT": false, "Mon, 08 Aug 50 02:01:18 GMT": false, "0": false, "": false, "GMT": false,
	} {
		got, err := parseDate(value)
		failIf(t, (err == nil) != valid || valid && !got.Equal(want), "%q: got %v, %v", value, got, err)
	}
}

func TestPartContainsTheSelectedRange(t *testing.T) {
	for _, c := range []struct{ stored, selected, body, contentRange string }{ // an empty body means no part
		{"bytes 4-8/10", "bytes=4-8", "45678", "bytes 4-8/10"},
		{"bytes 4-8/10", "bytes=6-7", "67", "bytes 6-7/10"},
		{"bytes 4-8/10", "bytes=3-7", "", ""},
		{"bytes 4-8/10", "bytes=6-9", "", ""},
		{"bytes 4-8/10", "bytes=6-", "", ""},
		{"bytes 4-8/10", "bytes=-2", "", ""},
		{"bytes 4-8/9", "bytes=6-", "678", "bytes 6-8/9"},
		{"bytes 4-8/9", "bytes=6-99", "678", "bytes 6-8/9"},
		{"bytes 4-8/9", "bytes=-2", "78", "bytes 7-8/9"},
		{"bytes 4-8/9", "bytes=-6", "", ""},
		{"bytes 4-8/9", "bytes=-", "", ""},
		{"bytes 4-8/9", "bytes=8-7", "", ""},
		{"bytes 4-8/9", "bytes=4-5,7-8", "", ""},
		{"bytes 4-8/9", "bytes=+4-5", "", ""},
		{"bytes 4-8/9", "lines=4-5", "", ""},
		{"bytes 4-8/*", "bytes=4-5", "", ""},
		{"bytes 5-9/10", "bytes=-0", "", ""},
		{"bytes 4-8/8", "bytes=4-5", "", ""},
		{"", "bytes=4-5", "", ""},
	} {
		e := NewEntry(response(206, "Content-Range: "+c.stored), []byte("45678"), time.Minute)
		part := e.Part(c.selected)
		if c.body == "" {
			if part != nil {
				t.Errorf("%s of %s: got %q", c.selected, c.stored, part.Body)
			}
			continue
		}
		failIf(t, part == nil || string(part.Body) != c.body || part.Header.Get("Content-Range") != c.contentRange, "%s of %s: got %+v", c.selected, c.stored, part)
	}
}

func TestVaryIgnoresSpacesAndTheOrderOfLanguages(t *testing.T) {
	for _, c := range []struct {
		field, fetched, value string
		want                  bool
	}{
		{"Accept-Language", "en, De", " dE ,  en", true},
		{"Accept-Language", "en, de", "en, de;q=0.5", false},
		{"X-Foo", "1,2", " 1, 2 ", true},
		{"X-Foo", "1, 2", "2, 1", false},
		{"X-Foo", "a", "A", false},
		{"X-Foo", `"1,2"`, `"1, 2"`, false},
	} {
		fields, _ := VaryFields(http.Header{"Vary": {c.field}}, http.Header{c.field: {c.fetched}}, nil)
		got := (&Entry{Vary: fields}).Selects(http.Header{c.field: {c.value}})
		failIf(t, got != c.want, "%s: %q selects the response to %q: %v", c.field, c.value, c.fetched, got)
	}
}

func TestValidatedTakesTheFieldsOfThe304(t *testing.T) {
	e := NewEntry(response(200, `Etag: "a"`, "Content-Type: text/plain", "Content-Length: 4", "Link: <old>", "X-Old: 1"), []byte("body"), time.Minute)
	a := response(304, `Etag: W/"a"`, "Content-Type: text/html", "Content-Length: 0", "Link: <new>", "Cache-Control: max-age=9", "Connection: x-hop", "X-Hop: 1", "X-RateLimit-Used: 9")
	a.Requested, a.Answered = now.Add(time.Hour), now.Add(time.Hour)
	renewed := e.Validated(a)
	want := header(`Etag: "a"`, "Content-Type: text/html", "Content-Length: 4", "Link: <new>", "X-Old: 1", "Cache-Control: max-age=9")
	diff := cmp.Diff(want, renewed.Header)
	failIf(t, diff != "", "%v", diff)
	failIf(t, string(renewed.Body) != "body" || renewed.Age(now.Add(time.Hour)) != 0, "validated entry: %+v", renewed)
	failIf(t, e.Header.Get("Link") != "<old>", "Validated changed the stored entry")
}

func TestVaryFieldsSelectEntries(t *testing.T) {
	request := header("Accept-Language: de", "Authorization: Bearer a")
	fields, ok := VaryFields(header("Vary: Accept-Language, authorization", "Vary: X-Absent"), request, []string{"Authorization"})
	diff := cmp.Diff([]Field{{"Accept-Language", "de", false}, {"X-Absent", "", true}}, fields)
	failIf(t, diff != "" || !ok, "%v %v", diff, ok)
	if _, ok := VaryFields(header("Vary: Accept, *"), request, nil); ok {
		t.Error("VaryFields ignores * beside another name")
	}
	e := &Entry{Vary: fields}
	failIf(t, !e.Selects(request) || e.Selects(header("Accept-Language: fr")) || e.Selects(header("Accept-Language: de", "X-Absent: 1")) || e.Selects(header("Accept-Language: de", "X-Absent: ")), "the wrong requests select the entry")
}
