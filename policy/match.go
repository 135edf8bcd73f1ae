package policy

import (
	"fmt"
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

// Classify canonicalizes a target (escaped path and raw query) and finds its operation. HEAD matches as GET.
//
// An undocumented route gets a separate operation with the ID "unknown", the resource core, points by method, and
// caching by RFC 9111 only. The path of that operation is the shape of the route, with placeholders for variable
// segments ({owner}, {repo}, {number}, {sha}, {value}).
//
// Classify returns a [*TargetError] for a target with one of these properties:
//   - dot segments or empty segments
//   - backslashes, control characters, invalid UTF-8 or invalid escapes
//   - encoded slashes, except in a {branch} (decoded) and in a ref of an unknown repository route (unchanged)
//   - semicolons in the query, or more than 1,000 parameters
//
// A trailing slash is allowed, but belongs to a different path, which is unknown.
func (c *Catalogue) Classify(method, escapedPath, rawQuery string) (Match, error) {
	segments, err := canonicalPath(escapedPath)
	if err != nil {
		return Match{}, err
	}
	query, err := canonicalQuery(rawQuery)
	if err != nil {
		return Match{}, err
	}
	lookup := method
	if method == "HEAD" {
		lookup = "GET"
	}
	m := Match{Query: query}
	routes := c.routes[lookup]
	if i := slices.IndexFunc(routes, func(r route) bool { return r.matches(segments) }); i >= 0 {
		m.Operation, m.Params = routes[i].operation, routes[i].bind(segments)
	} else {
		m.Operation = unknown(method, segments)
	}
	for i, s := range segments {
		if strings.Contains(s, "%2F") && (m.Operation.Known() || !mayHoldRef(segments, i)) {
			return Match{}, &TargetError{"the path holds an encoded slash (%2F)"}
		}
	}
	m.Path = "/" + strings.Join(segments, "/")
	return m, nil
}

// mayHoldRef reports whether a segment of an unknown route may be a ref or a file path with encoded slashes, such as
// repos/{owner}/{repo}/branches/release%2F1.x. Such a segment is forwarded unchanged.
func mayHoldRef(segments []string, at int) bool {
	return segments[0] == "repos" && at >= 4 || segments[0] == "repositories" && at >= 3
}

// pathParameter is a row of parameters.yaml.
type pathParameter struct {
	Fold    bool `yaml:"fold"`
	Integer bool `yaml:"integer"`
	Tail    bool `yaml:"tail"`
}

var parameters = mustDecode[map[string]pathParameter]("parameters.yaml")

// route is an operation with its path template, or with the spelling of the template under an alias.
type route struct {
	operation *Operation
	template  []templateSegment
}

// templateSegment is a literal, or a parameter if it has a name.
type templateSegment struct {
	literal, name string
	rule          pathParameter
}

func newRoute(op *Operation, path string) (route, error) {
	r := route{operation: op}
	segments := strings.Split(path[1:], "/")
	for i, s := range segments {
		name, isParameter := templateParameter(s)
		if !isParameter {
			r.template = append(r.template, templateSegment{literal: s})
			continue
		}
		rule := parameters[name]
		if rule.Tail && i != len(segments)-1 {
			return r, fmt.Errorf("operation %q: {%s} takes the rest of the path and must be last", op.ID, name)
		}
		r.template = append(r.template, templateSegment{name: name, rule: rule})
	}
	return r, nil
}

// compare orders routes by preference: a literal precedes a parameter, whose literal is empty.
func (r route) compare(other route) int {
	return slices.CompareFunc(r.template, other.template, func(a, b templateSegment) int {
		return strings.Compare(b.literal, a.literal)
	})
}

// matches reports whether the template matches the segments of a path. A parameter is never empty.
func (r route) matches(segments []string) bool {
	for i, t := range r.template {
		switch {
		case i == len(segments):
			return false
		case t.name == "":
			if segments[i] != t.literal {
				return false
			}
		case t.rule.Tail:
			return segments[len(segments)-1] != ""
		case segments[i] == "" || t.rule.Integer && !isInteger(segments[i]):
			return false
		}
	}
	return len(segments) == len(r.template)
}

// bind returns the parameters, and writes their canonical form to segments.
func (r route) bind(segments []string) Params {
	var params Params
	for i, t := range r.template {
		if t.name == "" {
			continue
		}
		value := unescape(segments[i])
		switch {
		case t.rule.Tail:
			for j := i; j < len(segments); j++ {
				segments[j] = strings.ReplaceAll(segments[j], "%2F", "/")
			}
			value = unescape(strings.Join(segments[i:], "/"))
		case t.rule.Fold:
			value = lower(value)
			segments[i] = escape(value)
		}
		params = append(params, Param{t.name, value})
	}
	return params
}

func templateParameter(segment string) (name string, ok bool) {
	if strings.HasPrefix(segment, "{") && strings.HasSuffix(segment, "}") {
		return segment[1 : len(segment)-1], true
	}
	return "", false
}

// alias is an additional prefix for templates, from aliases.yaml.
type alias struct {
	Prefix     string `yaml:"prefix"`
	Documented string `yaml:"documented"`
}

// spell returns a template with the prefix of the alias, or "" if the alias does not apply.
func (a alias) spell(template string) string {
	rest, ok := strings.CutPrefix(template, a.Documented+"/")
	if !ok {
		return ""
	}
	return a.Prefix + "/" + rest
}

// unknown returns the operation of an undocumented route. POST and PUT count as creating content.
func unknown(method string, segments []string) *Operation {
	op := &Operation{ID: unknownID, Method: method, Path: shape(segments), Auth: "optional"}
	op.CreatesContent = method == "POST" || method == "PUT"
	op.Personal = segments[0] == "user"
	complete(op)
	return op
}

// namesAfter lists the names that follow a collection in a path.
var namesAfter = map[string][]string{
	"repos": {"{owner}", "{repo}"},
	"orgs":  {"{org}"},
	"users": {"{username}"},
	"teams": {"{team_slug}"},
}

const (
	// maxShape bounds the segments of a shape.
	maxShape = 8
	// maxLiteral bounds a segment that is kept. maxMixed bounds a segment that does not consist of lower-case words,
	// because that segment may be a token.
	maxLiteral = 40
	maxMixed   = 16
)

// shape replaces variable segments of an unknown route by placeholders. The number of shapes is unbounded; users of a
// shape must bound the number of shapes.
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
			names = namesAfter[s]
		}
	}
	return b.String()
}

// isWords reports whether s consists of lower-case letters and separators.
func isWords(s string) bool {
	return strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyz-_.") == ""
}

func isInteger(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// isHash reports whether s looks like an object name: 40 or 64 hexadecimal digits, or at least 7 with a decimal digit.
func isHash(s string) bool {
	if strings.Trim(s, "0123456789abcdefABCDEF") != "" {
		return false
	}
	return len(s) == 40 || len(s) == 64 || len(s) >= 7 && strings.ContainsAny(s, "0123456789")
}
