package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// slowBody returns a body that arrives at a rate in bytes per second.
func slowBody(rate, size int) io.ReadCloser {
	out, in := io.Pipe()
	go func() {
		for sent := 0; sent < size; sent += rate {
			time.Sleep(time.Second)
			if _, err := in.Write(make([]byte, min(rate, size-sent))); err != nil {
				return
			}
		}
		_ = in.Close()
	}()
	return out
}

// upload sends n slow bodies at the same time, with or without a Content-Length.
func (c *credentialRig) upload(n, rate, size int, withLength bool) (codes chan int) {
	codes = make(chan int, n)
	for i := range n {
		go func() {
			body := slowBody(rate, size)
			defer func() { _ = body.Close() }() // net/http also closes the body
			r := httptest.NewRequest(http.MethodPost, fmt.Sprintf("/repos/acme/x%d/rulesets", i), body)
			r.Header.Set("Authorization", "Bearer key-of-docs")
			if r.ContentLength = -1; withLength {
				r.ContentLength = int64(size)
			}
			w := httptest.NewRecorder()
			c.g.ServeHTTP(w, r)
			codes <- w.Code
		}()
	}
	return codes
}

// TestSlowUploadsBlockNoOtherClient checks that slow uploads hold no permits of an account
// that other clients use.
func TestSlowUploadsBlockNoOtherClient(t *testing.T) {
	const mebi = 1 << 20
	for _, u := range []struct {
		name       string
		rate, size int
		withLength bool
		waiting    int // at the upstream, after a minute
		status     int
	}{
		{"small bodies are buffered before the claim", 3000, mebi, true, 0, 200},
		{"small bodies without Content-Length are buffered before the claim", 3000, mebi, false, 0, 200},
		{"large bodies are streamed", 3000, 5 * mebi / 4, true, 20, 200},
		{"slow small bodies time out", 1100, mebi, true, 0, 408},
		{"slow large bodies time out", 1100, 8 * mebi, true, 20, 408},
		{"endless bodies time out", 3000, 1 << 40, false, 0, 408},
	} {
		t.Run(u.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCredentialRig(t, user("a"))
				c.answer = func(_ string, _ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
				for i := range 32 { // requests with a known length
					c.request("builds", http.MethodPost, fmt.Sprintf("/repos/acme/x%d/rulesets", i), 200)
					time.Sleep(10 * time.Second)
				}
				c.mu.Lock()
				c.spent = nil
				c.mu.Unlock()
				codes := c.upload(20, u.rate, u.size, u.withLength)
				time.Sleep(time.Minute)
				c.mu.Lock()
				waiting := len(c.spent)
				c.mu.Unlock()
				if waiting != u.waiting {
					t.Errorf("%d requests are upstream, want %d", waiting, u.waiting)
				}
				for i := range 8 {
					c.checkTokens(c.request("builds", http.MethodGet, fmt.Sprintf("/repos/acme/x%d/subscribers", i), 200), "tok-a")
					time.Sleep(time.Minute)
				}
				for range 20 {
					if code := <-codes; code != u.status {
						t.Errorf("status %d, want %d", code, u.status)
					}
				}
				time.Sleep(time.Minute) // the uploads end
			})
		})
	}
}
