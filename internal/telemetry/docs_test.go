package telemetry

import (
	"encoding/json"
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

// documentedNames returns the Prometheus names of all documented metrics and labels.
func documentedNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	metrics, inPrometheus := documented(t)
	for name, m := range metrics {
		names[inPrometheus[name]] = true
		for _, attribute := range m.attributes {
			names[strings.ReplaceAll(attribute, ".", "_")] = true
		}
	}
	return names
}

// The files in deploy must use only documented metrics and series that a rule records.
func TestRulesAndDashboardUseExistingMetrics(t *testing.T) {
	names := documentedNames(t)
	rules := must(os.ReadFile("../../deploy/prometheus/weir.rules.yml"))
	used := 0
	for _, path := range []string{"prometheus/weir.rules.yml", "prometheus/weir_test.yml", "grafana/weir.json"} {
		text := must(os.ReadFile("../../deploy/" + path))
		for _, name := range regexp.MustCompile(`\b(weir|http)_[a-z_]+[a-z]\b`).FindAllString(string(text), -1) {
			used++
			base := name
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				base = strings.TrimSuffix(base, suffix)
			}
			if !names[name] && !names[base] && name != "weir_test" {
				t.Errorf("%s: %s is not in docs/observability.md", path, name)
			}
		}
		for _, name := range regexp.MustCompile(`\bweir:[a-z0-9_]+`).FindAllString(string(text), -1) {
			if !strings.Contains(string(rules), "record: "+name+"\n") {
				t.Errorf("%s: %s is not recorded", path, name)
			}
		}
	}
	if used < 100 {
		t.Errorf("only %d names found", used)
	}
}

// docs/operations.md has one section per alert, in the order of the alerts, with a command for the diagnosis and the
// remedy.
func TestEachAlertIsDocumented(t *testing.T) {
	rules := must(os.ReadFile("../../deploy/prometheus/weir.rules.yml"))
	page := must(os.ReadFile("../../docs/operations.md"))
	_, part, _ := strings.Cut(string(page), "\n## Alerts\n")
	part, _, _ = strings.Cut(part, "\n## ")
	var alerts, headings []string
	for _, m := range regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(string(rules), -1) {
		alerts = append(alerts, m[1])
	}
	for _, section := range strings.Split(part, "\n### ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		headings = append(headings, name)
		if !strings.Contains(text, "\n```sh\n") || !strings.Contains(text, "\nThen") {
			t.Errorf("%s: the section lacks a command or the paragraph that begins with Then", name)
		}
	}
	if len(alerts) < 10 || !slices.Equal(alerts, headings) {
		t.Errorf("alerts %q, headings %q", alerts, headings)
	}
}

// Each panel needs a title, a description, distinct queries and a separate position.
func TestGrafanaPanelsAreComplete(t *testing.T) {
	text := must(os.ReadFile("../../deploy/grafana/weir.json"))
	var board struct {
		Panels []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  struct{ X, Y, W, H int }
			Targets                  []struct{ Expr, RefID string }
		}
	}
	noError(t, json.Unmarshal(text, &board))
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if p.Title == "" || ids[p.ID] || p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("incomplete panel %+v", p)
		}
		ids[p.ID] = true
		letters := map[string]bool{}
		for _, target := range p.Targets {
			if target.Expr == "" || letters[target.RefID] {
				t.Errorf("%s: empty or duplicate query %+v", p.Title, target)
			}
			letters[target.RefID] = true
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if at := [2]int{x, y}; taken[at] != "" || x >= 24 {
					t.Fatalf("%s overlaps %s", p.Title, taken[at])
				} else {
					taken[at] = p.Title
				}
			}
		}
	}
	if len(board.Panels) < 15 {
		t.Errorf("only %d panels found", len(board.Panels))
	}
}
