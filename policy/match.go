package policy

import (
	"fmt"
	"strings"
)

// Match is a request seen through the catalogue.
type Match struct {
	Operation *Operation
	// Params are the path parameters, decoded and in canonical form (org, owner
	// and repo in lower case). Under an alias they are the alias's own:
	// repository_id in place of owner and repo.
	Params Params
	// Path and Query are the canonical request target: both percent-encoded,
	// the query without its question mark, its parameters sorted by name.
	Path  string
	Query string
}

// Params are path parameters, in the order of the path, with nothing behind them. They are
// part of a [Match]: a list would be the largest piece but one of what a hit leaves to the
// collector.
type Params [maxParams]Param

// maxParams is how many path parameters an operation can have.
const maxParams = 4

// Param is a path parameter.
type Param struct{ Name, Value string }

// Get returns the value of a parameter, or "" where there is none of that name: none is
// empty.
func (p *Params) Get(name string) string {
	for i := range p {
		if p[i].Name == name {
			return p[i].Value
		}
	}
	return ""
}

// Classify canonicalizes a request target (escaped path and raw query, as they
// came) and finds its operation. HEAD matches what GET does.
//
// A route that the documents do not show matches an operation made for it:
// ID "unknown", resource core, points by method, nothing beyond RFC 9111, and
// as Path the shape of the route ({owner}, {repo}, {number}, {sha}, {value} for
// what varies), so that it can be counted and labelled.
//
// A target that could be read in two ways is an error of type [*TargetError]:
// dot segments, empty segments, backslashes, control characters, bytes that
// are not UTF-8, broken escapes, encoded slashes other than in a {branch}
// (where they become slashes) or a ref of an unknown repository route,
// semicolons in the query, or more than 1,000 parameters. A trailing slash
// makes another path, which no operation has.
func (c *Catalogue) Classify(method, escapedPath, rawQuery string) (Match, error) {
	var room [usualSegments]string
	segments, err := canonicalPath(escapedPath, room[:0])
	if err != nil {
		return Match{}, err
	}
	query, err := canonicalQuery(rawQuery)
	if err != nil {
		return Match{}, err
	}
	m := Match{Query: query}
	op, captures := c.root.match(getFor(method), segments, 0, make([]capture, 0, maxParams))
	if op != nil {
		m.Operation = op
		bind(&m.Params, captures, segments)
	} else {
		m.Operation = unknown(method, segments)
	}
	for i, s := range segments {
		if strings.Contains(s, "%2F") && (m.Operation.Known() || !mayHoldRef(segments, i)) {
			return Match{}, &TargetError{"the path holds an encoded slash (%2F)"}
		}
	}
	m.Path = joined(segments, escapedPath)
	return m, nil
}

// usualSegments is room for those of every template.
const usualSegments = 12

// joined is the path of segments: as it came, where that is it.
func joined(segments []string, escapedPath string) string {
	var room [256]byte
	path := room[:0]
	for _, s := range segments {
		path = append(append(path, '/'), s...)
	}
	if string(path) == escapedPath {
		return escapedPath
	}
	return string(path)
}

// mayHoldRef reports whether a segment of an unknown route may be a ref or a
// file path with its slashes encoded, as clients write
// repos/{owner}/{repo}/branches/release%2F1.x. It goes upstream as it is.
func mayHoldRef(segments []string, at int) bool {
	return segments[0] == "repos" && at >= 4 || segments[0] == "repositories" && at >= 3
}

func getFor(method string) string {
	if method == "HEAD" {
		return "GET"
	}
	return method
}

type pathParameter struct {
	Fold    bool `yaml:"fold"`
	Integer bool `yaml:"integer"`
	Tail    bool `yaml:"tail"`
}

var parameters = mustDecode[map[string]pathParameter]("parameters.yaml")

// node is one segment of the templates.
type node struct {
	static     map[string]*node
	parameters []*node // tried in the order of the catalogue
	name       string  // of a parameter
	rule       pathParameter
	operations map[string]*Operation
}

// capture is a path parameter's place in a request.
type capture struct {
	parameter *node
	at        int // index of its first segment
}

// add files an operation under a path: its own, or an alias's spelling of it.
func (n *node) add(op *Operation, path string) error {
	segments := strings.Split(path[1:], "/")
	at, params := n, 0
	for i, s := range segments {
		name, ok := templateParameter(s)
		if ok {
			params++
		}
		if ok && parameters[name].Tail && i != len(segments)-1 {
			return fmt.Errorf("operation %q: {%s} takes the rest of the path and must be last", op.ID, name)
		}
		at = at.child(s, name, ok)
	}
	if params > maxParams {
		return fmt.Errorf("operation %q: %d path parameters; %d at most", op.ID, params, maxParams)
	}
	if other := at.operations[op.Method]; other != nil {
		return fmt.Errorf("operations %q and %q have the same method and path", other.ID, op.ID)
	}
	if at.operations == nil {
		at.operations = map[string]*Operation{}
	}
	at.operations[op.Method] = op
	return nil
}

func (n *node) child(segment, name string, isParameter bool) *node {
	if !isParameter {
		if n.static == nil {
			n.static = map[string]*node{}
		}
		if n.static[segment] == nil {
			n.static[segment] = &node{}
		}
		return n.static[segment]
	}
	for _, p := range n.parameters {
		if p.name == name {
			return p
		}
	}
	p := &node{name: name, rule: parameters[name]}
	n.parameters = append(n.parameters, p)
	return p
}

// match prefers a literal segment to a parameter and goes back where that
// leads nowhere (organization-roles/teams is a literal and could be a role). A
// parameter is never empty. The operation is nil where nothing matches.
func (n *node) match(method string, segments []string, at int, captures []capture) (*Operation, []capture) {
	if at == len(segments) {
		return n.operations[method], captures
	}
	if next := n.static[segments[at]]; next != nil {
		if op, all := next.match(method, segments, at+1, captures); op != nil {
			return op, all
		}
	}
	for _, p := range n.parameters {
		end, ok := p.rule.span(segments, at)
		if !ok {
			continue
		}
		if op, all := p.match(method, segments, end, append(captures, capture{p, at})); op != nil {
			return op, all
		}
	}
	return nil, nil
}

// span returns where a parameter that begins at a segment ends, or false where
// the segments can't be its value.
func (p pathParameter) span(segments []string, at int) (end int, ok bool) {
	if p.Tail {
		return len(segments), segments[len(segments)-1] != ""
	}
	return at + 1, segments[at] != "" && (!p.Integer || isInteger(segments[at]))
}

// bind reads the parameters' values and writes the canonical form of each back
// into segments.
func bind(params *Params, captures []capture, segments []string) {
	for i, c := range captures {
		value := segments[c.at]
		switch {
		case c.parameter.rule.Tail:
			for i, s := range segments[c.at:] {
				segments[c.at+i] = strings.ReplaceAll(s, "%2F", "/")
			}
			value = strings.Join(segments[c.at:], "/")
		case c.parameter.rule.Fold:
			value = fold(value)
			segments[c.at] = value
		}
		params[i] = Param{c.parameter.name, unescape(value)}
	}
}

func templateParameter(segment string) (name string, ok bool) {
	if strings.HasPrefix(segment, "{") && strings.HasSuffix(segment, "}") {
		return segment[1 : len(segment)-1], true
	}
	return "", false
}

type alias struct {
	Prefix    string `yaml:"prefix"`
	StandsFor string `yaml:"stands_for"`
}

// spell writes a template under the alias, or nothing where it does not apply.
func (a alias) spell(template string) string {
	rest, ok := strings.CutPrefix(template, a.StandsFor)
	if !ok || rest == "" || rest[0] != '/' {
		return ""
	}
	return a.Prefix + rest
}

// unknown makes the operation of a route that the documents do not show. What
// may create content is taken to do so.
func unknown(method string, segments []string) *Operation {
	op := &Operation{ID: unknownID, Method: method, Path: shape(segments), Auth: "optional"}
	op.CreatesContent = method == "POST" || method == "PUT"
	op.Personal = segments[0] == "user"
	complete(op)
	return op
}

// named tells which segments after a collection are names.
var named = map[string][]string{
	"repos": {"{owner}", "{repo}"},
	"orgs":  {"{org}"},
	"users": {"{username}"},
	"teams": {"{team_slug}"},
}

// Bounds of a shape: how many segments of an unknown route it keeps, and how
// long a segment can be and still pass for a literal of the API; one that is not of
// small letters alone may be a token.
const (
	maxShape   = 8
	maxLiteral = 40
	maxMixed   = 16
)

// shape replaces what varies in an unknown route by placeholders. What is left
// can still be anything short: who counts shapes must bound them.
func shape(segments []string) string {
	var b strings.Builder
	var names []string
	for i, s := range segments {
		if i == maxShape {
			b.WriteString("/…")
			break
		}
		b.WriteByte('/')
		switch {
		case len(names) > 0 && s != "":
			b.WriteString(names[0])
			names = names[1:]
		case isInteger(s):
			b.WriteString("{number}")
		case isHash(s):
			b.WriteString("{sha}")
		case len(s) > maxLiteral || strings.Contains(s, "%") || len(s) > maxMixed && !isWords(s):
			b.WriteString("{value}")
		default:
			b.WriteString(s)
			names = named[s]
		}
	}
	return b.String()
}

// isWords reports whether s is of small letters, and of what joins words.
func isWords(s string) bool {
	return strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyz-_.") == ""
}

func isInteger(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// isHash reports whether s looks like an object name: 40 or 64 hexadecimal
// digits, or 7 and more with at least one decimal digit among them.
func isHash(s string) bool {
	digits := 0
	for i := range len(s) {
		switch {
		case s[i] >= '0' && s[i] <= '9':
			digits++
		case s[i] >= 'a' && s[i] <= 'f' || s[i] >= 'A' && s[i] <= 'F':
		default:
			return false
		}
	}
	return len(s) == 40 || len(s) == 64 || len(s) >= 7 && digits > 0
}
