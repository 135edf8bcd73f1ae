package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// crowded is a gateway in which so many may wait.
func crowded(most int) (*Crowd, option) {
	crowd := &Crowd{}
	crowd.Configure(most)
	return crowd, func(c *Config) { c.Crowd = crowd }
}

// TestOverload: at five times of what it can do, goodput is what it was at its peak, and
// who is refused is told at once when to come back. What is held is given all the same.
func TestOverload(t *testing.T) {
	const room, takes, lasts = 50, 100 * time.Millisecond, 10 * time.Second
	capacity := float64(room) / takes.Seconds()
	goodput := func(load float64) (perSecond float64, refused int) {
		synctest.Test(t, func(t *testing.T) {
			_, small := crowded(room)
			w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(takes)
				w.Header().Set("Cache-Control", "max-age=3600")
				_, _ = io.WriteString(w, "answer")
			}, small)
			w.want("what is kept", w.get("/gitignore/templates").StatusCode, 200)
			var mu sync.Mutex
			good := 0
			var clients sync.WaitGroup
			for i := range int(load * capacity * lasts.Seconds()) {
				time.Sleep(time.Duration(float64(time.Second) / (load * capacity)))
				clients.Go(func() {
					began := time.Now()
					r := httptest.NewRequest(http.MethodGet, fmt.Sprint("/users/", i), http.NoBody)
					r.Header.Set("Authorization", fmt.Sprint("Bearer ", i))
					answer := httptest.NewRecorder()
					w.gateway.ServeHTTP(answer, r)
					took := time.Since(began)
					mu.Lock()
					defer mu.Unlock()
					if answer.Code == 200 {
						good++
						return
					}
					refused++
					if took != 0 || answer.Code != 503 || answer.Header().Get("Retry-After") != "1" || answer.Header().Get("Cache-Status") != "weir; detail=overload" {
						t.Errorf("refused after %v: %d %v", took, answer.Code, answer.Header())
					}
				})
				if i%100 == 0 {
					held := httptest.NewRecorder()
					w.gateway.ServeHTTP(held, httptest.NewRequest(http.MethodGet, "/gitignore/templates", http.NoBody))
					w.want("what is held", held.Code, 200)
				}
			}
			clients.Wait()
			perSecond = float64(good) / lasts.Seconds()
		})
		return perSecond, refused
	}
	peak, none := goodput(0.9)
	at5, refused := goodput(5)
	t.Logf("capacity %.0f a second; goodput %.1f at 0.9 times of it, %.1f at 5 times; refused %d and %d", capacity, peak, at5, none, refused)
	if none != 0 || refused == 0 || at5 < 0.9*max(peak, capacity) {
		t.Error("goodput falls")
	}
}

// TestWhoGoesFirstWhenItIsFull: batch jobs, when a quarter of the room is left; and what is
// stale is better than a refusal.
func TestWhoGoesFirstWhenItIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		crowd, small := crowded(4)
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/users/slow" {
				time.Sleep(5 * time.Second)
			}
			w.Header().Set("Cache-Control", "max-age=1, stale-if-error=3600")
			_, _ = io.WriteString(w, "answer")
		}, small, func(c *Config) {
			c.Identify = func(r *http.Request) (Identity, error) {
				who, err := identifyByToken(r)
				who.Caller.Priority = policy.Priority(r.Header.Get("Priority"))
				return who, err
			}
		})
		w.get("/users/held", "Authorization: Bearer a")
		time.Sleep(2 * time.Second)
		var clients sync.WaitGroup
		slow := func(n int) {
			for range n {
				clients.Go(func() { w.get("/users/slow", fmt.Sprint("Authorization: Bearer ", n), "Cache-Control: no-store") })
			}
			synctest.Wait()
		}
		slow(3)
		r := w.get("/user", "Authorization: Bearer b", "Priority: batch")
		w.refused(r, 503, "too many requests wait")
		w.want("a normal one", w.get("/user", "Authorization: Bearer b").StatusCode, 200)
		slow(1)
		w.refused(w.get("/user", "Authorization: Bearer c"), 503, "too many requests wait")
		w.refused(w.do("PUT", "/repos/a/b/subscription", http.NoBody, "Authorization: Bearer c"), 503, "too many requests wait")
		held := w.get("/users/held", "Authorization: Bearer a")
		w.want("what is stale", held.body, "answer")
		if told := held.Header.Get("Cache-Status"); told != "weir; hit; ttl=-1; detail=overload" {
			t.Errorf("told as %s", told)
		}
		clients.Wait()
		w.want("who waits in the end", crowd.inside.Load(), int64(0))
		w.want("when there is room again", w.get("/user", "Authorization: Bearer c").StatusCode, 200)
	})
}

// TestABodyThatNobodyReadsEndsTheConnection, be it of a request that is one too many, or of
// one that the API gets without it: what follows it is no request, and nothing panics.
func TestABodyThatNobodyReadsEndsTheConnection(t *testing.T) {
	for _, c := range []struct {
		name, line string
		most       int
		status     string
	}{
		{"one too many", "PUT /repos/a/b/subscription", 1, "503"},
		{"a GET that brings one", "GET /user", 0, "200"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, small := crowded(c.most)
				w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/users/slow" {
						time.Sleep(5 * time.Second)
					}
				}, small)
				var clients sync.WaitGroup
				clients.Go(func() { w.get("/users/slow", "Authorization: Bearer a") })
				synctest.Wait()
				conn := w.dial()
				defer func() { _ = conn.Close() }()
				go func() {
					_, _ = io.WriteString(conn, c.line+" HTTP/1.1\r\nHost: g\r\nContent-Length: 3\r\n\r\n")
					time.Sleep(50 * time.Millisecond)
					_, _ = io.WriteString(conn, "xyz")
					time.Sleep(50 * time.Millisecond)
					_, _ = io.WriteString(conn, "GET /user HTTP/1.1\r\nHost: g\r\n\r\n")
				}()
				text, _ := io.ReadAll(conn)
				first, rest, _ := strings.Cut(string(text), "\r\n")
				if !strings.Contains(first, c.status) || !strings.Contains(rest, "Connection: close\r\n") || strings.Contains(rest, "HTTP/1.1 ") {
					t.Errorf("got %s\n%s", first, rest)
				}
				clients.Wait()
				time.Sleep(10 * time.Second)
			})
		})
	}
}
