package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/policy"
)

// TestEveryReadFollowsConventions checks the conventions of Document A, section 1, for every
// operation that reads.
func TestEveryReadFollowsConventions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		direct, through := startPair(t)
		named := seedNames(t, direct, through)
		for _, op := range operations() {
			v := calls[op.ID]
			if !op.Known() || !op.Safe() || len(v.valid) == 0 {
				continue
			}
			for _, before := range v.valid[:len(v.valid)-1] {
				direct.do(t, op, before, named)
			}
			check := conventionCheck{T: t, direct: direct, op: op, call: v.valid[len(v.valid)-1], named: named}
			want := check.with("", "", "")
			check.methods(want)
			check.version()
			check.validators(want)
			check.pages(want)
			time.Sleep(time.Minute) // a new search window
		}
	})
}

// conventionCheck calls one operation in several ways.
type conventionCheck struct {
	*testing.T
	direct *client
	op     *policy.Operation
	call   call
	named  *strings.Replacer
}

// with sends the call with another method or an additional field.
func (a conventionCheck) with(method, name, value string) answer {
	call := a.call
	if method != "" {
		call.method = method
	}
	call.header = maps.Clone(call.header)
	if call.header == nil {
		call.header = map[string]string{}
	}
	if name != "" {
		call.header[name] = value
	}
	return a.direct.do(a.T, a.op, call, a.named)
}

// methods checks HEAD and OPTIONS.
func (a conventionCheck) methods(want answer) {
	head := a.with(http.MethodHead, "", "")
	want.Body = ""
	if diff := gocmp.Diff(want, head); diff != "" {
		a.Errorf("%s: GET (-), HEAD (+):\n%s", a.op.ID, diff)
	}
	if got := a.with(http.MethodOptions, "", ""); got.Status != http.StatusNoContent {
		a.Errorf("%s: status %d for OPTIONS", a.op.ID, got.Status)
	}
}

func (a conventionCheck) version() {
	if got := a.with("", "X-Service-Api-Version", "2022-11-28"); got.Status >= http.StatusBadRequest {
		a.Errorf("%s: status %d for the documented version", a.op.ID, got.Status)
	}
	if got := a.with("", "X-Service-Api-Version", "1999-01-01"); got.Status != http.StatusBadRequest {
		a.Errorf("%s: status %d for another version", a.op.ID, got.Status)
	}
}

// validators checks ETag, If-None-Match and If-Modified-Since of complete responses.
func (a conventionCheck) validators(want answer) {
	etag := want.Header["Etag"]
	if (etag == "") == (want.Status == http.StatusOK) {
		a.Errorf("%s: %d has ETag %q", a.op.ID, want.Status, etag)
	}
	if etag == "" || a.op.ID == "rate-limit/get" { // its ETag changes with each request
		return
	}
	if got := a.with("", "If-None-Match", `"another", `+etag); got.Status != http.StatusNotModified || got.Body != "" {
		a.Errorf("%s: status %d for If-None-Match with its ETag: %q", a.op.ID, got.Status, got.Body)
	}
	if modified := want.Header["Last-Modified"]; modified != "" {
		if got := a.with("", "If-Modified-Since", modified); got.Status != http.StatusNotModified {
			a.Errorf("%s: status %d for If-Modified-Since with its Last-Modified", a.op.ID, got.Status)
		}
	}
}

// pages checks per_page, and the absolute URL of the next page in Link.
func (a conventionCheck) pages(want answer) {
	if !a.op.Paged() {
		return
	}
	all := a.items(want)
	a.call.target = a.page("per_page=1")
	first := a.with("", "", "")
	if got := a.items(first); len(got) != min(1, len(all)) {
		a.Errorf("%s: %d items with per_page=1", a.op.ID, len(got))
	}
	next, _, _ := strings.Cut(strings.TrimPrefix(first.Header["Link"], "<BASE"), ">; rel=\"next\"")
	if len(all) < 2 {
		return
	}
	if !strings.HasPrefix(first.Header["Link"], "<BASE/") || !strings.Contains(first.Header["Link"], `rel="next"`) {
		a.Errorf("%s: Link %q of the first page has no next page", a.op.ID, first.Header["Link"])
		return
	}
	a.call.target = next
	second := a.with("", "", "")
	if got := a.items(second); len(got) != 1 || !strings.Contains(second.Header["Link"], `rel="prev"`) || second.Body == first.Body {
		a.Errorf("%s: %s has %d items and Link %q", a.op.ID, next, len(got), second.Header["Link"])
	}
	a.call.target = a.page("per_page=101")
	if got := a.items(a.with("", "", "")); len(got) > 100 {
		a.Errorf("%s: %d items on a page", a.op.ID, len(got))
	}
}

// page returns the target of the call with another paging parameter.
func (a conventionCheck) page(parameter string) string {
	path, query, _ := strings.Cut(a.call.target, "?")
	if path == "" {
		path = a.op.Path
	}
	kept := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool {
		return p == "" || strings.HasPrefix(p, "page=") || strings.HasPrefix(p, "per_page=")
	})
	return path + "?" + strings.Join(append(kept, parameter), "&")
}

// items returns the items of a list, or of the only list in an object.
func (a conventionCheck) items(of answer) []any {
	var v any
	if err := json.Unmarshal([]byte(of.Body), &v); err != nil {
		a.Errorf("%s: %.200s: %v", a.op.ID, of.Body, err)
		return nil
	}
	if object, ok := v.(map[string]any); ok {
		for _, member := range object {
			if list, ok := member.([]any); ok {
				return list
			}
		}
	}
	list, _ := v.([]any)
	return list
}
