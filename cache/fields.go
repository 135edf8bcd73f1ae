package cache

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"
	"unique"
)

// fields are the fields of an answer that is kept, one line each ("Name: value"), those of one
// name together. They are shared by all who are given the answer.
//
// What many answers have alike is kept once, and the rest in one piece: as an http.Header they
// took a fifth of what an answer of 2 KB takes, and the collector and each hit had to look into
// a dozen places of cold memory.
type fields struct{ common, own string }

// newFields returns the fields of a header. A value that is no line becomes one.
func newFields(h http.Header) fields {
	var common, own strings.Builder
	for _, name := range slices.Sorted(maps.Keys(h)) {
		into := &common
		if isOwn(name) {
			into = &own
		}
		for _, value := range h[name] {
			into.WriteString(name + ": " + strings.ReplaceAll(value, "\n", " ") + "\n")
		}
	}
	return fields{unique.Make(common.String()).Value(), own.String()}
}

// isOwn reports whether a field of this name tells one answer from most others.
func isOwn(name string) bool {
	switch name {
	case "Etag", "Link", "Location", "Content-Location", "Last-Modified", "Content-Md5", "Date", "Expires":
		return true
	}
	return strings.HasSuffix(name, "-Id") // of the request that it was the answer to
}

// lines are all of them, by name and value.
func (f fields) lines(yield func(name, value string) bool) {
	for _, part := range [...]string{f.common, f.own} {
		for part != "" {
			var line string
			line, part, _ = strings.Cut(part, "\n")
			if name, value, _ := strings.Cut(line, ": "); !yield(name, value) {
				return
			}
		}
	}
}

// legible reports whether all are UTF-8; they need not be.
func (f fields) legible() bool { return utf8.ValidString(f.common) && utf8.ValidString(f.own) }

// Field returns the first value of a field of the answer, or an empty one. The name is
// canonical.
func (e *Entry) Field(name string) (value string) {
	part := e.fields.common
	if isOwn(name) {
		part = e.fields.own
	}
	for other, value := range (fields{common: part}).lines {
		if other == name {
			return value
		}
	}
	return ""
}

// Lines is how many lines a field of the answer has.
func (e *Entry) Lines(name string) (n int) {
	for other := range e.fields.lines {
		if other == name {
			n++
		}
	}
	return n
}

// Fields calls yield with each line of the answer's fields; those of one name come together.
func (e *Entry) Fields(yield func(name, value string)) {
	for name, value := range e.fields.lines {
		yield(name, value)
	}
}

// Header returns the end-to-end fields of the answer, as the upstream sent them but for
// those that speak of one request only (see [StorableHeader]).
func (e *Entry) Header() http.Header {
	h := make(http.Header, 16)
	for name, value := range e.fields.lines {
		h[name] = append(h[name], value)
	}
	return h
}
