package policy

import (
	"fmt"
	"slices"
	"strings"
)

// GraphQLError is a reason to refuse a GraphQL call. Its JSON is a member of errors in a GraphQL response.
type GraphQLError struct {
	// Type is a type of the API, such as "MAX_NODE_LIMIT_EXCEEDED", or "TOO_COMPLEX" for the bounds of the analysis.
	Type    string `json:"type"`
	Message string `json:"message"`
}

// GraphQLParseError is the type of a query that the parser does not accept. The upstream may accept it.
const GraphQLParseError = "PARSE_ERROR"

func (e *GraphQLError) Error() string { return e.Message }

func graphQLErrorf(kind, format string, arguments ...any) error {
	return &GraphQLError{Type: kind, Message: fmt.Sprintf(format, arguments...)}
}

// GraphQLRules restrict the GraphQL calls of a client. Nil rules and empty members allow all calls.
type GraphQLRules struct {
	Depth    int  `yaml:"depth" desc:"greatest nesting of fields; 0 for no limit"`
	Nodes    int  `yaml:"nodes" desc:"greatest number of nodes that a call may return, by first and last; 0 for the limit of the API, 500,000"`
	Cost     int  `yaml:"cost" desc:"greatest upper estimate of the cost of a call, from first and last; 0 for no limit"`
	ReadOnly bool `yaml:"read_only" desc:"refuse mutations and subscriptions"`
	// Operations are patterns ([Glob]). The client chooses the names, so only Persisted is safe against a client that wants
	// to run another query.
	Operations []string `yaml:"operations" desc:"permitted operation names, with * for any characters; the client chooses the names"`
	// Repositories are patterns ([Glob]). [Scope.PermitsQuery] judges them, because it needs the names behind node IDs.
	Repositories []string `yaml:"repositories" desc:"permitted repositories as OWNER/NAME, with * for any characters; refuses calls that may reach others"`
	Persisted    []string `yaml:"persisted" desc:"SHA-256 of each permitted query text, in hexadecimal; all without this list"`
}

// Restricts reports whether the rules refuse any call.
func (r *GraphQLRules) Restricts() bool {
	return r != nil && (r.Depth > 0 || r.Nodes > 0 || r.Cost > 0 || r.ReadOnly || len(r.Operations)+len(r.Repositories)+len(r.Persisted) > 0)
}

// CheckQuery returns a [*GraphQLError] if the scope does not allow a GraphQL call for another reason than those of
// [Scope.PermitsQuery].
func (s *Scope) CheckQuery(c *GraphQLCall) error {
	if s.CountsWrites && c.Kind == "" {
		return forbid("the body has no readable query, and the writes of this client are counted; send one JSON object with a valid query")
	}
	return s.GraphQL.Check(c)
}

// Check returns a [*GraphQLError] if the rules other than Repositories do not allow a call.
func (r *GraphQLRules) Check(c *GraphQLCall) error {
	switch {
	case r == nil:
		return nil
	case len(r.Persisted) > 0 && !slices.Contains(r.Persisted, c.Persisted):
		return forbid("the query is not one of the allowed persisted queries")
	case c.Kind == "" && r.checksDocument():
		return forbid("the body has no readable query to check")
	case r.ReadOnly && c.Kind != GraphQLQuery:
		return forbid("it is a %s (%.100s); this client may only read", c.Kind, strings.Join(c.RootFields, ", "))
	case len(r.Operations) > 0 && !slices.ContainsFunc(r.Operations, func(pattern string) bool { return Glob(pattern, c.Operation) }):
		return forbid("the operation name %.100q is not allowed", c.Operation)
	case r.Depth > 0 && c.Depth > r.Depth:
		return forbid("its fields are nested %d deep, more than the limit of %d; split the query", c.Depth, r.Depth)
	case r.Nodes > 0 && c.Nodes > r.Nodes:
		return forbid("%s", tooManyNodes(c.Nodes, r.Nodes, c.widest))
	case r.Cost > 0 && c.Cost > r.Cost:
		return forbid("it may cost %d, more than the limit of %d; reduce first or last of %s", c.Cost, r.Cost, c.widest)
	}
	return nil
}

// checksDocument reports whether a rule other than Persisted is set.
func (r *GraphQLRules) checksDocument() bool {
	return r.ReadOnly || r.Depth > 0 || r.Nodes > 0 || r.Cost > 0 || len(r.Operations) > 0 || len(r.Repositories) > 0
}

func forbid(format string, arguments ...any) error {
	return graphQLErrorf("FORBIDDEN", "check GraphQL query: "+format, arguments...)
}

// tooManyNodes returns the message of a node limit.
func tooManyNodes(nodes, limit int, widest *page) string {
	return fmt.Sprintf("it requests up to %d nodes, more than the limit of %d; reduce first or last of %s", nodes, limit, widest)
}
