package cache

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var now = time.Unix(1_000_000, 0)

// response returns a response that arrived at now; fields are "Name: value".
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

func TestAttack21KeysDifferWhenPartsDo(t *testing.T) {
	for _, c := range [][2][]string{
		{{"ab", "c"}, {"a", "bc"}},
		{{"a", ""}, {"a"}},
		{{"", "a"}, {"a", ""}},
		{{"a|b"}, {"a", "b"}},
		{{"a", "b"}, {"b", "a"}},
	} {
		if NewKey(c[0]...) == NewKey(c[1]...) {
			t.Errorf("%q and %q have one key", c[0], c[1])
		}
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
		{"several", []string{"private, max-age=60, s-maxage=30"}, Directives{"private": "", "max-age": "60", "s-maxage": "30"}},
		{"several fields", []string{"no-cache", "max-age=1"}, Directives{"no-cache": "", "max-age": "1"}},
		{"case and blanks", []string{" Max-Age = 60 ,NO-STORE"}, Directives{"max-age": "60", "no-store": ""}},
		{"quoted with commas", []string{`private="set-cookie, x", no-store`}, Directives{"private": "set-cookie, x", "no-store": ""}},
		{"escapes", []string{`ext="a\"b", max-age=1`}, Directives{"ext": `a"b`, "max-age": "1"}},
		{"quote that does not end", []string{`ext="a, no-store`}, Directives{"ext": "a, no-store"}},
		{"the first of two", []string{"max-age=1, max-age=100"}, Directives{"max-age": "1"}},
		{"empty members", []string{",, ,no-store,"}, Directives{"no-store": ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, ParseDirectives(c.values)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSeconds(t *testing.T) {
	for argument, want := range map[string]time.Duration{
		"60": time.Minute, "0": 0, "": 0, "-5": 0, "1.5": 0, "soon": 0,
		"2147483648":             maxDelta * time.Second,
		"99999999999999999999":   maxDelta * time.Second,
		strings.Repeat("9", 100): maxDelta * time.Second,
	} {
		if got, ok := (Directives{"max-age": argument}).Seconds("max-age"); got != want || !ok {
			t.Errorf("%q: got %v, %v", argument, got, ok)
		}
	}
	if _, ok := (Directives{}).Seconds("max-age"); ok {
		t.Error("found what is not there")
	}
}

func FuzzParseDirectives(f *testing.F) {
	for _, s := range []string{"", "max-age=60", `private="a, b"`, `x="\`, "a==b,,", "\x00=\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, argument := range ParseDirectives([]string{s}) {
			if name == "" || name != strings.TrimSpace(name) || len(argument) > len(s) {
				t.Errorf("%q gave %q=%q", s, name, argument)
			}
		}
		// A directive in front of anything is seen.
		if !ParseDirectives([]string{"no-store", s}).Has("no-store") {
			t.Errorf("%q hides no-store", s)
		}
	})
}

func TestKeep(t *testing.T) {
	expires := "Expires: " + now.Add(time.Minute).UTC().Format(http.TimeFormat)
	date := "Date: " + now.UTC().Format(http.TimeFormat)
	shared, own, reference := Rule{}, Rule{OneCaller: true}, Rule{TTL: time.Hour}
	for _, c := range []struct {
		name     string
		a        Response
		request  Directives
		rule     Rule
		lifetime time.Duration
		ok       bool
	}{
		{"max-age", response(200, "Cache-Control: max-age=60"), nil, shared, time.Minute, true},
		{"s-maxage beats max-age for a shared key (RFC 9111 4.2.1)", response(200, "Cache-Control: max-age=60, s-maxage=30"), nil, shared, 30 * time.Second, true},
		{"max-age counts for one caller", response(200, "Cache-Control: max-age=60, s-maxage=30"), nil, own, time.Minute, true},
		{"Expires less Date", response(200, expires, date), nil, shared, time.Minute, true},
		{"max-age beats Expires", response(200, expires, date, "Cache-Control: max-age=5"), nil, shared, 5 * time.Second, true},
		{"Expires that is no date is the past (RFC 9111 5.3)", response(200, "Expires: 0", `Etag: "a"`), nil, shared, 0, true},
		{"no heuristics", response(200, "Last-Modified: "+now.Add(-time.Hour).UTC().Format(http.TimeFormat)), nil, shared, 0, true},
		{"a tenth of its age, as a guess (RFC 9111 4.2.2)", response(200, "Last-Modified: "+now.Add(-time.Hour).UTC().Format(http.TimeFormat)), nil, Rule{Heuristic: true}, 6 * time.Minute, true},
		{"no guess beside what is told", response(200, "Last-Modified: "+now.Add(-time.Hour).UTC().Format(http.TimeFormat), "Cache-Control: max-age=1"), nil, Rule{Heuristic: true}, time.Second, true},
		{"no guess for no-cache", response(200, "Last-Modified: "+now.Add(-time.Hour).UTC().Format(http.TimeFormat), "Cache-Control: no-cache"), nil, Rule{Heuristic: true}, 0, true},
		{"a bound to guessing", response(404, "Last-Modified: "+now.AddDate(-1, 0, 0).UTC().Format(http.TimeFormat)), nil, Rule{Heuristic: true}, maxHeuristic, true},
		{"neither fresh nor validatable", response(200), nil, shared, 0, false},
		{"private for a shared key (RFC 9111 5.2.2.7)", response(200, "Cache-Control: private, max-age=60"), nil, shared, 0, false},
		{"private for one caller", response(200, "Cache-Control: private, max-age=60"), nil, own, time.Minute, true},
		{"no-store in the answer (RFC 9111 5.2.2.5)", response(200, "Cache-Control: no-store, max-age=60"), nil, own, 0, false},
		{"no-store in the request (RFC 9111 5.2.1.5)", response(200, "Cache-Control: max-age=60"), Directives{"no-store": ""}, own, 0, false},
		{"no-cache is kept for validation only (RFC 9111 5.2.2.4)", response(200, "Cache-Control: no-cache, max-age=60", `Etag: "a"`), nil, own, 0, true},
		{"no-cache without a validator", response(200, "Cache-Control: no-cache, max-age=60"), nil, own, 0, false},
		{"Vary: * (RFC 9111 4.1)", response(200, "Cache-Control: max-age=60", "Vary: *"), nil, own, 0, false},
		{"a cookie for one client", response(200, "Cache-Control: max-age=60", "Set-Cookie: a=b"), nil, own, 0, false},
		{"reference data, whatever its privacy", response(200, "Cache-Control: private, max-age=60"), nil, reference, time.Hour, true},
		{"reference data with a longer life of its own", response(200, "Cache-Control: max-age=7200"), nil, reference, 2 * time.Hour, true},
		{"reference data that must not be stored", response(200, "Cache-Control: no-store"), nil, reference, 0, false},
		{"reference data that must be validated", response(200, "Cache-Control: no-cache", `Etag: "a"`), nil, reference, 0, true},
		{"missing reference data is not kept long", response(404, "Cache-Control: max-age=5"), nil, reference, 5 * time.Second, true},
		{"a targeted field before Cache-Control (RFC 9213 2.2)", response(200, "CDN-Cache-Control: max-age=5", "Cache-Control: no-store"), nil, shared, 5 * time.Second, true},
		{"a targeted field before Expires", response(200, "CDN-Cache-Control: no-cache", expires, date, `Etag: "a"`), nil, shared, 0, true},
		{"a targeted no-store", response(200, "CDN-Cache-Control: no-store", "Cache-Control: max-age=60"), nil, shared, 0, false},
		{"a targeted field that cannot be read says nothing (RFC 9213 2.1)", response(200, "CDN-Cache-Control: max-age=5, &", "Cache-Control: max-age=60"), nil, shared, time.Minute, true},
		{"an empty one neither", response(200, "CDN-Cache-Control: ", "Cache-Control: max-age=60"), nil, shared, time.Minute, true},
		{"the nearest of two targets", response(200, "Surrogate-Control: max-age=7", "CDN-Cache-Control: max-age=5"), nil, shared, 5 * time.Second, true},
		{"Surrogate-Control for this cache", response(200, "Surrogate-Control: max-age=7;weir, no-store;other", "Cache-Control: no-store"), nil, shared, 7 * time.Second, true},
		{"Surrogate-Control for another cache", response(200, "Surrogate-Control: max-age=7;other", "Cache-Control: max-age=60"), nil, shared, 0, false},
		{"404 with a lifetime", response(404, "Cache-Control: max-age=60"), nil, own, time.Minute, true},
		{"404 without one", response(404, `Etag: "a"`), nil, own, 0, false},
		{"202 is not an answer yet", response(202, "Cache-Control: max-age=60"), nil, own, 0, false},
		{"206 is a part", response(206, "Cache-Control: max-age=60"), nil, own, 0, false},
		{"403", response(403, "Cache-Control: max-age=60"), nil, own, 0, false},
		{"429", response(429, "Cache-Control: max-age=60"), nil, own, 0, false},
		{"500", response(500, "Cache-Control: max-age=60"), nil, own, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			lifetime, ok := Storable(c.a, c.request, c.rule)
			if lifetime != c.lifetime || ok != c.ok {
				t.Errorf("got %v, %v; want %v, %v", lifetime, ok, c.lifetime, c.ok)
			}
		})
	}
}

func TestAge(t *testing.T) {
	for _, c := range []struct {
		name string
		a    Response
		want time.Duration // ten seconds after it came
	}{
		{"straight from the origin", response(200), 10 * time.Second},
		{"dated a minute ago", response(200, "Date: "+now.Add(-time.Minute).UTC().Format(http.TimeFormat)), 70 * time.Second},
		{"aged by a cache on the way", response(200, "Age: 100"), 110 * time.Second},
		{"with a slow answer", Response{Status: 200, Header: header("Age: 100"), Requested: now.Add(-5 * time.Second), Answered: now}, 115 * time.Second},
		{"Age that is no number (RFC 9111 5.1)", response(200, "Age: old"), maxDelta*time.Second + 10*time.Second},
		{"Age that is a list", response(200, "Age: 0, 7200"), maxDelta*time.Second + 10*time.Second},
		{"Age twice", response(200, "Age: 0", "Age: 7200"), maxDelta*time.Second + 10*time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := NewEntry(c.a, nil, 0).Age(now.Add(10 * time.Second)); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestFreshUntilItsLifetimeHasPassed(t *testing.T) {
	e := NewEntry(response(200), nil, time.Minute)
	if !e.Fresh(now.Add(time.Minute-1)) || e.Fresh(now.Add(time.Minute)) {
		t.Error("fresh at the wrong time")
	}
}

// TestClocksThatAreApart by a minute: what one replica has kept is for another no younger
// than new, and fresh for no more than that minute longer, or shorter.
func TestClocksThatAreApart(t *testing.T) {
	e := NewEntry(response(200), nil, 5*time.Minute)
	for _, c := range []struct {
		name  string
		apart time.Duration // of who looks at it
		age   time.Duration // half a minute after it came
		until time.Duration
	}{
		{"the same", 0, 30 * time.Second, 5 * time.Minute},
		{"a minute slow", -time.Minute, 0, 6 * time.Minute},
		{"a minute fast", time.Minute, 90 * time.Second, 4 * time.Minute},
	} {
		if got := e.Age(now.Add(30*time.Second + c.apart)); got != c.age {
			t.Errorf("%s: it is %v old", c.name, got)
		}
		if !e.Fresh(now.Add(c.until+c.apart-1)) || e.Fresh(now.Add(c.until+c.apart)) {
			t.Errorf("%s: fresh at the wrong time", c.name)
		}
	}
}

func TestAttack37MatchesETag(t *testing.T) {
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
		if got := MatchesETag([]string{c.list}, c.etag); got != c.want {
			t.Errorf("%s against %s: got %v", c.list, c.etag, got)
		}
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
		if !MatchesETag([]string{list, quoted}, quoted) {
			t.Errorf("%q hides %s", list, quoted)
		}
		if MatchesETag([]string{list}, quoted) && strings.TrimSpace(list) != "*" && !strings.Contains(list, quoted) {
			t.Errorf("%q matches %s", list, quoted)
		}
	})
}

func TestNotModified(t *testing.T) {
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
		{"other tag, old enough date: the tag decides (RFC 9110 13.2.2)", header(`If-None-Match: "b"`, "If-Modified-Since: "+at(0)), false},
		{"same second", header("If-Modified-Since: " + at(0)), true},
		{"a second before", header("If-Modified-Since: " + at(-time.Second)), false},
		{"no date", header("If-Modified-Since: yesterday"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := e.NotModified(c.request); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
	if NewEntry(response(404, `Etag: "a"`), nil, 0).NotModified(header(`If-None-Match: "a"`)) {
		t.Error("a kept 404 is not turned into 304")
	}
}

func TestAttack38ValidatedTakesTheFieldsOfThe304(t *testing.T) {
	e := NewEntry(response(200, `Etag: "a"`, "Content-Type: text/plain", "Content-Length: 4", "Link: <old>", "X-Old: 1"), []byte("body"), time.Minute)
	a := response(304, `Etag: W/"a"`, "Content-Type: text/html", "Content-Length: 0", "Link: <new>", "Cache-Control: max-age=9", "Connection: x-hop", "X-Hop: 1", "X-RateLimit-Used: 9")
	a.Requested, a.Answered = now.Add(time.Hour), now.Add(time.Hour)
	renewed := e.Validated(a, 9*time.Second, 7)
	want := header(`Etag: "a"`, "Content-Type: text/html", "Content-Length: 4", "Link: <new>", "X-Old: 1", "Cache-Control: max-age=9")
	if diff := cmp.Diff(want, renewed.Header); diff != "" {
		t.Error(diff)
	}
	if string(renewed.Body) != "body" || renewed.Lifetime != 9*time.Second || renewed.Since != 7 || renewed.Age(now.Add(time.Hour)) != 0 {
		t.Errorf("%+v", renewed)
	}
	if e.Header.Get("Link") != "<old>" {
		t.Error("the kept entry was changed")
	}
}

func TestVary(t *testing.T) {
	request := header("Accept-Language: de", "Authorization: Bearer a")
	fields, ok := VaryFields(header("Vary: Accept-Language, authorization", "Vary: X-Absent"), request, []string{"Authorization"})
	if diff := cmp.Diff([]Field{{"Accept-Language", "de", false}, {"X-Absent", "", true}}, fields); diff != "" || !ok {
		t.Error(diff, ok)
	}
	if _, ok := VaryFields(header("Vary: Accept, *"), request, nil); ok {
		t.Error("* among others is still *")
	}
	e := &Entry{Vary: fields}
	if !e.Selects(request) || e.Selects(header("Accept-Language: fr")) || e.Selects(header("Accept-Language: de", "X-Absent: 1")) || e.Selects(header("Accept-Language: de", "X-Absent: ")) {
		t.Error("selected wrongly")
	}
}
