package policy

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
)

// documents returns the texts of Documents A and B from the folder ../shared/spec beside the checkout. If that folder
// does not exist, the test is skipped.
func documents(t *testing.T) map[string]string {
	t.Helper()
	root, err := filepath.Abs("..") // the root of the module
	noError(t, err)
	spec := filepath.Join(filepath.Dir(root), "shared", "spec")
	if _, err := os.Stat(spec); errors.Is(err, fs.ErrNotExist) {
		t.Skip("the folder ../shared/spec beside this checkout does not exist: the catalogue is not compared with Documents A and B")
	}
	texts := map[string]string{}
	for letter, name := range map[string]string{"A": "document-a.md", "B": "document-b.md"} {
		text, err := os.ReadFile(filepath.Join(spec, name))
		noError(t, err)
		texts[letter] = string(text)
	}
	return texts
}

// tableRow is a row of a table in Document A or B.
type tableRow struct {
	section string            // "A 4.1"
	cells   map[string]string // by the heading of the column
}

var sectionHeading = regexp.MustCompile(`^###? (\d+(?:\.\d+)?)\.? `)

// tableRows returns the rows of all tables of a document.
func tableRows(letter, text string) []tableRow {
	var all []tableRow
	var columns []string
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := sectionHeading.FindStringSubmatch(line); m != nil {
			section = letter + " " + m[1]
		}
		if !strings.HasPrefix(line, "|") {
			columns = nil
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		switch {
		case columns == nil:
			columns = cells
		case strings.Trim(line, "|- ") == "":
		default:
			row := tableRow{section, map[string]string{}}
			for i, column := range columns {
				row.cells[column] = cells[i]
			}
			all = append(all, row)
		}
	}
	return all
}

// endpoint contains the fields of an operation that a row of an endpoint table has.
type endpoint struct {
	Section, Method, Path string
	Query                 []Parameter // sorted by name
	Success, Errors       []int
}

// endpoints returns the rows of the tables with a column of paths. In a table without a column of methods, all methods
// are GET (Document A 4.5).
func endpoints(rows []tableRow) []endpoint {
	var all []endpoint
	for _, row := range rows {
		path, ok := row.cells["Path"]
		if !ok {
			continue
		}
		e := endpoint{Section: row.section, Method: "GET", Path: path}
		if method, ok := row.cells["Method"]; ok {
			e.Method = method
		}
		query, ok := row.cells["Query"]
		if !ok {
			_, query, _ = strings.Cut(row.cells["Payload"]+row.cells["Parameters"], "query ")
		}
		e.Query = queryParameters(query)
		if success := statuses(row.cells["Success"]); len(success) > 0 {
			e.Success = success[:1] // other numbers describe the body
		}
		e.Errors = statuses(row.cells["Other statuses"])
		all = append(all, e)
	}
	return all
}

var (
	inBrackets = regexp.MustCompile(`\([^()]*\)`)
	status     = regexp.MustCompile(`\b[2-5]\d\d\b`)
	quoted     = regexp.MustCompile("`([^`]+)`")
	inDefault  = regexp.MustCompile("default (?:`(\\w+)`|(true|\\d+)\\b)|`(\\w+)` default")
)

// statuses returns the status codes of a cell. Text in brackets is an explanation and is ignored.
func statuses(cell string) []int {
	var codes []int
	for _, s := range status.FindAllString(inBrackets.ReplaceAllString(cell, ""), -1) {
		n, _ := strconv.Atoi(s) // three digits
		codes = append(codes, n)
	}
	return codes
}

// queryParameters parses a cell such as "`role` (default `all`; `all`, `admin`), `page`". The names are outside of
// brackets. The brackets after a name describe its values.
func queryParameters(cell string) []Parameter {
	brackets := inBrackets.FindAllString(cell, -1)
	cell = inBrackets.ReplaceAllString(cell, "()")
	names := quoted.FindAllStringSubmatchIndex(cell, -1)
	known := map[string]bool{}
	for _, at := range names {
		known[cell[at[2]:at[3]]] = true
	}
	var all []Parameter
	for i, at := range names {
		after := cell[at[1]:]
		if i+1 < len(names) {
			after = cell[at[1]:names[i+1][0]]
		}
		p := Parameter{Name: cell[at[2]:at[3]], Required: strings.Contains(after, " R")}
		details := ""
		if strings.Contains(after, "()") {
			details, brackets = brackets[0], brackets[1:]
		}
		describe(&p, after, details, known)
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Parameter) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// describe sets the default and the allowed values of a parameter from the text in its brackets. The defaults of
// per_page and page are in Document A section 1.
func describe(p *Parameter, after, details string, known map[string]bool) {
	if m := inDefault.FindStringSubmatch(details); m != nil {
		p.Default = m[1] + m[2] + m[3]
	}
	for _, m := range quoted.FindAllStringSubmatch(details, -1) {
		if !known[m[1]] && !slices.Contains(p.Values, m[1]) {
			p.Values = append(p.Values, m[1])
		}
	}
	if strings.Contains(after, "boolean") {
		p.Values = []string{"true", "false"}
	}
	slices.Sort(p.Values)
	switch p.Name {
	case "per_page":
		p.Default = "30"
	case "page":
		p.Default = "1"
	}
}

func TestEndpointsParsesTables(t *testing.T) {
	got := endpoints(tableRows("A", `
### 4.3 Things

| Method | Path | Payload | Success | Other statuses |
|---|---|---|---|---|
| PUT | /orgs/{org}/things | body {`+"`query`"+` boolean} | 201 thing | |
| GET | /orgs/{org}/things | path `+"`org`; query `role` (default `all`; `all`, `admin`), `page`, `deep` boolean (default true: all `levels`)"+` | 200 array (see 404) | 302 when not; 404 |

### 4.5 Counts

| Path | Success | Other statuses |
|---|---|---|
| /repos/{owner}/{repo}/stats/x | 200 counts | 202 (computing), 422 (10,000 or 500 commits) |

### 4.6 Search

| Method | Path | Query | Success |
|---|---|---|---|
| GET | /search/x | `+"`q` string R; `sort` (`a-b`; default best match); `order` (`desc` default, `asc`; ignored unless `sort` is given)"+` | |
`))
	want := []endpoint{
		{"A 4.3", "PUT", "/orgs/{org}/things", nil, []int{201}, nil},
		{"A 4.3", "GET", "/orgs/{org}/things", []Parameter{
			{Name: "deep", Default: "true", Values: []string{"false", "true"}},
			{Name: "page", Default: "1"},
			{Name: "role", Default: "all", Values: []string{"admin", "all"}},
		}, []int{200}, []int{302, 404}},
		{"A 4.5", "GET", "/repos/{owner}/{repo}/stats/x", nil, []int{200}, []int{202, 422}},
		{"A 4.6", "GET", "/search/x", []Parameter{
			{Name: "order", Default: "desc", Values: []string{"asc", "desc"}},
			{Name: "q", Required: true},
			{Name: "sort", Values: []string{"a-b"}},
		}, nil, nil},
	}
	wantEqual(t, "endpoints", want, got, cmpopts.EquateEmpty())
}

// asEndpoint returns the fields of an operation that a row of an endpoint table has.
func asEndpoint(op *Operation) endpoint {
	e := endpoint{Section: op.Section, Method: op.Method, Path: op.Path, Success: op.Success, Errors: op.Errors}
	for _, p := range op.Query {
		p.Values = slices.Sorted(slices.Values(p.Values))
		e.Query = append(e.Query, p)
	}
	slices.SortFunc(e.Query, func(a, b Parameter) int { return strings.Compare(a.Name, b.Name) })
	return e
}

// byRoute returns endpoints by method and path. A duplicate is an error.
func byRoute(t *testing.T, source string, all []endpoint) map[string]endpoint {
	t.Helper()
	m := map[string]endpoint{}
	for _, e := range all {
		key := e.Method + " " + e.Path
		_, found := m[key]
		failIf(t, found, "%s: %s is listed twice", source, key)
		m[key] = e
	}
	return m
}

func TestCatalogueMatchesEndpointTables(t *testing.T) {
	var rows []endpoint
	for letter, text := range documents(t) {
		rows = append(rows, endpoints(tableRows(letter, text))...)
	}
	wantEqual(t, "rows", 52, len(rows))
	var operations []endpoint
	for _, op := range Embedded().Operations() {
		if op.Section != "" {
			operations = append(operations, asEndpoint(op))
		}
	}
	want, got := byRoute(t, "documents", rows), byRoute(t, "catalogue", operations)
	wantEqual(t, "catalogue", want, got, cmpopts.EquateEmpty())
}

// TestOperationsOutsideTheTables lists the operations that no table contains.
func TestOperationsOutsideTheTables(t *testing.T) {
	want := map[string]string{
		"search/issues":                     "GET /search/issues",                        // named in Document B 4.1
		"search/other":                      "GET /search/{kind}",                        // "other search operations", Document B 4.1
		"graphql":                           "POST /graphql",                             // Document B 2.6, 8.1, 8.3
		"app-manifests/convert":             "POST /app-manifests/{code}/conversions",    // Document B 2.6
		"organization-members/check-public": "GET /orgs/{org}/public_members/{username}", // target of the 302 of Document A 4.3
	}
	got := map[string]string{}
	for _, op := range Embedded().Operations() {
		if op.Section == "" {
			got[op.ID] = op.Method + " " + op.Path
		}
	}
	wantEqual(t, "operations", want, got)
}

// TestResourcesMatchDocuments compares resources.yaml with the table of Document B 2.6, including its order.
func TestResourcesMatchDocuments(t *testing.T) {
	var want []string
	for _, row := range tableRows("B", documents(t)["B"]) {
		if row.section == "B 2.6" {
			want = append(want, row.cells["Member"])
		}
	}
	wantEqual(t, "resources.yaml", want, Resources())
	for _, name := range want {
		failIf(t, !IsResource(name), "IsResource(%q) is false", name)
	}
	failIf(t, IsResource("gold"), "%v", `IsResource("gold") is true`)
	outside := []string{"dependency_sbom", "code_scanning_autofix", "copilot_usage_records", "audit_log", "audit_log_streaming"}
	wantEqual(t, "service dialect", want, dialect(t, "service").Resources())
	wantEqual(t, "github dialect", append(want, outside...), dialect(t, "github").Resources())
	names := []string{"zebra", "audit_log", "search", "apple", "core"}
	slices.SortFunc(names, CompareResources)
	wantEqual(t, "order", []string{"core", "search", "audit_log", "apple", "zebra"}, names)
	used := map[string]bool{}
	for _, op := range Embedded().Operations() {
		used[op.Resource] = true
	}
	wantEqual(t, "resources of operations", []string{"code_search", "core", "graphql", "integration_manifest", "search"}, slices.Sorted(maps.Keys(used)))
}
