//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// TestArgoCDRecipe makes the requests of the two generators of an ApplicationSet.
func TestArgoCDRecipe(t *testing.T) {
	r := startRecipe(t, "argocd.md")
	generators := r.at(r.settings(), "spec", "generators")
	args := []string{
		r.at(generators, 0, "scmProvider", "github", "api").(string), r.at(generators, 0, "scmProvider", "github", "organization").(string),
		r.at(generators, 0, "scmProvider", "filters", 0, "pathsExist", 0).(string), r.at(generators, 1, "pullRequest", "github", "repo").(string),
	}
	if other := r.at(generators, 1, "pullRequest", "github", "api"); other != args[0] {
		t.Errorf("the generators have the APIs %s and %s", args[0], other)
	}
	first, spent := r.run(installed(t, "argocd"), args...)
	if repositories, pulls := strings.Count(first, "repository "), strings.Count(first, "pull "); repositories != 22 || pulls != 6 || spent != 46 {
		t.Errorf("got %d repositories and %d pull requests for %d requests\n%s", repositories, pulls, spent, first)
	}
	if again, spent := r.run(installed(t, "argocd"), args...); again != first || spent != 0 {
		t.Errorf("the second run spent %d requests, and generated\n%s", spent, again)
	}
	r.expire()
	before := r.requests.Load()
	if again, spent := r.run(installed(t, "argocd"), args...); again != first || spent != 0 || r.requests.Load()-before != 46 {
		t.Errorf("after the responses expired, a run spent %d requests, sent %d upstream, and generated\n%s", spent, r.requests.Load()-before, again)
	}
	r.checkSpending()
}
