package policy

import (
	"net/http"
	"slices"
	"strings"
)

// Scope is what a client of the gateway may ask for. Nil, and an empty list,
// leave everything to it.
type Scope struct {
	// Methods are those that it may use; GET stands for HEAD too.
	Methods []string
	// Operations are patterns for the IDs of operations ([Glob]). Routes that
	// the documents do not show are the one operation "unknown".
	Operations []string
}

// Allows reports whether a call of an operation lies within the scope. The
// method is the one that is sent: of an unknown route, and of HEAD, it is not
// told by the operation.
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

// Names reports whether a pattern of a [Scope] stands for any operation.
func (c *Catalogue) Names(pattern string) bool {
	named := func(op *Operation) bool { return Glob(pattern, op.ID) }
	return Glob(pattern, unknownID) || slices.ContainsFunc(c.operations, named)
}

// Glob reports whether a name is what a pattern says: an asterisk stands for
// any run of characters, none and slashes among them, and everything else for
// itself. Its time grows with the product of the lengths at most.
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
