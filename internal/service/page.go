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

// pages returns the page parameters of a list. page defaults to 1. per_page defaults to 30 and is at most 100 (Document
// A section 8). Invalid numbers count as absent.
func pages(query url.Values) (page, perPage int) {
	return parsePositive(query.Get("page"), 1, maxPage), parsePositive(query.Get("per_page"), 30, 100)
}

// maxPage is greater than the number of pages of any list.
const maxPage = 1 << 20

// parsePositive returns a positive number, reduced to most if it is larger. It returns fallback for any other text.
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

// list returns one page of items with a Link header. Its absolute URLs identify repositories and organizations by
// number.
func list[T any](req *request, path string, items []T, render func(T) object) response {
	page, perPage := pages(req.query)
	from := min((page-1)*perPage, len(items))
	to := min(from+perPage, len(items))
	link := linksTo(req, path, "page", page, max(1, (len(items)+perPage-1)/perPage))
	return response{status: http.StatusOK, body: renderAll(items[from:to], render), link: link}
}

// listOf returns the list of all items. It renders only those on the requested page.
func listOf[T, D any](items []T, show func(T) D) response {
	all := make([]any, len(items))
	for i, item := range items {
		all[i] = lazy(func() any { return show(item) })
	}
	return response{status: http.StatusOK, list: all}
}

// lazy is an element of a list that is not yet rendered.
type lazy func() any

// renderAll returns the rendered items. The result is never nil, so that it encodes as an array.
func renderAll[T any](items []T, render func(T) object) []object {
	shown := make([]object, 0, len(items))
	for _, item := range items {
		shown = append(shown, render(item))
	}
	return shown
}

// linksTo returns the Link header of a page. A parameter other than page is a cursor, and a cursor has no last page.
func linksTo(req *request, path, parameter string, page, last int) string {
	link, parts := linkBuilder(req, path, parameter), []string(nil)
	add := func(rel string, n int) { parts = append(parts, link(rel, parameter, strconv.Itoa(n))) }
	if page > 1 {
		add("prev", min(page-1, last))
	}
	if page < last {
		add("next", page+1)
	}
	if page < last && parameter == "page" {
		add("last", last)
	}
	if page > 1 {
		add("first", 1)
	}
	return strings.Join(parts, ", ")
}

// linkBuilder returns a function that formats one value of a Link header. The URL has the path, the request's query
// without the parameters in without, and one new parameter.
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

// listByCursor returns one page of the items between the cursors after and before (Document A section 1). If only
// before is set, the page has the last per_page items. Otherwise the page has the first items. The items must be in
// ascending order of id.
//
// A cursor encodes an id, so pages stay consistent while items are added and removed. The Link header has prev and
// next. An empty page has no Link header. An invalid cursor is a 422.
func listByCursor[T any](s *Service, req *request, resource, path string, items []T, id func(T) int, render func(T) object) response {
	from, to := 0, len(items)
	byID := func(item T, wanted int) int { return cmp.Compare(id(item), wanted) }
	after, before := req.query.Get("after"), req.query.Get("before")
	if after != "" {
		last, ok := cursorID(after)
		if !ok {
			return invalid(resource, "after")
		}
		var found bool
		if from, found = slices.BinarySearchFunc(items, last, byID); found {
			from++
		}
	}
	if before != "" {
		first, ok := cursorID(before)
		if !ok {
			return invalid(resource, "before")
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

// cursorPrefix distinguishes a cursor from other text.
const cursorPrefix = "cursor:v1:"

// cursor returns the cursor of the item with an id. The format is opaque to clients.
func cursor(id int) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorPrefix + itoa(id)))
}

// cursorID returns the id of a cursor. It returns false if cursor did not produce the text.
func cursorID(text string) (int, bool) {
	plain, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return 0, false
	}
	id, err := strconv.Atoi(strings.TrimPrefix(string(plain), cursorPrefix))
	return id, err == nil && cursor(id) == text
}
