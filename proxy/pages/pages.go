// Package pages finds the stored lists whose other pages a 304 does not show.
package pages

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

// Question is the part of a request on which the pages of its response depend.
type Question struct {
	Match     *policy.Match
	Operation string // ID of the operation; empty for a route outside the catalogue
	Host      string // of an upstream beside the API
}

// scope returns the key of the questions whose 304s behave in the same way: those of the operation, or of the path.
func (q Question) scope() cache.Key {
	if q.Operation == "" {
		return cache.NewKey(q.Host, q.Match.Path)
	}
	return cache.NewKey(q.Operation)
}

// MayLack reports whether the Link field of a stored response may be outdated although its body is not: other pages have
// appeared or ended. A 304 without Link then confirms a list that hides its pages. That is so if Link names a later page, and if
// a full page has none. A total number in the body changes with the pages.
func (q Question) MayLack(e *cache.Entry) bool {
	if e.Status != http.StatusOK || q.Match.Operation.Known() && !q.Match.Operation.Paged() {
		return false
	}
	if e.Packed != nil {
		return true // Weir does not search a large body for a list
	}
	later := slices.ContainsFunc(e.Header["Link"], laterPage.MatchString)
	if later && bytes.HasPrefix(e.Body, []byte("[")) {
		return true
	}
	var list []json.RawMessage
	if json.Unmarshal(e.Body, &list) != nil {
		if HasTotal(e.Body) {
			return false
		}
		var members map[string]json.RawMessage
		_ = json.Unmarshal(e.Body, &members) // stays empty for another body
		for _, value := range members {
			var nested []json.RawMessage
			if json.Unmarshal(value, &nested) == nil && len(nested) > len(list) {
				list = nested
			}
		}
	}
	return later || q.mayBeFull(len(list))
}

// mayBeFull reports whether a page with a number of items may be full. Some operations have another name for the size of a page, or
// another default or largest size.
func (q Question) mayBeFull(items int) bool {
	query, _ := url.ParseQuery(q.Match.Query) // a canonical query has no error
	isUsual, sized := slices.Contains(pageSizes, items), false
	for name, values := range query {
		for _, value := range values {
			number := leadingNumber.FindStringSubmatch(value)
			if number == nil || name == "page" {
				continue
			}
			size, _ := strconv.Atoi(number[1]) // at most nine digits
			if sized = sized || name == "per_page"; size == items || size > items && items > pageSizes[0] && isUsual {
				return true
			}
		}
	}
	return isUsual && !sized
}

// pageSizes are the numbers of items of a page without per_page. The larger ones are also the largest sizes.
var pageSizes = []int{30, 50, 100}

// leadingNumber matches the part of a parameter that the upstream reads as a number.
var leadingNumber = regexp.MustCompile(`^[ +]*0*([1-9][0-9]{0,8})`)

// laterPage matches a Link field that names a later page.
var laterPage = regexp.MustCompile(`rel="?(next|last)\b`)

// HasTotal reports whether a body has the number of items on all pages. Another number is another body, and has another ETag.
func HasTotal(body []byte) bool {
	var totals struct {
		Items   json.RawMessage `json:"total_count"`
		Commits json.RawMessage `json:"total_commits"`
	}
	return json.Unmarshal(body, &totals) == nil && (totals.Items != nil || totals.Commits != nil)
}

// Links remembers which 304s of an upstream repeat the Link field. Links is safe for concurrent use.
type Links struct{ repeated *lru.Cache[cache.Key, bool] }

// maxScopes bounds the scopes of Links. It exceeds the number of operations in the catalogue.
const maxScopes = 4096

// NewLinks returns an empty Links.
func NewLinks() Links {
	repeated, _ := lru.New[cache.Key, bool](maxScopes) // the size is valid
	return Links{repeated}
}

// Note records whether a 304 to a question repeated the Link field.
func (l Links) Note(q Question, repeated bool) { l.repeated.Add(q.scope(), repeated) }

// AreRepeated reports whether the last 304 to such a question repeated the Link field.
func (l Links) AreRepeated(q Question) bool {
	repeated, _ := l.repeated.Get(q.scope())
	return repeated
}

// NeedsWhole reports whether a stored page must be requested without conditions. If 304s of the scope repeat Link, or
// have not been seen yet, a 304 may show the pages.
func (l Links) NeedsWhole(q Question, e *cache.Entry) bool {
	if !q.MayLack(e) {
		return false
	}
	repeated, seen := l.repeated.Get(q.scope())
	return len(e.Header["Link"]) == 0 || seen && !repeated
}
