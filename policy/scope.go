package policy

import (
	"net/http"
	"slices"
	"strings"
)

// Scope restricts the requests of a client. A nil scope and empty lists allow all requests.
type Scope struct {
	// Methods are the allowed methods; GET includes HEAD.
	Methods []string
	// Operations are patterns for operation IDs ([Glob]). All routes outside the catalogue are the operation
	// "unknown".
	Operations []string
	// GraphQL restricts the GraphQL calls. Nil allows all of them.
	GraphQL *GraphQLRules
}

// Allows reports whether the scope allows a call. method is the method of the request, because operations do not
// distinguish GET and HEAD.
func (s *Scope) Allows(method string, operation *Operation) bool {
	if s == nil {
		return true
	}
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if len(s.Methods) > 0 && !slices.Contains(s.Methods, method) {
		return false
	}
	matches := func(pattern string) bool { return Glob(pattern, operation.ID) }
	return len(s.Operations) == 0 || slices.ContainsFunc(s.Operations, matches)
}

// Names reports whether a pattern of a [Scope] matches any operation.
func (c *Catalogue) Names(pattern string) bool {
	named := func(op *Operation) bool { return Glob(pattern, op.ID) }
	return Glob(pattern, UnknownID) || slices.ContainsFunc(c.operations, named)
}

// Glob reports whether a name matches a pattern, in which an asterisk matches any characters, including slashes. The
// time is at most proportional to the product of the lengths.
func Glob(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return pattern == name
	}
	rest, ok := strings.CutPrefix(name, parts[0])
	if !ok || len(rest) < len(parts[last]) || !strings.HasSuffix(rest, parts[last]) {
		return false
	}
	rest = strings.TrimSuffix(rest, parts[last])
	for _, part := range parts[1:last] {
		if _, rest, ok = strings.Cut(rest, part); !ok {
			return false
		}
	}
	return true
}
