package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The upstream may apply a write although its response is an error, or arrives too late.
func TestWriteWithoutAResultMakesResponsesStale(t *testing.T) {
	for name, delay := range map[string]time.Duration{"error": 0, "timeout": 35 * time.Second} {
		var changed atomic.Bool
		setup(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				w.Header().Set("Cache-Control", "private, max-age=300")
				_, _ = fmt.Fprint(w, map[bool]string{false: "old", true: "new"}[changed.Load()])
				return
			}
			time.Sleep(delay)
			changed.Store(true)
			w.WriteHeader(http.StatusGatewayTimeout)
		}, wholeAPI(t, unchanged)).sub(t, name, func(w *world) {
			w.get(issuesOfWidgets, owner)
			w.do(http.MethodPost, issuesOfWidgets, strings.NewReader("{}"), owner)
			w.get(issuesOfWidgets, owner) // may be stored before the upstream applies the write
			time.Sleep(stoppedWorking + time.Second)
			w.want("body", w.get(issuesOfWidgets, owner).body, "new")
		})
	}
}

func TestCompleteResponseEndsAnOlderPart(t *testing.T) {
	for _, method := range []string{http.MethodHead, http.MethodGet} {
		version := "1"
		setup(func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Cache-Control", "max-age=600")
			h.Set("Etag", `"`+version+`"`)
			if r.Header.Get("Range") != "" {
				h.Set("Content-Range", fmt.Sprint("bytes 0-3/", maxEntry+1))
				w.WriteHeader(http.StatusPartialContent)
				_, _ = fmt.Fprint(w, strings.Repeat(version, 4))
				return
			}
			h.Set("Content-Length", fmt.Sprint(maxEntry+1))
			if r.Method == http.MethodGet {
				_, _ = w.Write(bytes.Repeat([]byte(version), maxEntry+1))
			}
		}).sub(t, method, func(w *world) {
			w.want("part", w.get("/page", "Range: bytes=0-3").body, "1111")
			version = "2"
			w.want("stored part", w.get("/page", "Range: bytes=0-3").body, "1111")
			w.do(method, "/page", nil)
			w.want("part after the complete response", w.get("/page", "Range: bytes=0-3").body, "2222")
			w.want("status with a condition", w.get("/page", "Range: bytes=0-3", `If-None-Match: "2"`).Header.Get("Cache-Status"), "weir; fwd=bypass; fwd-status=206; stored; ttl=600")
		})
	}
}

func TestIfMatchAcceptsTheETagOfACodedResponse(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			_, _ = fmt.Fprint(w, r.Header.Get("If-Match"))
			return
		}
		listing(longList)(w, r)
	}).run(t, func(w *world) {
		etag := w.get("/made-up", "Accept-Encoding: gzip").Header.Get("Etag")
		w.want("ETag", etag, `W/"v1"`)
		w.want("If-Match upstream", w.do(http.MethodPut, "/made-up", nil, "If-Match: "+etag+`, "W/x", W/"y"`).body, `"v1", "W/x", "y"`)
	})
}
