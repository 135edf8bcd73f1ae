package service

import (
	"cmp"
	"encoding/base64"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// pages are the parameters of a list: per_page 30 unless given, 100 at most,
// page 1 unless given (Document A section 8). What is no number counts as not
// given.
func pages(query url.Values) (page, perPage int) {
	return parsePositive(query.Get("page"), 1, maxPage), parsePositive(query.Get("per_page"), 30, 100)
}

// maxPage is behind the last page of any list.
const maxPage = 1 << 20

// positive reads a number from 1 on, most if it is larger, else the one that is meant
// where none is given.
func parsePositive(text string, fallback, most int) int {
	n, err := strconv.Atoi(text)
	switch {
	case errors.Is(err, strconv.ErrRange) && n > 0:
		return most
	case err != nil || n < 1:
		return fallback
	}
	return min(n, most)
}

// list answers one page of items, each shown by render, with a Link to the
// others.
func list[T any](req *request, path string, items []T, render func(T) object) response {
	page, perPage := pages(req.query)
	from := min((page-1)*perPage, len(items))
	to := min(from+perPage, len(items))
	return response{status: http.StatusOK, body: renderAll(items[from:to], render), link: pageLinks(req, path, len(items))}
}

// rendered are items as they are shown; an array even when there are none.
func renderAll[T any](items []T, render func(T) object) []object {
	shown := make([]object, 0, len(items))
	for _, item := range items {
		shown = append(shown, render(item))
	}
	return shown
}

// links is the Link field of a list of total items: absolute URLs that name
// repositories and organizations by number.
func pageLinks(req *request, path string, total int) string {
	page, perPage := pages(req.query)
	last := max(1, (total+perPage-1)/perPage)
	link, parts := linkBuilder(req, path, "page"), []string(nil)
	add := func(rel string, n int) { parts = append(parts, link(rel, "page", strconv.Itoa(n))) }
	if page > 1 {
		add("prev", min(page-1, last))
	}
	if page < last {
		add("next", page+1)
		add("last", last)
	}
	if page > 1 {
		add("first", 1)
	}
	return strings.Join(parts, ", ")
}

// linker makes the values of a Link field: path with the request's query, but for
// those parameters, and another one.
func linkBuilder(req *request, path string, without ...string) func(rel, name, value string) string {
	if req.faults.LinksByName {
		path = req.URL.EscapedPath()
	}
	query := maps.Clone(req.query)
	for _, name := range without {
		delete(query, name)
	}
	kept := query.Encode()
	if kept != "" {
		kept += "&"
	}
	return func(rel, name, value string) string {
		return "<" + req.base + path + "?" + kept + name + "=" + value + `>; rel="` + rel + `"`
	}
}

// escapePath escapes a path of several segments.
func escapePath(path string) string {
	segments := strings.Split(path, "/")
	for i := range segments {
		segments[i] = url.PathEscape(segments[i])
	}
	return strings.Join(segments, "/")
}

// listByCursor answers the items between the cursors after and before (Document A
// section 1): the first per_page of them, or the last where only before is given.
// Items must be in ascending order of id, which a cursor stands for, so that pages
// neither repeat nor leave out an item while others come and go. The Link leads to
// prev and next; an empty page has none. A cursor that no Link held is a 422.
func listByCursor[T any](s *Service, req *request, resource, path string, items []T, id func(T) int, render func(T) object) response {
	from, to := 0, len(items)
	byID := func(item T, wanted int) int { return cmp.Compare(id(item), wanted) }
	after, before := req.query.Get("after"), req.query.Get("before")
	if after != "" {
		last, ok := cursorID(after)
		if !ok {
			return s.invalid(resource, "after")
		}
		var found bool
		if from, found = slices.BinarySearchFunc(items, last, byID); found {
			from++
		}
	}
	if before != "" {
		first, ok := cursorID(before)
		if !ok {
			return s.invalid(resource, "before")
		}
		to, _ = slices.BinarySearchFunc(items, first, byID)
		to = max(from, to)
	}
	if _, perPage := pages(req.query); before != "" && after == "" {
		from = max(from, to-perPage)
	} else {
		to = min(from+perPage, to)
	}
	link, parts := linkBuilder(req, path, "before", "after"), []string(nil)
	if from > 0 && from < to {
		parts = append(parts, link("prev", "before", cursor(id(items[from]))))
	}
	if from < to && to < len(items) {
		parts = append(parts, link("next", "after", cursor(id(items[to-1]))))
	}
	return response{status: http.StatusOK, body: renderAll(items[from:to], render), link: strings.Join(parts, ", ")}
}

// cursorPrefix tells a cursor from any other text.
const cursorPrefix = "cursor:v1:"

// cursor is the place of the item with that id in a list; clients need not know how.
func cursor(id int) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorPrefix + itoa(id)))
}

// cursorID reads a cursor; false where it is not one that cursor made.
func cursorID(text string) (int, bool) {
	plain, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return 0, false
	}
	id, err := strconv.Atoi(strings.TrimPrefix(string(plain), cursorPrefix))
	return id, err == nil && cursor(id) == text
}
