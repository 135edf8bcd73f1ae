package telemetry

import (
	"encoding/json"
	"os"
	"regexp"
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
