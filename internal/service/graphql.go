package service

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/parser"
	"github.com/vektah/gqlparser/v2/validator"
)

//go:embed schema.graphql
var schemaText string

var schema = sync.OnceValue(func() *ast.Schema {
	return gqlparser.MustLoadSchema(&ast.Source{Name: "schema.graphql", Input: schemaText})
})

// These constants bound the tokens in the text of a GraphQL request, and the fields of the request and of its response.
const (
	maxGraphQLTokens = 2000
	maxGraphQLFields = 50_000
)

// graphQLCall is a GraphQL request that has been parsed and priced.
type graphQLCall struct {
	operation *ast.OperationDefinition
	variables map[string]any
	problem   *response // the response to a request that cannot be executed, otherwise nil
	price     price
	mutates   bool // an operation that the request selects is a mutation, whether or not it is valid
	dryRun    bool // the request asks only for its price and is charged 1 point
}

// readGraphQL parses and prices a GraphQL request. It reports problems in the member errors of a response with status
// 200.
func (s *Service) readGraphQL(body []byte) *graphQLCall {
	var input struct {
		Query         string          `json:"query"`
		OperationName string          `json:"operationName"`
		Variables     json.RawMessage `json:"variables"`
	}
	call := &graphQLCall{price: price{cost: 1}}
	fail := func(errs ...*gqlerror.Error) *graphQLCall {
		refusal := graphQLErrors(errs...)
		call.problem = &refusal
		return call
	}
	if call.problem = readBody(body, "GraphQL", &input); call.problem != nil {
		return call
	}
	document, err := parser.ParseQueryWithTokenLimit(&ast.Source{Input: input.Query}, maxGraphQLTokens)
	if err != nil {
		return fail(gqlerror.WrapIfUnwrapped(err))
	}
	for _, o := range document.Operations {
		selected := input.OperationName == "" || o.Name == input.OperationName
		call.mutates = call.mutates || selected && o.Operation == ast.Mutation
	}
	if errs := validator.ValidateWithRules(schema(), document, nil); len(errs) > 0 {
		return fail(errs...)
	}
	operation := document.Operations.ForName(input.OperationName)
	if operation == nil {
		return fail(gqlerror.Errorf("No operation named %q", input.OperationName))
	}
	var variables map[string]any
	d := json.NewDecoder(bytes.NewReader(input.Variables))
	d.UseNumber()            // large numbers keep their digits
	_ = d.Decode(&variables) // the schema of the body allows only objects
	if call.variables, err = validator.VariableValues(schema(), operation, variables); err != nil {
		return fail(gqlerror.WrapIfUnwrapped(err))
	}
	call.operation = operation
	call.setPrice()
	return call
}

const graphQLID = "graphql"

// amount returns the points that the call costs in the window of its resource.
func (call *graphQLCall) amount() int {
	if call.dryRun {
		return 1
	}
	return call.price.cost
}

// graphQL executes a query or a mutation (schema.graphql).
func graphQL(s *Service, req *request) response {
	call := req.graphQL
	if call.problem != nil || call.operation.Operation != ast.Mutation {
		req.seq = 0 // a query changes nothing
	}
	if call.problem != nil {
		return *call.problem
	}
	e := &execution{s: s, req: req, call: call}
	root := e.query()
	if call.dryRun {
		root.values = values{"rateLimit": root.values["rateLimit"]}
	}
	if call.operation.Operation == ast.Mutation {
		root = e.mutation()
	}
	body := object{{"data", e.selectFields(call.operation.SelectionSet, root)}}
	if e.fieldCount > maxGraphQLFields {
		return graphQLErrors(gqlerror.Errorf("The answer would have more than %d fields", maxGraphQLFields))
	}
	if len(e.errors) > 0 {
		body = append(body, field{"errors", e.errors})
	}
	return response{status: http.StatusOK, volatile: true, body: body}
}

func graphQLErrors(errs ...*gqlerror.Error) response {
	for _, err := range errs {
		delete(err.Extensions, "file")
	}
	return graphQLProblem(errs)
}

// graphQLProblem returns a response with errors and without data.
func graphQLProblem(errs any) response {
	return response{status: http.StatusOK, volatile: true, body: object{{"errors", errs}}}
}

// execution executes one operation that is valid for the schema.
type execution struct {
	s          *Service
	req        *request
	call       *graphQLCall
	errors     []object
	fieldCount int // fields selected so far
}

// node is an object of the graph. The values of its fields are the computed ones, and the members of the stored object
// with the names of the fields in snake case.
type node struct {
	typeName string
	stored   doc
	values   values
}

// values are values by the names of fields. A value is a scalar, nil, a node, a list of nodes, or a resolver of one of
// these.
type values map[string]any

// value returns the value of a field. The stored names of constants are in lower case, and a stored text may be null.
func (n node) value(f *ast.Field) any {
	computed, ok := n.values[f.Name]
	if ok || n.stored == nil {
		return computed
	}
	stored := n.stored[strings.ToLower(upperCase.ReplaceAllString(f.Name, "_$0"))]
	switch text, isText := stored.(string); {
	case isText && schema().Types[f.Definition.Type.Name()].Kind == ast.Enum:
		return strings.ToUpper(text)
	case stored == nil && f.Definition.Type.String() == "String!":
		return ""
	}
	return stored
}

var upperCase = regexp.MustCompile(`[A-Z]`)

// resolver returns the value of a field for its arguments.
type resolver func(f *ast.Field, arguments map[string]any) any

// selectFields returns the JSON object of the selected fields of a node.
func (e *execution) selectFields(set ast.SelectionSet, n node) object {
	selected := object{}
	for _, f := range e.call.selections(set, n.typeName) {
		if e.fieldCount++; e.fieldCount > maxGraphQLFields {
			break
		}
		value := n.value(f.Field)
		if f.Name == "__typename" {
			value = n.typeName
		}
		if resolve, ok := value.(resolver); ok {
			value = resolve(f.Field, f.ArgumentMap(e.call.variables))
		}
		selected = append(selected, field{f.Alias, e.shown(value, f.below)})
	}
	return selected
}

// shown returns the JSON of a value. An object that the caller cannot see has no type.
func (e *execution) shown(value any, set ast.SelectionSet) any {
	switch v := value.(type) {
	case node:
		if v.typeName == "" {
			return nil
		}
		return e.selectFields(set, v)
	case []any:
		return renderAll(v, func(element any) any { return e.shown(element, set) })
	}
	return value
}

// selection is a field with all selections below it.
type selection struct {
	*ast.Field
	below ast.SelectionSet
}

// selections returns the selected fields once by their name in the response. Without a type, two types may use one name
// for different fields.
func (call *graphQLCall) selections(set ast.SelectionSet, typeName string) (all []selection) {
	index := map[string]int{}
	for _, f := range call.collectFields(set, typeName, map[string]bool{}) {
		key := f.Alias
		if typeName == "" {
			key += " " + f.ObjectDefinition.Name
		}
		if _, twice := index[key]; !twice {
			index[key], all = len(all), append(all, selection{Field: f})
		}
		at := &all[index[key]]
		at.below = append(at.below, f.SelectionSet...)
	}
	return all
}

// collectFields returns the fields that a selection selects from an object of a type, or from objects of every type if
// the type is empty. It expands each fragment once.
func (call *graphQLCall) collectFields(set ast.SelectionSet, typeName string, visited map[string]bool) []*ast.Field {
	var all []*ast.Field
	for _, selection := range set {
		switch of := selection.(type) {
		case *ast.Field:
			if call.included(of.Directives) {
				all = append(all, of)
			}
		case *ast.InlineFragment:
			if call.included(of.Directives) && isOfType(typeName, of.TypeCondition) {
				all = append(all, call.collectFields(of.SelectionSet, typeName, visited)...)
			}
		case *ast.FragmentSpread:
			if call.included(of.Directives) && isOfType(typeName, of.Definition.TypeCondition) && !visited[of.Name] {
				visited[of.Name] = true
				all = append(all, call.collectFields(of.Definition.SelectionSet, typeName, visited)...)
			}
		}
	}
	return all
}

// isOfType reports whether a fragment with a type condition applies to an object type.
func isOfType(typeName, condition string) bool {
	return typeName == "" || condition == "" || slices.ContainsFunc(schema().PossibleTypes[condition], func(d *ast.Definition) bool { return d.Name == typeName })
}

// included reports whether the directives @skip and @include select an item.
func (call *graphQLCall) included(directives ast.DirectiveList) bool {
	isTrue := func(name string) bool {
		d := directives.ForName(name)
		return d != nil && d.ArgumentMap(call.variables)["if"] == true
	}
	return !isTrue("skip") && (directives.ForName("include") == nil || isTrue("include"))
}

// addError records the reason why a field of the root has no value.
func (e *execution) addError(f *ast.Field, kind, message string) any {
	e.errors = append(e.errors, object{{"type", kind}, {"path", []string{f.Alias}}, {"message", message}})
	return nil
}

// unresolved records that a field names a node that does not exist or is not visible.
func (e *execution) unresolved(f *ast.Field, id any) any {
	return e.addError(f, "NOT_FOUND", fmt.Sprintf("Could not resolve to a node with the global id of '%v'.", id))
}

// stringArgument returns an argument of type String! or ID!. If a variable made it null, stringArgument records an
// error and returns false.
func (e *execution) stringArgument(f *ast.Field, arguments map[string]any, name string) (string, bool) {
	s, ok := arguments[name].(string)
	if !ok {
		e.addError(f, "INVALID", "Argument '"+name+"' must be a string.")
	}
	return s, ok
}

// paged returns the resolver of a connection.
func (e *execution) paged(items func(arguments map[string]any) []item) resolver {
	return func(f *ast.Field, arguments map[string]any) any {
		order, _ := arguments["orderBy"].(map[string]any)
		return e.connection(f, arguments, items(arguments), order["direction"] == "DESC")
	}
}

// connection returns a page of items in ascending order, or in descending order if descending is set. readGraphQL has
// checked first and last.
func (e *execution) connection(f *ast.Field, arguments map[string]any, items []item, descending bool) any {
	order := item.compare
	if descending {
		order = func(a, b item) int { return b.compare(a) }
	}
	slices.SortFunc(items, order)
	size, _ := e.call.pageSize(f, nil, nil)
	from, to, wrong := between(items, order, textOf(arguments["after"]), textOf(arguments["before"]), size, arguments["last"] != nil)
	if wrong != "" {
		return e.addError(f, "INVALID_CURSOR_ARGUMENTS", fmt.Sprintf("`%s` does not appear to be a valid cursor.", arguments[wrong]))
	}
	page, total, typeName := items[from:to], len(items), f.Definition.Type.Name()
	info := values{"hasPreviousPage": from > 0, "hasNextPage": to < total}
	if len(page) > 0 {
		info["startCursor"], info["endCursor"] = page[0].cursor(), page[len(page)-1].cursor()
	}
	return node{typeName: typeName, values: values{
		"totalCount": total, "issueCount": total, "pageInfo": node{typeName: "PageInfo", values: info},
		"nodes": resolver(func(*ast.Field, map[string]any) any { return renderAll(page, func(i item) node { return i.node() }) }),
		"edges": resolver(func(*ast.Field, map[string]any) any {
			return renderAll(page, func(i item) node { return newEdge(typeName, i) })
		}),
	}}
}

// newEdge returns an edge of a type of connection.
func newEdge(connection string, i item) node {
	return node{typeName: strings.TrimSuffix(connection, "Connection") + "Edge", values: values{"cursor": i.cursor(), "node": i.node()}}
}

// These constants are the limits of a call: the nodes that it may ask for, and first or last of a connection.
const (
	maxNodes          = 500_000
	maxConnectionPage = 100
)

// price is the price of a call by the published rule. The rule assumes that each connection is full.
type price struct {
	requests int // one for each parent of each connection
	nodes    int
	cost     int // primary points: a hundredth of the requests, rounded to the nearest number, and at least 1
}

// setPrice sets the price of the call. If the call exceeds a limit, setPrice sets the problem, and the call costs 1.
func (call *graphQLCall) setPrice() {
	p := pricing{call: call}
	p.add(call.operation.SelectionSet, nil, 1)
	if p.fields > maxGraphQLFields {
		p.problem = object{{"message", fmt.Sprintf("The query has more than %d fields", maxGraphQLFields)}}
	} else if p.nodes > maxNodes && p.problem == nil {
		p.problem = object{
			{"type", "MAX_NODE_LIMIT_EXCEEDED"},
			{"message", "This query requests up to " + grouped(p.nodes) + " possible nodes which exceeds the maximum limit of " + grouped(maxNodes) + "."},
		}
	}
	if p.problem != nil {
		refusal := graphQLProblem([]object{p.problem})
		call.problem = &refusal
		return
	}
	p.cost = max(1, (p.requests+50)/100)
	call.price = p.price
}

// pricing is the computation of a price.
type pricing struct {
	price
	call    *graphQLCall
	fields  int // fields visited so far
	problem object
}

// add adds the connections in a selection to the price. parents is the number of objects that the selection applies to.
func (p *pricing) add(set ast.SelectionSet, path []string, parents int) {
	for _, f := range p.call.selections(set, "") {
		if p.fields++; p.fields > maxGraphQLFields || p.problem != nil {
			return
		}
		path, objects := append(slices.Clip(path), f.Alias), parents
		if strings.HasSuffix(f.Definition.Type.Name(), "Connection") {
			page, problem := p.call.pageSize(f.Field, f.below, path)
			p.problem = problem
			p.requests += parents
			objects = min(parents*page, 1<<40)
			p.nodes += objects
		}
		if f.Name == "rateLimit" {
			p.call.dryRun = p.call.dryRun || f.ArgumentMap(p.call.variables)["dryRun"] == true
		}
		p.add(f.below, path, objects)
	}
}

// pageSize returns first or last of a connection, or the problem with them. A connection whose items are not selected
// needs neither and has size 0.
func (call *graphQLCall) pageSize(f *ast.Field, below ast.SelectionSet, path []string) (int, object) {
	problem := func(kind, format string, args ...any) (int, object) {
		return 0, object{{"type", kind}, {"path", path}, {"message", fmt.Sprintf(format, args...)}}
	}
	size, bounds := 0, 0
	arguments := f.ArgumentMap(call.variables)
	for _, name := range []string{"first", "last"} {
		if arguments[name] == nil {
			continue
		}
		bounds++
		n, ok := arguments[name].(int64)
		switch {
		case !ok || n < 1:
			return problem("EXCESSIVE_PAGINATION", "`%s` on the `%s` connection must be from 1 to %d.", name, f.Name, maxConnectionPage)
		case n > maxConnectionPage:
			return problem("EXCESSIVE_PAGINATION", "Requesting %d records on the `%s` connection exceeds the `%s` limit of %d records.", n, f.Name, name, maxConnectionPage)
		}
		size = int(n)
	}
	counts := !slices.ContainsFunc(call.collectFields(below, "", map[string]bool{}), func(f *ast.Field) bool {
		return slices.Contains([]string{"nodes", "edges", "pageInfo"}, f.Name)
	})
	switch {
	case bounds == 2:
		return problem("INVALID", "Passing both `first` and `last` to paginate the `%s` connection is not supported.", f.Name)
	case bounds == 0 && !counts:
		return problem("MISSING_PAGINATION_BOUNDARIES", "You must provide a `first` or `last` value to properly paginate the `%s` connection.", f.Name)
	}
	return size, nil
}

// grouped formats a number with commas between groups of three digits.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
