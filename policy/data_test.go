package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// problems returns the mistakes in the operations of a catalogue.
func problems(c *Catalogue) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	ids, routes := map[string]bool{}, map[string]string{}
	for _, op := range c.operations {
		if op.ID == "" || op.Method == "" || !strings.HasPrefix(op.Path, "/") {
			fail("section %s: operation without id, method or path: %q %q %q", op.Section, op.ID, op.Method, op.Path)
			continue
		}
		if ids[op.ID] {
			fail("operation %q is defined twice", op.ID)
		}
		ids[op.ID] = true
		for _, path := range templates(op) {
			segments, parameterCount := strings.Split(path, "/"), 0
			for i, s := range segments {
				name, isParameter := strings.CutPrefix(s, "{")
				if !isParameter {
					continue
				}
				rule := parameters[strings.Trim(name, "{}")]
				if rule.Tail && i != len(segments)-1 {
					fail("operation %q: {%s takes the rest of the path and must be last", op.ID, name)
				}
				parameterCount++
				segments[i] = fmt.Sprintf("{%t %t %t %t", rule.Integer, rule.Tail, strings.HasPrefix(name, "+"), strings.Contains(name, "..."))
			}
			if parameterCount > maxValues {
				fail("operation %q: the path has more than %d parameters", op.ID, maxValues)
			}
			route := op.Method + strings.Join(segments, "/")
			if other := routes[route]; other != "" {
				fail("operations %q and %q have the same method and path", other, op.ID)
			}
			routes[route] = op.ID
		}
		for _, id := range op.Invalidates {
			if c.byID[id] == nil {
				fail("operation %q invalidates unknown operation %q", op.ID, id)
			}
		}
		if !IsResource(op.Resource) {
			fail("operation %q: unknown resource %q", op.ID, op.Resource)
		}
		for _, check := range op.Checks {
			if checks[check] == nil {
				fail("operation %q: unknown check %q", op.ID, check)
			}
		}
	}
	return errors.Join(errs...)
}

func TestOperationsAreValid(t *testing.T) {
	for _, dialect := range []string{"service", "github"} {
		err := problems(CatalogueOf(dialect))
		failIf(t, err != nil, "%s: %v", dialect, err)
	}
}

// Each operation of the table has a decision about its resource, its cache class and content creation, and each decision has an
// operation.
func TestDecisionsFitTheTable(t *testing.T) {
	d := mustDecode[decisions]("github/decisions.yaml")
	text, err := data.ReadFile("github/content.tsv")
	noError(t, err)
	content := map[string]string{}
	for line := range strings.Lines(string(text)) {
		id, class, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		failIf(t, content[id] != "", "content.tsv: operation %q has two classes", id)
		content[id] = class
	}
	documented, inTable := map[string]bool{}, map[string]bool{}
	for _, op := range Embedded().operations {
		documented[op.Method+" "+withoutNames(op.Path)] = true
	}
	for _, op := range allRows(t) {
		inTable[op.ID] = true
		if documented[op.Method+" "+withoutNames(op.Path)] {
			continue
		}
		row, byCategory := d.Operations[op.ID], d.Categories[op.Category]
		failIf(t, row.Resource == "" && byCategory.Resource == "" || row.Cache == "" && byCategory.Cache == "", "decisions.yaml: operation %q (category %q) has no resource or no cache class", op.ID, op.Category)
		failIf(t, slices.Contains([]string{"POST", "PUT", "PATCH"}, op.Method) && !slices.Contains([]string{"creates", "notifies", "neither", "unsure"}, content[op.ID]), "content.tsv: operation %q has no class, or an unknown class", op.ID)
	}
	for _, ids := range [][]string{slices.Collect(maps.Keys(d.Operations)), slices.Collect(maps.Keys(content)), d.ReadsOnly} {
		for _, id := range ids {
			failIf(t, !inTable[id], "decisions.yaml or content.tsv: unknown operation %q", id)
		}
	}
}

// Each name of collections.yaml is an event, an operation, or a collection with an operation.
func TestCollectionsExist(t *testing.T) {
	c := mustDecode[collections]("github/collections.yaml")
	families := familiesOf(github().operations)
	exists := func(list, name string) {
		root, family, _ := strings.Cut(strings.Replace(name, ":*/", "/", 1), "/")
		failIf(t, !slices.Contains(families[root], family), "%s: no operation in collection %q", list, name)
	}
	for _, part := range []map[string][]string{c.Related, c.Events} {
		for key, list := range part {
			for _, name := range list {
				exists(key, name)
			}
		}
	}
	for key := range c.Related {
		exists("related", key)
	}
	c.Undelivered["access"] = c.Access
	for list, events := range c.Undelivered {
		for _, event := range events {
			failIf(t, c.Events[event] == nil, "%s: no event %q", list, event)
		}
	}
	for _, id := range c.Ends {
		op := github().Operation(id)
		failIf(t, op == nil || op.Safe(), "ends: no write operation %q", id)
	}
	for _, id := range c.Decided {
		op := github().Operation(id)
		failIf(t, op == nil || !op.Safe(), "decided: no read operation %q", id)
	}
}

func TestLimitAnswersAreValid(t *testing.T) {
	names := map[string]bool{}
	for _, row := range limitAnswers {
		upper := func(text string) bool { return text == "" || text != strings.ToLower(text) }
		for problem, found := range map[string]bool{
			"name or source is missing":           row.Name == "" || row.Source == "",
			"unknown kind":                        !slices.Contains([]LimitKind{LimitNone, LimitPrimary, LimitSecondary, LimitContent}, row.Kind),
			"unknown api":                         !slices.Contains([]string{"", apiREST, apiGraphQL}, row.API),
			"unknown body":                        !slices.Contains([]string{"", bodyEmpty, bodyHTML}, row.Body),
			"a text is empty or has upper case":   slices.ContainsFunc(row.Text, upper) || slices.ContainsFunc(row.Begins, upper),
			"repeated must be 0, or at least 2":   row.Repeated < 0 || row.Repeated == 1,
			"the name of another row is the same": names[row.Name],
		} {
			failIf(t, found, "row %q: %s: %+v", row.Name, problem, row)
		}
		names[row.Name] = true
	}
}

func TestQueryFailuresAreValid(t *testing.T) {
	for _, row := range queryFailures {
		ofPart := len(row.Type)+len(row.Begins) > 0
		failIf(t, row.Name == "" || row.Source == "" || len(row.Status) == 0 || ofPart == (row.After > 0), "row %q: needs a name, a source, a status, and either after or a condition about an error", row.Name)
	}
}

func TestSilencesAreValid(t *testing.T) {
	for _, row := range silences {
		failIf(t, row.Name == "" || row.Body <= 0 || (row.Header > 0) == (len(row.MediaTypes) > 0), "row %q: needs a name, body, and either media_types or header", row.Name)
	}
}
