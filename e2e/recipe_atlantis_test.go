//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// TestAtlantisThroughForwardProxy makes the requests of two plans with the libraries of Atlantis. Its own token must
// not reach the upstream.
func TestAtlantisThroughForwardProxy(t *testing.T) {
	b := newCookbook(t)
	b.start("atlantis.md")
	env := []string{"ATLANTIS_GH_USER=octo-atlantis", "ATLANTIS_GH_TOKEN=none"}
	run := func() {
		const want = "pull request 41: 1 files, README.md, 1 reviews, repository 1001, last comment"
		if text := b.run(env, installed(t, "e2e/atlantis")); !strings.HasPrefix(text, want) {
			t.Errorf("got %s, want %s", text, want)
		}
	}
	b.checkSpending("atlantis", run, "graphql")
	text := b.run(env, installed(t, "e2e/atlantis"), "plan")
	if want := "last comment \"Ran Plan for dir: `.`\""; !strings.Contains(text, want) {
		t.Errorf("after a plan: got %s, want %s", text, want)
	}
	spent := b.spent("atlantis")
	if spent["repos/create-commit-status"] != 2 || spent["issues/create-comment"] != 1 {
		t.Errorf("a plan spent %v, want 2 statuses and a comment", spent)
	}
	b.checkLimits()
}
