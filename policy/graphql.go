package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/lexer"
	"github.com/vektah/gqlparser/v2/parser"
)

// GraphQL is the resource of the GraphQL API. The body of a call decides its cost.
const GraphQL = "graphql"

// Points of a GraphQL call (Document B section 8.3).
const (
	queryPoints    = 1
	mutationPoints = 5
)

// ForCall returns the GraphQL operation with the secondary points of a call. A mutation costs five points and creates
// content; a query costs one point. All other calls count as a mutation, because their body may contain one.
func (o *Operation) ForCall(call *GraphQLCall) *Operation {
	priced := *o
	priced.Points, priced.CreatesContent = queryPoints, false
	if call.Kind != GraphQLQuery {
		priced.Points, priced.CreatesContent = mutationPoints, true
	}
	return &priced
}

// Kinds of a GraphQL call.
const (
	GraphQLQuery        = string(ast.Query)
	GraphQLMutation     = string(ast.Mutation)
	GraphQLSubscription = string(ast.Subscription)
)

// GraphQLCall describes the body of one GraphQL request.
type GraphQLCall struct {
	// Kind is [GraphQLQuery], [GraphQLMutation] or [GraphQLSubscription]. Kind is empty if the body is unreadable or
	// has no operation that the upstream would run. A body is unreadable if it is not one JSON object with a query, has
	// too many members, or repeats a member, because the upstream might read another occurrence.
	Kind string
	// Operation is the name of the operation. It is empty for an anonymous operation.
	Operation string
	// Hash identifies the operation: the SHA-256 of its name and of the document without comments, whitespace and
	// commas. The values of variables do not change the hash, but they change the cost. Learn the ratio of the true
	// cost to Cost, not the true cost.
	Hash string
	// Question identifies a valid query with the values of its variables: two calls of one caller with the same Question
	// ask for the same data. Question is empty for other calls, for variables of more than 64 KiB, and if the body has a
	// member other than query, operationName and variables, because its meaning is unknown.
	Question string
	// Persisted is the SHA-256 of the query text, as persisted queries use it. Without a query it is the hash that the
	// request names in extensions.persistedQuery.
	Persisted string

	// Requests is the number of requests that are needed to fulfil each connection of the call, and Nodes the number of
	// nodes, if every connection returns as many nodes as first or last allow. Both saturate at math.MaxInt.
	Requests, Nodes int
	// Cost is the upper estimate of the cost in the primary window: Requests ÷ 100, rounded up, at least 1.
	Cost int
	// Depth is the greatest nesting of fields, and Fields the number of fields after the expansion of fragments.
	Depth, Fields int

	// RootFields names the root fields of the operation. For a mutation these are the mutations.
	RootFields []string
	// Mutations is the number of root fields of a mutation.
	Mutations int
	// Repositories lists the repositories that arguments name, such as "octo/hello".
	Repositories []string
	// NodeIDs lists the node IDs in the arguments of mutations and of the root fields node and nodes.
	NodeIDs []string
	// ReportsCost is set if the response has the cost at data.rateLimit.cost. A dry run reports a cost that it does not have.
	ReportsCost bool

	outside  string    // a reason why the call may reach a repository that Repositories and the following members do not name
	hidden   string    // a scalar that no client with a scope may read
	followed []string  // those of Repositories by a former name of which the upstream also finds a renamed or transferred repository
	nodes    []nodeUse // the node IDs of node, of nodes and of the inputs of reach.Mutations, without people
	heads    []string  // the head branches of new pull requests
	owners   []string  // the logins of reach.Owners
	searches []string  // the texts of searches
	widest   *page     // the connection with the most nodes
}

// ReachesUnnamed reports whether the response may depend on objects whose repository Repositories does not list.
func (c *GraphQLCall) ReachesUnnamed() bool {
	return c.outside != "" || len(c.Repositories) == 0 || len(c.nodes)+len(c.searches)+len(c.owners) > 0
}

// UpperCost returns Cost before its rounding up, at least 1.
func (c *GraphQLCall) UpperCost() float64 { return max(1, float64(c.Requests)/requestsPerPoint) }

// These constants bound the work for one body.
const (
	maxGraphQLText    = 256 << 10 // bytes of the query as JSON
	maxGraphQLLines   = 10_000
	maxGraphQLTokens  = 20_000   // of the query, and of the variables in the arguments of root fields
	maxGraphQLCommas  = 20_000   // of the body, which bound the number of elements
	maxGraphQLMembers = 5_000    // of an object, such as the variables
	maxSharedValues   = 64 << 10 // bytes of the variables in Question
)

// ParseGraphQL analyses the body of a GraphQL request. The error is a [*GraphQLError] if the upstream must refuse the
// call, or if the call exceeds the bounds of the analysis. The call is valid in both cases. An unreadable body is not an
// error, because only the upstream knows how it reads the body.
func ParseGraphQL(body []byte) (*GraphQLCall, error) {
	call := &GraphQLCall{Cost: 1}
	request, err := readGraphQL(body)
	if err != nil {
		return call, nil //nolint:nilerr // the upstream decides about unreadable bodies
	}
	switch {
	case request.length > maxGraphQLText || strings.Count(request.query, "\n") > maxGraphQLLines:
		return call, graphQLErrorf("TOO_COMPLEX", "parse GraphQL query: it has more than %d KiB or %d lines; send long values as variables",
			maxGraphQLText>>10, maxGraphQLLines)
	case request.query == "":
		call.Persisted = request.persisted
		return call, nil
	}
	call.Persisted = hexSHA256([]byte(request.query))
	source := &ast.Source{Input: request.query}
	document, err := parser.ParseQueryWithTokenLimit(source, maxGraphQLTokens)
	if err != nil {
		return call, syntaxError(err)
	}
	operation, err := call.pick(document, request.operation)
	if err != nil {
		return call, err
	}
	call.Operation = operation.Name
	call.Hash = documentHash(source, operation.Name)
	err = call.analyse(document, operation, request.variables)
	size := 0
	for _, value := range request.variables {
		size += len(value)
	}
	if err == nil && call.Kind == GraphQLQuery && !request.hasOther && size <= maxSharedValues {
		call.Question = call.Hash + canonicalVariables(request.variables)
	}
	return call, err
}

// canonicalVariables returns the variables in the order of their names, without whitespace. Values are not decoded, so
// two values with the same canonical form have the same meaning for every upstream.
func canonicalVariables(variables map[string]json.RawMessage) string {
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		text.WriteString(strconv.Quote(name))
		_ = json.Compact(&text, variables[name]) // the decoder has accepted the value
	}
	return text.String()
}

// pick returns the operation that the upstream runs, and sets the kind. An ambiguous choice that may run a mutation
// counts as one.
func (c *GraphQLCall) pick(document *ast.QueryDocument, name string) (*ast.OperationDefinition, error) {
	var picked *ast.OperationDefinition
	count := 0
	for _, o := range document.Operations {
		if name != "" && o.Name != name {
			continue
		}
		count++
		picked = o
		if c.Kind == "" || c.Kind == GraphQLQuery {
			c.Kind = string(o.Operation)
		}
	}
	switch {
	case count == 0 && name == "":
		return nil, graphQLErrorf("INVALID", "parse GraphQL query: it has no operation")
	case count == 0:
		return nil, graphQLErrorf("INVALID", "parse GraphQL query: it has no operation named %.100q; correct operationName", name)
	case count > 1 && name == "":
		return nil, graphQLErrorf("INVALID", "parse GraphQL query: it has %d operations; name one in operationName", count)
	case count > 1:
		return nil, graphQLErrorf("INVALID", "parse GraphQL query: it has %d operations named %.100q; use unique names", count, name)
	}
	return picked, nil
}

// syntaxError converts an error of the parser.
func syntaxError(err error) error {
	var syntax *gqlerror.Error
	if !errors.As(err, &syntax) || len(syntax.Locations) == 0 { // the parser counts tokens without a location
		return graphQLErrorf("TOO_COMPLEX", "parse GraphQL query: it has more than %d tokens; split it into several calls", maxGraphQLTokens)
	}
	if strings.HasPrefix(syntax.Message, "exceeded maximum nesting depth") {
		return graphQLErrorf("TOO_COMPLEX", "parse GraphQL query: its fields are nested too deep; split it into several calls")
	}
	at := syntax.Locations[0]
	return graphQLErrorf(GraphQLParseError, "parse GraphQL query: line %d, column %d: %.200s", at.Line, at.Column, syntax.Message)
}

// documentHash returns the SHA-256 of the tokens of a document that the parser accepts, and of the operation's name.
func documentHash(source *ast.Source, operation string) string {
	text := []byte(operation)
	lex := lexer.New(source)
	for {
		token, err := lex.ReadToken()
		if err != nil || token.Kind == lexer.EOF {
			return hexSHA256(text)
		}
		if token.Kind != lexer.Comment {
			text = append(text, byte(token.Kind))
			text = binary.AppendUvarint(text, uint64(len(token.Value)))
			text = append(text, token.Value...)
		}
	}
}

func hexSHA256(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// graphQLRequest has the members of a GraphQL request.
type graphQLRequest struct {
	query     string // empty if the query is longer than maxGraphQLText
	length    int    // of the query as JSON
	operation string
	variables map[string]json.RawMessage
	persisted string
	hasOther  bool // the body has members besides query, operationName and variables
}

var errUnreadable = errors.New("unreadable")

// readGraphQL reads the members of a request. It copies values without decoding them where possible, because their
// number and depth have no other bound than the length of the body.
func readGraphQL(body []byte) (*graphQLRequest, error) {
	if bytes.Count(body, []byte(",")) > maxGraphQLCommas {
		return nil, errUnreadable
	}
	request := &graphQLRequest{variables: map[string]json.RawMessage{}}
	d := json.NewDecoder(bytes.NewReader(body))
	skip := func() error { return d.Decode(new(json.RawMessage)) }
	read := func(name string) error {
		switch name {
		case "query":
			var text json.RawMessage
			if err := d.Decode(&text); err != nil {
				return err
			}
			if request.length = len(text); request.length > maxGraphQLText {
				return nil
			}
			return json.Unmarshal(text, &request.query)
		case "operationName":
			return d.Decode(&request.operation)
		case "variables":
			return readObject(d, strings.Clone, func(name string) error {
				var value json.RawMessage
				err := d.Decode(&value)
				request.variables[name] = value
				return err
			})
		case "extensions":
			request.hasOther = true
			return readObject(d, strings.ToLower, func(name string) error {
				if name != "persistedQuery" {
					return skip()
				}
				return readObject(d, strings.ToLower, func(name string) error {
					if name != "sha256Hash" {
						return skip()
					}
					return d.Decode(&request.persisted)
				})
			})
		}
		request.hasOther = true
		return skip()
	}
	if err := readObject(d, strings.ToLower, read); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errUnreadable
	}
	return request, nil
}

// readObject calls member for each member of an object, which may be null. It fails if two members have the same
// canonical name.
func readObject(d *json.Decoder, canonical func(string) string, member func(name string) error) error {
	switch start, err := d.Token(); {
	case err != nil:
		return err
	case start == nil:
		return nil
	case start != json.Delim('{'):
		return errUnreadable
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string) // Token fails if the name is not a string
		key := canonical(name)
		if seen[key] || len(seen) == maxGraphQLMembers {
			return errUnreadable
		}
		seen[key] = true
		if err := member(name); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}
