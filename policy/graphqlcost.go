package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/lexer"
)

// The published rule of the cost: https://docs.github.com/graphql/overview/resource-limitations.
const (
	requestsPerPoint = 100
	maxPageSize      = 100
	maxGraphQLNodes  = 500_000
)

// These constants bound the length of "owner/name", of which the API allows 39 and 100 characters, and of the JSON of a
// variable that is used as a number, a condition or a name.
const (
	maxRepositoryName = 256
	maxScalar         = 1024
)

// analysis computes the figures of a call. It visits each selection set of the document once: the figures of a fragment
// are multiplied where the fragment is used.
type analysis struct {
	call      *GraphQLCall
	values    map[string]json.RawMessage
	defaults  map[string]*ast.Value
	decoded   map[string]any // short values of variables
	fragments map[string]*fragment
	lengths   map[string]int  // of lists in variables
	searched  map[string]bool // variables that [analysis.search] has read
	tokens    int             // in the searched variables
	listed    map[listed]bool
	listings  int    // values that [analysis.texts] has read
	mutation  string // the mutation whose input is read, if it is one of reach.Mutations
	err       error  // the first error
}

// fragment is a fragment definition and its tally.
type fragment struct {
	*ast.FragmentDefinition
	tally      *tally // nil before the first use
	inProgress bool
}

// tally has the figures of a selection set for one object that the upstream selects from.
type tally struct {
	requests, nodes, fields, depth int
	widest                         *page // the connection with the most nodes
	widestNodes                    int
	isConnection                   bool       // the set selects a member of a connection
	hasItems                       bool       // the set selects nodes or edges
	hasCost, reportsCost           bool       // the set selects cost, and rateLimit with cost
	content                        contentSet // the fields of the set with the content of a repository
	isNested                       bool       // content fields of the set have content fields below them
	isPrivate                      bool       // the set selects scalars that reach.Viewer does not list
	private                        string     // a scalar of the set that reach.Public does not list
	hidden                         string     // a scalar that a client with a scope may not read
	outside                        string     // a field that may leave the repository
}

// page is a connection and the widest connection below it.
type page struct {
	field string
	size  int
	below *page
}

// String lists the connection and the widest connections below it with their sizes.
func (p *page) String() string {
	if p == nil {
		return "its connections"
	}
	var names []string
	for ; p != nil && len(names) < 5; p = p.below {
		names = append(names, fmt.Sprintf("%.50s (%d)", p.field, p.size))
	}
	return strings.Join(names, ", ")
}

// analyse sets the figures of the call. It returns an error if the upstream must refuse the call.
func (c *GraphQLCall) analyse(document *ast.QueryDocument, operation *ast.OperationDefinition, values map[string]json.RawMessage) error {
	a := &analysis{
		call: c, values: values, defaults: map[string]*ast.Value{}, decoded: map[string]any{},
		fragments: map[string]*fragment{}, lengths: map[string]int{}, searched: map[string]bool{}, listed: map[listed]bool{},
	}
	for _, v := range operation.VariableDefinitions {
		if _, ok := a.defaults[v.Variable]; ok {
			a.fail("INVALID", "parse GraphQL query: the variable %.100q is defined twice", v.Variable)
		}
		a.defaults[v.Variable] = v.DefaultValue
	}
	for _, f := range document.Fragments {
		if a.fragments[f.Name] != nil {
			a.fail("INVALID", "parse GraphQL query: the fragment %.100q is defined twice", f.Name)
		}
		a.fragments[f.Name] = &fragment{FragmentDefinition: f}
	}
	t := a.selectionSet(operation.SelectionSet)
	if a.err != nil {
		return a.err // fragments may have cycles
	}
	c.Requests, c.Nodes, c.Depth, c.Fields = t.requests, t.nodes, t.depth, t.fields
	c.ReportsCost = t.reportsCost
	c.Cost = max(1, c.Requests/requestsPerPoint+min(1, c.Requests%requestsPerPoint))
	a.setRootFields(a.fieldsOf(operation.SelectionSet))
	c.outside, c.widest = cmp.Or(c.outside, t.outside, t.content.without(contentSet{})), t.widest
	c.hidden = t.hidden
	if c.Nodes > maxGraphQLNodes {
		a.fail("MAX_NODE_LIMIT_EXCEEDED", "check GraphQL query: %s", tooManyNodes(c.Nodes, maxGraphQLNodes, t.widest))
	}
	return a.err
}

// fail records the first error.
func (a *analysis) fail(kind, format string, arguments ...any) {
	if a.err == nil {
		a.err = graphQLErrorf(kind, format, arguments...)
	}
}

// selectionSet returns the sum of the selections of a set.
func (a *analysis) selectionSet(set ast.SelectionSet) tally {
	var sum tally
	for _, selection := range set {
		switch s := selection.(type) {
		case *ast.Field:
			if a.included(s.Directives) {
				sum.add(a.field(s))
			}
		case *ast.InlineFragment:
			if a.included(s.Directives) {
				sum.add(a.selectionSet(s.SelectionSet))
			}
		case *ast.FragmentSpread:
			if a.included(s.Directives) {
				sum.add(a.fragment(s.Name))
			}
		}
	}
	return sum
}

func (t *tally) add(o tally) {
	t.requests, t.nodes, t.fields = plus(t.requests, o.requests), plus(t.nodes, o.nodes), plus(t.fields, o.fields)
	t.depth = max(t.depth, o.depth)
	if o.widestNodes > t.widestNodes {
		t.widest, t.widestNodes = o.widest, o.widestNodes
	}
	t.isConnection, t.hasItems = t.isConnection || o.isConnection, t.hasItems || o.hasItems
	t.hasCost, t.reportsCost = t.hasCost || o.hasCost, t.reportsCost || o.reportsCost
	for i := range t.content {
		t.content[i] |= o.content[i]
	}
	t.isNested, t.isPrivate = t.isNested || o.isNested, t.isPrivate || o.isPrivate
	t.private, t.hidden, t.outside = cmp.Or(t.private, o.private), cmp.Or(t.hidden, o.hidden), cmp.Or(t.outside, o.outside)
}

// fragment returns the tally of a named fragment. It visits the fragment once.
func (a *analysis) fragment(name string) tally {
	f := a.fragments[name]
	switch {
	case f == nil:
		a.fail("INVALID", "parse GraphQL query: the fragment %.100q is not defined", name)
		return tally{}
	case f.inProgress:
		a.fail("INVALID", "parse GraphQL query: the fragment %.100q contains itself", name)
		return tally{}
	case f.tally == nil:
		f.inProgress = true
		t := a.selectionSet(f.SelectionSet)
		f.tally, f.inProgress = &t, false
	}
	return *f.tally
}

// field returns the tally of a field and the fields below it.
func (a *analysis) field(f *ast.Field) tally {
	sub := a.selectionSet(f.SelectionSet)
	t := tally{
		requests: sub.requests, nodes: sub.nodes, fields: plus(1, sub.fields), depth: 1 + sub.depth,
		widest: sub.widest, widestNodes: sub.widestNodes,
		isConnection: slices.Contains([]string{"nodes", "edges", "pageInfo", "totalCount"}, f.Name),
		hasItems:     f.Name == "nodes" || f.Name == "edges",
		hasCost:      f.Name == "cost" && f.Alias == f.Name,
		reportsCost:  f.Name == "rateLimit" && f.Alias == f.Name && sub.hasCost && f.Arguments.ForName("dryRun") == nil,
	}
	size, paged := a.pageSize(f)
	switch ids := a.argument(f, "ids"); {
	case paged:
		t.addPage(f, size, sub)
	case ids != nil && f.Name == "nodes":
		n := a.length(ids)
		t.requests, t.nodes = times(n, sub.requests), times(n, sub.nodes)
	case sub.hasItems: // the upstream needs first or last, or has a default
		t.addPage(f, maxPageSize, sub)
	case sub.isConnection: // only the count
		t.requests = plus(1, sub.requests)
	}
	a.setReach(&t, f, sub)
	return t
}

// addPage counts a connection and multiplies the figures of each node.
func (t *tally) addPage(f *ast.Field, size int, sub tally) {
	t.requests = plus(1, times(size, sub.requests))
	t.nodes = times(size, plus(1, sub.nodes))
	t.widest, t.widestNodes = &page{f.Name, size, sub.widest}, t.nodes
}

// pageSize returns the greatest of first and last, or 100 if neither has a known value. It reports false if the field has
// neither. The documents allow 1 to 100, but the API also accepts 0, which clients send to read only the count.
func (a *analysis) pageSize(f *ast.Field) (int, bool) {
	size, paged := -1, false
	for _, name := range []string{"first", "last"} {
		v := a.argument(f, name)
		if v == nil {
			continue
		}
		paged = true
		switch n := a.value(v).(type) {
		case nil:
		case float64:
			if n < 0 || n > maxPageSize {
				a.fail("EXCESSIVE_PAGINATION", "check GraphQL query: %s of the connection %.100q is %.0f; use a number from 1 to %d", name, f.Name, n, maxPageSize)
			}
			size = max(size, int(math.Ceil(min(max(n, 0), maxPageSize))))
		default:
			size = maxPageSize
		}
	}
	if size < 0 {
		size = maxPageSize
	}
	return size, paged
}

// included evaluates @skip and @include. A condition whose value is unknown includes the selection.
func (a *analysis) included(directives ast.DirectiveList) bool {
	for _, d := range directives {
		if d.Name != "skip" && d.Name != "include" {
			continue
		}
		for _, argument := range d.Arguments {
			if argument.Name == "if" && a.value(argument.Value) == (d.Name == "skip") {
				return false
			}
		}
	}
	return true
}

// argument returns the value of an argument, or nil.
func (a *analysis) argument(f *ast.Field, name string) *ast.Value {
	var value *ast.Value
	for _, argument := range f.Arguments {
		if argument.Name != name {
			continue
		}
		if value != nil {
			a.fail("INVALID", "parse GraphQL query: the field %.100q has the argument %q twice", f.Name, name)
		}
		value = argument.Value
	}
	return value
}

// unknown is a value that the analysis cannot resolve.
type unknown struct{}

// value resolves a literal or a variable to a float64, a string, a bool, nil or unknown.
func (a *analysis) value(v *ast.Value) any {
	switch v.Kind {
	case ast.Variable:
		if _, given := a.values[v.Raw]; given {
			return a.variable(v.Raw)
		}
		if value := a.defaults[v.Raw]; value != nil {
			return a.value(value)
		}
		if _, declared := a.defaults[v.Raw]; declared {
			return nil // without a value, the upstream omits the argument
		}
		return unknown{}
	case ast.IntValue:
		if len(v.Raw) > len("-2147483648") {
			return math.Inf(1)
		}
		n, _ := strconv.ParseFloat(v.Raw, 64) // the lexer accepts only digits
		return n
	case ast.StringValue, ast.BlockValue:
		return v.Raw
	case ast.BooleanValue:
		return v.Raw == "true"
	case ast.NullValue:
		return nil
	}
	return unknown{}
}

// variable decodes the short value of a variable once.
func (a *analysis) variable(name string) any {
	value, ok := a.decoded[name]
	if !ok {
		if len(a.values[name]) > maxScalar || json.Unmarshal(a.values[name], &value) != nil {
			value = unknown{}
		}
		a.decoded[name] = value
	}
	return value
}

// length returns the number of elements of a list. A single value is a list of one element.
func (a *analysis) length(v *ast.Value) int {
	if v.Kind == ast.Variable {
		if value, given := a.values[v.Raw]; given {
			n, counted := a.lengths[v.Raw]
			if !counted {
				var list []json.RawMessage
				if n = 1; json.Unmarshal(value, &list) == nil {
					n = len(list)
				}
				a.lengths[v.Raw] = n
			}
			return n
		}
		if v = a.defaults[v.Raw]; v == nil {
			return maxPageSize
		}
	}
	if v.Kind == ast.ListValue {
		return len(v.Children)
	}
	return 1
}

// listed is an element of a list of the call.
type listed struct {
	list *[]string
	name string
}

// add appends a name to a list that does not have it.
func (a *analysis) add(list *[]string, name string) {
	if key := (listed{list, name}); !a.listed[key] {
		a.listed[key] = true
		*list = append(*list, name)
	}
}

// addRepository adds a repository. It reports false for names that no repository has.
func (a *analysis) addRepository(name string) bool {
	if len(name) > maxRepositoryName {
		return false
	}
	a.add(&a.call.Repositories, name)
	return true
}

// fieldsOf returns the fields of a set. It expands each fragment once.
func (a *analysis) fieldsOf(set ast.SelectionSet) []*ast.Field {
	var fields []*ast.Field
	expanded := map[string]bool{}
	var expand func(ast.SelectionSet)
	expand = func(set ast.SelectionSet) {
		for _, selection := range set {
			switch s := selection.(type) {
			case *ast.Field:
				if a.included(s.Directives) {
					fields = append(fields, s)
				}
			case *ast.InlineFragment:
				if a.included(s.Directives) {
					expand(s.SelectionSet)
				}
			case *ast.FragmentSpread:
				if a.included(s.Directives) && !expanded[s.Name] {
					expanded[s.Name] = true
					expand(a.fragments[s.Name].SelectionSet)
				}
			}
		}
	}
	expand(set)
	return fields
}

// setRootFields sets the facts that the root fields of the operation decide.
func (a *analysis) setRootFields(roots []*ast.Field) {
	if a.call.Kind == GraphQLMutation {
		a.call.Mutations = len(roots)
	}
	for _, f := range roots {
		a.add(&a.call.RootFields, f.Name)
		_, isListed := reach.Mutations[f.Name]
		if isListed = isListed && a.call.Kind == GraphQLMutation; isListed {
			a.mutation = f.Name
		}
		if !isListed && !slices.Contains(reach.Roots, f.Name) {
			a.call.outside = cmp.Or(a.call.outside, f.Name)
		}
		if a.call.Kind == GraphQLMutation || f.Name == "node" || f.Name == "nodes" {
			for _, argument := range f.Arguments {
				if argument.Name != "input" {
					a.leave(argument.Name)
				}
				a.search(argument.Name, argument.Value)
			}
		}
		a.mutation = ""
	}
}

// search adds the node IDs and the repositories in an argument or in a member of an argument.
func (a *analysis) search(name string, v *ast.Value) {
	switch v.Kind {
	case ast.Variable:
		key := a.mutation + " " + string(kindOf(name)) + v.Raw
		if a.searched[key] {
			return
		}
		a.searched[key] = true
		if text, given := a.values[v.Raw]; given {
			a.searchJSON(name, string(text))
		} else if value := a.defaults[v.Raw]; value != nil {
			a.search(name, value)
		}
	case ast.ListValue:
		for _, child := range v.Children {
			a.search(name, child.Value)
		}
	case ast.ObjectValue:
		for _, child := range v.Children {
			a.member(child.Name)
			a.search(child.Name, child.Value)
		}
	case ast.StringValue, ast.BlockValue:
		a.addNamed(name, v.Raw)
	case ast.IntValue:
		a.number(name)
	}
}

// searchJSON is [analysis.search] for the value of a variable. JSON consists of tokens of GraphQL. Lists have elements of
// one type, so a string in a list belongs to the latest name.
func (a *analysis) searchJSON(name, value string) {
	lex := lexer.New(&ast.Source{Input: value})
	for previous := (lexer.Token{}); ; {
		token, err := lex.ReadToken()
		switch {
		case previous.Kind == lexer.String && token.Kind == lexer.Colon:
			name = previous.Value
			a.member(name)
		case previous.Kind == lexer.String:
			a.addNamed(name, previous.Value)
		case previous.Kind == lexer.Int:
			a.number(name)
		}
		if err != nil {
			a.leave(name)
		}
		if err != nil || token.Kind == lexer.EOF {
			return
		}
		if a.tokens++; a.tokens > maxGraphQLTokens {
			a.fail("TOO_COMPLEX", "read GraphQL variables: the arguments have more than %d tokens; split the call", maxGraphQLTokens)
			return
		}
		previous = token
	}
}

// argumentKind is the meaning of a string argument.
type argumentKind string

const (
	nodeID         argumentKind = "id "
	headBranch     argumentKind = "head "
	repositoryName argumentKind = "repository "
	otherArgument  argumentKind = ""
)

// kindOf returns the kind of the arguments with a name.
func kindOf(name string) argumentKind {
	switch {
	case name == "clientMutationId":
		return otherArgument
	case name == "id", name == "ids", strings.HasSuffix(name, "Id"), strings.HasSuffix(name, "Ids"):
		return nodeID
	case name == "repositoryNameWithOwner":
		return repositoryName
	case slices.Contains(reach.Heads, name):
		return headBranch
	}
	return otherArgument
}

// addNamed adds a string argument by its name.
func (a *analysis) addNamed(name, value string) {
	switch kindOf(name) {
	case nodeID:
		a.add(&a.call.NodeIDs, value)
		if a.mutation != "" && !slices.Contains(reach.People, name) {
			a.call.nodes = append(a.call.nodes, nodeUse{id: value})
		}
	case headBranch:
		a.add(&a.call.heads, value)
	case repositoryName:
		if !a.addRepository(value) {
			a.leave(name)
		}
		a.add(&a.call.followed, value)
	}
}

// reach classifies fields by the repositories that they may reach (graphql.yaml).
var reach = mustDecode[struct {
	Roots           []string            `yaml:"roots"`
	Structure       []string            `yaml:"structure"`
	Content         []contentRow        `yaml:"content"`
	References      []string            `yaml:"references"`
	BelowReferences []string            `yaml:"below_references"`
	Arguments       []string            `yaml:"reference_arguments"`
	Owners          []string            `yaml:"owners"`
	BelowOwners     []string            `yaml:"below_owners"`
	Viewer          []string            `yaml:"viewer"`
	BelowParent     []string            `yaml:"below_parent"`
	Public          []string            `yaml:"public"`
	Secrets         []string            `yaml:"secrets"`
	Searches        []string            `yaml:"searches"`
	Nodes           map[string]string   `yaml:"nodes"`
	RepositoryNodes []string            `yaml:"repository_nodes"`
	Mutations       map[string][]string `yaml:"mutations"`
	Payload         []string            `yaml:"payload"`
	People          []string            `yaml:"people"`
	Heads           []string            `yaml:"heads"`
}]("graphql.yaml")

// contentRow lists fields inside a repository, and the fields that stay inside it below them.
type contentRow struct {
	Fields []string `yaml:"fields"`
	Below  []string `yaml:"below"`
}

// contentSet is a set of the content fields and the references, by their index in contentNames.
type contentSet [3]uint64

func (s *contentSet) add(name string) {
	i := contentIndex[name]
	s[i/64] |= 1 << (i % 64)
}

// without returns the name of a field that is not in another set, or an empty string.
func (s contentSet) without(o contentSet) string {
	for i := range s {
		if rest := s[i] &^ o[i]; rest != 0 {
			return contentNames[64*i+bits.TrailingZeros64(rest)]
		}
	}
	return ""
}

// contentNames are the content fields and the references. contentBelow are the fields that stay inside the repository below each
// content field, and belowReference those below each reference.
var (
	contentNames   = namesOf(append(reach.Content, contentRow{Fields: reach.References}))
	contentIndex   = indexOf(contentNames)
	publicIndex    = indexOf(reach.Public)
	belowReference = contentSetOf(reach.BelowReferences)
	belowOwner     = contentSetOf(slices.Concat(reach.BelowReferences, reach.BelowOwners))
	belowParent    = contentSetOf(slices.Concat(reach.BelowReferences, reach.BelowParent))
	belowMutation  = contentSetOf(slices.Concat(reach.References, reach.Payload))
	contentBelow   = func() map[string]contentSet {
		below := map[string]contentSet{}
		for _, row := range reach.Content {
			for _, name := range row.Fields {
				below[name] = contentSetOf(slices.Concat(row.Below, reach.References))
			}
		}
		return below
	}()
)

func namesOf(rows []contentRow) (names []string) {
	for _, row := range rows {
		names = append(names, row.Fields...)
	}
	if len(names) > 64*len(contentSet{}) {
		panic("policy: graphql.yaml has too many fields")
	}
	return names
}

func indexOf(names []string) map[string]int {
	index := map[string]int{}
	for i, name := range names {
		index[name] = i
	}
	return index
}

func contentSetOf(names []string) (s contentSet) {
	for _, name := range names {
		if _, ok := contentIndex[name]; !ok {
			panic("policy: graphql.yaml has no row for " + name)
		}
		s.add(name)
	}
	return s
}

// plus adds with saturation.
func plus(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}

// times multiplies with saturation.
func times(a, b int) int {
	if a > 0 && b > math.MaxInt/a {
		return math.MaxInt
	}
	return a * b
}
