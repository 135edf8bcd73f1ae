package house

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// failures are the causes of docs/failures.md, in their order.
var failures = []string{
	"It is slow", "It refuses connections", "It resets connections", "It truncates answers", "It says 202 without end", "A storm of 5xx",
	"Its headers are wrong", "A flood of 1xx", "A gzip bomb",
	"Down at the start", "Down later", "Slow", "Paused", "READONLY", "Out of memory", "Evicting", "Failover", "Network cut", "Corrupt values", "Flushed",
	"Killed", "Paused", "Its clock is off by a minute",
	"Slow", "Gone", "Abusive",
	"The configuration is invalid", "A secret is missing", "The ledger's file (`memory:/FILE`) cannot be written, or read",
}

// TestEachFailureHasARow of its own that says all that is to be known of it, and names
// metrics and alerts that are there. That its tests are, [TestNamedTestsAreThere] sees.
func TestEachFailureHasARow(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile("../../" + path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	metrics, alerts := read("docs/observability.md"), read("deploy/prometheus/weir.rules.yml")
	rows := tableRow.FindAllString(read("docs/failures.md"), -1)
	if len(rows) != len(failures) {
		t.Errorf("%d rows for %d causes", len(rows), len(failures))
	}
	for i, row := range rows[:min(len(rows), len(failures))] {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		if len(cells) != 6 || cells[0] != strconv.Itoa(i+1) || cells[1] != failures[i] {
			t.Errorf("row %d is of %d cells, and of %q, not %q", i+1, len(cells), cells[1], failures[i])
		}
		for _, name := range regexp.MustCompile("`weir_[a-z_]+`|`http_[a-z_]+`").FindAllString(row, -1) {
			if !strings.Contains(metrics, name) {
				t.Errorf("row %d names the metric %s, which is not there", i+1, name)
			}
		}
		for _, name := range regexp.MustCompile("alert `(\\w+)`").FindAllStringSubmatch(row, -1) {
			if !strings.Contains(alerts, "alert: "+name[1]+"\n") {
				t.Errorf("row %d names the alert %s, which is not there", i+1, name[1])
			}
		}
	}
}
