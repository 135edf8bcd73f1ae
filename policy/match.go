package policy

import (
	"cmp"
	"slices"
	"strings"
)

// Match is a request with its operation.
type Match struct {
	Operation *Operation
	// Params are the path parameters, decoded and canonical (org, owner and repo in lower case). With an alias, the
	// parameters are those of the alias: repository_id instead of owner and repo.
	Params Params
	// Path and Query are the canonical target, percent-encoded. The query has no question mark and is sorted by name.
	Path  string
	Query string
}

// Params are path parameters in the order of the path.
type Params []Param

// Param is a path parameter.
type Param struct{ Name, Value string }

// Get returns the value of a parameter, or "". Values are never empty.
func (p Params) Get(name string) string {
	for _, param := range p {
		if param.Name == name {
			return param.Value
		}
	}
	return ""
}

// Immutable reports whether the last parameter of the target names an object by its full hash, so that the response
// never changes.
func (m *Match) Immutable() bool {
	return m.Operation.Cache.Class == Immutable && len(m.Params) > 0 && isFullHash(m.Params[len(m.Params)-1].Value)
}

// isFullHash reports whether s is a complete object name: 40 or 64 hexadecimal digits.
func isFullHash(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdefABCDEF") == ""
}

// Classify canonicalizes a target (escaped path and raw query) and finds its operation. HEAD matches as GET.
//
// A route outside the catalogue gets a separate operation with the ID "unknown", the resource core, 1 point for a
// safe method and 5 for others, and caching by RFC 9111 only. POST and PUT count as creating content; a PATCH changes
// existing content. The path of that operation is the longest known beginning of the route, such as
// "/repos/{owner}/{repo}/…". So the number of these operations is bounded by the catalogue, and all replicas use the
// same operations.
//
// Classify returns a [*TargetError] for a target with one of these properties:
//
//   - dot segments, or an empty part beside an encoded slash
//
//   - backslashes, control characters, invalid UTF-8 or invalid escapes
//
//   - encoded slashes, except in the value of a parameter that may contain slashes, and in unknown routes of a
//     repository
//
//   - more than 1,000 parameters in the query
//
//   - other spellings of the path of the GraphQL API, and methods other than POST for it
//
// A trailing slash is allowed, but belongs to a different path, except for GraphQL.
func (c *Catalogue) Classify(method, escapedPath, rawQuery string) (Match, error) {
	if c.files {
		return classifyFile(method, escapedPath, rawQuery)
	}
	path, err := canonicalPath(escapedPath)
	if err != nil {
		return Match{}, err
	}
	query, err := canonicalQuery(rawQuery)
	if err != nil {
		return Match{}, err
	}
	if graphQL, err := isGraphQL(method, path[1:]); err != nil {
		return Match{}, err
	} else if graphQL {
		path = []string{"", GraphQL}
	}
	lookup := method
	if method == "HEAD" {
		lookup = "GET"
	}
	m := Match{Query: query}
	s := routeSearch{method: lookup, segments: path[1:]}
	if r := s.find(c.root, 0, 0); r != nil {
		if m.Params, err = r.bind(&s); err != nil {
			return Match{}, err
		}
		m.Operation = r.operation
	} else if m.Operation, err = c.unknown(method, &s); err != nil {
		return Match{}, err
	}
	m.Path = strings.Join(path, "/")
	return m, nil
}

// classifyFile returns the match of a request to a host that serves files.
func classifyFile(method, escapedPath, rawQuery string) (Match, error) {
	if !strings.HasPrefix(escapedPath, "/") {
		return Match{}, &TargetError{Reason: "the path does not begin with a slash"}
	}
	if climbs(escapedPath) {
		return Match{}, &TargetError{Reason: "the path leads above its root"}
	}
	op := &Operation{ID: UnknownID, Method: method, Path: "/…", Auth: "optional"}
	complete(op)
	return Match{Operation: op, Path: escapedPath, Query: rawQuery}, nil
}

// errEncodedSlash refuses targets whose meaning depends on the order of decoding and splitting.
var errEncodedSlash = &TargetError{Reason: "the path holds an encoded slash (%2F)"}

// pathParameter is a row of parameters.yaml.
type pathParameter struct {
	Fold    bool `yaml:"fold"`
	Integer bool `yaml:"integer"`
	Tail    bool `yaml:"tail"`
	Encoded bool `yaml:"encoded"`
	// Values are the only values of the parameter; empty allows all values.
	Values []string `yaml:"values"`
}

var parameters = mustDecode[map[string]pathParameter]("parameters.yaml")

// listedParameters are the parameters with listed values, by their text in a template.
var listedParameters = func() map[string]pathParameter {
	listed := map[string]pathParameter{}
	for name, rule := range parameters {
		if len(rule.Values) > 0 {
			listed["{"+name+"}"] = rule
		}
	}
	return listed
}()

// node is a node of the tree of all path templates. Each child has the next segment of a template: a literal or one of
// the four kinds of parameters.
type node struct {
	prefix   string // the template from the root to this node
	literals map[string]*node
	children [parameterKinds]*node
	routes   map[string]*route // by method; the templates that end here
}

// kind is a kind of template segments with a parameter. A search prefers kinds in this order, after literals.
type kind int

const (
	kindNumber   kind = iota // {name}: one segment of decimal digits
	kindPair                 // {+base}...{+head}: one or more segments that contain three dots
	kindSingle               // {name}: one segment
	kindMultiple             // {+name}: one or more segments
	parameterKinds
)

// route is an operation with its path template, or with the template under an alias.
type route struct {
	operation *Operation
	names     []string // of the parameters; "base...head" for a pair
	rules     []pathParameter
	kinds     []kind
}

// add adds a route for a path template to the tree, unless the tree has a route with the same method and the same literals.
func (n *node) add(op *Operation, path string) {
	r := &route{operation: op}
	for s := range strings.SplitSeq(path[1:], "/") {
		if !strings.HasPrefix(s, "{") {
			n = n.literal(s)
			continue
		}
		name, rule, k := strings.Trim(s, "{}"), pathParameter{}, kindSingle
		base, head, isPair := strings.Cut(name, "}...{")
		switch plain, more := strings.CutPrefix(name, "+"); {
		case isPair:
			k, name = kindPair, strings.Trim(base, "+")+"..."+strings.Trim(head, "+")
		case more:
			k, name = kindMultiple, plain
		default:
			rule = parameters[name]
			switch {
			case rule.Integer:
				k = kindNumber
			case rule.Tail:
				k = kindMultiple
			}
		}
		r.names, r.rules, r.kinds = append(r.names, name), append(r.rules, rule), append(r.kinds, k)
		n = n.parameter(k, strings.ReplaceAll(s, "{+", "{"))
	}
	if n.routes == nil {
		n.routes = map[string]*route{}
	}
	n.routes[op.Method] = cmp.Or(n.routes[op.Method], r)
}

// expand replaces the parameters with listed values by each value, as literals. [Match.Params] does not contain these
// parameters.
func expand(template string) []string {
	for name, rule := range listedParameters {
		before, after, ok := strings.Cut(template, name)
		if !ok {
			continue
		}
		var all []string
		for _, value := range rule.Values {
			all = append(all, expand(before+value+after)...)
		}
		return all
	}
	return []string{template}
}

func (n *node) literal(segment string) *node {
	child := n.literals[segment]
	if child == nil {
		if n.literals == nil {
			n.literals = map[string]*node{}
		}
		child = &node{prefix: n.prefix + "/" + segment}
		n.literals[segment] = child
	}
	return child
}

func (n *node) parameter(k kind, segment string) *node {
	if n.children[k] == nil {
		n.children[k] = &node{prefix: n.prefix + "/" + segment}
	}
	return n.children[k]
}

// maxValues bounds the parameters of a template.
const maxValues = 8

// routeSearch finds the route of a request. It prefers literals, then the kinds of parameters in their order, then the
// shortest value of a parameter that may contain slashes.
type routeSearch struct {
	method   string
	segments []string
	values   [maxValues][2]int // the segments of each parameter, as a half-open range
	// furthest is the node that the search reached with the most segments, and reached is the number of these segments.
	furthest *node
	reached  int
}

// find returns the route for the segments from at, or nil. count is the number of parameters before at.
func (s *routeSearch) find(n *node, at, count int) *route {
	if s.furthest == nil || at > s.reached {
		s.furthest, s.reached = n, at
	}
	if at == len(s.segments) {
		return n.routes[s.method]
	}
	segment := s.segments[at]
	if child := n.literals[segment]; child != nil {
		if r := s.find(child, at+1, count); r != nil {
			return r
		}
	}
	for k, child := range n.children {
		if child != nil {
			if r := s.findParameter(kind(k), child, at, count); r != nil {
				return r
			}
		}
	}
	return nil
}

// findParameter returns the route below a parameter whose value begins at a segment, or nil.
func (s *routeSearch) findParameter(k kind, child *node, at, count int) *route {
	hasDots := false
	for end := at + 1; end <= len(s.segments); end++ {
		last := s.segments[end-1]
		hasDots = hasDots || strings.Contains(last, "...")
		switch {
		case last == "", k == kindNumber && !isInteger(last):
			return nil
		case k != kindPair || hasDots:
			s.values[count] = [2]int{at, end}
			if r := s.find(child, end, count+1); r != nil {
				return r
			}
		}
		if k == kindNumber || k == kindSingle {
			return nil
		}
	}
	return nil
}

// bind returns the parameters, and writes their canonical form to the segments. In a path or a ref of the
// table's operations, and in the names that parameters.yaml lists, an encoded slash is allowed and stays encoded, because
// the upstream may distinguish both forms. In the documented {branch}, both forms are plain slashes.
func (r *route) bind(s *routeSearch) (Params, error) {
	if len(r.names) == 0 {
		return nil, refuseEncodedSlash(s.segments, 0)
	}
	params := make(Params, 0, len(r.names)+1) // a pair has two names
	encoded := 0                              // segments with an encoded slash that is allowed
	for i, name := range r.names {
		rule, part := r.rules[i], s.segments[s.values[i][0]:s.values[i][1]]
		for j, segment := range part {
			switch {
			case !strings.Contains(segment, "%2F"):
			case rule.Tail:
				part[j] = strings.ReplaceAll(segment, "%2F", "/")
			case r.operation.Category != "" && (rule.Encoded || r.kinds[i] == kindMultiple || r.kinds[i] == kindPair):
				encoded++
			}
		}
		value := unescape(strings.Join(part, "/"))
		if rule.Fold {
			value = lower(value)
			part[0] = escape(value)
		}
		if base, head, ok := strings.Cut(name, "..."); ok { // a pair
			first, second, _ := strings.Cut(value, "...")
			params = append(params, Param{base, first}, Param{head, second})
			continue
		}
		params = append(params, Param{name, value})
	}
	return params, refuseEncodedSlash(s.segments, encoded)
}

// refuseEncodedSlash returns an error if more segments than allowed have an encoded slash.
func refuseEncodedSlash(segments []string, allowed int) error {
	for _, segment := range segments {
		if strings.Contains(segment, "%2F") {
			allowed--
		}
	}
	if allowed < 0 {
		return errEncodedSlash
	}
	return nil
}

// unknown returns the operation of a route outside the catalogue, after find has searched its segments.
func (c *Catalogue) unknown(method string, s *routeSearch) (*Operation, error) {
	for i, segment := range s.segments {
		if strings.Contains(segment, "%2F") && !mayHoldRef(s.segments, i) {
			return nil, errEncodedSlash
		}
	}
	op := &Operation{ID: UnknownID, Method: method, Path: s.furthest.prefix, Auth: "optional"}
	if s.reached < len(s.segments) {
		op.Path += "/…"
	}
	op.CreatesContent = !op.Safe() // or notifies people
	op.Personal = slices.ContainsFunc(c.personal, func(prefix string) bool { return within(op.Path, prefix) })
	complete(op)
	return op, nil
}

// mayHoldRef reports whether a segment of an unknown route may be a ref or a file path with encoded slashes, such as
// repos/{owner}/{repo}/new-route/release%2F1.x. Such a segment is forwarded unchanged.
func mayHoldRef(segments []string, at int) bool {
	return segments[0] == "repos" && at >= 4 || segments[0] == "repositories" && at >= 3
}

// alias is an additional prefix for templates, from aliases.yaml.
type alias struct {
	Prefix     string `yaml:"prefix"`
	Documented string `yaml:"documented"`
}

// spell returns a template with the prefix of the alias, or "" if the alias does not apply.
func (a alias) spell(template string) string {
	rest, ok := strings.CutPrefix(template, a.Documented)
	if !ok || rest != "" && rest[0] != '/' {
		return ""
	}
	return a.Prefix + rest
}

func isInteger(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
