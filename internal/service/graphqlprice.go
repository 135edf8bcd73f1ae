package service

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vektah/gqlparser/v2/ast"
)

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
	type key struct{ alias, typeName string }
	var order []key
	fields := map[key]*ast.Field{}
	subselections := map[key]ast.SelectionSet{}
	for _, f := range p.call.collectFields(set, "", map[string]bool{}) {
		k := key{f.Alias, f.ObjectDefinition.Name} // two types may use one alias for different connections
		if fields[k] == nil {
			order, fields[k] = append(order, k), f
		}
		subselections[k] = append(subselections[k], f.SelectionSet...)
	}
	for _, k := range order {
		if p.fields++; p.fields > maxGraphQLFields || p.problem != nil {
			return
		}
		f, below, path := fields[k], subselections[k], append(slices.Clip(path), k.alias)
		objects := parents
		if strings.HasSuffix(f.Definition.Type.Name(), "Connection") {
			page, problem := p.call.pageSize(f, below, path)
			p.problem = problem
			p.requests += parents
			objects = min(parents*page, 1<<40)
			p.nodes += objects
		}
		if f.Name == "rateLimit" {
			p.call.dryRun = p.call.dryRun || f.ArgumentMap(p.call.variables)["dryRun"] == true
		}
		p.add(below, path, objects)
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
