package telemetry

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
)

// Attributes of Weir's own: no conventions exist for caches and limits.
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
)

// other stands for all values that have no name of their own.
const other = "_OTHER"

// metrics are the instruments, and what they are told by.
type metrics struct {
	meter metric.Meter
	off   bool // nobody ever looks

	serverDuration, clientDuration, waits                       metric.Float64Histogram
	requests, spent, saved, admissions, polls, retries, reloads metric.Int64Counter
	// active are the requests that are being answered, by the index of their method.
	active [len(methods) + 1]atomic.Int64

	series made[labels, series]
	parts  made[part, measured]
}

// methods are those that count by their own name.
var methods = [...]string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodConnect, http.MethodTrace,
}

// methodIndex is a method's place in methods, or the one behind them.
func methodIndex(method string) int {
	for i, m := range methods {
		if m == method {
			return i
		}
	}
	return len(methods)
}

// labels are all by which a request is counted when it has ended. Its values are of few:
// see [proxy.Record].
type labels struct {
	method, route, operation, client, cache string
	status                                  int
}

// made are what was made of labels before: to make it anew took a twelfth of the allocations
// of a request that passes through.
type made[K comparable, V any] struct {
	mu sync.RWMutex
	by map[K]*V
}

// of reports, too, whether it is kept: more than maxSeries are not, the SDK has a place for
// the rest.
func (m *made[K, V]) of(labels K, anew func(K) *V) (v *V, kept bool) {
	m.mu.RLock()
	v = m.by[labels]
	m.mu.RUnlock()
	if v != nil {
		return v, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if v = m.by[labels]; v != nil { // another was faster
		return v, true
	}
	v = anew(labels)
	if kept = len(m.by) < maxSeries; kept {
		if m.by == nil {
			m.by = map[K]*V{}
		}
		m.by[labels] = v
	}
	return v, kept
}

func (m *made[K, V]) each(do func(*V)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, v := range m.by {
		do(v)
	}
}

// tally is what a counter is still to be told: to count each request by the SDK took a
// twentieth of a hit.
type tally struct {
	counter metric.Int64Counter
	with    []metric.AddOption
	n       atomic.Int64
}

func tallyOf(counter metric.Int64Counter, with metric.MeasurementOption) tally {
	return tally{counter: counter, with: []metric.AddOption{with}}
}

func attributes(list ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(list...))
}

// add counts; what is not kept until somebody looks is told at once.
func (t *tally) add(ctx context.Context, n int, kept bool) {
	if t.n.Add(int64(n)); !kept {
		t.tell(ctx)
	}
}

// tell tells the SDK.
func (t *tally) tell(ctx context.Context) {
	if n := t.n.Swap(0); n > 0 {
		t.counter.Add(ctx, n, t.with...)
	}
}

// series are a request's labels as the instruments take them.
type series struct {
	duration        []metric.RecordOption
	requests, saved tally
}

func (m *metrics) newSeries(l labels) *series {
	operation := operationKey.String(l.operation)
	return &series{
		duration: []metric.RecordOption{attributes(semconv.HTTPRequestMethodKey.String(l.method), semconv.HTTPRoute(l.route), semconv.HTTPResponseStatusCode(l.status))},
		requests: tallyOf(m.requests, attributes(operation, clientKey.String(l.client), cacheKey.String(l.cache))),
		saved:    tallyOf(m.saved, attributes(operation)),
	}
}

// tellAll tells the SDK all that was counted.
func (m *metrics) tellAll(ctx context.Context) {
	m.series.each(func(s *series) {
		s.requests.tell(ctx)
		s.saved.tell(ctx)
	})
	m.parts.each(func(p *measured) { p.count.tell(ctx) })
}

// open makes the instruments.
func (m *metrics) open(provider metric.MeterProvider) error {
	m.meter = provider.Meter(scope)
	var errs []error
	counter := func(name, unit, about string) metric.Int64Counter {
		c, err := m.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
		errs = append(errs, err)
		return c
	}
	histogram := func(name, about string, bounds ...float64) metric.Float64Histogram {
		h, err := m.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(about), metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
		return h
	}
	answers := []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10} // the conventions'
	m.serverDuration = histogram("http.server.request.duration", "how long clients' requests took", answers...)
	m.clientDuration = histogram("http.client.request.duration", "how long the API took to begin its answers", answers...)
	m.waits = histogram("weir.wait.duration", "how long requests waited before something was done for them", .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300)
	m.requests = counter("weir.requests", "{request}", "requests that were answered, by the cache's part in it")
	m.spent = counter("weir.spent", "{request}", "requests that cost the account's quota")
	m.saved = counter("weir.saved", "{request}", "answers that cost nothing and would have without Weir")
	m.admissions = counter("weir.admissions", "{admission}", "requests for a permit, by how they ended")
	m.polls = counter("weir.polls", "{request}", "requests for statistics that were still computed")
	m.retries = counter("weir.retries", "{request}", "requests whose connection broke before an answer had begun, by whether they were sent again")
	m.reloads = counter("weir.config.reloads", "{reload}", "configurations that were read anew")
	active, err := m.meter.Int64ObservableUpDownCounter("http.server.active_requests", metric.WithUnit("{request}"), metric.WithDescription("requests that are being answered"))
	errs = append(errs, err)
	_, err = m.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		m.tellAll(ctx)
		for i := range m.active {
			o.ObserveInt64(active, m.active[i].Load(), metric.WithAttributes(semconv.HTTPRequestMethodKey.String(methodName(i))))
		}
		return nil
	}, active)
	return errors.Join(append(errs, err)...)
}

func methodName(index int) string {
	if index < len(methods) {
		return methods[index]
	}
	return other
}

// Began notes that a request is being answered, Ended that it is not any more.
func (m *metrics) Began(method string) { m.active[methodIndex(method)].Add(1) }

// Ended is told of what Began was told of.
func (m *metrics) Ended(method string) { m.active[methodIndex(method)].Add(-1) }

// Reloaded counts a configuration that was read anew.
func (m *metrics) Reloaded(err error) {
	outcome := "applied"
	if err != nil {
		outcome = "refused"
	}
	m.reloads.Add(context.Background(), 1, metric.WithAttributes(outcomeKey.String(outcome)))
}

// Observer returns what counts the requests of a gateway when they have ended; nil where
// telemetry is off. upstream is the name of the API's host.
func (m *metrics) Observer(upstream string) func(*proxy.Record) {
	if m.off {
		return nil
	}
	return func(r *proxy.Record) {
		ctx := spanOf(r)
		if !r.Background {
			s, kept := m.series.of(labels{r.Method, r.Route, r.Operation, r.ClientLabel(), r.Outcome, r.Status}, m.newSeries)
			m.serverDuration.Record(ctx, r.Elapsed.Seconds(), s.duration...)
			s.requests.add(ctx, 1, kept)
			if r.Saved {
				s.saved.add(ctx, 1, kept)
			}
		}
		if len(r.Stages) > 0 {
			m.observeStages(ctx, r, upstream)
		}
	}
}

// observeStages counts what was done for a request that was not answered at once.
func (m *metrics) observeStages(ctx context.Context, r *proxy.Record, upstream string) {
	resource := known(r.Resource)
	for _, s := range r.Stages {
		switch s.Name {
		case "queue":
			m.count(ctx, 1, part{of: "admission", resource: resource, reason: s.Admission()})
			if s.Detail != "" {
				m.time(ctx, m.waits, s.Elapsed, part{of: "wait", reason: s.Detail})
			}
		case "retry":
			outcome := "sent"
			if s.Failed {
				outcome = "given_up"
			}
			m.count(ctx, 1, part{of: "retry", reason: outcome})
			m.time(ctx, m.waits, s.Elapsed, part{of: "wait", reason: s.Name})
		case "flight", "poll":
			m.time(ctx, m.waits, s.Elapsed, part{of: "wait", reason: s.Name})
		case "attempt":
			m.time(ctx, m.clientDuration, s.Elapsed, part{of: "attempt", method: r.Method, upstream: upstream, reason: s.Detail})
		}
	}
	if r.Spent > 0 {
		m.count(ctx, r.Spent, part{of: "spent", client: r.ClientLabel(), operation: r.Operation, resource: resource})
	}
	if r.Polls > 0 {
		m.polls.Add(ctx, int64(r.Polls))
	}
}

// part is a part of a request's journey as it is counted: what it is, and its labels.
type part struct {
	of, method, upstream, reason, resource, client, operation string
}

// measured is a part as the instruments take it: its attributes, and its count, of what has one.
type measured struct {
	record []metric.RecordOption
	count  tally
}

func (m *metrics) newMeasured(p part) *measured {
	var counter metric.Int64Counter
	var with metric.MeasurementOption
	switch p.of {
	case "admission":
		counter, with = m.admissions, attributes(resourceKey.String(p.resource), reasonKey.String(p.reason))
	case "retry":
		counter, with = m.retries, attributes(outcomeKey.String(p.reason))
	case "spent":
		counter, with = m.spent, attributes(clientKey.String(p.client), operationKey.String(p.operation), resourceKey.String(p.resource))
	case "attempt":
		with = attributes(semconv.HTTPRequestMethodKey.String(p.method), semconv.ServerAddress(p.upstream), answered(p.reason))
	case "wait":
		with = attributes(reasonKey.String(p.reason))
	}
	return &measured{record: []metric.RecordOption{with}, count: tallyOf(counter, with)}
}

func (m *metrics) count(ctx context.Context, n int, p part) {
	o, kept := m.parts.of(p, m.newMeasured)
	o.count.add(ctx, n, kept)
}

func (m *metrics) time(ctx context.Context, in metric.Float64Histogram, took time.Duration, p part) {
	o, _ := m.parts.of(p, m.newMeasured)
	in.Record(ctx, took.Seconds(), o.record...)
}

// answered is the status of an answer, or what there was in its place.
func answered(detail string) attribute.KeyValue {
	if status, err := strconv.Atoi(detail); err == nil {
		return semconv.HTTPResponseStatusCode(status)
	}
	return semconv.ErrorTypeKey.String(detail)
}

// known bounds what a resource may be called: the API says it in a header.
func known(resource string) string {
	if policy.IsResource(resource) {
		return resource
	}
	return other
}

// spanOf is a context by which a measurement names the request's span as an example;
// nothing is made where no trace of it is kept.
func spanOf(r *proxy.Record) context.Context {
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

// seconds until a time, none where it is over.
func until(t, now time.Time) float64 { return max(0, t.Sub(now).Seconds()) }
