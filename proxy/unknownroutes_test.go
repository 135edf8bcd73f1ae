package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The catalogue knows nothing about unknown routes, so the responses of one route predict nothing about another.
func TestUnknownRoutesLearnSeparately(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		coding(map[bool]string{true: "no-store", false: "max-age=60"}[strings.HasPrefix(r.URL.Path, "/uncacheable")])(w, r)
	}).sub(t, "uncacheable responses", func(w *world) {
		for i := range 40 {
			w.get(fmt.Sprintf("/uncacheable/%d", i), "Accept-Encoding: gzip")
		}
		w.want("stored", w.get("/cacheable", "Accept-Encoding: gzip").Header.Get("Cache-Status"), "weir; fwd=uri-miss; fwd-status=200; stored; ttl=60")
	})
	setup(func(w http.ResponseWriter, r *http.Request) {
		setFields(w, `Etag: "v1"`, "Cache-Control: max-age=60")
		next := "Link: <" + upstreamURL + r.URL.Path + `?page=2>; rel="next"`
		if r.Header.Get("If-None-Match") == `"v1"` {
			if strings.HasPrefix(r.URL.Path, "/repeats") {
				setFields(w, next)
			}
			w.WriteHeader(http.StatusNotModified)
			return
		}
		setFields(w, next)
		_, _ = fmt.Fprint(w, pageOf(30))
	}).sub(t, "304 without Link", func(w *world) {
		for range 3 {
			w.get("/omits")
			w.get("/repeats")
			time.Sleep(2 * time.Minute)
		}
		w.want("one that repeats Link", w.get("/repeats").Header.Get("Cache-Status"), confirmed)
		w.want("one that omits Link", w.get("/omits").Header.Get("Cache-Status"), "weir; fwd=stale; fwd-status=200; stored; ttl=60")
	})
}
