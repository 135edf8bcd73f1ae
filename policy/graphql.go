package policy

import (
	"encoding/json"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"
)

// GraphQL is the resource of the GraphQL API. The body of a call decides its cost.
const GraphQL = "graphql"

// Points of a GraphQL call (Document B section 8.3).
const (
	queryPoints    = 1
	mutationPoints = 5
)

// ForBody returns the operation with the cost of a body. A GraphQL mutation costs five points and creates content; a
// query costs one point. An unreadable body, or a body without the named operation, counts as a mutation. Other
// operations do not depend on the body.
func (o *Operation) ForBody(body []byte) *Operation {
	if o.Resource != GraphQL {
		return o
	}
	priced := *o
	priced.Points, priced.CreatesContent = queryPoints, false
	if mutates(body) {
		priced.Points, priced.CreatesContent = mutationPoints, true
	}
	return &priced
}

// maxGraphQLTokens bounds the work of parsing a body.
const maxGraphQLTokens = 20_000

// mutates reports whether a GraphQL request may run a mutation.
func mutates(body []byte) bool {
	query, name, ok := readGraphQL(body)
	if !ok {
		return true
	}
	document, err := parser.ParseQueryWithTokenLimit(&ast.Source{Input: query}, maxGraphQLTokens)
	if err != nil {
		return true
	}
	found := false
	for _, o := range document.Operations {
		if name != "" && o.Name != name {
			continue
		}
		if o.Operation != ast.Query {
			return true
		}
		found = true
	}
	return !found
}

// readGraphQL returns the query and the operation name. The result is false if a member is repeated, because the
// upstream might read another occurrence.
func readGraphQL(body []byte) (query, name string, ok bool) {
	var members struct {
		Query         repeated `json:"query"`
		OperationName repeated `json:"operationName"`
	}
	if err := json.Unmarshal(body, &members); err != nil {
		return "", "", false
	}
	return members.Query.value, members.OperationName.value, members.Query.times <= 1 && members.OperationName.times <= 1
}

// repeated is a string member that counts its occurrences.
type repeated struct {
	value string
	times int
}

// UnmarshalJSON is called once per occurrence.
func (r *repeated) UnmarshalJSON(text []byte) error {
	r.times++
	return json.Unmarshal(text, &r.value)
}
