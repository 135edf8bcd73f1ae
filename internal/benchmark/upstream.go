package main

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// What the upstream has. The operations are of the catalogue; what others ask for is
// not there.
const (
	small   = "/repos/o/small/subscribers" // kept, 2 KB
	large   = "/repos/o/large/subscribers" // kept, 64 KB
	passing = "/users/o/subscriptions"     // never kept, 2 KB
	seen    = "/seen"                      // how many requests were answered
	etag    = `"5d41402abc4b2a76b9719d911017c592"`

	smallSize, largeSize = 2 << 10, 64 << 10
	// budget is more than any run spends.
	budget = 1_000_000_000
)

// upstream is an API with a huge budget. Its fields are prepared: the less it does, the
// more of the machine is left to what is measured.
type upstream struct {
	requests     atomic.Int64
	kept, never  http.Header
	small, large []byte
}

func newUpstream(began time.Time) *upstream {
	fields := func(control string) http.Header {
		return http.Header{
			"Cache-Control":          {control},
			"Content-Type":           {"application/json; charset=utf-8"},
			"Etag":                   {etag},
			"Vary":                   {"Accept, Authorization"},
			"X-Ratelimit-Limit":      {strconv.Itoa(budget)},
			"X-Ratelimit-Reset":      {strconv.FormatInt(began.Add(12*time.Hour).Unix(), 10)},
			"X-Ratelimit-Resource":   {"core"},
			"X-Content-Type-Options": {"nosniff"},
		}
	}
	return &upstream{
		kept: fields("public, max-age=7200, s-maxage=7200"), never: fields("no-store"),
		small: list(smallSize), large: list(largeSize),
	}
}

// list is a list in JSON of so many bytes.
func list(size int) []byte {
	const item = `{"login":"octo","id":1,"type":"User","site_admin":false},`
	text := "[" + strings.Repeat(item, size/len(item)-1) + `{"login":"`
	const end = `"}]`
	return []byte(text + strings.Repeat("x", size-len(text)-len(end)) + end)
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fields, body := u.kept, u.small
	switch path := r.URL.Path; {
	case path == seen:
		_, _ = w.Write(strconv.AppendInt(nil, u.requests.Load(), 10))
		return
	case path == large:
		body = u.large
	case path == passing:
		fields = u.never
	case !strings.HasPrefix(path, "/repos/o/") || !strings.HasSuffix(path, "/subscribers"):
		w.WriteHeader(http.StatusNotFound)
		return
	}
	header := w.Header()
	for name, values := range fields {
		header[name] = values
	}
	used := u.requests.Add(1)
	header["X-Ratelimit-Used"] = []string{strconv.FormatInt(used, 10)}
	header["X-Ratelimit-Remaining"] = []string{strconv.FormatInt(budget-used, 10)}
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	_, _ = w.Write(body)
}
