package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/durations"
	"github.com/weirgate/weir/policy"
)

type catalogueCommand struct {
	Pattern []string `arg:"" optional:"" help:"Patterns of operation IDs, such as issues/*, or of paths, such as */branches/*."`
	Method  string   `help:"Only this method." placeholder:"NAME"`
	Select  []string `help:"Only operations with these values, such as cache=never, resource=search, content=unsure, category=issues or product=ghes-3.19." placeholder:"FIELD=VALUE"`
	Diff    string   `help:"Compare with a JSON list of an earlier version: print added, removed and changed operations." placeholder:"FILE"`
	JSON    bool     `help:"Print JSON."`
	Config  string   `help:"Configuration file with cache rules and dialect." placeholder:"FILE"`
	Dialect string   `help:"service or github. Overrides the configuration." placeholder:"NAME"`
}

// operationRow is the JSON of an operation.
type operationRow struct {
	ID         string   `json:"id"`
	Method     string   `json:"method"`
	Path       string   `json:"path"`
	Category   string   `json:"category,omitempty"`
	Products   []string `json:"products,omitempty"`
	Resource   string   `json:"resource"`
	Points     int      `json:"points"`
	Content    string   `json:"content,omitempty"`
	Cache      string   `json:"cache"`
	TTL        string   `json:"ttl,omitempty"`
	Auth       string   `json:"auth"`
	Refuses    []string `json:"refuses,omitempty"`
	Collection string   `json:"collection"`
	Deprecated bool     `json:"deprecated,omitempty"`
}

// Run lists the operations of the catalogue, or the differences from an earlier list.
func (c *catalogueCommand) Run(p *process) error {
	_, _, catalogue, err := loadCatalogue(p, c.Config, c.Dialect)
	if err != nil {
		return err
	}
	var rows []operationRow
	for _, op := range catalogue.Operations() {
		row := rowOf(op)
		selected, err := c.selects(row)
		if err != nil {
			return err
		}
		if selected {
			rows = append(rows, row)
		}
	}
	if c.Diff != "" {
		return c.printDiff(p, rows)
	}
	if c.JSON {
		return printJSON(p, rows)
	}
	if len(rows) == 0 {
		return &exit{exitFailure, "no operation matches; weir catalogue without arguments lists all"}
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "OPERATION\tMETHOD\tPATH\tRESOURCE\tPOINTS\tCONTENT\tCACHE")
	for _, r := range rows {
		_, _ = fmt.Fprintln(w, strings.Join([]string{
			r.ID, r.Method, r.Path, r.Resource, strconv.Itoa(r.Points), cmp.Or(r.Content, "-"), strings.TrimSpace(r.Cache + " " + r.TTL),
		}, "\t"))
	}
	return w.Flush()
}

// loadCatalogue returns the configuration of a file, or the default configuration without a file, with its dialect and its
// catalogue. A given dialect takes precedence over the configuration.
func loadCatalogue(p *process, file, dialect string) (*config.Config, *policy.Dialect, *policy.Catalogue, error) {
	cfg := config.Default()
	if file != "" {
		var err error
		if cfg, err = config.Load(config.Source{Path: file, Getenv: p.getenv}); err != nil {
			return nil, nil, nil, err
		}
	}
	cfg.Upstream.Dialect = cmp.Or(dialect, cfg.Upstream.Dialect)
	d, err := policy.LoadDialect(cfg.Upstream.Dialect)
	if err != nil {
		return nil, nil, nil, &exit{exitUsage, "--dialect: " + err.Error()}
	}
	catalogue, err := cfg.Catalogue()
	return cfg, d, catalogue, err
}

func rowOf(op *policy.Operation) operationRow {
	m := policy.Match{Operation: op, Path: strings.NewReplacer("{", "", "}", "").Replace(op.Path)}
	at := m.Collection()
	row := operationRow{
		ID: op.ID, Method: op.Method, Path: op.Path, Category: op.Category, Products: op.Products, Resource: op.Resource,
		Points: op.Points, Content: op.Content, Cache: string(op.Cache.Class), Auth: op.Auth, Refuses: op.Refuses,
		Collection: at.Root + "/" + at.Family, Deprecated: op.Deprecated,
	}
	if op.Cache.TTL > 0 {
		row.TTL = durations.Text(op.Cache.TTL)
	}
	if op.CreatesContent && row.Content == "" {
		row.Content = "creates"
	}
	return row
}

// selects reports whether the arguments select a row.
func (c *catalogueCommand) selects(r operationRow) (bool, error) {
	matches := func(pattern string) bool { return policy.Glob(pattern, r.ID) || policy.Glob(pattern, r.Path) }
	if len(c.Pattern) > 0 && !slices.ContainsFunc(c.Pattern, matches) || c.Method != "" && !strings.EqualFold(c.Method, r.Method) {
		return false, nil
	}
	for _, s := range c.Select {
		name, value, _ := strings.Cut(s, "=")
		var has []string
		switch name {
		case "cache":
			has = []string{r.Cache}
		case "resource":
			has = []string{r.Resource}
		case "content":
			has = []string{r.Content}
		case "category":
			has = []string{r.Category}
		case "product":
			has = r.Products
		default:
			return false, &exit{exitUsage, fmt.Sprintf("--select: %q is no field: use cache, resource, content, category or product", name)}
		}
		if !slices.Contains(has, value) {
			return false, nil
		}
	}
	return true, nil
}

// operationChange is an operation that differs from an earlier list. An added operation has no Before, and a removed
// operation has no After.
type operationChange struct {
	ID     string        `json:"id"`
	Before *operationRow `json:"before,omitempty"`
	After  *operationRow `json:"after,omitempty"`
}

// printDiff prints how the rows differ from the list in the file. The exit code is 1 if there are differences.
func (c *catalogueCommand) printDiff(p *process, rows []operationRow) error {
	text, err := os.ReadFile(c.Diff)
	if err != nil {
		return fmt.Errorf("--diff: %w%s", err, config.FileRemedy(err))
	}
	var earlier []operationRow
	if err := json.Unmarshal(text, &earlier); err != nil {
		return fmt.Errorf("--diff: read %s: %w; write the file with weir catalogue --json", c.Diff, err)
	}
	changes := map[string]*operationChange{}
	for _, r := range earlier {
		if selected, err := c.selects(r); err == nil && selected {
			changes[r.ID] = &operationChange{ID: r.ID, Before: &r}
		}
	}
	for _, r := range rows {
		switch change := changes[r.ID]; {
		case change == nil:
			changes[r.ID] = &operationChange{ID: r.ID, After: &r}
		case reflect.DeepEqual(*change.Before, r):
			delete(changes, r.ID)
		default:
			change.After = &r
		}
	}
	list := make([]*operationChange, 0, len(changes))
	for _, change := range changes {
		list = append(list, change)
	}
	slices.SortFunc(list, func(a, b *operationChange) int { return cmp.Compare(a.ID, b.ID) })
	if c.JSON {
		err = printJSON(p, list)
	} else {
		for _, change := range list {
			printChange(p, change)
		}
	}
	if err == nil && len(list) > 0 {
		err = &exit{code: exitFailure}
	}
	return err
}

func printChange(p *process, c *operationChange) {
	switch {
	case c.Before == nil:
		p.printf("added    %s  %s %s\n", c.ID, c.After.Method, c.After.Path)
	case c.After == nil:
		p.printf("removed  %s  %s %s\n", c.ID, c.Before.Method, c.Before.Path)
	default:
		p.printf("changed  %s", c.ID)
		before, after := reflect.ValueOf(*c.Before), reflect.ValueOf(*c.After)
		for i := range before.NumField() {
			old, now := fmt.Sprint(before.Field(i)), fmt.Sprint(after.Field(i))
			if old != now {
				name, _, _ := strings.Cut(before.Type().Field(i).Tag.Get("json"), ",")
				p.printf("  %s: %s -> %s", name, old, now)
			}
		}
		p.printf("\n")
	}
}

func printJSON(p *process, v any) error {
	e := json.NewEncoder(p.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
