package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestExplainNamesTheRuleOfAQuery checks the last row of weir explain POST /graphql --query FILE.
func TestExplainNamesTheRuleOfAQuery(t *testing.T) {
	dir := t.TempDir()
	config, query := filepath.Join(dir, "weir.yaml"), filepath.Join(dir, "query.graphql")
	write(t, config, "upstream: {url: \"https://api.example.com\"}\ncache: {graphql: {gh: true, rules: [{operation: List, ttl: 45s}, {field: viewer, ttl: 2m}]}}\n")
	for _, c := range []struct{ query, want string }{
		{"query List { user(login: 1) { id } }", "stored for 45s by the rule for operation List in cache.graphql.rules"},
		{"{ viewer { id } }", "stored for 2m by the rule for field viewer in cache.graphql.rules"},
		{"query IssueList { user(login: 1) { id } }", "stored for 30s by the rule for operation IssueList in cache.graphql.gh"},
		{"{ user(login: 1) { id } }", "shared by identical queries in progress; not stored, because no rule of cache.graphql matches"},
		{"mutation { a(input: {}) { id } }", "neither shared nor stored"},
	} {
		write(t, query, c.query)
		code, text := runWeir("explain", "POST", "/graphql", "--query", query, "--config", config)
		var got string
		for line := range strings.Lines(text) {
			if name, value, _ := strings.Cut(line, " "); name == "response" {
				got = strings.TrimSpace(value)
			}
		}
		if code != exitOK || got != c.want {
			t.Errorf("%s: exit code %d, got %q, want %q", c.query, code, got, c.want)
		}
	}
}
