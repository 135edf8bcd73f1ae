package service

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// pages are the parameters of a list: per_page 30 unless given, 100 at most,
// page 1 unless given (Document A section 8). What is no number counts as not
// given.
func pages(query url.Values) (page, perPage int) {
	perPage, err := strconv.Atoi(query.Get("per_page"))
	if err != nil || perPage < 1 {
		perPage = 30
	}
	page, err = strconv.Atoi(query.Get("page"))
	if err != nil || page < 1 {
		page = 1
	}
	return page, min(perPage, 100)
}

// list answers one page of items, each shown by render, with a Link to the
// others.
func list[T any](req *request, path string, items []T, render func(T) object) response {
	page, perPage := pages(req.query)
	from := min((page-1)*perPage, len(items))
	to := min(from+perPage, len(items))
	shown := make([]object, 0, to-from)
	for _, item := range items[from:to] {
		shown = append(shown, render(item))
	}
	return response{status: http.StatusOK, body: shown, link: links(req, path, len(items))}
}

// links is the Link field of a list of total items: absolute URLs that name
// repositories and organizations by number.
func links(req *request, path string, total int) string {
	page, perPage := pages(req.query)
	last := max(1, (total+perPage-1)/perPage)
	var parts []string
	add := func(rel string, n int) {
		query := url.Values{}
		for name, values := range req.query {
			query[name] = values
		}
		query.Set("page", strconv.Itoa(n))
		parts = append(parts, fmt.Sprintf(`<%s%s?%s>; rel="%s"`, req.base, path, query.Encode(), rel))
	}
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
