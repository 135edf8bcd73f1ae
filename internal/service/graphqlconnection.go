package service

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vektah/gqlparser/v2/ast"
)

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
	total := len(items)
	from, to, wrong := between(items, order, textOf(arguments["after"]), textOf(arguments["before"]))
	if wrong != "" {
		return e.addError(f, "INVALID_CURSOR_ARGUMENTS", fmt.Sprintf("`%s` does not appear to be a valid cursor.", arguments[wrong]))
	}
	if size, _ := e.call.pageSize(f, nil, nil); arguments["last"] != nil {
		from = max(from, to-size)
	} else {
		to = min(to, from+size)
	}
	return newConnection(f.Definition.Type.Name(), items, total, from, to)
}

// newConnection returns the connection with the items from and to.
func newConnection(typeName string, items []item, total, from, to int) node {
	page := items[from:to]
	info := values{"hasPreviousPage": from > 0, "hasNextPage": to < total}
	if len(page) > 0 {
		info["startCursor"], info["endCursor"] = page[0].cursor(), page[len(page)-1].cursor()
	}
	return node{typeName: typeName, values: values{
		"totalCount": total, "issueCount": total, "pageInfo": node{typeName: "PageInfo", values: info},
		"nodes": resolver(func(*ast.Field, map[string]any) any {
			nodes := make([]node, 0, len(page))
			for _, i := range page {
				nodes = append(nodes, i.node())
			}
			return nodes
		}),
		"edges": resolver(func(*ast.Field, map[string]any) any {
			edges := make([]node, 0, len(page))
			for _, i := range page {
				edges = append(edges, newEdge(typeName, i))
			}
			return edges
		}),
	}}
}

// newEdge returns an edge of a type of connection.
func newEdge(connection string, i item) node {
	return node{typeName: strings.TrimSuffix(connection, "Connection") + "Edge", values: values{"cursor": i.cursor(), "node": i.node()}}
}
