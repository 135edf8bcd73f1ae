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

// drips is the body of a client that sends so many bytes a second.
func drips(rate, size int) io.ReadCloser {
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

// uploads has a client send bodies slowly, all at once, of a length that is told or not.
func (c *counter) uploads(n, rate, size int, told bool) (codes chan int) {
	codes = make(chan int, n)
	for i := range n {
		go func() {
			body := drips(rate, size)
			defer func() { _ = body.Close() }() // as the server does
			r := httptest.NewRequest(http.MethodPost, fmt.Sprintf("/repos/acme/x%d/rulesets", i), body)
			r.Header.Set("Authorization", "Bearer key-of-docs")
			if r.ContentLength = -1; told {
				r.ContentLength = int64(size)
			}
			w := httptest.NewRecorder()
			c.g.ServeHTTP(w, r)
			codes <- w.Code
		}()
	}
	return codes
}

// TestAttack46SlowUploadsShutNobodyOut: those who send slowly, and yet not too slowly,
// take nothing of an account from others who spend it.
func TestAttack46SlowUploadsShutNobodyOut(t *testing.T) {
	const mebi = 1 << 20
	for _, u := range []struct {
		name       string
		rate, size int
		told       bool
		waiting    int // at the upstream, after a minute
		status     int
	}{
		{"small ones are read before anything is asked for", 3000, mebi, true, 0, 200},
		{"so are those of no known length", 3000, mebi, false, 0, 200},
		{"large ones pass, and their time is their own", 3000, 5 * mebi / 4, true, 20, 200},
		{"small ones have a time", 1100, mebi, true, 0, 408},
		{"large ones have a time", 1100, 8 * mebi, true, 20, 408},
		{"those without an end have a time", 3000, 1 << 40, false, 0, 408},
	} {
		t.Run(u.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := openCounter(t, user("a"))
				c.answer = func(_ string, _ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
				for i := range 32 { // how long they take is known
					c.asks("builds", http.MethodPost, fmt.Sprintf("/repos/acme/x%d/rulesets", i), 200)
					time.Sleep(10 * time.Second)
				}
				c.mu.Lock()
				c.spent = nil
				c.mu.Unlock()
				codes := c.uploads(20, u.rate, u.size, u.told)
				time.Sleep(time.Minute)
				c.mu.Lock()
				waiting := len(c.spent)
				c.mu.Unlock()
				if waiting != u.waiting {
					t.Errorf("%d are at the upstream, want %d", waiting, u.waiting)
				}
				for i := range 8 {
					c.paid(c.asks("builds", http.MethodGet, fmt.Sprintf("/repos/acme/x%d/subscribers", i), 200), "tok-a")
					time.Sleep(time.Minute)
				}
				for range 20 {
					if code := <-codes; code != u.status {
						t.Errorf("told %d, want %d", code, u.status)
					}
				}
				time.Sleep(time.Minute) // who sends on finds that nobody reads
			})
		})
	}
}
