package admin

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// must returns a value that the setup of a test needs.
func must[T any](value T, err error) T { return testservers.Must(value, err) }

// equal compares a value with the expected value.
func equal[T any](t testing.TB, name string, got, want T) {
	t.Helper()
	testservers.Equal(t, name, got, want)
}

var errLost = errors.New("the store is lost")

func sources() Sources {
	return Sources{
		Ready:    func() bool { return true },
		History:  history.New(history.Sources{Waiting: func() map[limits.ClientResource]int { return nil }}),
		Accounts: func(context.Context, int) ([]limits.Account, error) { return []limits.Account{{Name: "ci"}}, nil },
		Requests: func() any { return []string{"one"} },
		Config:   func() any { return map[string]string{"token": "•••"} },
		Defaults: func() any { return map[string]string{"token": ""} },
		Reload:   func() error { return nil },
		Cache:    func() (int, uint64) { return 3, 4096 },
		Trail:    NewTrail(slog.New(slog.DiscardHandler)),
		Purge: func(p Purge) (int, error) {
			if p.URL == "http://[" {
				return 0, errors.New("no URL")
			}
			return len(p.Tag + p.URL), nil
		},
		Open: func(_ context.Context, account string) error {
			if account != "ci" {
				return limits.ErrNotClosed
			}
			return nil
		},
	}
}

// newRequest returns a request from "METHOD TARGET BODY" and fields such as "Host: localhost".
func newRequest(request string, fields ...string) *http.Request {
	method, rest, _ := strings.Cut(request, " ")
	target, body, _ := strings.Cut(rest, " ")
	r := httptest.NewRequest(method, "http://localhost"+target, strings.NewReader(body))
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Set(name, value)
	}
	return r
}

// send returns the response to a request. See newRequest.
func send(h http.Handler, request string, fields ...string) *httptest.ResponseRecorder {
	return serve(h, newRequest(request, fields...))
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// expectResponse checks the status of the response to a request, and that the body contains a text.
func expectResponse(t testing.TB, h http.Handler, request string, status int, contains string, fields ...string) *httptest.ResponseRecorder {
	t.Helper()
	w := send(h, request, fields...)
	failIf(t, w.Code != status || !strings.Contains(w.Body.String(), contains), "%s %q: got %d %q, want %d with %q", request, fields, w.Code, w.Body, status, contains)
	return w
}

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

// openStream opens an event stream, and reads its first event. The server has the timeouts of the production server.
func openStream(t *testing.T, h *history.History, query string, fields ...string) *stream {
	t.Helper()
	s := sources()
	s.History = h
	server := &http.Server{Handler: Handler(Access{}, s), ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second}
	transport := &http.Transport{DialContext: testservers.ServePipe(t, "127.0.0.1:80", server).Dial}
	t.Cleanup(transport.CloseIdleConnections)
	req := newRequest("GET /api/v1/events"+query, fields...)
	req.RequestURI = ""
	resp := must(transport.RoundTrip(req))
	t.Cleanup(func() { _ = resp.Body.Close() })
	stopIf(t, resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream", "want an event stream, got %s %v", resp.Status, resp.Header)
	opened := &stream{t, bufio.NewScanner(resp.Body)}
	equal(t, "first event", opened.next(), "retry: 1000")
	return opened
}
