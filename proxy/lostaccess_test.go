package proxy

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestLostAccessEndsStoredResponses checks that no request field gets a stored response after the upstream has refused the
// credential, or has denied the resource to it.
func TestLostAccessEndsStoredResponses(t *testing.T) {
	const secret = "/repos/acme/secret"
	for _, storage := range []string{"private, max-age=60", "private, max-age=60, s-maxage=60", "private, max-age=60, stale-if-error=86400", "private, max-age=60, stale-while-revalidate=86400"} {
		for _, loss := range []struct {
			name, method, path string
			status             int
			fields             []string
		}{
			{"401", "GET", secret, 401, nil},
			{"401 elsewhere", "GET", "/user", 401, nil},
			{"401 to a write", "PATCH", "/repos/acme/widgets", 401, nil},
			{"401 to GraphQL", "POST", "/graphql", 401, nil},
			{"401 without storage", "GET", "/user", 401, []string{"Cache-Control: no-store"}},
			{"404", "GET", secret, 404, nil},
			{"410", "GET", secret, 410, nil},
			{"403", "GET", secret, 403, nil},
			{"404 without storage", "GET", secret, 404, []string{"Cache-Control: no-store"}},
			{"404 to another form", "GET", secret, 404, []string{"Accept: application/vnd.service.raw"}},
			{"404 to HEAD", "HEAD", secret, 404, nil},
			{"404 to a range", "GET", secret, 404, []string{"Range: bytes=0-3"}},
		} {
			for _, fresh := range []bool{false, true} {
				if fresh && loss.path == secret && (loss.fields == nil || strings.HasPrefix(loss.fields[0], "Range")) {
					continue // a hit, of which the upstream knows nothing
				}
				for _, again := range []string{"max-stale=86400", "max-stale", "stale-if-error=86400", "only-if-cached", "only-if-cached, max-stale", "max-age=86400, max-stale=86400", ""} {
					bubble(t, strings.Join([]string{storage, loss.name, map[bool]string{true: "fresh", false: "stale"}[fresh], again}, "/"), func(t *testing.T) {
						var lost, broken atomic.Bool
						w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
							switch {
							case broken.Load():
								w.WriteHeader(http.StatusBadGateway)
							case lost.Load():
								w.WriteHeader(loss.status)
							default:
								setFields(w, "Cache-Control: "+storage)
								_, _ = w.Write([]byte("private body"))
							}
						}, wholeAPI(t, unchanged))
						w.want("first body", w.get(secret, owner).body, "private body")
						other := w.get(secret, bearer("tok-other"))
						w.want("body of another", other.body, "private body")
						lost.Store(true)
						if !fresh {
							time.Sleep(2 * time.Minute)
						}
						w.do(loss.method, loss.path, nil, append(loss.fields, owner)...)
						synctest.Wait() // a revalidation in the background
						broken.Store(strings.Contains(again, "error"))
						r := w.get(secret, owner, "Cache-Control: "+again)
						failIf(t, strings.Contains(r.body, "private"), "got %d %q with %s", r.StatusCode, r.body, r.Header.Get("Cache-Status"))
						kept := w.get(secret, bearer("tok-other"), "Cache-Control: only-if-cached, max-stale")
						w.want("body of another", kept.body, "private body")
					})
				}
			}
		}
	}
}
