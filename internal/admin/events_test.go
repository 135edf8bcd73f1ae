package admin

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
)

// stream is a client of the event stream over an in-memory network.
type stream struct {
	*testing.T
	lines *bufio.Scanner
}

// next returns the name, ID and data of the next event, or "end".
func (s *stream) next() (event string) {
	s.Helper()
	for s.lines.Scan() {
		if s.lines.Text() == "" {
			if event != "" {
				return strings.TrimSpace(event)
			}
			continue
		}
		event += s.lines.Text() + " "
	}
	return "end"
}

// openStream opens an event stream. The server has the timeouts of the production server.
func openStream(t *testing.T, h *history.History, a Access, query string, fields ...string) *stream {
	t.Helper()
	s := sources()
	s.History = h
	l := testservers.ServePipe(t, "127.0.0.1:80", &http.Server{Handler: Handler(a, s), ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second})
	transport := &http.Transport{DialContext: l.Dial}
	t.Cleanup(transport.CloseIdleConnections)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/api/v1/events"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("want an event stream, got %s %v", resp.Status, resp.Header)
	}
	return &stream{t, bufio.NewScanner(resp.Body)}
}

// observe records a finished request.
func observe(h *history.History, id, client string) {
	var r history.Request
	r.ID, r.Client, r.Status = id, client, http.StatusOK
	h.Observe(&r.Record)
}

func TestEventStreamOutlivesServerTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := history.New(history.Sources{})
		s := openStream(t, h, Access{}, "?only=request")
		if got := s.next(); got != "retry: 1000" {
			t.Errorf("first event: %s", got)
		}
		observe(h, "one", "a\nevent: forged\n\n")
		if got := s.next(); !strings.HasPrefix(got, `event: request id: 1 data: {"id":"one",`) || strings.Contains(got, "event: forged ") {
			t.Errorf("event of the first request: %s", got)
		}
		start := time.Now()
		for range 40 {
			if got := s.next(); got != ":" {
				t.Fatalf("got %s, want a heartbeat", got)
			}
		}
		if elapsed := time.Since(start); elapsed != 10*time.Minute { // the timeouts of the server are 30 seconds
			t.Errorf("40 heartbeats in %s", elapsed)
		}
		observe(h, "two", "")
		if got := s.next(); !strings.HasPrefix(got, `event: request id: 2 data: {"id":"two",`) {
			t.Errorf("event of the second request: %s", got)
		}
		h.Close()
		if got := s.next(); got != "end" {
			t.Errorf("got %s after Close, want the end", got)
		}
	})
}

func TestSlowWatcherIsDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := history.New(history.Sources{})
		s := openStream(t, h, Access{}, "?only=request")
		s.next()
		observe(h, strings.Repeat("x", 64<<10), "") // more bytes than the client buffers
		time.Sleep(eventWriteTimeout + time.Second)
		synctest.Wait()
		if n := h.Watchers(); n != 0 {
			t.Errorf("%d watchers", n)
		}
	})
}

func TestReconnectReportsMissedEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := history.New(history.Sources{})
		for range 5 {
			observe(h, "", "")
		}
		s := openStream(t, h, Access{}, "?only=request&rate=1", "Last-Event-ID", "2")
		s.next()
		observe(h, "", "")
		if got := s.next(); got != `event: skipped id: 5 data: {"requests":3}` {
			t.Errorf("got %s, want three skipped requests", got)
		}
		h.Close()
	})
}

func TestEventStreamEndsWithItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := history.New(history.Sources{})
		s := sources()
		s.History = h
		handler := Handler(Access{Token: "sesame"}, s)
		b := newBrowser(t, handler)
		b.send("POST", "/api/v1/login", `{"token":"sesame"}`)
		ended := make(chan int)
		go func() {
			r := httptest.NewRequestWithContext(t.Context(), "GET", "http://localhost/api/v1/events", nil)
			r.AddCookie(&http.Cookie{Name: "weir-session", Value: b.cookies["weir-session"]})
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			ended <- w.Code
		}()
		time.Sleep(time.Hour)
		select {
		case <-ended:
			t.Error("the stream ended before the session")
		default:
		}
		b.send("POST", "/api/v1/logout", "")
		time.Sleep(heartbeatInterval + time.Second)
		select {
		case status := <-ended:
			if status != 200 {
				t.Errorf("got status %d, want 200", status)
			}
		default:
			t.Error("the stream continues without a session")
		}
	})
}

func TestEventStreamRequiresAuthenticationAndIsBounded(t *testing.T) {
	h := history.New(history.Sources{})
	s := sources()
	s.History = h
	handler := Handler(Access{Token: "sesame"}, s)
	if w := respond(handler, "GET", "http://localhost/api/v1/events", nil); w.Code != 401 {
		t.Errorf("without the token: %d", w.Code)
	}
	withToken := func(r *http.Request) { r.Header.Set("Authorization", "Bearer sesame") }
	if w := respond(handler, "HEAD", "http://localhost/api/v1/events", withToken); w.Code != 200 || h.Watchers() != 0 {
		t.Errorf("HEAD: %d", w.Code)
	}
	for {
		if _, err := h.Watch(history.WatchOptions{}); err != nil {
			break
		}
	}
	if w := respond(handler, "GET", "http://localhost/api/v1/events", withToken); w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "too many watchers") {
		t.Errorf("above the limit: %d %s", w.Code, w.Body)
	}
	h.Close()
	if w := respond(handler, "GET", "http://localhost/api/v1/events", withToken); w.Code != 503 {
		t.Errorf("after Close: %d %s", w.Code, w.Body)
	}
}

func TestSeriesHasTotalsAndBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := history.New(history.Sources{
			Accounts: func(context.Context, int) ([]limits.Account, error) {
				return []limits.Account{{Name: "a/b", Budgets: []limits.Budget{{Resource: "core", Limit: 10, Used: 3, Remaining: 7}}}}, nil
			},
			Waiting: func() map[limits.ClientResource]int { return nil }, State: func() any { return nil },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { h.Run(ctx); close(done) }()
		synctest.Wait()
		cancel()
		<-done
		s := sources()
		s.History = h
		for target, contains := range map[string]string{
			"/api/v1/series": `"step":10,`,
			"/api/v1/series?account=a%2Fb&account=none":                  `null,7]},"none":{}}`,
			"/api/v1/series?account=none":                                `{"none":{}}`,
			"/api/v1/series?" + strings.Repeat("account=a&", maxLines+1): "at most 100",
		} {
			if w := respond(Handler(Access{}, s), "GET", "http://localhost"+target, nil); !strings.Contains(w.Body.String(), contains) {
				t.Errorf("%s: got %d %s, want %s", target, w.Code, w.Body, contains)
			}
		}
	})
}

func TestIndexIsHTMLOnlyForBrowsers(t *testing.T) {
	handler := Handler(Access{}, sources())
	for accept, html := range map[string]bool{"": false, "*/*": false, "application/json": false, "text/html,application/xhtml+xml,*/*;q=0.8": true} {
		w := respond(handler, "GET", "http://localhost/", func(r *http.Request) { r.Header.Set("Accept", accept) })
		if got := strings.Contains(w.Body.String(), "<!doctype html>"); got != html || w.Header().Get("Vary") != "Accept" {
			t.Errorf("Accept %q: want HTML %v, got %v with the header %v", accept, html, got, w.Header())
		}
	}
	if w := respond(handler, "GET", "http://localhost/help", nil); !strings.Contains(w.Body.String(), "/api/v1/events") {
		t.Errorf("help without the event stream: %d %s", w.Code, w.Body)
	}
	for _, target := range []string{"/assets/", "/assets/js/", "/assets/vendor/LICENSE", "/assets/index.html", "/assets/js/../js/app.js", "/index.html"} {
		if w := respond(handler, "GET", "http://localhost"+target, nil); w.Code != 404 {
			t.Errorf("%s: got %d, want 404", target, w.Code)
		}
	}
}
