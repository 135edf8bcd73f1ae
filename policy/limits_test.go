package policy

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestLimitsForKindAndResource(t *testing.T) {
	hour, minute := time.Hour, time.Minute
	for _, c := range []struct {
		name     string
		kind     CallerKind
		resource string
		want     Window
	}{
		// Document B section 8.1.
		{"an address", Unauthenticated, Core, Window{60, hour}},
		{"a user", User, Core, Window{5000, hour}},
		{"a user of the enterprise plan", Enterprise, Core, Window{15000, hour}},
		{"an installation of an enterprise", EnterpriseInstallation, Core, Window{15000, hour}},
		{"an app of an enterprise", EnterpriseOAuthApp, Core, Window{15000, hour}},
		{"a workflow of an enterprise", EnterpriseWorkflow, Core, Window{15000, hour}},
		{"an unknown resource of an enterprise", EnterpriseWorkflow, "gold", Window{15000, hour}},
		{"search of an enterprise", EnterpriseInstallation, Search, Window{30, minute}},
		{"an installation", Installation, Core, Window{5000, hour}},
		{"an app with client id and secret", OAuthApp, Core, Window{5000, hour}},
		{"a workflow", Workflow, Core, Window{1000, hour}},
		{"an unknown kind", "robot", Core, Window{5000, hour}},
		// Document B section 8.2.
		{"search of a user", User, Search, Window{30, minute}},
		{"search of a workflow", Workflow, Search, Window{30, minute}},
		{"search of an address", Unauthenticated, Search, Window{10, minute}},
		{"code search", User, CodeSearch, Window{10, minute}},
		{"code search of an installation", Installation, CodeSearch, Window{10, minute}},
		{"code search without authentication", Unauthenticated, CodeSearch, Window{0, minute}},
		// Document B section 2.6: separate resources.
		{"GraphQL", User, "graphql", Window{5000, hour}},
		{"GraphQL of a workflow", Workflow, "graphql", Window{1000, hour}},
		{"GraphQL of a user of an enterprise", Enterprise, "graphql", Window{10000, hour}},
		{"GraphQL of an installation of an enterprise", EnterpriseInstallation, "graphql", Window{10000, hour}},
		{"GraphQL of a workflow of an enterprise", EnterpriseWorkflow, "graphql", Window{15000, hour}},
		{"GraphQL without authentication", Unauthenticated, "graphql", Window{0, hour}},
		{"app manifests", Unauthenticated, "integration_manifest", Window{5000, hour}},
		{"snapshots", User, "dependency_snapshots", Window{100, minute}},
		{"the audit log", User, "audit_log", Window{1750, hour}},
		{"an unknown resource of a workflow", Workflow, "gold", Window{1000, hour}},
		{"an unknown resource", User, "gold", Window{5000, hour}},
		{"an unknown resource without authentication", Unauthenticated, "gold", Window{60, hour}},
	} {
		wantEqual(t, c.name, c.want, DefaultLimits().For(c.kind, c.resource))
	}
}

func TestLimitsForUsesConfiguredValues(t *testing.T) {
	l := DefaultLimits()
	l.Primary.Workflow, l.Primary.Window = 7, time.Minute
	l.Search.Code, l.Search.Window = 2, time.Second
	wantEqual(t, "core", Window{7, time.Minute}, l.For(Workflow, Core))
	wantEqual(t, "code search", Window{2, time.Second}, l.For(Workflow, CodeSearch))
	wantEqual(t, "zero value", Window{}, Limits{}.For(User, Core))
}

// number returns the first number of a cell such as "5,000 per app; …".
func number(t *testing.T, cell string) int {
	t.Helper()
	digits, _, _ := strings.Cut(strings.ReplaceAll(cell, ",", "")+" ", " ")
	n, err := strconv.Atoi(digits)
	stopIf(t, err != nil, "%q does not begin with a number", cell)
	return n
}

// TestDefaultLimitsMatchDocuments compares the defaults with the tables of Document B 8.1 to 8.3.
func TestDefaultLimitsMatchDocuments(t *testing.T) {
	text := documents(t)["B"]
	documented := map[string]string{}
	for _, row := range tableRows("B", text) {
		switch row.section {
		case "B 8.1":
			documented[row.cells["Caller"]] = row.cells["Limit"]
		case "B 8.2", "B 8.3":
			documented[row.cells["Limit"]] = row.cells["Value"]
		}
	}
	l := DefaultLimits()
	got := map[string]int{
		"unauthenticated (by originating IP address)":                                                                         l.Primary.Unauthenticated,
		"authenticated user (personal tokens, and apps or OAuth apps acting for the user, combined)":                          l.Primary.User,
		"same, for apps or OAuth apps owned or approved by an organization on the enterprise the service plan (member users)": l.Primary.Enterprise,
		"app installation token":                                           l.Primary.Installation,
		"OAuth app using client id and secret (public data only)":          l.Primary.OAuthApp,
		"built-in workflow token":                                          l.Primary.Workflow,
		"authenticated requests, all search operations except code search": l.Search.Authenticated,
		"code search":                     l.Search.Code,
		"unauthenticated search requests": l.Search.Unauthenticated,
		"query length":                    maxSearchLength,
		"concurrent requests":             l.Concurrent,
		"points per minute per endpoint":  l.Points.REST,
		"CPU time":                        int(l.CPU.Total / time.Second),
		"content-generating requests":     l.Content[0].Max,
	}
	want := map[string]int{}
	for limit := range got {
		want[limit] = number(t, documented[limit])
	}
	wantEqual(t, "DefaultLimits", want, got)
	for limit, want := range map[string]string{
		"points per minute per endpoint": "900 (REST), 2,000 (GraphQL)",
		"CPU time":                       "90 seconds per 60 seconds of real time, of which at most 60 seconds for GraphQL",
		"content-generating requests":    "80 per minute and 500 per hour (some endpoints lower); includes web interface actions",
		"query length":                   "256 characters at most (excluding operators or qualifiers); at most 5 AND/OR/NOT operators",
	} {
		wantEqual(t, limit, want, documented[limit])
	}
	for _, caller := range []string{"app installation token", "OAuth app using client id and secret (public data only)", "built-in workflow token"} {
		failIf(t, !strings.Contains(documented[caller], "15,000"), "%s: Document B has %q, without the limit of an enterprise", caller, documented[caller])
	}
	failIf(t, l.Points.GraphQL != 2000 || l.CPU.GraphQL != time.Minute || l.CPU.Window != time.Minute || l.Points.Window != time.Minute || maxSearchOperators != 5 ||
		!slices.Equal(l.Content, []Window{{80, time.Minute}, {500, time.Hour}}), "got the limits %+v, which differ from Document B", l)
}
