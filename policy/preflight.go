package policy

import (
	"net/http"
	"net/url"
)

// Finding describes a request that must fail according to the documents. The gateway refuses the request without
// forwarding. Gateway and reference service respond with the same body.
type Finding struct {
	// Check is the name of the check, for example "search-length".
	Check  string
	Status int
	// Message is the text of the error body. Resource, Field and Code describe the only element of the errors array. If
	// Field is empty, the body has no errors array.
	Message  string
	Resource string
	Field    string
	Code     string
}

// Bounds of a search query (Document B sections 7 and 8.2).
const (
	maxSearchLength    = 256
	maxSearchOperators = 5
)

// checks are the preflight checks by their name in the catalogue. A check returns nil if the request passes.
var checks = map[string]func(q SearchQuery, kind CallerKind) *Finding{
	// Document B section 5.1: code search requires authentication. GraphQL also requires authentication, because an
	// address has no budget for GraphQL.
	"authentication": func(_ SearchQuery, kind CallerKind) *Finding {
		if kind != Unauthenticated {
			return nil
		}
		return &Finding{Status: http.StatusUnauthorized, Message: "Requires authentication"}
	},
	// Document B section 4.1: q is required.
	"search-query": searchCheck("missing", "Validation Failed", func(q SearchQuery) bool { return len(q) == 0 }),
	// Document B section 7: at most 256 characters without operators and qualifiers.
	"search-length": searchCheck("invalid", "Validation Failed: the search is longer than 256 characters",
		func(q SearchQuery) bool { return q.Length() > maxSearchLength }),
	// Document B section 7: at most five AND, OR and NOT.
	"search-operators": searchCheck("invalid", "Validation Failed: more than five AND / OR / NOT operators were used",
		func(q SearchQuery) bool { return q.Operators() > maxSearchOperators }),
	// Document B section 4.1, query rule 2.
	"search-terms": searchCheck("invalid", "Validation Failed: the search contains only qualifiers; at least one search term is needed",
		func(q SearchQuery) bool { return !q.HasTerm() }),
}

// searchCheck returns a check that fails for invalid searches.
func searchCheck(code, message string, isInvalid func(SearchQuery) bool) func(SearchQuery, CallerKind) *Finding {
	return func(q SearchQuery, _ CallerKind) *Finding {
		if !isInvalid(q) {
			return nil
		}
		return &Finding{Status: http.StatusUnprocessableEntity, Message: message, Resource: "Search", Field: "q", Code: code}
	}
}

// Preflight returns the first failed check of the operation, or nil. If q is repeated, every value must fail, because
// the documents do not define which value counts.
func (m Match) Preflight(kind CallerKind) *Finding {
	if len(m.Operation.Checks) == 0 {
		return nil
	}
	values, err := url.ParseQuery(m.Query)
	if err != nil {
		panic("policy: query is not canonical: " + m.Query)
	}
	queries := values["q"]
	if len(queries) == 0 {
		queries = []string{""}
	}
	var f *Finding
	for _, q := range queries {
		if f = m.Operation.check(ParseSearch(q), kind); f == nil {
			return nil
		}
	}
	return f
}

// check returns the first check that a search fails, or nil.
func (o *Operation) check(q SearchQuery, kind CallerKind) *Finding {
	for _, name := range o.Checks {
		if f := checks[name](q, kind); f != nil {
			f.Check = name
			return f
		}
	}
	return nil
}
