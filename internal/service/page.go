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
	if req.quirks.LinksByName {
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
func listByCursor[T any](req *request, resource, path string, items []T, id func(T) int, render func(T) object) response {
	positions := make([]item, len(items))
	for i, listed := range items {
		positions[i].id = id(listed)
	}
	after, before := req.query.Get("after"), req.query.Get("before")
	from, to, wrong := between(positions, item.compare, after, before)
	if wrong != "" {
		return invalid(resource, wrong)
	}
	if _, perPage := pages(req.query); before != "" && after == "" {
		from = max(from, to-perPage)
	} else {
		to = min(from+perPage, to)
	}
	link, parts := linkBuilder(req, path, "before", "after"), []string(nil)
	if from > 0 && from < to {
		parts = append(parts, link("prev", "before", positions[from].cursor()))
	}
	if from < to && to < len(items) {
		parts = append(parts, link("next", "after", positions[to-1].cursor()))
	}
	return response{status: http.StatusOK, body: renderAll(items[from:to], render), link: strings.Join(parts, ", ")}
}

// item is one item of a list that is paged by cursors. The order of the items is by key and then by ID, so that a cursor
// stays valid while items are added and removed.
type item struct {
	key string
	id  int
	// node builds the node of a GraphQL connection. It is called only for items on the requested page.
	node func() node
}

func (i item) compare(o item) int { return cmp.Or(cmp.Compare(i.key, o.key), cmp.Compare(i.id, o.id)) }

// cursorPrefix distinguishes a cursor from other text.
const cursorPrefix = "cursor:v2:"

// cursor returns the position of the item as an opaque text.
func (i item) cursor() string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorPrefix + itoa(i.id) + ":" + i.key))
}

// itemAt returns an item at the position of a cursor. It returns false if cursor did not produce the text.
func itemAt(cursor string) (i item, ok bool) {
	plain, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return i, false
	}
	id, key, _ := strings.Cut(strings.TrimPrefix(string(plain), cursorPrefix), ":")
	i.key = key
	i.id, err = strconv.Atoi(id)
	return i, err == nil && i.cursor() == cursor
}

// between returns the range of the items between two cursors, or the name of the invalid cursor. An empty cursor is no
// bound.
func between(items []item, order func(a, b item) int, after, before string) (from, to int, invalid string) {
	to = len(items)
	if after != "" {
		edge, ok := itemAt(after)
		if !ok {
			return 0, 0, "after"
		}
		var found bool
		if from, found = slices.BinarySearchFunc(items, edge, order); found {
			from++
		}
	}
	if before != "" {
		edge, ok := itemAt(before)
		if !ok {
			return 0, 0, "before"
		}
		to, _ = slices.BinarySearchFunc(items, edge, order)
	}
	return from, max(from, to), ""
}
