package proxy

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"

	"github.com/weirgate/weir/cache"
)

// otherPages matches a Link field that names a later page.
var otherPages = regexp.MustCompile(`rel="?(next|last)\b`)

// pageSize is the number of items of a page without per_page.
const pageSize = 30

// mayLackPages reports whether the Link field of a stored response may be outdated although its body is not: other pages have
// appeared or ended. A 304 without Link then confirms a list that hides its pages. That is so if Link names a later page, and if
// a full page has none. A total number in the body changes with the pages.
func (q *question) mayLackPages(e *cache.Entry) bool {
	if e.Status != http.StatusOK || q.match.Operation.Known() && !q.match.Operation.Paged() {
		return false
	}
	later := slices.ContainsFunc(e.Header["Link"], otherPages.MatchString)
	if later && bytes.HasPrefix(e.Body, []byte("[")) {
		return true
	}
	var list []json.RawMessage
	if json.Unmarshal(e.Body, &list) != nil {
		var members map[string]json.RawMessage
		_ = json.Unmarshal(e.Body, &members) // stays empty for another body
		if _, counted := members["total_count"]; counted {
			return false
		}
		for _, value := range members {
			var nested []json.RawMessage
			if json.Unmarshal(value, &nested) == nil && len(nested) > len(list) {
				list = nested
			}
		}
	}
	size := pageSize
	if query, err := url.ParseQuery(q.match.Query); err == nil {
		if n, err := strconv.Atoi(query.Get("per_page")); err == nil && n > 0 {
			size = n
		}
	}
	return later || len(list) == min(size, maxPageSize)
}

// maxPageSize is the largest per_page.
const maxPageSize = 100

// linkBehavior is what the 304s of an operation say about other pages.
type linkBehavior bool

const (
	linkRepeated linkBehavior = true
	linkMissing  linkBehavior = false
)

// needsWholePage reports whether a stored page must be requested without conditions. If 304s of the operation repeat Link, or
// have not been seen yet, a 304 may show the pages.
func (g *Gateway) needsWholePage(q *question, e *cache.Entry) bool {
	if !q.mayLackPages(e) {
		return false
	}
	behavior, seen := g.linkIn304.Load(q.match.Operation.ID)
	return len(e.Header["Link"]) == 0 || seen && behavior == linkMissing
}
