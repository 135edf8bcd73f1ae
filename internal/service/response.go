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
		b = append(b, '{')
		for i, f := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(append(appendString(b, f.name), ':'), f.value)
		}
		return append(b, '}')
	case []any:
		b = append(b, '[')
		for i, element := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(b, element)
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

// respond returns a response with a body.
func respond(body any) response { return response{status: http.StatusOK, body: body} }

// check returns the response of an operation that only checks a condition.
func check(holds bool) response {
	if holds {
		return response{status: http.StatusNoContent}
	}
	return notFound()
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
	since, err := http.ParseTime(r.Header.Get("If-Modified-Since"))
	return err == nil && !modified.IsZero() && !modified.Truncate(time.Second).After(since)
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

// listOf returns the list of all items. It renders only those on the requested page.
func listOf[T, D any](items []T, show func(T) D) response {
	return response{status: http.StatusOK, total: len(items), list: func(from, to int) []any { return renderAll(items[from:to], show) }}
}

// renderAll returns the rendered items. The result is never nil, so that it encodes as an array.
func renderAll[T, D any](items []T, render func(T) D) []any {
	shown := make([]any, 0, len(items))
	for _, item := range items {
		shown = append(shown, render(item))
	}
	return shown
}

// page sets the body to the requested page of a list, and the links to the other pages. The absolute URLs of the links
// identify repositories and organizations by number.
func (s *Service) page(r *request, resp *response) {
	var links []string
	add := func(exists bool, rel, parameter, value string) {
		if exists {
			links = append(links, s.pageURL(r, parameter, value)+`; rel="`+rel+`"`)
		}
	}
	total, isSearch := resp.total, r.op.category == "search"
	if isSearch {
		total = min(total, maxResults)
	}
	from, to := 0, total
	switch page, perPage := pages(r.query); r.op.paging {
	case "page":
		last := max(1, (total+perPage-1)/perPage)
		from = min((page-1)*perPage, total)
		to = min(from+perPage, total)
		resp.full = to == from+perPage
		add(page > 1, "prev", "page", itoa(min(page-1, last)))
		add(page < last, "next", "page", itoa(page+1))
		add(page < last, "last", "page", itoa(last))
		add(page > 1, "first", "page", "1")
	case "cursor":
		positions := make([]item, total)
		for i := range positions {
			positions[i].id = i + 1
		}
		after, before := r.query.Get("after"), r.query.Get("before")
		var wrong string
		if from, to, wrong = between(positions, item.compare, after, before, perPage, before != "" && after == ""); wrong != "" {
			*resp = invalid(configurationResource, wrong) // the documents name no other list with cursors
			return
		}
		resp.full = to == from+perPage
		add(from > 0 && from < to, "prev", "before", item{id: from + 1}.cursor())
		add(from < to && to < total, "next", "after", item{id: to}.cursor())
	}
	resp.link = strings.Join(links, ", ")
	shown := resp.list(from, to)
	resp.body = shown
	if key := r.op.wrapper(); key != "" {
		wrapped := object{{"total_count", resp.total}}
		if isSearch {
			wrapped = append(wrapped, field{"incomplete_results", resp.incomplete})
		}
		wrapped = append(wrapped, field{key, shown})
		resp.body = wrapped
	}
}

// pageURL returns the URL of another page in angle brackets. It has the query of the request, and one new parameter.
func (s *Service) pageURL(r *request, parameter, value string) string {
	path, query := strings.ReplaceAll(s.world.renamed(r.path, true), "%2F", "/"), maps.Clone(r.query)
	if r.quirks.LinksByName {
		path = r.URL.EscapedPath()
	}
	for _, name := range []string{"page", "before", "after"} {
		delete(query, name)
	}
	return "<" + r.base + path + "?" + strings.TrimPrefix(query.Encode()+"&", "&") + parameter + "=" + value + ">"
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

// between returns the range of the first or the last items between two cursors, or the name of the invalid cursor. An
// empty cursor is no bound.
func between(items []item, order func(a, b item) int, after, before string, size int, last bool) (from, to int, invalid string) {
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
	if to = max(from, to); last {
		return max(from, to-size), to, ""
	}
	return from, min(to, from+size), ""
}
