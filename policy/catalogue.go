package policy

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v4"
)

//go:embed operations/*.yaml github/*.yaml github/content.tsv parameters.yaml public.yaml aliases.yaml resources.yaml dialects.yaml graphql.yaml graphqlcache.yaml limitanswers.yaml moves.yaml named.yaml permissions.yaml queryfailures.yaml unfinished.yaml fields.yaml silence.yaml
var data embed.FS

// UnknownID is the ID of the operation of a route outside the catalogue.
const UnknownID = "unknown"

// Catalogue contains the operations of an API and finds the operation that a request calls.
type Catalogue struct {
	operations  []*Operation
	byID        map[string]*Operation
	root        *node
	aliases     []alias
	collections func() *collections
	personal    []string // path prefixes of unknown routes about the caller
	files       bool     // see Files
}

// Files is the catalogue of a host that serves files instead of an API, such as release assets and archives. All its
// requests are the operation "unknown", and their targets stay unchanged, because signed URLs depend on each byte.
var Files = &Catalogue{files: true, collections: func() *collections { return &collections{} }}

// Embedded returns the catalogue of the documents, and panics if the data are invalid. The tests of the package prevent
// invalid data.
var Embedded = sync.OnceValue(func() *Catalogue { return must(load(data)) })

// github returns the catalogue of the documents and the table of the github dialect.
var github = sync.OnceValue(func() *Catalogue { return must(loadTable(data, table, Embedded())) })

// CatalogueOf returns the catalogue of a dialect: the documents, and for "github" also the table of the whole API.
func CatalogueOf(dialect string) *Catalogue {
	if dialect == "github" {
		return github()
	}
	return Embedded()
}

func must(c *Catalogue, err error) *Catalogue {
	if err != nil {
		panic(err)
	}
	return c
}

// Operations returns all operations: those of the documents in their order, then those of the table by ID.
func (c *Catalogue) Operations() []*Operation { return slices.Clone(c.operations) }

// Operation returns the operation with the given ID, or nil.
func (c *Catalogue) Operation(id string) *Operation { return c.byID[id] }

// CacheOverride changes the cache rule of an operation. A TTL of 0 keeps the TTL of the catalogue. The desc tags are the
// descriptions in the JSON Schema of the configuration.
type CacheOverride struct {
	TTL      time.Duration `yaml:"ttl" desc:"lifetime of a stored response; for reference data only"`
	MaxTTL   time.Duration `yaml:"max_ttl" desc:"longest lifetime of a stored response, also with webhooks.fresh and GraphQL rules"`
	Coalesce bool          `yaml:"coalesce" desc:"send one upstream request for simultaneous identical requests; false forwards each of them"`
}

// WithCacheRules returns a catalogue with changed cache rules. The error lists all unknown operations and all
// operations that are never stored.
func (c *Catalogue) WithCacheRules(rules map[string]CacheOverride) (*Catalogue, error) {
	if len(rules) == 0 {
		return c, nil
	}
	var errs []error
	for id := range rules {
		switch op := c.byID[id]; {
		case op == nil:
			errs = append(errs, fmt.Errorf("cache.operations: unknown operation %q", id))
		case op.Cache.Class == Never:
			errs = append(errs, fmt.Errorf("cache.operations: operation %q is never stored; remove it", id))
		}
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return nil, errors.Join(errs...)
	}
	operations := make([]*Operation, len(c.operations))
	for i, op := range c.operations {
		changed := *op
		if rule, ok := rules[op.ID]; ok {
			changed.Cache.TTL = cmp.Or(rule.TTL, op.Cache.TTL)
			changed.Cache.MaxTTL = rule.MaxTTL
			changed.Cache.NoCoalesce = !rule.Coalesce || op.Cache.NoCoalesce
		}
		operations[i] = &changed
	}
	next := index(operations, c.aliases)
	next.collections, next.personal = c.collections, c.personal
	return next, nil
}

type section struct {
	Section    string `yaml:"section"`
	Title      string `yaml:"title"`
	Operations []struct {
		Operation `yaml:",inline"`
		// Paged adds the parameters per_page and page.
		Paged bool `yaml:"paged"`
	} `yaml:"operations"`
}

func load(files fs.FS) (*Catalogue, error) {
	names, err := fs.Glob(files, "operations/*.yaml")
	if err != nil {
		return nil, err
	}
	var operations []*Operation
	for _, name := range names {
		var s section
		if err := decode(files, name, &s); err != nil {
			return nil, err
		}
		for i := range s.Operations {
			row := &s.Operations[i]
			op := &row.Operation
			op.Section = s.Section
			if row.Paged {
				op.Query = append(op.Query, Parameter{Name: "per_page", Default: "30"}, Parameter{Name: "page", Default: "1"})
			}
			complete(op)
			operations = append(operations, op)
		}
	}
	var aliases []alias
	if err := decode(files, "aliases.yaml", &aliases); err != nil {
		return nil, err
	}
	return index(operations, aliases), nil
}

// complete sets the defaults of a row. Unknown routes have the same defaults.
func complete(op *Operation) {
	points, class := 5, Never
	if op.Safe() {
		points, class = 1, PerCaller
	}
	op.Resource = cmp.Or(op.Resource, Core)
	op.Points = cmp.Or(op.Points, points)
	op.Cache.Class = cmp.Or(op.Cache.Class, class)
	op.Auth = cmp.Or(op.Auth, "required")
}

// index returns a catalogue of operations. The tests of the package check the operations.
func index(operations []*Operation, aliases []alias) *Catalogue {
	c := &Catalogue{
		operations: operations, byID: map[string]*Operation{}, root: &node{}, aliases: aliases,
		personal: []string{"/user"}, collections: sync.OnceValue(func() *collections { return documentedCollections(operations) }),
	}
	paths := make([][]string, len(operations))
	for i, op := range operations {
		c.byID[op.ID] = op
		paths[i] = templates(op)
		for _, path := range paths[i] {
			c.root.add(op, path)
		}
	}
	for i, op := range operations { // an operation takes precedence over an alias of another operation
		for _, path := range paths[i] {
			for _, a := range aliases {
				if alias := a.spell(path); alias != "" {
					c.root.add(op, alias)
				}
			}
		}
	}
	return c
}

// templates returns all path templates of an operation, without aliases.
func templates(op *Operation) (all []string) {
	for _, path := range append([]string{cmp.Or(op.Template, op.Path)}, op.OtherPaths...) {
		all = append(all, expand(path)...)
	}
	return all
}

// decode reads an embedded file. Unknown keys are errors.
func decode(files fs.FS, name string, into any) error {
	text, err := fs.ReadFile(files, name)
	if err != nil {
		return err
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// mustDecode reads an embedded file like decode, and panics on an error.
func mustDecode[T any](name string) T {
	var v T
	if err := decode(data, name, &v); err != nil {
		panic(err)
	}
	return v
}

type resource struct {
	Name    string `yaml:"name"`
	Dialect string `yaml:"dialect"`
	Limit   int    `yaml:"limit"`
	// Kinds has the kinds of callers with another limit.
	Kinds           map[CallerKind]int `yaml:"kinds"`
	Unauthenticated int                `yaml:"unauthenticated"`
	Window          time.Duration      `yaml:"window"`
}

var resources = mustDecode[[]resource]("resources.yaml")

// Resources returns the resources of the documents' rate limit status in their order (Document B section 2.6).
func Resources() []string { return resourcesOf("") }

// resourcesOf returns the resources of the documents, followed by the resources that only a dialect has.
func resourcesOf(dialect string) (names []string) {
	for _, r := range resources {
		if r.Dialect == "" || r.Dialect == dialect {
			names = append(names, r.Name)
		}
	}
	return names
}

// IsResource reports whether resources.yaml has a resource with the given name. The upstream may name other resources.
func IsResource(name string) bool { return resourceIndex(name) >= 0 }

// resourceIndex returns the position of a name in resources.yaml, or -1.
func resourceIndex(name string) int {
	return slices.IndexFunc(resources, func(r resource) bool { return r.Name == name })
}

// CompareResources orders names as in resources.yaml, and other names alphabetically after them.
func CompareResources(a, b string) int {
	i, j := resourceIndex(a), resourceIndex(b)
	switch {
	case i >= 0 && j >= 0:
		return cmp.Compare(i, j)
	case i < 0 && j < 0:
		return strings.Compare(a, b)
	}
	return cmp.Compare(j, i) // a negative index comes last
}
