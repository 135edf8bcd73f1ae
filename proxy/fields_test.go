package proxy

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// newGet returns a GET request; fields are "Name: value".
func newGet(path string, fields ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Add(name, value)
	}
	return r
}

// TestInvalidFieldNameIsNotStored sends a name with a trailing space, which the client of
// net/http accepts. Other clients could interpret the stored field as Transfer-Encoding.
func TestInvalidFieldNameIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHTTP1World(t, func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\nCache-Control: max-age=60\r\n"+
				"Content-Type: text/plain\r\nTransfer-Encoding : chunked\r\nContent-Length: 2\r\n\r\n[]")
			_ = c.Close()
		})
		w.gateway.ServeHTTP(httptest.NewRecorder(), newGet("/undocumented/path"))
		got := httptest.NewRecorder()
		w.gateway.ServeHTTP(got, newGet("/undocumented/path"))
		status := got.Header().Get("Cache-Status")
		stopIf(t, !strings.HasPrefix(status, "weir; hit"), "Cache-Status %q, want a hit", status)
		for name := range got.Header() {
			failIf(t, strings.Contains(name, "Transfer-Encoding"), "the field %q was stored", name)
		}
	})
}

// TestSentFieldsDoNotRetainBodies checks that field values do not share memory with a stored
// body. HTTP/2 connections keep the fields that they have sent.
func TestSentFieldsDoNotRetainBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, path, date = 7 << 20, "/repos/o/r", "Sat, 01 Jan 2000 00:00:00 GMT"
		etag, failing := "", false
		var sent []string // field values, to the upstream and to clients
		keep := func(h http.Header) {
			for values := range maps.Values(h) {
				sent = append(sent, values...)
			}
		}
		w := newWorld(t, nil, func(c *Config) {
			c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				keep(r.Header)
				response := httptest.NewRecorder()
				setFields(response, "Cache-Control: max-age=60, stale-if-error=60", "Last-Modified: "+date)
				if etag != "" {
					response.Header().Set("Etag", etag)
				}
				if failing {
					response.WriteHeader(http.StatusBadGateway)
				} else if isUnconditional(r.Header) {
					response.Header().Set("Content-Length", strconv.Itoa(size))
					_, _ = response.Write(make([]byte, size))
				} else {
					response.WriteHeader(http.StatusNotModified)
				}
				return response.Result(), nil
			})
		})
		for _, etag = range []string{`"1"`, ""} {
			sent = nil
			before := heapSize()
			tag, err := w.gateway.TagOf(path)
			noError(t, err)
			for _, c := range []struct{ field, want string }{
				{"X-Request-Id: b", "weir; fwd=uri-miss; fwd-status=200; stored"}, {"X-Request-Id: b", "weir; hit"}, {"Range: bytes=0-0", "weir; hit"},
				{"Cache-Control: no-cache", "weir; fwd=request; fwd-status=304; stored"}, {"X-Request-Id: b", "weir; fwd=stale; fwd-status=502; ttl=-"},
			} {
				if failing = strings.Contains(c.want, "502"); failing {
					time.Sleep(70 * time.Second)
				}
				response := headerOnly{http.Header{}}
				w.gateway.ServeHTTP(response, newGet(path, c.field))
				keep(response.header)
				got := response.header.Get("Cache-Status")
				failIf(t, !strings.HasPrefix(got, c.want), "Cache-Status after %q: got %q, want %q", c.field, got, c.want)
			}
			dropped := w.gateway.Cache.PurgeHard(t.Context(), tag)
			failIf(t, dropped != 1, "dropped %d entries, want 1", dropped)
			retained := int64(heapSize() - before)
			failIf(t, retained > size/2, "ETag %q: the sent fields retain %d bytes", etag, retained)
			runtime.KeepAlive(sent)
		}
	})
}

// heapSize returns the size of the heap without garbage.
func heapSize() uint64 {
	for range 3 { // a sync.Pool is empty after two collections
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// headerOnly is a response writer that discards the body.
type headerOnly struct{ header http.Header }

func (d headerOnly) Header() http.Header         { return d.header }
func (d headerOnly) WriteHeader(int)             {}
func (d headerOnly) Write(p []byte) (int, error) { return len(p), nil }
