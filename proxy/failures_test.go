package proxy

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestAStormOfErrors: each client gets the API's own error, once for each request that it
// makes. None is sent again, nothing is kept, no account is punished, and the first answer
// is an answer.
func TestAStormOfErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := http.StatusBadGateway
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("X-RateLimit-Limit", "5000")
			w.Header().Set("X-RateLimit-Used", "1")
			w.Header().Set("X-RateLimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "unicorn")
		})
		ask := func(i int) got { return w.get(fmt.Sprint("/users/", i), "Authorization: Bearer a") }
		w.want("the first", ask(0).StatusCode, status)
		var clients sync.WaitGroup
		for i := range 99 {
			clients.Go(func() {
				r := ask(1 + i)
				w.want("status", r.StatusCode, http.StatusBadGateway)
				w.want("body", r.body, "unicorn")
			})
		}
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 100)
		w.want("reachable", w.gateway.Reachable(), true)
		status = http.StatusOK
		w.want("when it is over", ask(0).StatusCode, http.StatusOK)
		w.want("permits in flight", w.inFlight(), 0)
	})
}

// TestAGzipBombStaysClosed: nothing is decompressed here, so that it takes the room that
// it took on the wire; what is kept is asked for as it is.
func TestAGzipBombStaysClosed(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	zeros := make([]byte, 1<<20)
	for range 64 {
		_, _ = z.Write(zeros)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Encoding", "gzip") // whatever was asked for
			_, _ = w.Write(bomb.Bytes())
		})
		for _, path := range []string{"/gitignore/templates", "/user", "/made-up"} {
			for range 2 {
				r := w.get(path, "Authorization: Bearer a", "Accept-Encoding: gzip")
				w.want("length", len(r.body), bomb.Len())
				w.want("coding", r.Header.Get("Content-Encoding"), "gzip")
			}
		}
		if _, bytes := w.gateway.Cache.Size(); bytes > 4*uint64(bomb.Len())+64<<10 {
			t.Errorf("%d bytes are held, of %d", bytes, bomb.Len())
		}
	})
}

// TestWrongRateHeaders: what is no number, below zero, beyond all bounds or of another
// century is no reason to send more than is documented, nor to send nothing any more.
func TestWrongRateHeaders(t *testing.T) {
	hour := func(hours int) string { return fmt.Sprint(time.Now().Add(time.Duration(hours) * time.Hour).Unix()) }
	for name, fields := range map[string]func() []string{
		"none":       func() []string { return nil },
		"no numbers": func() []string { return []string{"many", "few", "soon"} },
		"below zero": func() []string { return []string{"-5", "-1", "-1"} },
		"beyond all ints": func() []string {
			return []string{strings.Repeat("9", 40), strings.Repeat("9", 40), strings.Repeat("9", 40)}
		},
		"empty":           func() []string { return []string{"", "", ""} },
		"of next century": func() []string { return []string{"60", "60", hour(24 * 365 * 100)} },
		"two of each":     func() []string { return []string{"60, 5000", "1, 2", hour(1) + ", " + hour(2)} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
					for i, value := range fields() {
						w.Header().Set([]string{"X-RateLimit-Limit", "X-RateLimit-Used", "X-RateLimit-Reset"}[i], value)
					}
				})
				answered := 0
				for i := range 80 { // an anonymous caller has sixty in an hour
					if w.get(fmt.Sprint("/users/", i), "Prefer: wait=5").StatusCode == http.StatusOK {
						answered++
					}
				}
				if answered == 0 || answered > 60 {
					t.Errorf("%d of 80 are answered", answered)
				}
				if name != "of next century" { // that is waited for, a day at most
					time.Sleep(2 * time.Hour)
					w.want("two hours later", w.get("/users/next").StatusCode, http.StatusOK)
				}
				w.want("permits in flight", w.inFlight(), 0)
			})
		})
	}
}
