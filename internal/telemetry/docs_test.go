package telemetry

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	otlp "go.opentelemetry.io/proto/otlp/metrics/v1"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
)

// description describes a metric that is documented or exported.
type description struct {
	kind, unit string
	attributes []string
}

var code = regexp.MustCompile("`([^`]+)`")

// codes returns the texts in back quotes of a table cell.
func codes(cell string) (list []string) {
	for _, m := range code.FindAllStringSubmatch(cell, -1) {
		list = append(list, m[1])
	}
	slices.Sort(list)
	return list
}

// documented reads the table of metrics in docs/observability.md.
func documented(t *testing.T) (all map[string]description, inPrometheus map[string]string) {
	t.Helper()
	page := must(os.ReadFile("../../docs/observability.md"))
	_, section, _ := strings.Cut(string(page), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n\nBeside")
	all, inPrometheus = map[string]description{}, map[string]string{}
	for _, row := range strings.Split(section, "\n| `")[1:] {
		cells := strings.Split(row, "|")
		name := strings.TrimSuffix(strings.TrimSpace(cells[0]), "`")
		all[name] = description{strings.TrimSpace(cells[2]), strings.Trim(cells[3], "` "), codes(cells[4])}
		inPrometheus[name] = codes(cells[1])[0]
	}
	return all, inPrometheus
}

// describe returns the description of an exported metric.
func describe(m *otlp.Metric) description {
	d := description{unit: m.GetUnit()}
	keys := map[string]bool{}
	points := func(list []*otlp.NumberDataPoint) {
		for _, p := range list {
			for key := range testservers.Attributes(p.GetAttributes()) {
				keys[key] = true
			}
		}
	}
	switch data := m.GetData().(type) {
	case *otlp.Metric_Gauge:
		d.kind = "gauge"
		points(data.Gauge.GetDataPoints())
	case *otlp.Metric_Sum:
		d.kind = "sum"
		if data.Sum.GetIsMonotonic() {
			d.kind = "counter"
		}
		points(data.Sum.GetDataPoints())
	case *otlp.Metric_Histogram:
		d.kind = "histogram"
		for _, p := range data.Histogram.GetDataPoints() {
			for key := range testservers.Attributes(p.GetAttributes()) {
				keys[key] = true
			}
		}
	}
	for key := range keys {
		d.attributes = append(d.attributes, key)
	}
	slices.Sort(d.attributes)
	return d
}

// Names, kinds, units, attributes and Prometheus names must agree in both directions.
func TestMetricsMatchTheirDocumentation(t *testing.T) {
	received := testservers.StartOTLP(t)
	w := opened(t)
	noError(t, w.Watch(sources(3)))
	w.RequestStarted(http.MethodGet)
	w.Reloaded(errors.New("line 1"))
	w.SoftLimitReached("account", "builds", policy.Core, "50")
	w.Observer("api.example.com")(fullRecord())
	w.Observer("api.example.com")(&proxy.Record{Method: "POST", Route: "/graphql", Operation: "graphql", Query: "Viewer", Resource: "graphql", Status: 200, Outcome: "bypass", Spent: 51})
	response := httptest.NewRecorder()
	w.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	w.Close()

	want, inPrometheus := documented(t)
	got := map[string]description{}
	for _, m := range received.Metrics() {
		if !strings.HasPrefix(m.GetName(), "go.") {
			got[m.GetName()] = describe(m)
		}
	}
	equal(t, "exported metrics", got, want, cmp.AllowUnexported(description{}))
	var names []string
	for _, name := range inPrometheus {
		names = append(names, name)
	}
	var seen []string
	for line := range strings.Lines(response.Body.String()) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "target_info") {
			seen = append(seen, strings.Fields(name)[0])
		}
	}
	slices.Sort(names)
	slices.Sort(seen)
	equal(t, "metrics in Prometheus", seen, names)
}

// opened returns telemetry for the environment of the test. The telemetry is closed with the test.
func opened(t *testing.T) *Telemetry {
	t.Helper()
	w := must(Open(Config{ServiceName: "weir", Version: "1.2.3", Instance: "one", Sample: 1, Log: slog.New(slog.DiscardHandler)}))
	t.Cleanup(w.Close)
	return w
}
