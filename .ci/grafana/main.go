// Command grafana converts the queries of a dashboard on standard input into recording rules, so that promtool can check them.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

func main() {
	var board struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
		Annotations struct {
			List []struct{ Expr string }
		}
	}
	if err := json.NewDecoder(os.Stdin).Decode(&board); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var expressions []string
	for _, p := range board.Panels {
		for _, t := range p.Targets {
			expressions = append(expressions, t.Expr)
		}
	}
	for _, a := range board.Annotations.List {
		expressions = append(expressions, a.Expr)
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".+")
	fmt.Println("groups:\n- name: grafana\n  rules:")
	for i, e := range expressions {
		fmt.Printf("  - {record: %q, expr: %q}\n", fmt.Sprintf("panel:query_%d", i), variables.Replace(e))
	}
}
