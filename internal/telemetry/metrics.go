package telemetry

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/record"
)

// Weir's attributes. The semantic conventions have no attributes for caches and limits.
const (
	operationKey = attribute.Key("weir.operation")
	clientKey    = attribute.Key("weir.client")
	cacheKey     = attribute.Key("weir.cache")
	resourceKey  = attribute.Key("weir.resource")
	reasonKey    = attribute.Key("weir.reason")
	accountKey   = attribute.Key("weir.account")
	outcomeKey   = attribute.Key("weir.outcome")
	shownKey     = attribute.Key("weir.shown")
	nameKey      = attribute.Key("server.name")
	versionKey   = attribute.Key("weir.api.version")
)

// other is the label for all values without a separate label.
const other = "_OTHER"

// metrics holds the instruments that count requests.
type metrics struct {
	meter    metric.Meter
	disabled bool

	serverDuration, clientDuration, waits                                    histogram
	requests, spent, saved, admissions, polls, retries, limitErrors, reloads counter
	queryFailures, versions                                                  counter
	refusedDeliveries                                                        counter
	active                                                                   map[string]*active // by method
	queries                                                                  queryNames
	droppedRecords, droppedLines                                             atomic.Int64
}

// labels are the values of the attributes of one measurement, in the order of the keys of its instrument. Empty values and
// the status 0 are left out.
type labels struct {
	values [4]string
	status int
}

// series has the attributes of the measurements of one instrument as options of the SDK, so that a measurement need not
// build them. It is bounded like the series of the SDK.
type series[Option any] struct {
	keys []attribute.Key

	mu      sync.Mutex
	options map[labels][]Option
}

// of returns the options for the values of the attributes.
func (s *series[Option]) of(l labels) []Option {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.options[l]
	if ok {
		return found
	}
	if s.options == nil || len(s.options) >= maxSeries {
		s.options = map[labels][]Option{}
	}
	var list []attribute.KeyValue
	for i, key := range s.keys {
		if l.values[i] != "" {
			list = append(list, key.String(l.values[i]))
		}
	}
	if l.status != 0 {
		list = append(list, semconv.HTTPResponseStatusCode(l.status))
	}
	found = []Option{any(metric.WithAttributeSet(attribute.NewSet(list...))).(Option)}
	s.options[l] = found
	return found
}

type counter struct {
	metric.Int64Counter
	series series[metric.AddOption]
}

func (c *counter) add(ctx context.Context, n int, values ...string) {
	var l labels
	copy(l.values[:], values)
	c.Add(ctx, int64(n), c.series.of(l)...)
}

type histogram struct {
	metric.Float64Histogram
	series series[metric.RecordOption]
}

func (h *histogram) record(ctx context.Context, d time.Duration, status int, values ...string) {
	l := labels{status: status}
	copy(l.values[:], values)
	h.Record(ctx, d.Seconds(), h.series.of(l)...)
}

// active counts the requests of one method.
type active struct{ started, ended atomic.Int64 }

// maxQueryNames bounds the names of GraphQL operations with a separate label.
const maxQueryNames = 100

// queryNames contains the names of GraphQL operations that have a label. The zero value is empty.
type queryNames struct {
	mu    sync.Mutex
	names map[string]bool
}

// label returns the name itself, or other for a name beyond the bound.
func (q *queryNames) label(name string) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case name == "" || q.names[name]:
		return name
	case len(q.names) >= maxQueryNames:
		return other
	case q.names == nil:
		q.names = map[string]bool{}
	}
	q.names[strings.Clone(name)] = true // the name is a part of the body
	return name
}

// open creates the instruments.
func (m *metrics) open(provider metric.MeterProvider) error {
	m.meter = provider.Meter(scope)
	var errs []error
	count := func(c *counter, name, unit, description string, keys ...attribute.Key) {
		instrument, err := m.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		c.Int64Counter, c.series.keys, errs = instrument, keys, append(errs, err)
	}
	measure := func(h *histogram, name, description string, bounds []float64, keys ...attribute.Key) {
		instrument, err := m.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
		h.Float64Histogram, h.series.keys, errs = instrument, keys, append(errs, err)
	}
	conventional := []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10} // from the semantic conventions
	measure(&m.serverDuration, "http.server.request.duration", "duration of client requests", conventional, semconv.HTTPRequestMethodKey, semconv.HTTPRouteKey)
	measure(&m.clientDuration, "http.client.request.duration", "time from a request to the upstream until its response headers", conventional,
		semconv.HTTPRequestMethodKey, semconv.ServerAddressKey, semconv.ErrorTypeKey)
	measure(&m.waits, "weir.wait.duration", "time that requests waited, by client and reason", []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}, clientKey, reasonKey)
	count(&m.requests, "weir.requests", "{request}", "completed requests, by cache outcome", operationKey, clientKey, cacheKey)
	count(&m.spent, "weir.spent", "{request}", "consumed upstream quota: requests, and costs of GraphQL calls", clientKey, operationKey, resourceKey, semconv.GraphQLOperationNameKey)
	count(&m.saved, "weir.saved", "{request}", "responses that consumed no quota and would have without Weir", operationKey)
	count(&m.admissions, "weir.admissions", "{admission}", "decided claims for a permit, by client and outcome", clientKey, resourceKey, reasonKey)
	count(&m.polls, "weir.polls", "{request}", "requests for statistics that the upstream had not computed yet")
	count(&m.retries, "weir.retries", "{request}", "requests whose connection broke before a response, by outcome of the retry", outcomeKey)
	count(&m.reloads, "weir.config.reloads", "{reload}", "configuration reloads, by outcome", outcomeKey)
	count(&m.refusedDeliveries, "weir.webhooks.refused", "{delivery}", "refused webhook deliveries, by reason", reasonKey)
	count(&m.limitErrors, "weir.upstream.limit_errors", "{error}", "responses by which the upstream reports a limit, by kind of limit", resourceKey, reasonKey)
	count(&m.queryFailures, "weir.graphql.failures", "{query}", "GraphQL queries that timed out or exceeded resource limits, and those that Weir refused for it, by client and reason", clientKey, reasonKey)
	count(&m.versions, "weir.api.versions", "{request}", "requests of clients, by the version of the API that they ask for; without the attribute they ask for none", clientKey, versionKey)
	return errors.Join(append(errs, m.openObserved())...)
}

// openObserved creates the instruments whose values are read when metrics are collected.
func (m *metrics) openObserved() error {
	requests, err1 := m.meter.Int64ObservableUpDownCounter("http.server.active_requests", metric.WithUnit("{request}"), metric.WithDescription("requests in progress"))
	dropped, err2 := m.meter.Int64ObservableCounter("weir.observer.dropped", metric.WithUnit("{request}"), metric.WithDescription("finished requests that were not recorded, or not logged"))
	m.active = map[string]*active{}
	for _, method := range append(methods, other) {
		m.active[method] = &active{}
	}
	_, err3 := m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for method, n := range m.active {
			if started := n.started.Load(); started > 0 {
				o.ObserveInt64(requests, started-n.ended.Load(), metric.WithAttributes(semconv.HTTPRequestMethodKey.String(method)))
			}
		}
		o.ObserveInt64(dropped, m.droppedRecords.Load(), metric.WithAttributes(reasonKey.String("record")))
		o.ObserveInt64(dropped, m.droppedLines.Load(), metric.WithAttributes(reasonKey.String("line")))
		return nil
	}, requests, dropped)
	return errors.Join(err1, err2, err3)
}

// methods are the methods with a separate label.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodConnect, http.MethodTrace,
}

// RequestStarted counts a request as active. Each call needs a call of RequestEnded with the same method.
func (m *metrics) RequestStarted(method string) { m.activeBy(method).started.Add(1) }

// RequestEnded counts a request as no longer active.
func (m *metrics) RequestEnded(method string) { m.activeBy(method).ended.Add(1) }

func (m *metrics) activeBy(method string) *active {
	if n, ok := m.active[method]; ok {
		return n
	}
	return m.active[other]
}

// DeliveryRefused counts a refused webhook delivery.
func (m *metrics) DeliveryRefused(reason string) {
	m.refusedDeliveries.add(context.Background(), 1, reason)
}

// Reloaded counts a reload of the configuration. err is the reason for a refusal, or nil.
func (m *metrics) Reloaded(err error) {
	outcome := "applied"
	if err != nil {
		outcome = "refused"
	}
	m.reloads.add(context.Background(), 1, outcome)
}

// observe counts a finished request.
func (m *metrics) observe(r *record.Record) {
	ctx, client := exemplarContext(r), r.ClientLabel()
	if !r.Background {
		m.serverDuration.record(ctx, r.Elapsed, r.Status, r.Method, r.Route)
		m.requests.add(ctx, 1, r.Operation, client, string(r.Outcome))
		m.versions.add(ctx, 1, client, r.Version)
		if r.Saved {
			m.saved.add(ctx, 1, r.Operation)
		}
	}
	resource := r.Resource // the limiter bounds the names (limits.Limiter.ReadRate)
	for _, s := range r.Stages {
		wait := func(reason string) { m.waits.record(ctx, s.Elapsed, 0, client, reason) }
		switch s.Name {
		case record.StageQueue:
			m.admissions.add(ctx, 1, client, resource, s.Admission())
			if s.Detail != "" {
				wait(s.Detail)
			}
		case record.StageRetry:
			outcome := "sent"
			if s.Failed {
				outcome = "given_up"
			}
			m.retries.add(ctx, 1, outcome)
			wait(s.Name)
		case record.StageCoalesce, record.StagePoll:
			wait(s.Name)
		case record.StageRequest:
			status, err := strconv.Atoi(s.Detail)
			errorType := ""
			if err != nil {
				errorType = s.Detail
			}
			if s.Limited != policy.NotLimited {
				m.limitErrors.add(ctx, 1, resource, string(s.Limited))
			}
			m.clientDuration.record(ctx, s.Elapsed, status, r.Method, r.Upstream, errorType)
		}
	}
	if r.Spent > 0 {
		m.spent.add(ctx, r.Spent, client, r.Operation, resource, m.queries.label(r.Query))
	}
	if r.QueryFailure != "" {
		m.queryFailures.add(ctx, 1, client, r.QueryFailure)
	}
	if r.Polls > 0 {
		m.polls.add(ctx, r.Polls)
	}
}

// exemplarContext returns a context with the span of the record. Measurements with this context have the span as an
// exemplar.
func exemplarContext(r *record.Record) context.Context {
	if r.Trace == "" {
		return context.Background()
	}
	traceID, err1 := trace.TraceIDFromHex(r.Trace)
	spanID, err2 := trace.SpanIDFromHex(r.Span)
	if errors.Join(err1, err2) != nil {
		return context.Background()
	}
	return trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled}))
}
