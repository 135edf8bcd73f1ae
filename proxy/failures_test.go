package proxy

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Each client gets the upstream error of its own request. Weir neither retries the request
// nor stores the error, and throttles no account.
func TestServerErrorsAreForwardedWithoutSideEffects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := http.StatusBadGateway
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			setRate(w.Header(), "", 5000, 1, time.Now().Add(time.Hour))
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "unicorn")
		})
		send := func(i int) got { return w.get(fmt.Sprint("/users/", i), "Authorization: Bearer a") }
		w.want("status of the first request", send(0).StatusCode, status)
		together(99, func(i int) {
			r := send(1 + i)
			w.want("status", r.StatusCode, http.StatusBadGateway)
			w.want("body", r.body, "unicorn")
		})
		w.want("requests upstream", w.upstreamSaw(), 100)
		w.want("reachable", w.gateway.Reachable(), true)
		status = http.StatusOK
		w.want("status afterwards", send(0).StatusCode, http.StatusOK)
		w.want("permits in flight", w.inFlight(), 0)
	})
}

// Weir does not decompress bodies, so a stored body uses the memory of its encoded form.
func TestCompressedBodiesAreNotDecompressed(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	zeros := make([]byte, 1<<20)
	for range 16 {
		_, _ = z.Write(zeros)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	setup(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Encoding", "gzip") // independent of Accept-Encoding
		_, _ = w.Write(bomb.Bytes())
	}).run(t, func(w *world) {
		for _, path := range []string{"/gitignore/templates", "/user", "/made-up"} {
			for range 2 {
				r := w.get(path, "Authorization: Bearer a", "Accept-Encoding: gzip")
				w.want("length", len(r.body), bomb.Len())
				w.want("coding", r.Header.Get("Content-Encoding"), "gzip")
			}
		}
		if _, bytes := w.gateway.Cache.Size(); bytes > 4*uint64(bomb.Len())+64<<10 {
			w.Errorf("the cache has %d bytes for bodies of %d bytes", bytes, bomb.Len())
		}
	})
}

// With invalid rate limit fields, the documented limits apply.
func TestInvalidRateLimitFieldsAreIgnored(t *testing.T) {
	const next, century = "946688400", "4102444800" // virtual time begins at 946684800
	nines := strings.Repeat("9", 40)
	for name, fields := range map[string][]string{ // limit, used, reset
		"not numbers":  {"many", "few", "soon"},
		"negative":     {"-5", "-1", "-1"},
		"out of range": {nines, nines, nines},
		"empty":        {"", "", ""},
		"next century": {"60", "60", century},
		"duplicates":   {"60, 5000", "1, 2", next + ", 946692000"},
	} {
		upstream := responds(200, "X-Ratelimit-Limit: "+fields[0], "X-Ratelimit-Used: "+fields[1], "X-Ratelimit-Reset: "+fields[2])
		setup(upstream).sub(t, name, func(w *world) {
			responses := 0
			for i := range 80 { // the anonymous limit is 60 per hour
				if w.get(fmt.Sprint("/users/", i), "Prefer: wait=5").StatusCode == http.StatusOK {
					responses++
				}
			}
			if responses == 0 || responses > 60 {
				w.Errorf("%d of 80 requests were forwarded", responses)
			}
			if name != "next century" { // Weir waits for such a reset, up to a day
				time.Sleep(2 * time.Hour)
				w.want("status two hours later", w.get("/users/next").StatusCode, http.StatusOK)
			}
			w.want("permits in flight", w.inFlight(), 0)
		})
	}
}
