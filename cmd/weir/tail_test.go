package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/record"
)

// sampleRecords returns one request of every kind.
func sampleRecords() []*record.Record {
	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	return []*record.Record{
		{
			ID: "6", Start: at, Request: record.Request{Method: "POST", Route: "/graphql", Operation: "graphql", Query: "PullRequestList", Account: "octo-bot", Client: "builds", Resource: "graphql"},
			Outcome: "bypass", Status: 200, Elapsed: 80 * time.Millisecond, Cache: record.CacheStatus{Forward: record.ForwardMethod, ForwardStatus: 200}, Sent: 1, Spent: 51,
		},
		{
			ID: "1", Start: at, Request: record.Request{Method: "GET", Route: "/user", Operation: "users/get-authenticated", Account: "octo-bot", Client: "builds", Tag: "acme/widgets", Resource: "core"},
			Outcome: "miss", Status: 200, Elapsed: 42 * time.Millisecond, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200, Stored: true, TTL: 60, HasTTL: true}, Sent: 1, Spent: 1, Tracing: record.Tracing{Stages: []record.Stage{
				{Name: "queue", Start: 100 * time.Microsecond, Elapsed: 2 * time.Millisecond, Detail: "concurrency"},
				{Name: "attempt", Start: 2100 * time.Microsecond, Elapsed: 39 * time.Millisecond, Detail: "200"},
				{Name: "settle", Start: 41 * time.Millisecond, Elapsed: 12 * time.Microsecond},
			}},
		},
		{
			ID: "2", Start: at, Request: record.Request{Method: "GET", Route: "/user", Operation: "users/get-authenticated", Account: "octo-bot", Client: "builds"}, Outcome: "hit",
			Status: 200, Elapsed: 90 * time.Microsecond, Cache: record.CacheStatus{Hit: true, TTL: 59, HasTTL: true},
		},
		{
			ID: "3", Start: at, Request: record.Request{Method: "GET", Route: "/search/code", Operation: "search/code", Account: "0a1b2c"}, Outcome: "refused", Status: 429,
			Elapsed: 3 * time.Second, Cache: record.CacheStatus{Detail: "primary"}, Waited: 3 * time.Second, Tracing: record.Tracing{Stages: []record.Stage{
				{Name: "queue", Elapsed: 3 * time.Second, Detail: "primary", Failed: true, Shared: &limits.SharedUse{
					Budget: "search", Limit: 30, Clients: []limits.ClientUse{{Client: "agent", Used: 21}, {Client: "ci", Used: 9}},
				}},
			}},
		},
		{
			ID: "4", Start: at, Request: record.Request{Method: "_OTHER", Route: "/x\x1b[2J", Operation: "unknown", Account: "0a1b2c", Client: "evil\n\x1b[31m"}, Outcome: "refused",
			Status: 502, Elapsed: time.Second, Cache: record.CacheStatus{Detail: "upstream"},
		},
		{
			ID: "5", Start: at, Request: record.Request{Method: "GET", Route: "/user", Operation: "users/get-authenticated", Account: "octo-bot"}, Background: true,
			Outcome: "validated", Status: 304, Cache: record.CacheStatus{Forward: record.ForwardStale, ForwardStatus: 304}, Sent: 1,
		},
		{
			ID: "7", Start: at, Request: record.Request{Method: "GET", Route: "/user", Operation: "users/get-authenticated", Account: "octo-bot"}, Outcome: "miss", Status: 403,
			Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 403}, Background: true, Report: record.Report{Limited: policy.LimitSecondary}, Tracing: record.Tracing{Stages: []record.Stage{{Name: "request", Detail: "403", Limited: policy.LimitSecondary}}},
		},
	}
}

// startEvents implements the script command "events NAME [TOKEN]". It starts an admin listener that sends the sample
// requests to the first watcher, and sets NAME to its URL. "requests 1" waits for the next watcher.
func startEvents(ts *testscript.TestScript, _ bool, args []string) {
	token := ""
	if len(args) > 1 {
		token = args[1]
	}
	again := make(chan struct{}, 100)
	*ts.Value(adminRequests{}).(*chan struct{}) = again
	var watches atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, first := history.New(history.Sources{}), watches.Add(1) == 1
		pages := admin.Handler(admin.Access{Token: credential.Secret(token)}, admin.Sources{Trail: admin.NewTrail(slog.New(slog.DiscardHandler)), History: h, Requests: recentSamples})
		pages.ServeHTTP(&flushHook{w, sync.OnceFunc(func() {
			if !first {
				again <- struct{}{}
				return
			}
			for _, record := range sampleRecords() {
				h.Observe(record)
			}
			h.Close()
		})}, r)
	}))
	ts.Defer(server.Close)
	ts.Setenv(args[0], server.URL)
}

// recentSamples returns the sample requests in the form of the admin API, newest first.
func recentSamples() any {
	h := history.New(history.Sources{})
	var list []history.Request
	for _, r := range slices.Backward(sampleRecords()) {
		list = append(list, h.Request(r))
	}
	return list
}

// flushHook calls a function on each flush.
type flushHook struct {
	http.ResponseWriter
	then func()
}

func (b *flushHook) FlushError() error {
	err := http.NewResponseController(b.ResponseWriter).Flush()
	b.then()
	return err
}

func (b *flushHook) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func TestTailReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var connections atomic.Int32
		var after atomic.Value
		h := history.New(history.Sources{})
		pages := admin.Handler(admin.Access{Hosts: []string{"admin.test"}}, admin.Sources{History: h})
		l := testservers.ServePipe(t, "admin.test:80", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			after.Store(r.Header.Get("Last-Event-ID"))
			switch connections.Add(1) {
			case 2:
				http.Error(w, "not yet", http.StatusBadGateway)
			case 3: // sends nothing
				w.Header().Set("Content-Type", "text/event-stream")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			default:
				ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
				defer cancel()
				pages.ServeHTTP(w, r.WithContext(ctx))
			}
		})})
		var out, problems testservers.Output
		v := &tailView{tailCommand: &tailCommand{}, admin: &adminClient{pipeClient(t, l).Transport, "http://admin.test", ""}, out: &out, problems: &problems}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- v.follow(ctx) }()
		synctest.Wait()
		h.Observe(sampleRecords()[0])
		time.Sleep(80 * time.Second) // the sum of the delays between connections
		for range 3 {
			h.Observe(sampleRecords()[1])
		}
		synctest.Wait()
		cancel()
		err := <-ended
		failIf(t, err != nil, "%v", err)
		messages := problems.Take()
		for _, want := range []string{"retrying in 1s", "answered 502", "retrying in 2s", "no data received for 45s"} {
			failIf(t, !strings.Contains(messages, want), "%q is missing in %s", want, messages)
		}
		lines := out.Take()
		n := strings.Count(lines, "\n")
		failIf(t, n != 4 || after.Load() != "1", "%d lines, after %v: %s", n, after.Load(), lines)
	})
}
