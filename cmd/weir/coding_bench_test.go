package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
)

// sampleList returns a JSON list of at least size bytes, like a list of issues.
func sampleList(size int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	list := []byte("[")
	for len(list) < size {
		id := random.IntN(1 << 30)
		issue, _ := json.Marshal(map[string]any{
			"id": id, "node_id": fmt.Sprintf("I_%x", random.Uint64()), "number": id % 9999, "state": "open", "locked": false,
			"url": fmt.Sprint("https://api.example/repos/acme/widgets/issues/", id%9999), "title": fmt.Sprintf("Failure %x in step %d", random.Uint32(), id%7),
			"user":       map[string]any{"login": fmt.Sprintf("user-%x", id%500), "id": id % 500, "type": "User", "site_admin": false},
			"created_at": fmt.Sprintf("2026-11-%02dT%02d:00:00Z", 1+id%28, id%24), "labels": []string{"bug", "help wanted"}, "body": nil,
		})
		list = append(append(list, issue...), ',')
	}
	list[len(list)-1] = ']'
	return list
}

// countingWriter is a nullWriter that counts the bytes of bodies.
type countingWriter struct {
	nullWriter
	bytes int
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.bytes += len(p)
	return len(p), nil
}

// BenchmarkCodedHit measures hits of JSON by content coding, and the bytes that a client gets.
func BenchmarkCodedHit(b *testing.B) {
	for _, size := range []int{2 << 10, 64 << 10, 300 << 10} {
		body := sampleList(size)
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=3600")
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			w.Header().Set("Etag", `"sample"`)
			_, _ = w.Write(body)
		}))
		defer upstream.Close()
		g := startUnlimited(b, upstream.URL)
		for _, accepted := range []string{"", "gzip", "zstd"} {
			b.Run(fmt.Sprintf("%dKB/%s", size>>10, accepted), func(b *testing.B) {
				r := sampleRequest("/repos/acme/widgets/subscribers")
				if accepted != "" {
					r.Header.Set("Accept-Encoding", accepted)
				}
				w := &countingWriter{nullWriter: nullWriter{http.Header{}}}
				g.ServeHTTP(w, r)
				w.bytes = 0
				b.ReportAllocs()
				for b.Loop() {
					clear(w.header)
					g.ServeHTTP(w, r)
				}
				b.ReportMetric(float64(w.bytes)/float64(b.N), "body-B/op")
			})
		}
	}
}
