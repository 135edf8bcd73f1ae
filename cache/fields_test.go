package cache

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestFieldsAreThoseOfTheHeader(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SampledFrom([]string{"Etag", "Link", "Vary", "X-A", "Date", "X-Request-Id"})
		h := http.Header{}
		for _, name := range rapid.SliceOfN(names, 0, 8).Draw(t, "names") {
			h.Add(name, strings.ReplaceAll(rapid.String().Draw(t, "value"), "\n", " "))
		}
		e := &Entry{fields: newFields(h)}
		if diff := cmp.Diff(h, e.Header()); diff != "" {
			t.Fatal(diff)
		}
		for _, name := range []string{"Etag", "Link", "X-B"} {
			if e.Field(name) != h.Get(name) || e.Lines(name) != len(h[name]) {
				t.Fatalf("%s: %q, %d lines", name, e.Field(name), e.Lines(name))
			}
		}
		given := e.Header()
		for name := range h { // as who answers does
			given.Add(name, "more")
			given.Set("Date", "now")
		}
		if diff := cmp.Diff(h, e.Header()); diff != "" {
			t.Fatalf("changed by who was given them: %s", diff)
		}
	})
}

// TestAFieldStaysInItsLine, and says what it said; names of both kinds, and several of a name.
func TestAFieldStaysInItsLine(t *testing.T) {
	h := http.Header{
		"Etag": {`"1"`}, "Link": {"<a>; rel=next", "<b>"}, "X-Github-Request-Id": {"A: b"}, "Vary": {"Accept", ""}, "Content-Type": {"a"}, "X-Evil": {"a\nSet-Cookie: b"},
	}
	e := NewEntry(Response{Header: h}, nil, 0)
	want := h.Clone()
	want["X-Evil"] = []string{"a Set-Cookie: b"}
	if diff := cmp.Diff(want, e.Header()); diff != "" {
		t.Error(diff)
	}
	for name, values := range want {
		if e.Field(name) != values[0] || e.Lines(name) != len(values) {
			t.Errorf("%s: %q, %d lines", name, e.Field(name), e.Lines(name))
		}
	}
	if e.Field("X-None") != "" || e.Field("Age") != "" {
		t.Error("a field that is not there")
	}
}
