package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/testservers"
)

// tracedGateway is a gateway that exports its telemetry to the test.
type tracedGateway struct {
	*testing.T
	*gateway
	received *testservers.OTLP
	address  string // address of the API
	log      strings.Builder
	ending   sync.Once
}

// startTraced starts a gateway that polls statistics every few milliseconds. The function
// change can change the configuration.
func startTraced(t *testing.T, api http.HandlerFunc, change ...func(*config.Config)) *tracedGateway {
	t.Helper()
	upstream := httptest.NewServer(api)
	t.Cleanup(upstream.Close)
	w := &tracedGateway{T: t, received: testservers.StartOTLP(t), address: strings.TrimPrefix(upstream.URL, "http://")}
	cfg := config.Default()
	cfg.Upstream.URL = upstream.URL
	cfg.Statistics.Poll.First, cfg.Limits.Inbound.Rate = 5*time.Millisecond, 0
	for _, c := range change {
		c(cfg)
	}
	var err error
	if w.gateway, err = newGateway(cfg, slog.New(slog.NewTextHandler(&w.log, nil))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.flush)
	return w
}

// flush closes the gateway, which exports all telemetry.
func (w *tracedGateway) flush() { w.ending.Do(w.close) }

// send sends a request with header fields in the form "name: value".
func (w *tracedGateway) send(method, target string, fields ...string) *httptest.ResponseRecorder {
	w.Helper()
	r := httptest.NewRequest(method, target, http.NoBody)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Add(name, value)
	}
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, r)
	return answer
}

// spans closes the gateway, and returns all spans by name, and each span as "parent > name".
func (w *tracedGateway) spans() (byName map[string][]testservers.Span, drawn []string) {
	w.Helper()
	w.flush()
	byName = map[string][]testservers.Span{}
	names := map[string]string{}
	all := w.received.Spans()
	for _, s := range all {
		byName[s.Name] = append(byName[s.Name], s)
		names[s.ID] = s.Name + " " + strings.ToLower(strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_"))
	}
	for _, s := range all {
		drawn = append(drawn, strings.TrimSpace(names[s.Parent]+" > "+names[s.ID]))
	}
	slices.Sort(drawn)
	return byName, drawn
}

const commits = "/repos/acme/widgets/stats/commit_activity"

// computing responds with 202 several times, then with statistics.
func computing(times int32) http.HandlerFunc {
	var requests atomic.Int32
	return func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) <= times {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Cache-Control", "max-age=60")
		_, _ = fmt.Fprint(w, "[]")
	}
}

// TestStatisticsRequestIsTraced checks the span of each stage of a polled request.
func TestStatisticsRequestIsTraced(t *testing.T) {
	w := startTraced(t, computing(2))
	const caller, part = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	answer := w.send(http.MethodGet, commits+"?secret=1", "Traceparent: 00-"+caller+"-"+part+"-01", "User-Agent: test/1", "Authorization: Bearer tok-owner")
	if answer.Code != http.StatusOK || answer.Body.String() != "[]" {
		t.Fatalf("got %d %s, want 200 []", answer.Code, answer.Body)
	}
	byName, drawn := w.spans()
	const route = "GET /repos/{owner}/{repo}/stats/commit_activity"
	const server, client, behind = route + " server", route + " client", "background " + route + " internal"
	want := []string{
		"> " + server, server + " > queue internal", server + " > " + client, server + " > settle internal", server + " > coalesce internal",
		"> " + behind, behind + " > poll internal", behind + " > queue internal", behind + " > " + client, behind + " > settle internal",
		behind + " > poll internal", behind + " > queue internal", behind + " > " + client, behind + " > settle internal",
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, drawn); diff != "" {
		t.Fatalf("-want +got:\n%s", diff)
	}
	root, background := byName[route][0], byName["background "+route][0]
	var attempts []testservers.Span
	for _, s := range byName[route] {
		if s.Kind == trace.Span_SPAN_KIND_CLIENT {
			attempts = append(attempts, s)
		} else {
			root = s
		}
	}
	w.checkAttributes(root, map[string]string{
		"http.request.method": "GET", "http.route": "/repos/{owner}/{repo}/stats/commit_activity", "http.response.status_code": "200",
		"url.path": commits, "url.scheme": "http", "server.address": "example.com", "server.port": "80", "client.address": "192.0.2.1",
		"network.protocol.version": "1.1", "user_agent.original": "test/1",
		"weir.operation": "statistics/commit-activity", "weir.client": "pass-through", "weir.cache": "collapsed", "weir.admission": "admitted",
	})
	if root.Trace != caller || root.Parent != part || background.Trace == caller {
		t.Errorf("trace %s with parent %s; trace of the background poll %s", root.Trace, root.Parent, background.Trace)
	}
	if account := root.Attributes["weir.account"]; len(account) != 32 {
		t.Errorf("account %q", account)
	}
	host, port, _ := strings.Cut(w.address, ":")
	for i, s := range attempts {
		status, again := "202", ""
		if i == 2 {
			status, again = "200", "1"
		}
		w.checkAttributes(s, map[string]string{
			"http.request.method": "GET", "url.template": "/repos/{owner}/{repo}/stats/commit_activity", "url.full": "http://" + w.address + commits,
			"server.address": host, "server.port": port, "http.response.status_code": status, "http.request.resend_count": again,
		})
	}
	if links := byName["coalesce"][0].Links; !slices.Equal(links, []string{background.ID}) || !slices.Equal(background.Links, []string{root.ID}) {
		t.Errorf("the coalesced call is linked to %v, the background poll to %v", links, background.Links)
	}
}

// checkAttributes compares attributes. An empty value means that the attribute must be absent.
func (w *tracedGateway) checkAttributes(s testservers.Span, want map[string]string) {
	w.Helper()
	for name, value := range want {
		if got, there := s.Attributes[name]; got != value || there != (value != "") {
			w.Errorf("%s: %s is %q, want %q", s.Name, name, got, value)
		}
	}
}

func TestFollowerSpanLinksToLeader(t *testing.T) {
	requests := make(chan struct{}, 1)
	w := startTraced(t, func(w http.ResponseWriter, _ *http.Request) {
		requests <- struct{}{}
		<-time.After(100 * time.Millisecond) // the second request arrives during this time
		w.Header().Set("Cache-Control", "max-age=60")
	})
	collapsed := false
	for i := 0; !collapsed && i < 50; i++ { // repeat if the second request arrived too late
		var first sync.WaitGroup
		target := fmt.Sprintf("/repos/acme/widgets/subscribers?page=%d", i)
		first.Go(func() { w.send(http.MethodGet, target) })
		<-requests
		collapsed = strings.Contains(w.send(http.MethodGet, target).Header().Get("Cache-Status"), "collapsed")
		first.Wait()
	}
	byName, _ := w.spans()
	var leader, follower testservers.Span
	for _, s := range byName["GET /repos/{owner}/{repo}/subscribers"] {
		switch {
		case s.Kind == trace.Span_SPAN_KIND_SERVER && s.Attributes["weir.cache"] == "collapsed":
			follower = s
		case s.Kind == trace.Span_SPAN_KIND_SERVER:
			leader = s // the span of the last request
		}
	}
	calls := byName["coalesce"]
	if len(calls) != 1 {
		t.Fatalf("%d coalesced calls", len(calls))
	}
	f := calls[0]
	if f.Parent != follower.ID || f.Trace != follower.Trace || !slices.Equal(f.Links, []string{leader.ID}) || leader.Trace == follower.Trace {
		t.Errorf("%+v, want the parent %s and a link to %s", f, follower.ID, leader.ID)
	}
}
