package telemetry

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/proxy"
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
)

// other is the label for all values without a separate label.
const other = "_OTHER"

// metrics holds the instruments that count requests.
type metrics struct {
	meter    metric.Meter
	disabled bool

	serverDuration, clientDuration, waits                       metric.Float64Histogram
	requests, spent, saved, admissions, polls, retries, reloads metric.Int64Counter
	limitErrors                                                 metric.Int64Counter
	active                                                      metric.Int64UpDownCounter
	methods                                                     map[string]metric.MeasurementOption // attributes of active
	queries                                                     queryNames
}

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
	q.names[name] = true
	return name
}

// attributes returns the attributes of a measurement. Attributes with an empty value are left out.
func attributes(list ...attribute.KeyValue) metric.MeasurementOption {
	isEmpty := func(a attribute.KeyValue) bool { return a.Value == attribute.StringValue("") }
	return metric.WithAttributeSet(attribute.NewSet(slices.DeleteFunc(list, isEmpty)...))
}

// open creates the instruments.
func (m *metrics) open(provider metric.MeterProvider) error {
	m.meter = provider.Meter(scope)
	var errs []error
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := m.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	histogram := func(name, description string, bounds ...float64) metric.Float64Histogram {
		h, err := m.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
		return h
	}
	conventional := []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10} // bucket bounds from the semantic conventions
	m.serverDuration = histogram("http.server.request.duration", "duration of client requests", conventional...)
	m.clientDuration = histogram("http.client.request.duration", "time from a request to the upstream until its response headers", conventional...)
	m.waits = histogram("weir.wait.duration", "time that requests waited, by client and reason", .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300)
	m.requests = counter("weir.requests", "{request}", "completed requests, by cache outcome")
	m.spent = counter("weir.spent", "{request}", "consumed upstream quota: requests, and costs of GraphQL calls")
	m.saved = counter("weir.saved", "{request}", "responses that consumed no quota and would have without Weir")
	m.admissions = counter("weir.admissions", "{admission}", "decided claims for a permit, by client and outcome")
	m.polls = counter("weir.polls", "{request}", "requests for statistics that the upstream had not computed yet")
	m.retries = counter("weir.retries", "{request}", "requests whose connection broke before a response, by outcome of the retry")
	m.reloads = counter("weir.config.reloads", "{reload}", "configuration reloads, by outcome")
	m.limitErrors = counter("weir.upstream.limit_errors", "{error}", "responses by which the upstream reports a limit, by kind of limit")
	active, err := m.meter.Int64UpDownCounter("http.server.active_requests", metric.WithUnit("{request}"), metric.WithDescription("requests in progress"))
	m.active, m.methods = active, map[string]metric.MeasurementOption{}
	for _, method := range append(methods, other) {
		m.methods[method] = attributes(semconv.HTTPRequestMethodKey.String(method))
	}
	return errors.Join(append(errs, err)...)
}

// methods are the methods with a separate label.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodConnect, http.MethodTrace,
}

// RequestStarted counts a request as active. Each call needs a call of RequestEnded with the same method.
func (m *metrics) RequestStarted(method string) { m.addActive(method, 1) }

// RequestEnded counts a request as no longer active.
func (m *metrics) RequestEnded(method string) { m.addActive(method, -1) }

func (m *metrics) addActive(method string, n int64) {
	set, ok := m.methods[method]
	if !ok {
		set = m.methods[other]
	}
	m.active.Add(context.Background(), n, set)
}

// Reloaded counts a reload of the configuration. err is the reason for a refusal, or nil.
func (m *metrics) Reloaded(err error) {
	outcome := "applied"
	if err != nil {
		outcome = "refused"
	}
	m.reloads.Add(context.Background(), 1, attributes(outcomeKey.String(outcome)))
}

// Observer returns a function that counts a completed request, or nil if telemetry is disabled. upstream is the host
// name of the upstream.
func (m *metrics) Observer(upstream string) func(*proxy.Record) {
	if m.disabled {
		return nil
	}
	return func(r *proxy.Record) {
		ctx := exemplarContext(r)
		if !r.Background {
			m.serverDuration.Record(ctx, r.Elapsed.Seconds(), attributes(semconv.HTTPRequestMethodKey.String(r.Method), semconv.HTTPRoute(r.Route), semconv.HTTPResponseStatusCode(r.Status)))
			m.requests.Add(ctx, 1, attributes(operationKey.String(r.Operation), clientKey.String(r.ClientLabel()), cacheKey.String(string(r.Outcome))))
			if r.Saved {
				m.saved.Add(ctx, 1, attributes(operationKey.String(r.Operation)))
			}
		}
		resource := r.Resource // the limiter bounds the names (limits.Limiter.ReadRate)
		for _, s := range r.Stages {
			wait := func(reason string) {
				m.waits.Record(ctx, s.Elapsed.Seconds(), attributes(clientKey.String(r.ClientLabel()), reasonKey.String(reason)))
			}
			switch s.Name {
			case "queue":
				m.admissions.Add(ctx, 1, attributes(clientKey.String(r.ClientLabel()), resourceKey.String(resource), reasonKey.String(s.Admission())))
				if s.Detail != "" {
					wait(s.Detail)
				}
			case "retry":
				outcome := "sent"
				if s.Failed {
					outcome = "given_up"
				}
				m.retries.Add(ctx, 1, attributes(outcomeKey.String(outcome)))
				wait(s.Name)
			case "coalesce", "poll":
				wait(s.Name)
			case "attempt":
				result := semconv.ErrorTypeKey.String(s.Detail)
				if status, err := strconv.Atoi(s.Detail); err == nil {
					result = semconv.HTTPResponseStatusCode(status)
				}
				if s.Limited != limits.NotLimited {
					m.limitErrors.Add(ctx, 1, attributes(resourceKey.String(resource), reasonKey.String(s.Limited.String())))
				}
				m.clientDuration.Record(ctx, s.Elapsed.Seconds(), attributes(semconv.HTTPRequestMethodKey.String(r.Method), semconv.ServerAddress(upstream), result))
			}
		}
		if r.Spent > 0 {
			m.spent.Add(ctx, int64(r.Spent), attributes(clientKey.String(r.ClientLabel()), operationKey.String(r.Operation), resourceKey.String(resource),
				semconv.GraphQLOperationName(m.queries.label(r.Query))))
		}
		if r.Polls > 0 {
			m.polls.Add(ctx, int64(r.Polls))
		}
	}
}

// exemplarContext returns a context with the span of the record. Measurements with this context have the span as an
// exemplar.
func exemplarContext(r *proxy.Record) context.Context {
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
