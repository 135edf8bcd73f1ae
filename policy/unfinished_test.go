package policy

import (
	"fmt"
	"path"
	"slices"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

func TestUnfinished(t *testing.T) {
	for _, c := range []struct {
		id, body string
		want     bool
	}{
		{"pulls/get", `{"mergeable": null, "merged":false}`, true},
		{"pulls/get", `{"mergeable":true,"mergeable_state":"unknown"}`, true},
		{"pulls/get", `{"mergeable":null,"mergeable_state":"unknown","merged":true}`, false},
		{"pulls/get", `{"mergeable":true,"mergeable_state":"clean","merged":false}`, false},
		{"pulls/get", `{"mergeable":true,"body":"\"mergeable\":null"}`, false},
		{"actions/get-workflow-run", `{"status":"queued"}`, true},
		{"actions/list-workflow-runs-for-repo", `{"workflow_runs":[{"status":"completed"},{"status":"in_progress"}]}`, true},
		{"actions/get-workflow-run", `{"status":"completed","conclusion":"success"}`, false},
		{"checks/get-suite", `{"status":"queued"}`, true},
		{"repos/get-latest-pages-build", `{"status":"building"}`, true},
		{"code-scanning/get-sarif", `{"processing_status":"pending"}`, true},
		{"graphql", `{"data":{"repository":{"pullRequest":{"mergeable":"UNKNOWN"}}}}`, true},
		{"graphql", `{"data":{"node":{"statusCheckRollup":{"state":"PENDING"}}}}`, true},
		{"graphql", `{"data":{"node":{"checkRuns":{"nodes":[{"status":"IN_PROGRESS","conclusion":null}]}}}}`, true},
		{"graphql", `{"data":{"node":{"mergeable":"MERGEABLE","mergeStateStatus":"CLEAN","state":"OPEN","status":"COMPLETED"}}}`, false},
		{"issues/get", `{"status":"queued","state":"pending"}`, false},
	} {
		testservers.Equal(t, fmt.Sprintf("%s %s", c.id, c.body), CatalogueOf("github").Operation(c.id).Unfinished([]byte(c.body)), c.want)
	}
	for _, row := range append(unfinishedData.Rows, unfinishedRow{Operations: unfinishedData.Asynchronous.Operations}) {
		for _, pattern := range row.Operations {
			failIf(t, !slices.ContainsFunc(CatalogueOf("github").Operations(), func(op *Operation) bool {
				ok, err := path.Match(pattern, op.ID)
				return ok && err == nil
			}), "no operation matches %q", pattern)
		}
	}
}
