package service

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vektah/gqlparser/v2/ast"
)

// item is one item of a connection. Connections order items by key and then by ID, so that a cursor stays valid while
// items are added and removed.
type item struct {
	key string
	id  int
	// node builds the node. It is called only for items on the requested page.
	node func() node
}

func (i item) compare(o item) int { return cmp.Or(cmp.Compare(i.key, o.key), cmp.Compare(i.id, o.id)) }

const itemCursorPrefix = "cursor:v2:"

// cursor returns the position of the item as an opaque text.
func (i item) cursor() string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s%d:%s", itemCursorPrefix, i.id, i.key))
}

// itemAt returns an item at the position of a cursor. It returns false if cursor did not produce the text.
func itemAt(cursor string) (i item, ok bool) {
	plain, err := base64.StdEncoding.DecodeString(cursor)
	if err != nil {
		return i, false
	}
	id, key, _ := strings.Cut(strings.TrimPrefix(string(plain), itemCursorPrefix), ":")
	i.key = key
	i.id, err = strconv.Atoi(id)
	return i, err == nil && i.cursor() == cursor
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
	total, from, to := len(items), 0, len(items)
	for _, name := range []string{"after", "before"} {
		text, given := arguments[name].(string)
		if !given {
			continue
		}
		edge, ok := itemAt(text)
		if !ok {
			return e.addError(f, "INVALID_CURSOR_ARGUMENTS", fmt.Sprintf("`%s` does not appear to be a valid cursor.", text))
		}
		at, found := slices.BinarySearchFunc(items, edge, order)
		if name == "before" {
			to = max(from, at)
		} else if from = at; found {
			from++
		}
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
