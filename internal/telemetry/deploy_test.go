package telemetry

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// spoken are the names that the page tells: metrics as Prometheus has them, and labels.
func spoken(t *testing.T) map[string]bool {
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

// TestDeployedRulesAndDashboardsNameWhatIsThere: each metric and label of the rules for
// Prometheus and of the dashboard for Grafana is one of the page's, and each recorded
// series is recorded.
func TestDeployedRulesAndDashboardsNameWhatIsThere(t *testing.T) {
	names := spoken(t)
	rules, err := os.ReadFile("../../deploy/prometheus/weir.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	used := 0
	for _, path := range []string{"prometheus/weir.rules.yml", "prometheus/weir_test.yml", "grafana/weir.json"} {
		text, err := os.ReadFile("../../deploy/" + path)
		if err != nil {
			t.Fatal(err)
		}
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
		t.Errorf("%d names", used)
	}
}

// TestEachAlertHasItsHeading: docs/operations.md says of each alert, in their order, what
// it means, how to look and what to do then; and of no other.
func TestEachAlertHasItsHeading(t *testing.T) {
	rules, err := os.ReadFile("../../deploy/prometheus/weir.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
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
			t.Errorf("%s: no command to look by, or nothing to do then", name)
		}
	}
	if len(alerts) < 10 || !slices.Equal(alerts, headings) {
		t.Errorf("alerts %q, headings %q", alerts, headings)
	}
}

// TestTheDashboardForGrafanaIsWhole: each panel has a title, words for who does not know
// it, questions that are told apart, and a place of its own.
func TestTheDashboardForGrafanaIsWhole(t *testing.T) {
	text, err := os.ReadFile("../../deploy/grafana/weir.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID                       int
			Type, Title, Description string
			GridPos                  struct{ X, Y, W, H int }
			Targets                  []struct{ Expr, RefID string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if p.Title == "" || ids[p.ID] || p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("%+v", p)
		}
		ids[p.ID] = true
		letters := map[string]bool{}
		for _, target := range p.Targets {
			if target.Expr == "" || letters[target.RefID] {
				t.Errorf("%s: %+v", p.Title, target)
			}
			letters[target.RefID] = true
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if at := [2]int{x, y}; taken[at] != "" || x >= 24 {
					t.Fatalf("%s lies over %s", p.Title, taken[at])
				} else {
					taken[at] = p.Title
				}
			}
		}
	}
	if len(board.Panels) < 15 {
		t.Errorf("%d panels", len(board.Panels))
	}
}
