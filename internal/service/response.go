package service

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// object is a JSON object with ordered members. Responses have the member order of the documents.
type object []field

type field struct {
	name  string
	value any
}

// member returns the value of a member, or nil if the member does not exist.
func (o object) member(name string) any {
	for _, f := range o {
		if f.name == name {
			return f.value
		}
	}
	return nil
}

// MarshalJSON writes the members in order.
func (o object) MarshalJSON() ([]byte, error) { return appendJSON(nil, o), nil }

var _ json.Marshaler = object(nil)

// encode returns the JSON of a value, without HTML escapes and final newline.
func encode(v any) []byte { return appendJSON(make([]byte, 0, 4<<10), v) }

// appendJSON appends the JSON of a value. It writes the common types directly, because reflection is slow. Package json
// encodes all other types.
func appendJSON(b []byte, v any) []byte {
	switch v := v.(type) {
	case object:
		return appendMembers(b, v)
	case []object:
		b = append(b, '[')
		for i, o := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendMembers(b, o)
		}
		return append(b, ']')
	case string:
		return appendString(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case bool:
		return strconv.AppendBool(b, v)
	case nil:
		return append(b, "null"...)
	}
	return appendAny(b, v)
}

func appendMembers(b []byte, o object) []byte {
	b = append(b, '{')
	for i, f := range o {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, f.name), ':')
		b = appendJSON(b, f.value)
	}
	return append(b, '}')
}

// appendString appends a JSON string. Package json encodes strings that need escapes.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f || s[i] == '"' || s[i] == '\\' {
			return appendAny(b, s)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func appendAny(b []byte, v any) []byte {
	var buffer bytes.Buffer
	e := json.NewEncoder(&buffer)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // values built by this package always encode
	}
	return append(b, bytes.TrimSuffix(buffer.Bytes(), []byte("\n"))...)
}

// problemBody is the body of an error response. It has the members of the gateway's errors, in the same order.
type problemBody struct {
	Message       string         `json:"message"`
	Errors        []problemField `json:"errors,omitempty"`
	Documentation string         `json:"documentation_url"`
}

type problemField struct {
	Resource string `json:"resource"`
	Field    string `json:"field"`
	Code     string `json:"code"`
}

const notFoundText = "Not Found"

func notFound() response { return fail(http.StatusNotFound, notFoundText) }

// invalid returns a 422 for an invalid field.
func invalid(resource, field string) response {
	return fail(http.StatusUnprocessableEntity, "Validation Failed", problemField{resource, field, "invalid"})
}

// missing returns a 422 for a missing field.
func missing(resource, field string) response {
	return fail(http.StatusUnprocessableEntity, "Validation Failed", problemField{resource, field, "missing_field"})
}

// fail returns an error response.
func fail(status int, message string, fields ...problemField) response {
	return response{status: status, body: problemBody{Message: message, Errors: fields}}
}

// limitProblem returns the API's error response for a reason of refusal.
func (s *Service) limitProblem(req *request, why refusalReason) response {
	body := problemBody{
		Message:       "API rate limit exceeded for " + req.caller.account + ".",
		Documentation: s.config.Dialect.Documentation + "/rate-limits",
	}
	if why == primary && req.graphQL != nil {
		return graphQLProblem([]object{{{"type", "RATE_LIMITED"}, {"message", body.Message}}})
	}
	switch why {
	case banned:
		body.Message = "Your integration has been banned: it went on sending requests while it was limited."
	case secondary:
		body.Message = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
		body.Documentation = s.config.Dialect.Documentation + "/secondary-rate-limits"
	}
	return response{status: http.StatusForbidden, body: body}
}

// validate sets the validators of a complete response. If the client's validators match, validate turns the response
// into a 304 (RFC 9110 section 13.2.2).
func (s *Service) validate(h http.Header, req *request, resp *response) {
	etag := s.entityTag(req, resp)
	h.Set("Etag", etag)
	if !resp.modified.IsZero() {
		h.Set("Last-Modified", resp.modified.UTC().Format(http.TimeFormat))
	}
	if !matches(req.Request, etag, resp.modified) {
		return
	}
	resp.status, resp.text = http.StatusNotModified, nil
	h.Del("Content-Type")
}

// entityTag returns the ETag of a response. The ETag depends only on the bytes and the media type, unless the quirk
// ETagsPerToken is set.
func (s *Service) entityTag(req *request, resp *response) string {
	hashed, format := resp.kind+"\n", `W/"%.16x"`
	if req.quirks.ETagsPerToken {
		hashed += req.Header.Get("Authorization") + "\n"
		if fields := s.config.Dialect.ETag; len(fields) > 0 {
			hashed, format = "", `"%x"` // a strong tag
			for _, name := range fields {
				if value := req.Header.Get(name); value != "" {
					hashed += value + ":"
				}
			}
		}
	}
	sum := sha256.New()
	_, _ = io.WriteString(sum, hashed) // a hash returns no error
	_, _ = sum.Write(resp.text)
	return fmt.Sprintf(format, sum.Sum(nil))
}

func matches(r *http.Request, etag string, modified time.Time) bool {
	if lists := r.Header.Values("If-None-Match"); len(lists) > 0 {
		for tag := range strings.SplitSeq(strings.Join(lists, ","), ",") {
			tag = strings.TrimSpace(tag)
			if tag == "*" || strings.TrimPrefix(tag, "W/") == strings.TrimPrefix(etag, "W/") {
				return true
			}
		}
		return false
	}
	ifModifiedSince := r.Header.Get("If-Modified-Since")
	if ifModifiedSince == "" || modified.IsZero() {
		return false
	}
	since, err := http.ParseTime(ifModifiedSince)
	return err == nil && !modified.Truncate(time.Second).After(since)
}

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
	return response{status: http.StatusOK, body: renderAll(items[from:to], render), link: link, full: to == from+perPage}
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
