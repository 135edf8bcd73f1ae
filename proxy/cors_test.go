package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/cors"
)

// TestOwnResponsesAreReadableInBrowsers checks every kind of response that the gateway writes itself.
func TestOwnResponsesAreReadableInBrowsers(t *testing.T) {
	const origin = "Origin: https://app.example"
	up := newCounter()
	up.limit["core"] = 1
	setup(up.ServeHTTP, github).run(t, func(w *world) {
		w.get("/user", bearer("a"))
		for path, status := range map[string]int{"/user": 429, "/rate_limit": 200, "/repos/a/b/..": 400, "/_weir/x": 404, "/search/code?q=a": 401} {
			fields := []string{origin, bearer("a")}
			if status == http.StatusUnauthorized {
				fields = fields[:1]
			}
			r := w.get(path, fields...)
			w.want(path, r.StatusCode, status)
			w.wantHeader(r, "Access-Control-Allow-Origin: *", "Access-Control-Allow-Credentials: ")
			for _, name := range []string{"Retry-After", "X-RateLimit-Reset", "X-GitHub-Request-Id", "Cache-Status"} {
				w.want(name+" is readable", strings.Contains(r.Header.Get("Access-Control-Expose-Headers"), name), true)
			}
		}
	})
	setup(nothing, identityFails(fmt.Errorf("%w: unknown key", caller.ErrUnauthenticated))).run(t, func(w *world) {
		w.wantHeader(w.get("/user", origin), "Access-Control-Allow-Origin: *")
		// A browser sends the preflight without the credential of the request.
		for _, path := range []string{"/user", "/made/up", "/graphql", "/api/v3/user"} {
			r := w.do(http.MethodOptions, path, nil, origin, "Access-Control-Request-Method: PATCH", "Access-Control-Request-Headers: authorization, x-mcp-readonly,weir-tag")
			w.want(path, r.StatusCode, http.StatusNoContent)
			w.wantHeader(r, "Access-Control-Allow-Origin: *", "Access-Control-Allow-Methods: "+cors.Methods,
				"Access-Control-Allow-Headers: authorization, x-mcp-readonly, weir-tag", "Access-Control-Max-Age: 86400", "Cache-Status: weir; detail=preflight")
		}
		for method, allowed := range map[string]string{"PROPFIND": cors.Methods + ", PROPFIND", "TRACE": cors.Methods, "GET, PROPFIND": cors.Methods} {
			w.wantHeader(w.do(http.MethodOptions, "/made/up", nil, origin, "Access-Control-Request-Method: "+method), "Access-Control-Allow-Methods: "+allowed)
		}
		w.want("OPTIONS of another program", w.do(http.MethodOptions, "/user", nil, origin).StatusCode, http.StatusUnauthorized)
		w.want("own path", w.do(http.MethodOptions, "/_weir/x", nil, origin, "Access-Control-Request-Method: GET").StatusCode, http.StatusNotFound)
		w.want("requests upstream", w.upstreamSaw(), 0)
	})
}
