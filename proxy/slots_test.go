package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weirgate/weir/policy"
)

// A permit frees its concurrency slot at the end of the response. The body may be read by a client, by the cache, or by the
// code that recognizes limit errors, costs and identities.
func TestSlotIsFreeWhenTheResponseHasEnded(t *testing.T) {
	chunked := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for part := range strings.SplitSeq(text, " ") {
				_, _ = io.WriteString(w, part)
				_ = http.NewResponseController(w).Flush()
			}
		}
	}
	status := func(code int, next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(code)
			next(w, r)
		}
	}
	const query = `{"query":"{viewer{login}}"}`
	large := strings.Repeat("large ", 10_000)
	for _, c := range []struct {
		name, method, path, request string
		response                    http.HandlerFunc
	}{
		{"GraphQL", "POST", "/graphql", query, replies(`{"data":{"viewer":{"login":"a"}}}`, "X-Ratelimit-Resource: graphql", "X-Ratelimit-Limit: 5000", "X-Ratelimit-Used: 1", "X-Ratelimit-Reset: 946688400")},
		{"GraphQL without a resource", "POST", "/graphql", query, replies(`{"data":{"viewer":{"login":"a"}}}`)},
		{"GraphQL in chunks", "POST", "/graphql", query, chunked(`{"data": {"viewer":{"login":"a"}}}`)},
		{"GraphQL mutation", "POST", "/graphql", `{"query":"mutation{addStar(input:{starrableId:\"x\"}){clientMutationId}}"}`, replies(`{"data":{}}`)},
		{"large GraphQL", "POST", "/graphql", query, replies(`{"data":{"text":"` + large + `"}}`)},
		{"identity", "GET", "/user", "", replies(`{"id":1,"login":"a"}`)},
		{"identity in chunks", "GET", "/user", "", chunked(`{"id":1, "login":"a"}`)},
		{"stored", "GET", "/gitignore/templates", "", replies(`["Go"]`, "Cache-Control: max-age=60")},
		{"stored and large", "GET", "/gitignore/templates", "", replies(large, "Cache-Control: max-age=60")},
		{"not stored", "GET", "/gitignore/templates", "", replies(`["Go"]`, "Cache-Control: no-store")},
		{"refused", "GET", "/gitignore/templates", "", status(403, replies(`{"message":"Must have admin rights"}`))},
		{"refused without a length", "GET", "/gitignore/templates", "", status(403, chunked(`{"message":"Must have admin rights"}`))},
		{"empty", "GET", "/gitignore/templates", "", replies("")},
		{"no content", "PUT", "/repos/acme/widgets/subscription", "{}", status(204, nothing)},
		{"HEAD", "HEAD", "/gitignore/templates", "", replies(`["Go"]`)},
		{"not modified", "GET", "/gitignore/templates", "", status(304, nothing)},
		{"not modified with a length", "GET", "/gitignore/templates", "", responds(304, "Content-Length: 6")},
	} {
		t.Run(c.name, func(t *testing.T) {
			overBothProtocols(t, func() http.Handler { return c.response }, func(t *testing.T, connect option) {
				w := newWorld(t, nothing, connect, tenSlots)
				for i := range 12 { // more requests than there are slots
					var body io.Reader
					if c.request != "" {
						body = strings.NewReader(c.request)
					}
					path := c.path
					if c.method != "POST" {
						path += fmt.Sprint("?page=", i)
					}
					r := w.do(c.method, path, body, "Authorization: Bearer a", `If-None-Match: "made-up"`)
					detail := r.Header.Get("Cache-Status")
					stopIf(t, strings.Contains(detail, "detail=concurrency") || strings.Contains(detail, "detail=queue"), "request %d: %s", i, detail)
					stopIf(t, r.err != nil, "request %d: %v", i, r.err)
					synctest.Wait()
					n := w.inFlight()
					stopIf(t, n != 0, "%d permits in flight after request %d", n, i)
				}
			})
		})
	}
}

func tenSlots(c *Config) {
	l := policy.DefaultLimits()
	l.Concurrent = 10
	limited(l)(c)
}

// A hundred calls one after another, ten times the slots, need one slot.
func TestSequentialGraphQLCallsNeedOneSlot(t *testing.T) {
	answer := func() http.Handler { return replies(`{"data":{"n":1}}`) }
	overBothProtocols(t, answer, func(t *testing.T, connect option) {
		w := newWorld(t, nothing, connect, tenSlots)
		for i := range 100 {
			r := w.ask(fmt.Sprintf(`{"query":"{n%d:viewer{login}}"}`, i), bearer("a"))
			stopIf(t, r.StatusCode != http.StatusOK, "call %d: status %d, %s", i, r.StatusCode, r.Header.Get("Cache-Status"))
		}
	})
}
