package telemetry

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

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
