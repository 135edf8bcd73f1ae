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

// TestConventionsHoldForEveryOperation: what Document A section 1 says of all
// operations is true of each that reads.
func TestConventionsHoldForEveryOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		direct, through := pair(t)
		named := names(t, direct, through)
		for _, op := range operations() {
			v := calls[op.ID]
			if !op.Known() || !op.Safe() || len(v.valid) == 0 {
				continue
			}
			for _, before := range v.valid[:len(v.valid)-1] {
				direct.do(t, op, before, named)
			}
			ask := asker{T: t, direct: direct, op: op, call: v.valid[len(v.valid)-1], named: named}
			want := ask.with("", "", "")
			ask.methods(want)
			ask.version()
			ask.validators(want)
			ask.pages(want)
			time.Sleep(time.Minute) // another search window
		}
	})
}

// asker asks one operation in other ways than its valid call.
type asker struct {
	*testing.T
	direct *client
	op     *policy.Operation
	call   call
	named  *strings.Replacer
}

// with is the call with another method, or a field more; empty for none.
func (a asker) with(method, name, value string) answer {
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

// HEAD is GET without the body; OPTIONS is answered.
func (a asker) methods(want answer) {
	head := a.with(http.MethodHead, "", "")
	want.Body = ""
	if diff := gocmp.Diff(want, head); diff != "" {
		a.Errorf("%s: GET (-), HEAD (+):\n%s", a.op.ID, diff)
	}
	if got := a.with(http.MethodOptions, "", ""); got.Status != http.StatusNoContent {
		a.Errorf("%s: OPTIONS is answered by %d", a.op.ID, got.Status)
	}
}

func (a asker) version() {
	if got := a.with("", "X-Service-Api-Version", "2022-11-28"); got.Status >= http.StatusBadRequest {
		a.Errorf("%s: the version of the documents is answered by %d", a.op.ID, got.Status)
	}
	if got := a.with("", "X-Service-Api-Version", "1999-01-01"); got.Status != http.StatusBadRequest {
		a.Errorf("%s: another version is answered by %d", a.op.ID, got.Status)
	}
}

// validators: what is complete has an ETag, and whoever has it is told so. The
// documents list 304 for some operations; it is right for all.
func (a asker) validators(want answer) {
	etag := want.Header["Etag"]
	if (etag == "") == (want.Status == http.StatusOK) {
		a.Errorf("%s: %d has ETag %q", a.op.ID, want.Status, etag)
	}
	if etag == "" || a.op.ID == "rate-limit/get" { // which is another one after each request
		return
	}
	if got := a.with("", "If-None-Match", `"another", `+etag); got.Status != http.StatusNotModified || got.Body != "" {
		a.Errorf("%s: If-None-Match with its ETag is answered by %d %q", a.op.ID, got.Status, got.Body)
	}
	if modified := want.Header["Last-Modified"]; modified != "" {
		if got := a.with("", "If-Modified-Since", modified); got.Status != http.StatusNotModified {
			a.Errorf("%s: If-Modified-Since with its Last-Modified is answered by %d", a.op.ID, got.Status)
		}
	}
}

// pages: a page has per_page items at most, and tells where the next one is, by
// an absolute URL that leads there.
func (a asker) pages(want answer) {
	if !a.op.Paged() {
		return
	}
	all := a.items(want)
	a.call.target = a.page("per_page=1")
	first := a.with("", "", "")
	if got := a.items(first); len(got) != min(1, len(all)) {
		a.Errorf("%s: %d items on a page of one", a.op.ID, len(got))
	}
	next, _, _ := strings.Cut(strings.TrimPrefix(first.Header["Link"], "<BASE"), ">; rel=\"next\"")
	if len(all) < 2 {
		return
	}
	if !strings.HasPrefix(first.Header["Link"], "<BASE/") || !strings.Contains(first.Header["Link"], `rel="next"`) {
		a.Errorf("%s: Link %q of the first page does not tell the next", a.op.ID, first.Header["Link"])
		return
	}
	a.call.target = next
	second := a.with("", "", "")
	if got := a.items(second); len(got) != 1 || !strings.Contains(second.Header["Link"], `rel="prev"`) || second.Body == first.Body {
		a.Errorf("%s: %s is answered by %d items, Link %q", a.op.ID, next, len(got), second.Header["Link"])
	}
	a.call.target = a.page("per_page=101")
	if got := a.items(a.with("", "", "")); len(got) > 100 {
		a.Errorf("%s: %d items on a page", a.op.ID, len(got))
	}
}

// page is the call's target with another parameter, without its own ones about
// pages.
func (a asker) page(parameter string) string {
	path, query, _ := strings.Cut(a.call.target, "?")
	if path == "" {
		path = a.op.Path
	}
	kept := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool {
		return p == "" || strings.HasPrefix(p, "page=") || strings.HasPrefix(p, "per_page=")
	})
	return path + "?" + strings.Join(append(kept, parameter), "&")
}

// items are those of a list, or of the one list that an object holds.
func (a asker) items(of answer) []any {
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
