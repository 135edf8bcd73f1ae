package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/limits"
)

// observe records a finished request.
func observe(h *history.History, id, client string) {
	var r history.Request
	r.ID, r.Client, r.Status = id, client, http.StatusOK
	h.Observe(&r.Record)
}

func TestEventStreamOutlivesServerTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := history.New(history.Sources{})
		s := openStream(t, h, "?only=request")
		observe(h, "one", "a\nevent: forged\n\n")
		if got := s.next(); !strings.HasPrefix(got, `event: request id: 1 data: {"id":"one",`) || strings.Contains(got, "event: forged ") {
			t.Errorf("event of the first request: %s", got)
		}
		start := time.Now()
		for range 40 {
			got := s.next()
			stopIf(t, got != ":", "got %s, want a heartbeat", got)
		}
		if elapsed := time.Since(start); elapsed != 10*time.Minute { // the timeouts of the server are 30 seconds
			t.Errorf("40 heartbeats in %s", elapsed)
		}
		observe(h, "two", "")
		got := s.next()
		failIf(t, !strings.HasPrefix(got, `event: request id: 2 data: {"id":"two",`), "event of the second request: %s", got)
		h.Close()
		equal(t, "after Close", s.next(), "end")
	})
}

func TestSlowWatcherIsDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := history.New(history.Sources{})
		openStream(t, h, "?only=request")
		observe(h, strings.Repeat("x", 64<<10), "") // more bytes than the client buffers
		time.Sleep(eventWriteTimeout + time.Second)
		synctest.Wait()
		equal(t, "watchers", h.Watchers(), 0)
	})
}

func TestReconnectReportsMissedEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := history.New(history.Sources{})
		for range 5 {
			observe(h, "", "")
		}
		s := openStream(t, h, "?only=request&rate=1", "Last-Event-ID: 2")
		observe(h, "", "")
		equal(t, "skipped requests", s.next(), `event: skipped id: 5 data: {"requests":3}`)
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
		b.expect("login", login, 200)
		r := newRequest("GET /api/v1/events")
		r.AddCookie(&http.Cookie{Name: "weir-session", Value: b.cookies["weir-session"]})
		status := 0
		go func() { status = serve(handler, r.WithContext(t.Context())).Code }()
		time.Sleep(time.Hour)
		synctest.Wait()
		equal(t, "status during the session", status, 0)
		b.expect("logout", "POST /api/v1/logout", 200)
		time.Sleep(heartbeatInterval + time.Second)
		synctest.Wait()
		equal(t, "status after the session", status, 200)
	})
}

func TestEventStreamRequiresAuthenticationAndIsBounded(t *testing.T) {
	s := sources()
	handler := Handler(Access{Token: "sesame"}, s)
	expectResponse(t, handler, "GET /api/v1/events", 401, "")
	expectResponse(t, handler, "HEAD /api/v1/events", 200, "", bearer)
	equal(t, "watchers after HEAD", s.History.Watchers(), 0)
	for {
		if _, err := s.History.Watch(history.WatchOptions{}); err != nil {
			break
		}
	}
	w := expectResponse(t, handler, "GET /api/v1/events", 503, "too many watchers", bearer)
	failIf(t, w.Header().Get("Retry-After") == "", "no Retry-After")
	s.History.Close()
	expectResponse(t, handler, "GET /api/v1/events", 503, "", bearer)
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
		handler := Handler(Access{}, s)
		expectResponse(t, handler, "GET /api/v1/series", 200, `"step":10,`)
		expectResponse(t, handler, "GET /api/v1/series?account=a%2Fb&account=none", 200, `null,7]},"none":{}}`)
		expectResponse(t, handler, "GET /api/v1/series?account=none", 200, `{"none":{}}`)
		expectResponse(t, handler, "GET /api/v1/series?"+strings.Repeat("account=a&", maxLines+1), 400, "at most 100")
	})
}

func TestIndexIsHTMLOnlyForBrowsers(t *testing.T) {
	handler := Handler(Access{}, sources())
	for accept, html := range map[string]bool{"": false, "*/*": false, "application/json": false, "text/html,application/xhtml+xml,*/*;q=0.8": true} {
		w := send(handler, "GET /", "Accept: "+accept)
		got := strings.Contains(w.Body.String(), "<!doctype html>")
		failIf(t, got != html || w.Header().Get("Vary") != "Accept", "Accept %q: want HTML %v, got %v with the header %v", accept, html, got, w.Header())
	}
	expectResponse(t, handler, "GET /help", 200, "/api/v1/events")
	for _, target := range []string{
		"/assets/", "/assets/js/", "/assets/vendor/LICENSE", "/assets/index.html", "/assets/js/../js/app.js", "/index.html",
	} {
		expectResponse(t, handler, "GET "+target, 404, "")
	}
}

func TestEventStreamHasTheAuditTrail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, trail := history.New(history.Sources{}), NewTrail(slog.New(slog.DiscardHandler))
		trail.OnChange(func(c Change) { h.PublishChange(c) })
		s := openStream(t, h, "?only=audit")
		trail.Record(Change{Operator: "file", Action: "reload", Target: "weir.yaml"})
		_, data, _ := strings.Cut(s.next(), "data: ")
		var c Change
		err := json.Unmarshal([]byte(data), &c)
		failIf(t, err != nil || c.Action != "reload" || c.Target != "weir.yaml", "got %s, %v", data, err)
	})
}
