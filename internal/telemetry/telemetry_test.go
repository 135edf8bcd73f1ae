package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/record"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// must returns a value that the setup of a test needs.
func must[T any](value T, err error) T { return testservers.Must(value, err) }

func noError(t testing.TB, err error) { t.Helper(); testservers.NoError(t, err) }

// equal compares a value with the expected value.
func equal[T any](t testing.TB, name string, got, want T, options ...cmp.Option) {
	t.Helper()
	testservers.Equal(t, name, got, want, options...)
}

// fullRecord returns a record with every kind of stage.
func fullRecord() *record.Record {
	return &record.Record{
		Start: time.Now(), Request: record.Request{Method: http.MethodGet, Route: "/repos/{owner}/{repo}", Operation: "repos/get", Resource: policy.Core, Client: "builds", Upstream: "api.example.com", Version: "2022-11-28"},
		Status: 200, Elapsed: time.Second, Outcome: "collapsed", Saved: true, Spent: 1, Polls: 1, Sent: 2, Report: record.Report{QueryFailure: "timeout"},
		Tracing: record.Tracing{Trace: "0af7651916cd43dd8448eb211c80319c", Span: "b7ad6b7169203331", Stages: []record.Stage{
			{Name: "queue", Elapsed: time.Second, Detail: "points"}, {Name: "attempt", Elapsed: time.Second, Detail: "202"}, {Name: "settle"},
			{Name: "poll", Elapsed: time.Second}, {Name: "queue"}, {Name: "attempt", Detail: "timeout", Failed: true},
			{Name: "queue", Detail: "primary", Failed: true}, {Name: "coalesce", Detail: "stored"},
			{Name: "attempt", Elapsed: time.Second, Detail: "403", Limited: policy.LimitSecondary},
			{Name: "retry", Elapsed: time.Second}, {Name: "retry", Elapsed: time.Second}, {Name: "retry", Failed: true},
		}},
	}
}

// sources returns the sources of a gateway with some accounts. Later accounts have a smaller remaining budget.
func sources(accounts int) Sources {
	return Sources{
		Accounts: func(_ context.Context, most int) ([]limits.Account, error) {
			var list []limits.Account
			for i := range min(accounts, most) {
				list = append(list, limits.Account{Name: fmt.Sprintf("account-%04d", i), InUse: 1, BlockedUntil: time.Now().Add(time.Minute), Budgets: []limits.Budget{
					{Resource: policy.Core, Limit: 10_000, Remaining: 10_000 - i, Reset: time.Now().Add(time.Hour)},
					{Resource: "points:repos/get", Limit: 900, Remaining: 900}, {Resource: "points:user/get", Limit: 900, Remaining: 899}, {Resource: "cpu:", Limit: 90_000, Remaining: 90_000},
					{Resource: "client:core:builds", Client: "builds", Limit: 9000, Remaining: 9000, Nominal: 5000, Upper: 9000},
				}})
			}
			return list, nil
		},
		Waiting: func() map[limits.ClientResource]int {
			return map[limits.ClientResource]int{{Account: "a"}: 2, {Account: "b", Resource: policy.Core, Client: "ci"}: 3}
		},
		Cache: func() (int, uint64) { return 4, 1 << 20 },
		Lost:  func() time.Time { return time.Time{} }, Replicas: func() int { return 2 },
		Reachable:    func() bool { return false },
		Certificates: func() map[string]time.Time { return map[string]time.Time{"gateway.test": time.Now().Add(time.Hour)} },
		Quarantined:  func() int { return 1 },
		LostEvents:   func() int64 { return 2 },
	}
}

// opened returns telemetry for the environment of the test. The telemetry is closed with the test.
func opened(t *testing.T) *Telemetry {
	t.Helper()
	w := must(Open(Config{ServiceName: "weir", Version: "1.2.3", Instance: "one", Sample: 1, Log: io.Discard}))
	t.Cleanup(w.Close)
	return w
}

// record passes records to an observer.
func (t *Telemetry) record(records ...*record.Record) {
	o := t.NewObserver(func(*record.Record) {})
	defer o.Close()
	for _, r := range records {
		o.Observe(r)
	}
}

// watching returns telemetry with gauges of these sources.
func watching(t *testing.T, s Sources) *Telemetry {
	t.Helper()
	w := opened(t)
	noError(t, w.Watch(s))
	return w
}

// scrape returns the response of /metrics. The OpenMetrics format has exemplars.
func (t *Telemetry) scrape(openMetrics bool) string {
	r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	if openMetrics {
		r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	}
	w := httptest.NewRecorder()
	t.ServeHTTP(w, r)
	return w.Body.String()
}

// assertContains fails the test for each line that is not in the text, and logs the lines of the same metric.
func assertContains(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if strings.Contains(text, line) {
			continue
		}
		name, _, _ := strings.Cut(line, "{")
		for other := range strings.Lines(text) {
			if strings.HasPrefix(other, name) {
				t.Log(other)
			}
		}
		t.Errorf("missing: %s", line)
	}
}

// The SDK would export to localhost by default.
func TestOpenExportsOnlyWhatTheEnvironmentSelects(t *testing.T) {
	for _, c := range []struct {
		name, value string
		traces      bool
	}{
		{"OTEL_SERVICE_NAME", "other", false},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", false},
		{"OTEL_TRACES_EXPORTER", "none", false},
		{"OTEL_TRACES_EXPORTER", "console", true},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9", true},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9", true},
		{"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://127.0.0.1:9", false},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			t.Setenv(c.name, c.value)
			w := opened(t)
			logs := strings.Contains(c.name, "LOGS") || c.name == "OTEL_EXPORTER_OTLP_ENDPOINT"
			failIf(t, (w.Tracer() != nil) != c.traces || (w.logs != nil) != logs, "traces %v, logs %v", w.Tracer() != nil, w.logs != nil)
			assertContains(t, w.scrape(false), "go_goroutine_count")
		})
	}
}

func TestOpenRejectsUnknownExporters(t *testing.T) {
	for _, name := range []string{"OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
			t.Setenv(name, "pigeon")
			_, err := Open(Config{Log: io.Discard})
			failIf(t, err == nil || !strings.Contains(err.Error(), "pigeon"), "got the error %v", err)
		})
	}
}

func TestOTELSDKDisabledDisablesAll(t *testing.T) {
	received := testservers.StartOTLP(t)
	t.Setenv("OTEL_SDK_DISABLED", "true")
	w := watching(t, sources(1))
	w.RequestStarted(http.MethodGet)
	w.Reloaded(nil)
	w.Log().Info("line")
	w.record(fullRecord())
	failIf(t, w.Tracer() != nil || w.scrape(false) != "", "telemetry is not disabled")
	w.Close()
	failIf(t, len(received.Spans())+len(received.Metrics())+len(received.Logs()) > 0, "telemetry was exported")
}

func TestEnvironmentOverridesTheServiceName(t *testing.T) {
	for _, c := range []struct{ variable, attributes, want string }{
		{"", "", "weir"}, {"named", "", "named"}, {"", "service.name=listed,team=edge", "listed"}, {"named", "service.name=listed", "named"},
	} {
		received := testservers.StartOTLP(t)
		t.Setenv("OTEL_SERVICE_NAME", c.variable)
		t.Setenv("OTEL_RESOURCE_ATTRIBUTES", c.attributes)
		opened(t).Close()
		resource := received.Resource()
		failIf(t, resource["service.name"] != c.want || resource["service.version"] != "1.2.3" || resource["service.instance.id"] != "one" ||
			strings.Contains(c.attributes, "team") && resource["team"] != "edge", "%+v: got the resource %v", c, resource)
	}
}

func TestSamplerFollowsParentsAndLinks(t *testing.T) {
	span := func(flags trace.TraceFlags) trace.SpanContext {
		return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: flags, Remote: true})
	}
	with := func(c trace.SpanContext) context.Context { return trace.ContextWithSpanContext(t.Context(), c) }
	for _, c := range []struct {
		name     string
		fraction float64
		in       context.Context
		link     trace.SpanContext
		want     bool
	}{
		{"fraction 1", 1, t.Context(), trace.SpanContext{}, true},
		{"fraction 0", 0, t.Context(), trace.SpanContext{}, false},
		{"sampled parent", 0, with(span(trace.FlagsSampled)), trace.SpanContext{}, true},
		{"parent that is not sampled", 1, with(span(0)), trace.SpanContext{}, false},
		{"link to a sampled span", 0, t.Context(), span(trace.FlagsSampled), true},
		{"link to a span that is not sampled", 0, t.Context(), span(0), false},
	} {
		_, s := sdktrace.NewTracerProvider(sdktrace.WithSampler(newSampler(c.fraction))).Tracer("").Start(c.in, "", trace.WithLinks(trace.Link{SpanContext: c.link}))
		equal(t, c.name, s.IsRecording(), c.want)
	}
	tenth, sampled := sdktrace.NewTracerProvider(sdktrace.WithSampler(newSampler(0.1))).Tracer(""), 0
	for range 10_000 {
		if _, s := tenth.Start(t.Context(), ""); s.IsRecording() {
			sampled++
		}
	}
	if sampled < 700 || sampled > 1300 { // ten standard deviations
		t.Errorf("%d of 10,000 spans are sampled", sampled)
	}
}

func TestEnvironmentSelectsTheSampler(t *testing.T) {
	testservers.StartOTLP(t)
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	_, s := opened(t).Tracer().Start(t.Context(), "")
	failIf(t, s.IsRecording(), "the span is sampled")
}

func TestMeasurementsCarryExemplars(t *testing.T) {
	w := opened(t)
	w.record(fullRecord())
	plain := w.scrape(false)
	failIf(t, strings.Contains(plain, "0af7651916cd43dd8448eb211c80319c"), "exemplar in the plain format: %s", plain)
	assertContains(t, w.scrape(true), `span_id="b7ad6b7169203331"`, `trace_id="0af7651916cd43dd8448eb211c80319c"`, "\n# EOF\n")
}

func TestObserverCountsRequests(t *testing.T) {
	w := opened(t)
	hit := &record.Record{Request: record.Request{Method: "GET", Route: "/emojis", Operation: "emojis/get", Client: "builds"}, Status: 200, Outcome: "hit", Saved: true}
	w.record(fullRecord(), hit, hit, &record.Record{Request: record.Request{Method: "GET", Route: "/emojis", Operation: "emojis/get", Resource: "made-up"}, Status: 200, Outcome: "validated", Background: true, Spent: 2, Tracing: record.Tracing{Stages: []record.Stage{{Name: "queue"}}}})
	assertContains(t, w.scrape(false),
		`http_server_request_duration_seconds_count{http_request_method="GET",http_response_status_code="200",http_route="/emojis"} 2`,
		`weir_requests_total{weir_cache="hit",weir_client="builds",weir_operation="emojis/get"} 2`,
		`weir_saved_total{weir_operation="emojis/get"} 2`, `weir_saved_total{weir_operation="repos/get"} 1`,
		`weir_spent_total{weir_client="pass-through",weir_operation="emojis/get",weir_resource="made-up"} 2`, `weir_spent_total{weir_client="builds",weir_operation="repos/get",weir_resource="core"} 1`,
		`weir_admissions_total{weir_client="pass-through",weir_reason="admitted",weir_resource="made-up"} 1`, `weir_admissions_total{weir_client="builds",weir_reason="admitted",weir_resource="core"} 1`,
		`weir_admissions_total{weir_client="builds",weir_reason="waited",weir_resource="core"} 1`, `weir_admissions_total{weir_client="builds",weir_reason="primary",weir_resource="core"} 1`,
		`weir_wait_duration_seconds_sum{weir_client="builds",weir_reason="points"} 1`, `weir_wait_duration_seconds_count{weir_client="builds",weir_reason="coalesce"} 1`, `weir_wait_duration_seconds_sum{weir_client="builds",weir_reason="poll"} 1`,
		`http_client_request_duration_seconds_count{http_request_method="GET",http_response_status_code="202",server_address="api.example.com"} 1`,
		`http_client_request_duration_seconds_count{error_type="timeout",http_request_method="GET",server_address="api.example.com"} 1`,
		`weir_polls_total 1`, `weir_retries_total{weir_outcome="sent"} 2`, `weir_retries_total{weir_outcome="given_up"} 1`, `weir_wait_duration_seconds_sum{weir_client="builds",weir_reason="retry"} 2`,
	)
}

func TestSpentQuotaNamesGraphQLOperations(t *testing.T) {
	w := opened(t)
	for i := range 2 * maxQueryNames {
		w.record(&record.Record{Request: record.Request{Operation: "graphql", Query: fmt.Sprint("Query", i), Client: "builds", Resource: "graphql"}, Spent: 51})
	}
	w.record(&record.Record{Request: record.Request{Operation: "graphql", Query: "Query0", Client: "builds", Resource: "graphql"}, Spent: 2})
	text := w.scrape(false)
	assertContains(t, text,
		`weir_spent_total{graphql_operation_name="Query0",weir_client="builds",weir_operation="graphql",weir_resource="graphql"} 53`,
		`weir_spent_total{graphql_operation_name="_OTHER",weir_client="builds",weir_operation="graphql",weir_resource="graphql"} 5100`)
	equal(t, "series", strings.Count(text, "\nweir_spent_total{"), maxQueryNames+1)
}

func TestSeriesAreBounded(t *testing.T) {
	w := opened(t)
	for i := range maxSeries + 500 {
		w.record(&record.Record{Request: record.Request{Method: "GET", Route: fmt.Sprint("/", i), Operation: fmt.Sprint(i)}, Status: 200, Outcome: "hit", Saved: true})
	}
	text := w.scrape(false)
	for _, name := range []string{"http_server_request_duration_seconds_count", "weir_requests_total", "weir_saved_total"} {
		n := strings.Count(text, "\n"+name+"{")
		failIf(t, n > maxSeries, "%s has %d series", name, n)
		assertContains(t, text, name+`{otel_metric_overflow="true"} 501`)
	}
}

func TestTightestAccountsHaveGauges(t *testing.T) {
	text := watching(t, sources(700)).scrape(false)
	assertContains(t, text, `weir_accounts{weir_shown="true"} 200`, `weir_accounts{weir_shown="false"} 500`,
		`weir_budget_remaining{weir_account="account-0699",weir_resource="core"} 9301`, `weir_budget_remaining{weir_account="account-0699",weir_resource="points"} 899`,
		`weir_queue_length 5`, `weir_store_up 1`, `weir_store_replicas 2`, `weir_cache_entries 4`, `weir_cache_size_bytes 1.048576e+06`, `weir_credentials_quarantined 1`,
		`weir_tls_certificate_expiry_seconds{server_name="gateway.test"} 3`)
	equal(t, "accounts with gauges", strings.Count(text, "\nweir_account_in_flight{"), 200)
}

// Of 100 requests the person has a guarantee of 20 and the job a limit of 50. Both belong to a team.
func TestClientsHaveGauges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := limits.NewMemory(limits.Rules{Limits: policy.DefaultLimits(), ColdStart: "trust"})
		limiter := limits.NewLimiter(ledger)
		caller := func(client string) policy.Caller {
			return policy.Caller{Account: "robot", Kind: policy.User, Client: client, Group: "team", Clients: []policy.ClientBudget{
				{Client: "person", Share: 3, Guarantee: 0.2, Limit: 1}, {Client: "job", Share: 1, Limit: 0.5}, {Client: "team", Limit: 1},
			}}
		}
		claim, reset := limits.Claim{Operation: "user/get", Resource: policy.Core, Points: 1}, time.Now().Add(30*time.Minute)
		for i := range 50 {
			p := must(limiter.Acquire(t.Context(), claim, caller("job"), time.Now()))
			must(limiter.Settle(t.Context(), *p, limits.Outcome{
				Sent: true, Answered: true, Ended: true, Rate: policy.Rate{Resource: policy.Core, Limit: 100, Used: i + 1, Reset: reset},
			}))
		}
		var waiting sync.WaitGroup
		for range 2 {
			waiting.Go(func() { _, _ = limiter.Acquire(t.Context(), claim, caller("job"), time.Now().Add(time.Hour)) })
		}
		synctest.Wait()
		s := sources(0)
		s.Accounts, s.Waiting = ledger.Accounts, limiter.Waiting
		w := watching(t, s)
		text := w.scrape(false)
		for labels, values := range map[string][]int{ // nominal, lower and upper limit, use, demand
			`{weir_account="robot",weir_client="person",weir_resource="core"}`: {75, 20, 100, 0, 0},
			`{weir_account="robot",weir_client="job",weir_resource="core"}`:    {25, 0, 50, 50, 2},
			`{weir_account="robot",weir_client="team",weir_resource="core"}`:   {-1, 0, 100, 50, -1},
		} {
			for i, name := range []string{"nominal_limit", "lower_limit", "upper_limit", "use", "demand"} {
				if values[i] >= 0 {
					assertContains(t, text, fmt.Sprintf("weir_client_%s%s %d\n", name, labels, values[i]))
				}
			}
		}
		for _, not := range []string{`weir_client_nominal_limit{weir_account="robot",weir_client="team"`, `weir_budget_remaining{weir_account="robot",weir_resource="client"`} {
			failIf(t, strings.Contains(text, not), "unexpected series %s", not)
		}
		w.Close()
		waiting.Wait()
	})
}

func TestOtherGaugesWorkWhileTheStoreIsLost(t *testing.T) {
	s := sources(1)
	s.Accounts = func(context.Context, int) ([]limits.Account, error) { return nil, errors.New("no answer") }
	s.Lost = time.Now
	assertContains(t, watching(t, s).scrape(false), "weir_store_up 0", "weir_queue_length 5")
}

func TestLogsCarryTheirSpan(t *testing.T) {
	received := testservers.StartOTLP(t)
	var text strings.Builder
	w := must(Open(Config{ServiceName: "weir", Sample: 1, Log: &text}))
	log := w.Log().With("part", "test").WithGroup("in")
	ctx, span := w.Tracer().Start(t.Context(), "span")
	log.InfoContext(ctx, "with", "n", 1)
	log.Info("without")
	log.DebugContext(ctx, "below the level")
	span.End()
	w.Close()
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	id := span.SpanContext()
	failIf(t, len(lines) != 2 || !strings.Contains(lines[0], "part=test in.n=1 in.trace_id="+id.TraceID().String()+" in.span_id="+id.SpanID().String()) || strings.Contains(lines[1], "trace_id"), "log lines %q", lines)
	sent := received.Logs()
	failIf(t, len(sent) != 2 || fmt.Sprintf("%x", sent[0].GetTraceId()) != id.TraceID().String() || sent[0].GetBody().GetStringValue() != "with", "exported logs %v", sent)
}

func TestExportErrorsAreLoggedOncePerMinute(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		var text strings.Builder
		c := &errorLog{log: slog.New(slog.NewTextHandler(&text, nil))}
		for range 100 {
			c.Handle(errors.New("connection refused"))
			time.Sleep(time.Second)
		}
		n := strings.Count(text.String(), "connection refused")
		failIf(t, n != 2 || !strings.Contains(text.String(), "suppressed=59"), "%d:\n%s", n, &text)
	})
}

func TestErrorsAfterCloseAreNotLogged(t *testing.T) {
	var text bytes.Buffer
	w := must(Open(Config{ServiceName: "weir", Log: &text}))
	otel.Handle(errors.New("the first"))
	w.Close()
	otel.Handle(errors.New("late"))
	w.errors.logged = time.Time{}
	otel.Handle(errors.New("later"))
	s := text.String()
	failIf(t, !strings.Contains(s, "the first") || strings.Contains(s, "late"), "log after Close: %s", s)
}
