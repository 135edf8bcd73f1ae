package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/redisclient"
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
	upstream := serveAPI(t, api)
	w := &tracedGateway{T: t, received: testservers.StartOTLP(t), address: strings.TrimPrefix(upstream, "http://")}
	cfg := configure(upstream, inboundRate(0, 0), func(c *config.Config) { c.Statistics.Poll.First = 5 * time.Millisecond })
	for _, c := range change {
		c(cfg)
	}
	w.gateway = must(newGateway(cfg, &w.log, slog.LevelInfo))(t)
	t.Cleanup(w.flush)
	return w
}

// flush closes the gateway, which exports all telemetry.
func (w *tracedGateway) flush() { w.ending.Do(func() { noError(w.T, w.close()) }) }

// send sends a request with header fields in the form "name: value".
func (w *tracedGateway) send(method, target string, fields ...string) *httptest.ResponseRecorder {
	w.Helper()
	r := newRequest(method, target, "", fields...)
	r.Host = "example.com"
	return serveRequest(w, r)
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
	stopIf(t, answer.Code != http.StatusOK || answer.Body.String() != "[]", "got %d %s, want 200 []", answer.Code, answer.Body)
	byName, drawn := w.spans()
	const route = "GET /repos/{owner}/{repo}/stats/commit_activity"
	const server, client, behind = route + " server", route + " client", "background " + route + " internal"
	want := []string{
		"> " + server, server + " > queue internal", server + " > " + client, server + " > settle internal", server + " > coalesce internal",
		"> " + behind, behind + " > poll internal", behind + " > queue internal", behind + " > " + client, behind + " > settle internal",
		behind + " > poll internal", behind + " > queue internal", behind + " > " + client, behind + " > settle internal",
	}
	slices.Sort(want)
	diff := cmp.Diff(want, drawn)
	stopIf(t, diff != "", "-want +got:\n%s", diff)
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
	failIf(t, root.Trace != caller || root.Parent != part || background.Trace == caller, "trace %s with parent %s; trace of the background poll %s", root.Trace, root.Parent, background.Trace)
	account := root.Attributes["weir.account"]
	failIf(t, len(account) != 32, "account %q", account)
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
	links := byName["coalesce"][0].Links
	failIf(t, !slices.Equal(links, []string{background.ID}) || !slices.Equal(background.Links, []string{root.ID}), "the coalesced call is linked to %v, the background poll to %v", links, background.Links)
}

// checkAttributes compares attributes. An empty value means that the attribute must be absent.
func (w *tracedGateway) checkAttributes(s testservers.Span, want map[string]string) {
	w.Helper()
	for name, value := range want {
		got, there := s.Attributes[name]
		failIf(w, got != value || there != (value != ""), "%s: %s is %q, want %q", s.Name, name, got, value)
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
	stopIf(t, len(calls) != 1, "%d coalesced calls", len(calls))
	f := calls[0]
	failIf(t, f.Parent != follower.ID || f.Trace != follower.Trace || !slices.Equal(f.Links, []string{leader.ID}) || leader.Trace == follower.Trace, "%+v, want the parent %s and a link to %s", f, follower.ID, leader.ID)
}

// scriptedUpstream responds as the last segment of the path names.
func scriptedUpstream() http.HandlerFunc {
	var computed atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/contributors"):
			if computed.Add(1) <= 2 {
				w.WriteHeader(http.StatusAccepted)
			} else {
				w.WriteHeader(http.StatusInternalServerError)
			}
		case strings.HasSuffix(r.URL.Path, "/rulesets"):
			w.WriteHeader(http.StatusBadGateway)
		case strings.HasSuffix(r.URL.Path, "/rulesuites"):
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			w.Header().Set("Cache-Control", "max-age=60")
		}
	}
}

var tableOfSpans = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (server|client|internal) \\| (.*) \\|$")

// TestEverySpanIsDocumented compares the exported spans, their kinds and their attributes with
// the documentation.
func TestEverySpanIsDocumented(t *testing.T) {
	socket := testservers.Redis(t)
	w := startTraced(t, scriptedUpstream(), func(c *config.Config) {
		c.Store.URL, c.Limits.Points.REST = "unix://"+socket, 3
		c.Credentials = []config.Credential{userToken("ci", "octo-bot", "held-token")}
		for _, name := range []string{"builds", "docs"} {
			c.Clients = append(c.Clients, config.Client{Name: name, Key: keyHash(name), Credentials: []string{"ci"}, Share: 1, Priority: "normal"})
		}
	})
	const user = "Authorization: Bearer tok-owner"
	send := func(path string, fields ...string) { w.send(http.MethodGet, "/repos/acme/"+path, fields...) }
	send("widgets/subscribers", user, "User-Agent: test/1", "Weir-Tag: run-7")
	send("widgets/subscribers", user) // a hit
	send("wheels/subscribers", user)
	send("cogs/subscribers", user)
	send("gears/subscribers", user, "Prefer: respond-async") // out of points
	for _, repository := range []string{"widgets", "wheels", "cogs"} {
		send(repository+"/branches", "Authorization: Bearer docs")
	}
	send("gears/branches", "Authorization: Bearer docs", "Prefer: respond-async")       // out of shared points
	send("widgets/rulesets", user)                                                      // fails with an upstream error
	send("widgets/stats/contributors", "Authorization: Bearer tok2", "Weir-Tag: run-7") // fails in the background
	sendTo(w, http.MethodPost, "/graphql", `{"query": "query Viewer { viewer { login } }"}`, user)
	send("widgets/rulesuites", "Authorization: Bearer tok3") // a limit error
	w.runPipeline(socket)
	w.flush()

	page := must(os.ReadFile("../../docs/observability.md"))(t)
	want, got := map[string][]string{}, map[string][]string{}
	for _, row := range tableOfSpans.FindAllStringSubmatch(string(page), -1) {
		for _, a := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[3], -1) {
			want[row[1]+" "+row[2]] = append(want[row[1]+" "+row[2]], a[1])
		}
	}
	for _, s := range w.received.Spans() {
		name := documentedAs(s)
		got[name] = slices.AppendSeq(got[name], maps.Keys(s.Attributes))
	}
	for _, list := range []map[string][]string{want, got} {
		for name, attributes := range list {
			slices.Sort(attributes)
			list[name] = slices.Compact(attributes)
		}
	}
	for name := range got {
		if len(got[name]) == 0 && strings.Contains(string(page), "| `"+strings.Fields(name)[0]+"` |") {
			delete(got, name) // a span without attributes
		}
	}
	diff := cmp.Diff(want, got)
	failIf(t, diff != "", "-documented +sent:\n%s", diff)
}

// documentedAs returns the name and kind of a span as in the documentation.
func documentedAs(s testservers.Span) string {
	kind := strings.ToLower(strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_"))
	switch {
	case s.Attributes["db.system.name"] != "":
		return "{COMMAND} " + kind
	case strings.HasPrefix(s.Name, "background "):
		return "background {METHOD} {route} " + kind
	case s.Attributes["http.request.method"] != "":
		return "{METHOD} {route} " + kind
	}
	return s.Name + " " + kind
}

// runPipeline sends a pipeline of commands with one error to Redis inside a span.
func (w *tracedGateway) runPipeline(socket string) {
	w.Helper()
	client := must(redisclient.Open("unix://"+socket, nil))(w)
	defer func() { _ = client.Close() }()
	ctx, span := w.telemetry.Tracer().Start(context.Background(), "poll")
	defer span.End()
	p := client.Pipeline()
	p.Set(ctx, "secret-key", "secret-value", time.Minute)
	p.Get(ctx, "secret-key")
	must(p.Exec(ctx))(w)
	failIf(w, client.LPush(ctx, "secret-key", "secret-value").Err() == nil, "the command on a wrong type succeeded")
	err := client.Get(ctx, "no-key").Err()
	failIf(w, err == nil, "the command on a missing key succeeded")
}

// TestRedisCommandsAreTraced checks that each command is a span without keys and values.
func TestRedisCommandsAreTraced(t *testing.T) {
	socket := testservers.Redis(t)
	w := startTraced(t, scriptedUpstream(), func(c *config.Config) { c.Store.URL = "unix://" + socket })
	w.send(http.MethodGet, "/repos/acme/widgets/subscribers", "Authorization: Bearer tok-owner")
	w.send(http.MethodGet, "/repos/acme/widgets/rulesuites", "Authorization: Bearer tok3") // a limit error
	w.runPipeline(socket)
	byName, drawn := w.spans()
	for _, want := range []string{"queue internal > EVALSHA client", "poll internal > PIPELINE client", "poll internal > LPUSH client"} {
		failIf(t, !slices.Contains(drawn, want), "missing span %s in\n%s", want, strings.Join(drawn, "\n"))
	}
	if s := byName["LPUSH"][0]; !s.Failed || s.Attributes["error.type"] != "WRONGTYPE" {
		t.Errorf("the span of a failed command is %+v", s)
	}
	if s := byName["GET"][0]; s.Failed {
		t.Errorf("a missing key counts as failed: %+v", s)
	}
	for _, s := range w.received.Spans() {
		text := fmt.Sprint(s)
		failIf(t, strings.Contains(text, "secret-") || strings.Contains(text, "weir:") || s.Kind == trace.Span_SPAN_KIND_UNSPECIFIED, "span with a secret, a key or no kind: %s", text)
	}
}

// uniqueRequest returns a request with a unique path, token, method, host and address.
func uniqueRequest(i int) *http.Request {
	method := []string{http.MethodGet, fmt.Sprint("FOO", i), "get", http.MethodDelete}[i%4]
	path := []string{
		fmt.Sprintf("/repos/owner-%d/repo-%d/subscribers", i, i), fmt.Sprintf("/made%cup%d/%d", 'a'+rune(i%26), i, i), fmt.Sprintf("/users/zzz-%d", i),
		fmt.Sprintf("/x/%s", strings.Repeat("x/", i%200)), fmt.Sprintf("/repos/o/r/%040x", i), "/%zz", "/search/code?q=zzz-" + fmt.Sprint(i),
	}[i%7]
	if method != http.MethodGet && i%100 > 4 { // few requests reach the upstream, because each account is stored
		path = fmt.Sprintf("/_weir/zzz-%d", i)
	}
	r := newRequest(method, path, "", fmt.Sprintf("Host: host-%d.test", i), fmt.Sprint("Authorization: Bearer user-", i), fmt.Sprint("User-Agent: zzz-", i),
		fmt.Sprintf("Traceparent: 00-%032x-%016x-0%d", i+1, i+1, i%10/9))
	r.RemoteAddr = fmt.Sprintf("10.%d.%d.%d:1", i>>16&255, i>>8&255, i&255)
	if i%50 != 0 {
		r.Header.Set("Cache-Control", "only-if-cached")
	}
	return r
}

// TestMetricLabelsAreBounded sends thousands of unique requests, many of them with sampled
// traces, while no receiver accepts exports.
func TestMetricLabelsAreBounded(t *testing.T) {
	w := startTraced(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Ratelimit-Limit", "5000")
		w.Header().Set("X-Ratelimit-Resource", "zzz-made-up")
	}, func(c *config.Config) {
		c.Cache.Memory = 8 << 20
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", nowhere)
		t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100") // milliseconds
	})
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const requests, warm = 5_000, 500
	var before uint64
	for i := range requests {
		if i == warm {
			before = heap()
		}
		serveRequest(w, uniqueRequest(i))
	}
	after, text := heap(), w.metrics()
	grown := int64(after) - int64(before)
	failIf(t, grown > 48<<20, "the heap grew by %d MiB during %d requests", grown>>20, requests-warm)
	series := map[string]int{}
	for line := range strings.Lines(text) {
		if name, _, ok := strings.Cut(line, "{"); ok && !strings.HasSuffix(name, "_bucket") {
			series[name]++
		}
	}
	for name, n := range series {
		failIf(t, n > 4000, "%s has %d series", name, n)
	}
	for _, part := range []string{"owner-", "repo-", "zzz-", "host-", "FOO", "Bearer", "overflow"} {
		i := strings.Index(text, part)
		failIf(t, i >= 0, "%q is in the metrics: %q", part, text[max(0, i-200):i+len(part)])
	}
	t.Logf("%d MiB before, %d MiB after; series: %v", before>>20, after>>20, series)
}

// exported returns all metrics, spans and logs as text.
func (w *tracedGateway) exported() string {
	text := w.metrics()
	w.flush()
	for _, s := range w.received.Spans() {
		text += fmt.Sprintf("%+v\n", s)
	}
	for _, m := range w.received.Metrics() {
		text += m.String() + "\n"
	}
	for _, l := range w.received.Logs() {
		text += l.String() + "\n"
	}
	return text + w.log.String()
}

// TestTelemetryContainsNoToken puts tokens into paths, queries and header fields.
func TestTelemetryContainsNoToken(t *testing.T) {
	w := startTraced(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "401") {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	for _, token := range []string{"ghp_16C7e42F292c6912E7710c838347Ae178B4a", "a-token-without-a-shape"} {
		for _, path := range []string{
			"/user?access_token=" + token, "/made/" + token, "/made/401", "/repos/" + token + "/x/subscribers", "/repos/acme/x" + token + "/subscribers",
			"//" + token, "/users/" + token[:20],
		} {
			for _, method := range []string{http.MethodGet, http.MethodPut} {
				w.send(method, path, "Authorization: Bearer "+token, "User-Agent: curl "+token, "X-Token: "+token, "Cookie: "+token,
					"Tracestate: a="+token)
			}
		}
	}
	text := w.exported()
	for _, secret := range []string{"16C7e42F292c6912E", "a-token-without-a"} {
		i := strings.Index(text, secret)
		failIf(t, i >= 0, "exported: %s", text[max(0, i-300):i+len(secret)])
	}
	failIf(t, !strings.Contains(text, "REDACTED") || len(w.received.Spans()) < 28, "%d spans were exported", len(w.received.Spans()))
}

// TestTelemetryContainsNoRequestFields checks that spans contain only the attributes of the
// conventions, as valid text of bounded length.
func TestTelemetryContainsNoRequestFields(t *testing.T) {
	const evil = "\r\nlevel=ERROR msg=forged\x1b[31m\xff\xfe\"}{"
	w := startTraced(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Note", "field-of-the-response")
		_, _ = fmt.Fprint(w, "body-of-the-response")
	})
	for _, target := range []string{"/repos/acme/%ff%0d%0a/stats/contributors", "/x/%ff%0d%0a", "/user?q=words-of-the-query", "/search/code?q=words-of-the-query"} {
		w.send("FOO-BAR", target)
		r := newRequest(http.MethodPost, target, "body-of-the-request")
		r.Host, r.RemoteAddr, r.Proto = "h"+evil, evil, "HTTP/1.1"+evil
		for _, name := range []string{"X-Note", "Cookie", "Referer", "X-Request-Id", "Baggage"} {
			r.Header.Set(name, "field-of-the-request"+evil)
		}
		r.Header.Set("User-Agent", strings.Repeat("agent"+evil, 1000))
		serveRequest(w, r)
	}
	w.send(http.MethodGet, "/emojis")
	text := w.exported()
	for _, part := range []string{"field-of-the", "body-of-the", "words-of-the", "FOO-BAR"} {
		i := strings.Index(text, part)
		failIf(t, i >= 0, "exported: %s", text[max(0, i-300):i+len(part)])
	}
	failIf(t, !utf8.ValidString(text), "the export is not valid UTF-8")
	spans := w.received.Spans()
	last := spans[len(spans)-1]
	failIf(t, last.Name != "GET /…", "the last span is %+v", last)
	for _, s := range spans {
		failIf(t, strings.ContainsFunc(s.Name, func(r rune) bool { return !unicode.IsPrint(r) }), "span with the unprintable name %q", s.Name)
		for name, value := range s.Attributes {
			failIf(t, len(value) > 1024, "attribute %s has %d bytes", name, len(value))
		}
	}
}

// TestServeWritesAllAccessLinesBeforeItEnds ends the process right after its last response.
func TestServeWritesAllAccessLinesBeforeItEnds(t *testing.T) {
	var s *served
	t.Run("serve", func(t *testing.T) { // the process ends with the subtest
		s = serve(t, "upstream: {url: "+nowhere+"}\n")
		for range 20 {
			get(t, "http://"+s.gateway+"/rate_limit")
		}
	})
	n := strings.Count(s.output.String(), " msg=request ")
	failIf(t, n != 20, "%d access lines, want 20", n)
}

// TestLogFormatOfTheProcess checks that both kinds of lines have the configured format.
func TestLogFormatOfTheProcess(t *testing.T) {
	messages := map[any]int{}
	t.Run("gateway", func(t *testing.T) {
		g := openLogged(t, configure(nowhere, inJSON), jsonLog(func(line map[string]any) { messages[line["msg"]]++ }))
		sendTo(g, http.MethodGet, "/rate_limit", "")
		_ = g.reload() // fails, because the configuration is not in a file
	})
	failIf(t, messages["request"] != 1 || messages["reload failed; the previous configuration stays in force"] != 1, "got the lines %v", messages)
}

// The pages of the admin listener show requests whose access lines are not written.
func TestAdminPagesShowAllFinishedRequests(t *testing.T) {
	g := open(t, configure(nowhere))
	for n := range 3 {
		sendTo(g, http.MethodGet, "/rate_limit", "")
		got := len(adminAPI[[]history.Request](t, g, "/api/v1/requests"))
		failIf(t, got != n+1, "got %d requests, want %d", got, n+1)
	}
	text := sendTo(g.admin(g.started.Admin), http.MethodGet, "/metrics", "").Body.String()
	failIf(t, !strings.Contains(text, `weir_requests_total{weir_cache="own",weir_client="pass-through",weir_operation="rate-limit/get"} 3`), "the metrics do not count three requests: %s", text)
}
