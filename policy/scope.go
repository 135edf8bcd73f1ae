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
	// CountsWrites is set if the writes of the client are limited. GraphQL calls whose mutations cannot be counted are then refused.
	CountsWrites bool
	// Repositories are patterns of the allowed repositories, and Organizations of the allowed organizations and users
	// ([Glob]). Repositories beginning with an exclamation mark are excluded. Both empty, all are allowed.
	Repositories, Organizations []string
	// Claimed are the repositories in the token of the client, in lower case. They restrict Repositories if ByClaim is set.
	Claimed []string
	ByClaim bool
}

// LimitsNames reports whether the scope allows some repositories or owners only.
func (s *Scope) LimitsNames() bool {
	return s != nil && (s.ByClaim || len(s.Repositories)+len(s.Organizations) > 0)
}

// ReadsQueries reports whether [Scope.CheckQuery] may refuse a GraphQL call, so that its body must be known.
func (s *Scope) ReadsQueries() bool {
	return s != nil && (s.CountsWrites || s.GraphQL.Restricts())
}

// NamesOnly returns the part of the scope about repositories and owners, or nil.
func (s *Scope) NamesOnly() *Scope {
	if !s.LimitsNames() {
		return nil
	}
	return &Scope{Repositories: s.Repositories, Organizations: s.Organizations, Claimed: s.Claimed, ByClaim: s.ByClaim}
}

// WithClaim returns the scope of a client whose token contains names of repositories.
func (s *Scope) WithClaim(names []string) *Scope {
	claimed := Scope{}
	if s != nil {
		claimed = *s
	}
	claimed.ByClaim, claimed.Claimed = true, make([]string, len(names))
	for i, name := range names {
		claimed.Claimed[i] = lower(name)
	}
	return &claimed
}

// Permits returns a [*ScopeError] if a call of an operation reaches names that the scope does not allow. A call that may reach more
// than it names needs the ID of its operation in Operations, because a pattern would allow more operations than it shows.
func (s *Scope) Permits(operation *Operation, n Named) error {
	if err := s.PermitsNumbers(n); err != nil {
		return err
	}
	for _, name := range n.Repositories {
		if !s.allowsRepository(name) {
			return scopeErrorf("the repository %s is outside of its scope", name)
		}
	}
	for _, owner := range n.Owners {
		if !s.allowsOwner(owner) {
			return scopeErrorf("the organization or user %s is outside of its scope", owner)
		}
	}
	for _, owner := range n.Whole {
		if !s.allowsAll(owner) {
			return scopeErrorf("not all repositories of %s are in its scope", owner)
		}
	}
	explicit := slices.Contains(s.Operations, operation.ID)
	for _, owner := range n.Wide {
		if !explicit && !s.allowsAll(owner) {
			return scopeErrorf("it may reach all repositories of %s, and not all are in its scope; %s", owner, permitExplicitly(operation))
		}
	}
	if n.Others != "" && !explicit {
		return scopeErrorf("%s; %s", n.Others, permitExplicitly(operation))
	}
	return nil
}

// PermitsNumbers returns a [*ScopeError] if the scope does not allow a name that the call has as a number. Callers return it before
// any other refusal, because the refusal for a number without a name comes first, too.
func (s *Scope) PermitsNumbers(n Named) error {
	for _, v := range n.numbered {
		if v.kind == RepositoryIDs && !s.allowsRepository(v.name) || v.kind != RepositoryIDs && !s.allowsOwner(v.name) {
			return errNumber(v.number)
		}
	}
	return nil
}

// allowsOwner reports whether an organization or a user, in lower case, is allowed.
func (s *Scope) allowsOwner(owner string) bool {
	return slices.ContainsFunc(s.Organizations, func(pattern string) bool { return Glob(lower(pattern), owner) })
}

func permitExplicitly(operation *Operation) string {
	return "to permit the operation, list " + operation.ID + " in clients[].operations"
}

// allowsRepository reports whether OWNER/NAME in lower case is allowed.
func (s *Scope) allowsRepository(name string) bool {
	plain := withoutSuffix(name)
	if plain != name && strings.HasSuffix(name, ".git") {
		name = strings.TrimSuffix(name, ".git") // the API also accepts the name of the Git repository
	}
	allowed := len(s.Repositories) == 0 && s.ByClaim
	for _, pattern := range s.Repositories {
		excluded, isExclusion := strings.CutPrefix(lower(pattern), "!")
		switch {
		case isExclusion && (matchesPath(excluded, name) || matchesPath(excluded, plain)):
			return false
		case !isExclusion && matchesPath(lower(pattern), name):
			allowed = true
		}
	}
	return allowed && (!s.ByClaim || slices.Contains(s.Claimed, name))
}

// allowsAll reports whether all repositories of an owner, in lower case, are allowed.
func (s *Scope) allowsAll(owner string) bool {
	if s.ByClaim {
		return false
	}
	allowed := false
	for _, pattern := range s.Repositories {
		excluded, isExclusion := strings.CutPrefix(lower(pattern), "!")
		owners, names, _ := strings.Cut(excluded, "/")
		switch {
		case !Glob(owners, owner):
		case isExclusion:
			return false
		case names == "*":
			allowed = true
		}
	}
	return allowed
}

// matchesPath reports whether OWNER/NAME matches a pattern. An asterisk matches no slash.
func matchesPath(pattern, name string) bool {
	patternOwner, patternName, _ := strings.Cut(pattern, "/")
	owner, base, _ := strings.Cut(name, "/")
	return Glob(patternOwner, owner) && Glob(patternName, base)
}

// withoutSuffix returns a name without the endings that lead to the same repository.
func withoutSuffix(name string) string {
	for {
		at := slices.IndexFunc(named.Suffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
		if at < 0 {
			return name
		}
		name = strings.TrimSuffix(name, named.Suffixes[at])
	}
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
