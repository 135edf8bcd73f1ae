package service

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/parser"
	"github.com/vektah/gqlparser/v2/validator"

	"github.com/weirgate/weir/policy"
)

//go:embed schema.graphql
var schemaText string

var schema = gqlparser.MustLoadSchema(&ast.Source{Name: "schema.graphql", Input: schemaText})

// These constants bound the tokens in the text of a GraphQL request, and the fields of its response.
const (
	maxGraphQLTokens = 2000
	maxGraphQLFields = 10_000
)

// graphQL executes a query or a mutation (schema.graphql). It reports problems in the
// member errors of a response with status 200.
func graphQL(s *Service, req *request) response {
	var input struct {
		Query         string    `json:"query"`
		OperationName string    `json:"operationName"`
		Variables     variables `json:"variables"`
	}
	if problem := s.decode(req.body, "GraphQL", &input); problem != nil {
		return *problem
	}
	document, err := parser.ParseQueryWithTokenLimit(&ast.Source{Input: input.Query}, maxGraphQLTokens)
	if err != nil {
		return graphQLErrors(gqlerror.WrapIfUnwrapped(err))
	}
	if errs := validator.ValidateWithRules(schema, document, nil); len(errs) > 0 {
		return graphQLErrors(errs...)
	}
	operation := document.Operations.ForName(input.OperationName)
	if operation == nil {
		return graphQLErrors(gqlerror.Errorf("No operation named %q", input.OperationName))
	}
	values, err := validator.VariableValues(schema, operation, input.Variables)
	if err != nil {
		return graphQLErrors(gqlerror.WrapIfUnwrapped(err))
	}
	e := &execution{s: s, req: req, variables: values}
	root := e.query
	if operation.Operation == ast.Mutation {
		root = e.mutation
	}
	body := object{{"data", e.selectFields(operation.SelectionSet, root)}}
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
	return response{status: http.StatusOK, volatile: true, body: object{{"errors", errs}}}
}

// variables holds the variables of a request. It keeps the digits of large numbers.
type variables map[string]any

// UnmarshalJSON implements json.Unmarshaler.
func (v *variables) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var members map[string]any
	err := d.Decode(&members)
	*v = members
	return err
}

// execution executes one operation that is valid for the schema.
type execution struct {
	s          *Service
	req        *request
	variables  map[string]any
	errors     []object
	fieldCount int // fields selected so far
}

// node is an object of the graph. It returns the value of a field: a scalar, nil, another node or a list of nodes.
type node func(f *ast.Field, arguments map[string]any) any

// selectFields returns the JSON object of the selected fields of a node.
func (e *execution) selectFields(set ast.SelectionSet, n node) object {
	var fields []*ast.Field
	subselections := map[string]ast.SelectionSet{} // selections below a field, by its name in the response
	for _, f := range e.collectFields(set, map[string]bool{}) {
		if _, twice := subselections[f.Alias]; !twice {
			fields = append(fields, f)
		}
		subselections[f.Alias] = append(subselections[f.Alias], f.SelectionSet...)
	}
	selected := object{}
	for _, f := range fields {
		if e.fieldCount++; e.fieldCount > maxGraphQLFields {
			break
		}
		var value any
		if f.Name == "__typename" {
			value = f.ObjectDefinition.Name
		} else {
			value = n(f, f.ArgumentMap(e.variables))
		}
		switch v := value.(type) {
		case node:
			value = e.selectFields(subselections[f.Alias], v)
		case []node:
			list := make([]object, 0, len(v))
			for _, n := range v {
				list = append(list, e.selectFields(subselections[f.Alias], n))
			}
			value = list
		}
		selected = append(selected, field{f.Alias, value})
	}
	return selected
}

// collectFields returns the fields of a selection. It expands each fragment once.
func (e *execution) collectFields(set ast.SelectionSet, visited map[string]bool) []*ast.Field {
	var all []*ast.Field
	for _, selection := range set {
		switch of := selection.(type) {
		case *ast.Field:
			if e.included(of.Directives) {
				all = append(all, of)
			}
		case *ast.InlineFragment:
			if e.included(of.Directives) {
				all = append(all, e.collectFields(of.SelectionSet, visited)...)
			}
		case *ast.FragmentSpread:
			if e.included(of.Directives) && !visited[of.Name] {
				visited[of.Name] = true
				all = append(all, e.collectFields(of.Definition.SelectionSet, visited)...)
			}
		}
	}
	return all
}

// included reports whether the directives @skip and @include select an item.
func (e *execution) included(directives ast.DirectiveList) bool {
	isTrue := func(name string) bool {
		d := directives.ForName(name)
		return d != nil && d.ArgumentMap(e.variables)["if"] == true
	}
	return !isTrue("skip") && (directives.ForName("include") == nil || isTrue("include"))
}

// addError records the reason why a field has no value.
func (e *execution) addError(f *ast.Field, kind, message string) any {
	e.errors = append(e.errors, object{{"type", kind}, {"path", []string{f.Alias}}, {"message", message}})
	return nil
}

// stringArgument returns an argument of type String! or ID!. If a variable made it null,
// stringArgument records an error and returns false.
func (e *execution) stringArgument(f *ast.Field, arguments map[string]any, name string) (string, bool) {
	s, ok := arguments[name].(string)
	if !ok {
		e.addError(f, "INVALID", "Argument '"+name+"' must be a string.")
	}
	return s, ok
}

// intArgument returns an argument of type Int!, which has 32 bits in GraphQL. For other
// values it records an error and returns false.
func (e *execution) intArgument(f *ast.Field, arguments map[string]any, name string) (int, bool) {
	n, err := strconv.ParseInt(fmt.Sprint(arguments[name]), 10, 32)
	_, text := arguments[name].(string)
	if err != nil || text {
		e.addError(f, "INVALID", "Argument '"+name+"' must be an integer of 32 bits.")
	}
	return int(n), err == nil && !text
}

func (e *execution) query(f *ast.Field, arguments map[string]any) any {
	switch f.Name {
	case "viewer":
		if u := e.s.world.user(e.req.caller); u != nil {
			return e.user(u)
		}
	case "repository":
		owner, ok := e.stringArgument(f, arguments, "owner")
		name, also := e.stringArgument(f, arguments, "name")
		if !ok || !also {
			return nil
		}
		full := owner + "/" + name
		for _, r := range e.s.world.repositories {
			if strings.EqualFold(r.fullName(), full) && e.s.world.isVisible(r, e.req.caller) {
				return e.repository(r)
			}
		}
		e.addError(f, "NOT_FOUND", "Could not resolve to a Repository with the name '"+full+"'.")
	case "rateLimit":
		return e.rateLimit()
	default: // __schema and __type, which are not implemented; see schema.graphql
		e.addError(f, "UNPROCESSABLE", "Introspection is not implemented")
	}
	return nil
}

func (e *execution) mutation(f *ast.Field, arguments map[string]any) any {
	input, ok := arguments["input"].(map[string]any)
	if !ok {
		return e.addError(f, "INVALID", "Argument 'input' must be an object.")
	}
	if slices.Contains(policy.Embedded().Operation("watching/set-subscription").Refuses, e.req.caller.token) {
		return e.addError(f, "FORBIDDEN", "Resource not accessible by this kind of token")
	}
	u := e.s.world.user(e.req.caller)
	for _, r := range e.s.world.repositories {
		if nodeID("Repository", r.id) == input["subscribableId"] && u != nil && e.s.world.isVisible(r, e.req.caller) {
			if state := input["state"]; state == "UNSUBSCRIBED" {
				r.subscriptions.remove(u)
			} else {
				r.subscriptions.set(&subscription{user: u, subscribed: state == "SUBSCRIBED", ignored: state == "IGNORED", created: time.Now()})
			}
			return node(func(f *ast.Field, _ map[string]any) any {
				if f.Name == "subscribable" {
					return e.repository(r)
				}
				return input["clientMutationId"]
			})
		}
	}
	return e.addError(f, "NOT_FOUND", fmt.Sprintf("Could not resolve to a node with the global id of '%v'.", input["subscribableId"]))
}

func (e *execution) user(u *account) node {
	return scalarNode(map[string]any{
		"id": nodeID("User", u.id), "databaseId": u.id, "login": u.login, "name": u.name, "url": e.req.base + "/" + u.login,
	})
}

func (e *execution) repository(r *repository) node {
	scalars := scalarNode(map[string]any{
		"id": nodeID("Repository", r.id), "databaseId": r.id, "name": r.name, "nameWithOwner": r.fullName(),
		"description": r.description, "url": e.req.base + "/" + r.fullName(), "isPrivate": r.private,
	})
	return func(f *ast.Field, arguments map[string]any) any {
		switch f.Name {
		case "watchers":
			first, ok := e.intArgument(f, arguments, "first")
			if !ok {
				return nil
			}
			return e.watchers(r, first)
		case "viewerSubscription":
			return e.subscription(r)
		}
		return scalars(f, arguments)
	}
}

func (e *execution) watchers(r *repository, first int) node {
	all := watchersOf(r)
	nodes := []node{}
	for _, u := range all[:min(max(first, 0), 100, len(all))] {
		nodes = append(nodes, e.user(u))
	}
	return scalarNode(map[string]any{"totalCount": len(all), "nodes": nodes})
}

func (e *execution) subscription(r *repository) any {
	u := e.s.world.user(e.req.caller)
	if u == nil {
		return nil
	}
	switch sub := r.subscriptions.forUser(u); {
	case sub == nil:
		return "UNSUBSCRIBED"
	case sub.ignored:
		return "IGNORED"
	}
	return "SUBSCRIBED"
}

func (e *execution) rateLimit() node {
	m := e.s.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.window(e.req.caller, policy.GraphQL, time.Now())
	return scalarNode(map[string]any{"limit": w.Max, "used": w.used, "remaining": w.Max - w.used, "resetAt": timestamp(w.reset.Add(time.Duration(e.req.faults.ClockOffset))), "cost": 1})
}

// scalarNode returns a node whose fields take no arguments.
func scalarNode(of map[string]any) node {
	return func(f *ast.Field, _ map[string]any) any { return of[f.Name] }
}
