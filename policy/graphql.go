package policy

import (
	"encoding/json"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"
)

// GraphQL is the resource of the GraphQL API; a call's body decides what it
// costs.
const GraphQL = "graphql"

// Points of a GraphQL call (Document B section 8.3).
const (
	queryPoints    = 1
	mutationPoints = 5
)

// ForBody returns the operation as this body makes it. Only GraphQL's depends
// on the body: with a mutation it costs five points and counts as creating
// content, without one it costs one. A body that cannot be read, or that asks
// for an operation it does not hold, counts as a mutation: what the upstream
// would make of it is not known.
func (o *Operation) ForBody(body []byte) *Operation {
	if o.Resource != GraphQL {
		return o
	}
	as := *o
	as.Points, as.CreatesContent = queryPoints, false
	if mutates(body) {
		as.Points, as.CreatesContent = mutationPoints, true
	}
	return &as
}

// maxGraphQLTokens bounds the work that a body can make.
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

// readGraphQL reads a request's members. A member that stands twice, in
// whatever letters, could be read in two ways: that is not ok.
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

// repeated is a string member that counts how often it stands in its object.
type repeated struct {
	value string
	times int
}

// UnmarshalJSON is called once for each time that the member stands there.
func (r *repeated) UnmarshalJSON(text []byte) error {
	r.times++
	return json.Unmarshal(text, &r.value)
}
