package tags_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/tags"
)

// No write of the API purges reference data.
func TestNoWritePurgesReferenceData(t *testing.T) {
	catalogue := policy.Embedded()
	targets := map[string][]string{}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, "MOVE"} {
		targets[method] = []string{"/gitignore/templates", "/licenses/mit", "/emojis", "/codes_of_conduct/citizen"}
	}
	shared := map[string]string{} // operation by tag
	for _, op := range catalogue.Operations() {
		path := strings.NewReplacer("{+", "", "{", "", "}", "").Replace(op.Path)
		switch m := (policy.Match{Operation: op, Path: path}); {
		case op.Cache.Class == policy.Shared:
			for _, tag := range (tags.Question{Match: &m, Caller: &policy.Caller{}}).Tags() {
				shared[tag] = op.ID
			}
		case !op.Safe():
			targets[op.Method] = append(targets[op.Method], path)
		}
	}
	testservers.StopIf(t, len(shared) < 10, "the reference data has %d tags", len(shared))
	changed := tags.All(catalogue)
	for method, paths := range targets {
		for _, path := range paths {
			if m, err := catalogue.Classify(method, path, ""); err == nil {
				changed = append(changed, tags.OfChange(catalogue, tags.Question{Match: &m, Caller: &policy.Caller{}}, false)...)
			}
		}
	}
	for _, tag := range changed {
		id := shared[tag]
		testservers.FailIf(t, id != "", "a write purges %s of %s", tag, id)
	}
}

// Operators may write a path in any case.
func TestOperatorsPurgePathsInAnyCase(t *testing.T) {
	const stored, named = "url:/repos/acme/widgets", "url:/repos/Acme/Widgets"
	if list := tags.OfOperator(named); len(list) != 1 || list[0] != stored || tags.URL("/repos/ACME/widgets") != stored {
		t.Errorf("%s: got %q, want %q", named, list, stored)
	}
}
