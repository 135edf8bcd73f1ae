package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// Method, route, operation and resource are metric attributes, so the number of their values must be bounded. A route
// contains no parameter values.
func TestMetricAttributesAreBounded(t *testing.T) {
	setup(func(http.ResponseWriter, *http.Request) {}).run(t, func(w *world) {
		labels := map[string]bool{}
		for i := range 200 {
			for _, path := range []string{
				fmt.Sprintf("/repos/owner-%d/repo-%d/subscribers", i, i), fmt.Sprintf("/users/user-%d", i), fmt.Sprintf("/repositories/%d/stats/contributors", i),
				fmt.Sprintf("/made%cup%d/%d", 'a'+rune(i%26), i, i), fmt.Sprintf("/repos/o/r/%040x", i), fmt.Sprintf("/%s", strings.Repeat("x", i%200+1)),
			} {
				method := []string{http.MethodGet, fmt.Sprint("FOO", i), "get", "_OTHER"}[i%4]
				r := w.try(method, path, nil, fmt.Sprint("Authorization: Bearer ", i%7), "Prefer: respond-async", fmt.Sprint("User-Agent: agent-", i))
				noError(w, r.err)
				rec := w.recent()[0]
				labels[fmt.Sprint(rec.Method, " ", rec.Route, " ", rec.Operation, " ", rec.Resource)] = true
				for _, value := range []string{"owner-", "repo-", "user-", "agent-", "FOO", "Bearer"} {
					stopIf(w, strings.Contains(rec.Method+rec.Route+rec.Operation+rec.Resource, value), "client text in an attribute of %+v", rec)
				}
			}
		}
		// The six kinds of paths have two methods and at most two beginnings each that the catalogue knows.
		limit := 2 * 2 * 6
		failIf(w, len(labels) > limit, "got %d combinations of attributes, want at most %d", len(labels), limit)
	})
}
