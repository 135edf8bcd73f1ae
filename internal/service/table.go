package service

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weirgate/weir/policy"
)

// Operation is one row of the table of operations, and one endpoint for the limits.
type Operation struct {
	ID, Method, Path string // Path is a template, such as /repos/{owner}/{repo}

	category string
	notifies bool  // the operation notifies users
	noApps   bool  // installations and apps may not use the operation
	statuses []int // all statuses that the table lists
	paging   string
	pattern  []segment
	// documented is the operation of the documents with the method and the path, or nil.
	documented *policy.Operation
	// view is the canonical path without parameter names, such as /repos/{}/{}. Two operations with one view read and
	// change the same thing.
	view string
}

// segment is one segment of a template.
type segment struct {
	text string // a literal
	name string // a parameter
	many bool   // the parameter may contain slashes
	head string // the second parameter of {+base}...{+head}
}

// parseTable returns the operations of a product in the order of the embedded table.
func parseTable(product string) (all []*Operation) {
	for _, column := range splitTable(policy.Table()) {
		if len(column) < 8 || !slices.Contains(strings.Fields(column[7]), product) {
			continue
		}
		flags := strings.Fields(column[4])
		op := &Operation{
			ID: column[0], Method: column[1], Path: column[2], category: column[3], paging: column[6],
			notifies: slices.Contains(flags, "notifies"), noApps: slices.Contains(flags, "no-apps"),
			pattern: parseTemplate(column[2]), view: viewOf(column[2]),
		}
		for _, status := range strings.Fields(column[5]) {
			code, _ := strconv.Atoi(status) // the table has only numbers
			op.statuses = append(op.statuses, code)
		}
		all = append(all, op)
	}
	return all
}

func parseTemplate(path string) []segment {
	var pattern []segment
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		inner, isParameter := strings.CutPrefix(part, "{")
		inner = strings.TrimSuffix(inner, "}")
		name, many := strings.CutPrefix(inner, "+")
		base, head, isPair := strings.Cut(name, "}...{+")
		switch {
		case !isParameter:
			pattern = append(pattern, segment{text: part})
		case isPair:
			pattern = append(pattern, segment{name: base, head: head, many: true})
		default:
			pattern = append(pattern, segment{name: name, many: many})
		}
	}
	return pattern
}

var parameter = regexp.MustCompile(`\{\+?[a-z_]+\}`)

// canonical returns the template of the canonical path, which names organizations, teams and users by name.
func canonical(path string) string {
	for _, alias := range [][2]string{
		{"/teams/{team_id}", "/orgs/{org}/teams/{team_slug}"}, {"/organizations/{org}", "/orgs/{org}"},
		{"/user/{account_id}", "/users/{account_id}"}, {"/user/{user_id}", "/users/{user_id}"},
	} {
		if rest, ok := strings.CutPrefix(path, alias[0]); ok {
			return alias[1] + rest
		}
	}
	return path
}

// viewOf returns the canonical template without parameter names.
func viewOf(path string) string { return parameter.ReplaceAllString(canonical(path), "{}") }

// accepts reports whether a parameter may have a value.
func (p segment) accepts(value string) bool {
	if value == "" || strings.HasPrefix(value, "/") || strings.HasSuffix(value, "/") || strings.Contains(value, "//") {
		return false
	}
	if p.name == "account_id" { // /user/1, but not /user/repos
		_, err := strconv.Atoi(value)
		return err == nil
	}
	base, head, isPair := strings.Cut(value, "...")
	return p.head == "" || isPair && base != "" && head != ""
}

// bind matches a path against a pattern. If they match, bind adds the parameters of the path to values. A parameter
// with slashes takes as many segments as possible.
func bind(pattern []segment, path []string, values map[string]string) bool {
	if len(pattern) == 0 || len(path) == 0 {
		return len(pattern) == len(path)
	}
	p := pattern[0]
	if p.name == "" {
		return path[0] == p.text && bind(pattern[1:], path[1:], values)
	}
	most := 1
	if p.many {
		most = len(path) - len(pattern) + 1
	}
	for n := most; n >= 1; n-- {
		value := strings.Join(path[:n], "/")
		if !p.accepts(value) || !bind(pattern[1:], path[n:], values) {
			continue
		}
		if p.head != "" {
			values[p.name], values[p.head], _ = strings.Cut(value, "...")
		} else {
			values[p.name] = value
		}
		return true
	}
	return false
}

// rank orders operations: at the first difference of the patterns, a literal precedes a pair of parameters, a pair
// precedes a parameter, and a parameter precedes one with slashes. A longer pattern precedes its own beginning.
func (op *Operation) rank() (key string) {
	for _, p := range op.pattern {
		switch {
		case p.text != "":
			key += "0"
		case p.head != "":
			key += "1"
		case !p.many:
			key += "2"
		default:
			key += "3"
		}
	}
	return key + "4"
}

// router finds the operation of a request.
type router struct {
	operations []*Operation
	byID       map[string]*Operation
	byStart    map[string][]*Operation // by method and first segment, most literal first
	// reads are the GET operations by view, and items are the views of single objects in a listed collection.
	reads map[string]*Operation
	items map[string]*Operation
}

// routers holds the router of each product, because the table never changes.
var routers sync.Map

// routerOf returns the router of a product.
func routerOf(product string) (*router, error) {
	if known, ok := routers.Load(product); ok {
		return known.(*router), nil
	}
	operations := parseTable(product)
	if len(operations) == 0 {
		return nil, fmt.Errorf("table of operations: no operation has the product %q", product)
	}
	r := newRouter(addDocumented(operations))
	r.operations = operations
	routers.Store(product, r)
	return r, nil
}

// addDocumented adds the documents' operations to those of the table: to the row with the same method and path, or as
// another row. The feeds are rows without documentation.
func addDocumented(operations []*Operation) []*Operation {
	byShape := map[string]*Operation{}
	for _, op := range operations {
		byShape[op.Method+" "+parameter.ReplaceAllString(op.Path, "{}")] = op
	}
	add := func(op *Operation) {
		op.pattern, op.view = parseTemplate(op.Path), viewOf(op.Path)
		operations = append(operations, op)
	}
	for _, d := range policy.Embedded().Operations() {
		op := byShape[d.Method+" "+parameter.ReplaceAllString(d.Path, "{}")]
		if op == nil && d.ID == searchOtherID {
			for _, kind := range []string{"repositories", "users"} {
				if row := byShape[http.MethodGet+" /search/"+kind]; row != nil {
					row.documented = d
				}
			}
		}
		if op == nil {
			category, _, _ := strings.Cut(d.ID, "/")
			op = &Operation{ID: d.ID, Method: d.Method, Path: d.Path, category: category, statuses: []int{http.StatusOK}}
			for _, p := range d.Query {
				op.paging = cmp.Or(op.paging, map[string]string{"page": "page", "after": "cursor"}[p.Name])
			}
			add(op)
		}
		op.documented = d
	}
	add(&Operation{ID: graphQLID, Method: http.MethodPost, Path: "/api/graphql", documented: policy.Embedded().Operation(graphQLID)})
	for _, f := range feeds {
		add(&Operation{ID: "activity/get-feed", Method: http.MethodGet, Path: f.path})
	}
	return operations
}

func newRouter(operations []*Operation) *router {
	r := &router{byID: map[string]*Operation{}, byStart: map[string][]*Operation{},
		reads: map[string]*Operation{}, items: map[string]*Operation{}}
	for _, op := range operations {
		r.byID[op.ID] = op
		start := op.Method + " " + op.pattern[0].text // no path begins with a parameter
		r.byStart[start] = append(r.byStart[start], op)
		if op.Method == http.MethodGet {
			r.reads[op.view] = op
		}
	}
	for _, list := range r.byStart {
		slices.SortStableFunc(list, func(a, b *Operation) int { return strings.Compare(a.rank(), b.rank()) })
	}
	for _, op := range operations {
		if list := r.reads[parentOf(op.view)]; strings.HasSuffix(op.view, "/{}") && list != nil && r.isList(list) {
			if known := r.items[op.view]; known == nil || op.Method == http.MethodGet {
				r.items[op.view] = op
			}
		}
	}
	return r
}

// match returns the operation of a method and a decoded path, and the parameters of the path. HEAD requests match GET
// operations.
func (r *router) match(method string, path []string) (*Operation, map[string]string) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	values := map[string]string{}
	for _, op := range r.byStart[method+" "+path[0]] {
		if bind(op.pattern, path, values) {
			return op, values
		}
	}
	return nil, nil
}

// isList reports whether a GET operation returns a list, with or without a total.
func (r *router) isList(op *Operation) bool {
	if slices.Contains(views().Singles, op.ID) || !slices.Contains(op.statuses, http.StatusOK) {
		return false
	}
	_, name, _ := strings.Cut(op.ID, "/")
	return op.paging != "" || strings.HasPrefix(name, "list") || strings.HasPrefix(name, "get-all-")
}

// success returns the success statuses of an operation in ascending order. A redirect is a success only of an operation
// without other successes.
func (op *Operation) success() []int {
	list := slices.DeleteFunc(slices.Clone(op.statuses), func(status int) bool { return status >= 300 })
	if len(list) == 0 && op.lists(http.StatusFound) {
		list = []int{http.StatusFound}
	}
	return list
}

// created returns 201 if the operation lists it, and otherwise its first success status.
func (op *Operation) created() int {
	if op.lists(http.StatusCreated) {
		return http.StatusCreated
	}
	return op.success()[0]
}

// putStatus returns the status of a PUT: 201 if it created an object and the operation distinguishes that.
func (op *Operation) putStatus(known bool) int {
	list := op.success()
	at := slices.Index(list, http.StatusCreated)
	if at < 0 || len(list) == 1 || !known {
		return list[max(at, 0)]
	}
	return list[1-at]
}

func (op *Operation) lists(status int) bool { return slices.Contains(op.statuses, status) }

// isCheck reports whether an operation responds with 204 or 404 and has no body.
func (op *Operation) isCheck() bool {
	return op.Method == http.MethodGet && op.lists(http.StatusNoContent) && op.lists(http.StatusNotFound) && !op.lists(http.StatusOK)
}

func parentOf(path string) string { return path[:max(0, strings.LastIndexByte(path, '/'))] }
