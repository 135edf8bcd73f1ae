package telemetry

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/metrics/v1"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/proxy/record"
)

// description describes a metric that is documented or exported.
type description struct {
	kind, unit string
	attributes []string
}

// groups returns the first group of all matches of a regular expression.
func groups(expression, text string) (list []string) {
	for _, m := range regexp.MustCompile(expression).FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

// codes returns the texts in back quotes of a table cell.
func codes(cell string) []string {
	list := groups("`([^`]+)`", cell)
	slices.Sort(list)
	return list
}

func read(t *testing.T, path string) string {
	t.Helper()
	return string(must(os.ReadFile("../../" + path)))
}

// documented reads the table of metrics in docs/observability.md.
func documented(t *testing.T) (all map[string]description, inPrometheus map[string]string) {
	t.Helper()
	_, section, _ := strings.Cut(read(t, "docs/observability.md"), "\n## Metrics\n")
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

// keysOf returns the names of the attributes of all points.
func keysOf[P interface{ GetAttributes() []*common.KeyValue }](points []P) []string {
	keys := map[string]string{}
	for _, p := range points {
		maps.Copy(keys, testservers.Attributes(p.GetAttributes()))
	}
	return slices.Sorted(maps.Keys(keys))
}

// describe returns the description of an exported metric.
func describe(m *otlp.Metric) description {
	switch data := m.GetData().(type) {
	case *otlp.Metric_Gauge:
		return description{"gauge", m.GetUnit(), keysOf(data.Gauge.GetDataPoints())}
	case *otlp.Metric_Histogram:
		return description{"histogram", m.GetUnit(), keysOf(data.Histogram.GetDataPoints())}
	case *otlp.Metric_Sum:
		return description{map[bool]string{true: "counter", false: "sum"}[data.Sum.GetIsMonotonic()], m.GetUnit(), keysOf(data.Sum.GetDataPoints())}
	}
	return description{}
}

// Names, kinds, units, attributes and Prometheus names must agree in both directions.
func TestMetricsMatchTheirDocumentation(t *testing.T) {
	received := testservers.StartOTLP(t)
	w := watching(t, sources(3))
	w.RequestStarted(http.MethodGet)
	w.Reloaded(errors.New("line 1"))
	w.DeliveryRefused("signature")
	w.record(fullRecord(), &record.Record{
		Request: record.Request{Method: "POST", Route: "/graphql", Operation: "graphql", Query: "Viewer", Resource: "graphql"}, Status: 200, Outcome: "bypass", Spent: 51,
	})
	scraped := w.scrape(false)
	w.Close()

	want, inPrometheus := documented(t)
	got := map[string]description{}
	for _, m := range received.Metrics() {
		if !strings.HasPrefix(m.GetName(), "go.") {
			got[m.GetName()] = describe(m)
		}
	}
	equal(t, "exported metrics", got, want, cmp.AllowUnexported(description{}), cmpopts.EquateEmpty())
	seen := slices.DeleteFunc(groups(`(?m)^# TYPE (\S+)`, scraped), func(name string) bool {
		return strings.HasPrefix(name, "go_") || name == "target_info"
	})
	equal(t, "metrics in Prometheus", slices.Sorted(slices.Values(seen)), slices.Sorted(maps.Values(inPrometheus)))
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
	names, rules, used := documentedNames(t), read(t, "deploy/prometheus/weir.rules.yml"), 0
	for _, path := range []string{"deploy/prometheus/weir.rules.yml", "deploy/prometheus/weir_test.yml", "deploy/grafana/weir.json"} {
		text := read(t, path)
		for _, name := range groups(`\b((?:weir|http)_[a-z_]+[a-z])\b`, text) {
			used++
			base := regexp.MustCompile(`(_bucket|_count|_sum)+$`).ReplaceAllString(name, "")
			failIf(t, !names[name] && !names[base] && name != "weir_test", "%s: %s is not in docs/observability.md", path, name)
		}
		for _, name := range groups(`\b(weir:[a-z0-9_]+)`, text) {
			failIf(t, !strings.Contains(rules, "record: "+name+"\n"), "%s: %s is not recorded", path, name)
		}
	}
	failIf(t, used < 100, "only %d names found", used)
}

// docs/operations.md has one section per alert, in the order of the alerts, with a command for the diagnosis and the
// remedy.
func TestEachAlertIsDocumented(t *testing.T) {
	_, part, _ := strings.Cut(read(t, "docs/operations.md"), "\n## Alerts\n")
	part, _, _ = strings.Cut(part, "\n## ")
	var headings []string
	for _, section := range strings.Split(part, "\n### ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		headings = append(headings, name)
		failIf(t, !strings.Contains(text, "\n```sh\n") || !strings.Contains(text, "\nThen"), "%s: the section lacks a command or the paragraph that begins with Then", name)
	}
	alerts := groups(`(?m)^ +- alert: (\w+)$`, read(t, "deploy/prometheus/weir.rules.yml"))
	equal(t, "headings", headings, alerts)
	failIf(t, len(alerts) < 10, "only %d alerts found", len(alerts))
}

// Each panel needs a title, a description, distinct queries and a separate position.
func TestGrafanaPanelsAreComplete(t *testing.T) {
	var board struct {
		Panels []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  struct{ X, Y, W, H int }
			Targets                  []struct{ Expr, RefID string }
		}
	}
	noError(t, json.Unmarshal([]byte(read(t, "deploy/grafana/weir.json")), &board))
	taken, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range board.Panels {
		failIf(t, p.Title == "" || ids[p.ID] || p.Type != "row" && (p.Description == "" || len(p.Targets) == 0), "incomplete panel %+v", p)
		ids[p.ID] = true
		letters := map[string]bool{}
		for _, target := range p.Targets {
			failIf(t, target.Expr == "" || letters[target.RefID], "%s: empty or duplicate query %+v", p.Title, target)
			letters[target.RefID] = true
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				at := [2]int{x, y}
				stopIf(t, taken[at] != "" || x >= 24, "%s overlaps %s", p.Title, taken[at])
				taken[at] = p.Title
			}
		}
	}
	failIf(t, len(board.Panels) < 15, "only %d panels found", len(board.Panels))
}
