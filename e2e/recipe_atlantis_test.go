//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// TestAtlantisRecipe makes the requests of two plans with the libraries of Atlantis. Its own token must not reach the
// upstream.
func TestAtlantisRecipe(t *testing.T) {
	r := startRecipe(t, "atlantis.md")
	r.env = append(r.env, "ATLANTIS_GH_USER=octo-bot", "ATLANTIS_GH_TOKEN=none")
	r.checkRepetition(func() {
		const want = "pull request 41: 1 files, README.md, 1 reviews, repository 1001, last comment"
		if text, _ := r.run(installed(t, "atlantis")); !strings.HasPrefix(text, want) {
			t.Errorf("got %s, want %s", text, want)
		}
	}, "graphql")
	text, _ := r.run(installed(t, "atlantis"), "plan")
	if want := "last comment \"Ran Plan for dir: `.`\""; !strings.Contains(text, want) {
		t.Errorf("after a plan: got %s, want %s", text, want)
	}
	if spent := r.checkSpending(); spent["repos/create-commit-status"] != 2 || spent["issues/create-comment"] != 1 {
		t.Errorf("a plan spent %v, want 2 statuses and a comment", spent)
	}
}
