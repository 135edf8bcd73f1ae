package policy

//go:generate go -C github/generate run .

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// sharedTTL is the lifetime of reference data of the table's operations.
	sharedTTL = time.Hour
	// immutableTTL is the lifetime of an immutable response. It is short, because a caller may lose access to the object.
	immutableTTL = 10 * time.Minute
)

// decisions is the content of github/decisions.yaml, which the published descriptions do not decide.
type decisions struct {
	Categories map[string]decision `yaml:"categories"`
	Operations map[string]decision `yaml:"operations"`
	// ReadsOnly lists operations that change nothing. See [Operation.ReadsOnly].
	ReadsOnly []string `yaml:"reads_only"`
	// Personal and App are path prefixes of operations about the caller, and of operations for the credentials of apps.
	Personal []string `yaml:"personal"`
	App      []string `yaml:"app"`
}

type decision struct {
	Resource   string     `yaml:"resource"`
	Cache      CacheClass `yaml:"cache"`
	Checks     []string   `yaml:"checks"`
	OtherPaths []string   `yaml:"other_paths"`
}

// loadTable returns the catalogue of the documents and of github/operations.tsv. An operation of the documents takes
// precedence over the table's operation with the same method and path.
func loadTable(files fs.FS, table string, documents *Catalogue) (*Catalogue, error) {
	var d decisions
	if err := decode(files, "github/decisions.yaml", &d); err != nil {
		return nil, err
	}
	text, err := fs.ReadFile(files, "github/content.tsv")
	if err != nil {
		return nil, err
	}
	content := map[string]string{}
	for line := range strings.Lines(string(text)) {
		id, class, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		content[id] = class
	}
	documented := map[string]bool{}
	for _, op := range documents.operations {
		documented[op.Method+" "+withoutNames(op.Path)] = true
	}
	operations := documents.Operations()
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		op, err := parseRow(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, fmt.Errorf("operations.tsv: %q: %w", line, err)
		}
		if documented[op.Method+" "+withoutNames(op.Path)] {
			continue
		}
		d.apply(op, content[op.ID])
		operations = append(operations, op)
	}
	all := index(operations, documents.aliases)
	all.personal = d.Personal
	all.collections = sync.OnceValue(func() *collections { return loadCollections(files, operations) })
	return all, nil
}

// loadCollections reads github/collections.yaml, and panics if the file is invalid. The first write or webhook event
// needs the collections, so they do not delay the start.
func loadCollections(files fs.FS, operations []*Operation) *collections {
	c := &collections{families: familiesOf(operations)}
	if err := decode(files, "github/collections.yaml", c); err != nil {
		panic(err)
	}
	c.addDocumented(operations)
	c.decide(operations)
	return c
}

// within reports whether a path is a prefix or below the prefix.
func within(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, prefix)
	return ok && (rest == "" || rest[0] == '/')
}

// apply sets the fields of an operation that the table does not have.
func (d *decisions) apply(op *Operation, content string) {
	row, byCategory := d.Operations[op.ID], d.Categories[op.Category]
	op.Resource = cmp.Or(row.Resource, byCategory.Resource)
	op.Checks, op.OtherPaths = row.Checks, row.OtherPaths
	class := cmp.Or(row.Cache, byCategory.Cache)
	switch {
	case !op.Safe():
		class = Never
	case class == Immutable:
		op.Cache.TTL = immutableTTL
	case class == Shared:
		op.Cache.TTL = sharedTTL
	}
	op.Cache.Class = class
	op.ReadsOnly = slices.Contains(d.ReadsOnly, op.ID)
	has := func(prefix string) bool { return within(op.Path, prefix) }
	op.Personal = slices.ContainsFunc(d.Personal, has)
	op.Auth = "optional"
	if slices.ContainsFunc(d.App, has) {
		op.Auth = "app"
	}
	if slices.Contains([]string{"POST", "PUT", "PATCH"}, op.Method) {
		op.Content, op.CreatesContent, op.Notifies = content, content != "neither", content == "notifies"
	}
	complete(op)
}

// parseRow parses a line of the table. The header line of the table names the columns. The host is not used, because
// clients name the host of a request.
func parseRow(line string) (*Operation, error) {
	columns := make([]string, 9)
	copy(columns, strings.Split(line, "\t"))
	op := &Operation{ID: columns[0], Method: columns[1], Path: columns[2], Category: columns[3], Products: strings.Fields(columns[7])}
	if strings.Contains(op.Path, "{+") {
		op.Path, op.Template = strings.ReplaceAll(op.Path, "{+", "{"), op.Path
	}
	for flag := range strings.FieldsSeq(columns[4]) {
		switch flag {
		case "deprecated":
			op.Deprecated = true
		case "no-apps":
			op.Refuses = []string{"app_user", "installation"}
		case "notifies": // also a DELETE; content.tsv decides about other methods
			op.Content, op.CreatesContent, op.Notifies = "notifies", true, true
		}
	}
	for status := range strings.FieldsSeq(columns[5]) {
		n, err := strconv.Atoi(status)
		if err != nil {
			return nil, err
		}
		if n < 300 {
			op.Success = append(op.Success, n)
		} else {
			op.Errors = append(op.Errors, n)
		}
	}
	switch columns[6] {
	case "page":
		op.Query = pageParameters
	case "cursor":
		op.Query = cursorParameters
	}
	return op, nil
}

var (
	pageParameters   = []Parameter{{Name: "per_page", Default: "30"}, {Name: "page", Default: "1"}}
	cursorParameters = []Parameter{{Name: "per_page", Default: "30"}, {Name: "after"}}
)

// withoutNames returns a template with empty names of parameters.
func withoutNames(template string) string {
	segments := strings.Split(template, "/")
	for i, s := range segments {
		if strings.HasPrefix(s, "{") {
			segments[i] = "{}"
		}
	}
	return strings.Join(segments, "/")
}
