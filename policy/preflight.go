package policy

import (
	"net/http"
	"net/url"
)

// Finding is a request that must fail by the documents' own words, so that it
// is answered without being sent. The body of such an answer is the same from
// the gateway and from the reference service.
type Finding struct {
	// Check is the name of the check, for example "search-length".
	Check  string
	Status int
	// Message is the body's message; Resource, Field and Code are the one
	// member of its errors array, none when Field is empty.
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

// checks are the preflight checks by their name in the catalogue (design
// section 6.3). Each returns nil when the request passes.
var checks = map[string]func(q SearchQuery, kind CallerKind) *Finding{
	// Document B section 5.1: code search must be authenticated. So must
	// GraphQL: an address has no budget for it.
	"authentication": func(_ SearchQuery, kind CallerKind) *Finding {
		if kind != Unauthenticated {
			return nil
		}
		return &Finding{Status: http.StatusUnauthorized, Message: "Requires authentication"}
	},
	// Document B section 4.1: q is required.
	"search-query": func(q SearchQuery, _ CallerKind) *Finding {
		return invalidSearch(len(q) == 0, "missing", "Validation Failed")
	},
	// Document B section 7: at most 256 characters, operators and qualifiers
	// not counted.
	"search-length": func(q SearchQuery, _ CallerKind) *Finding {
		return invalidSearch(q.Length() > maxSearchLength, "invalid",
			"Validation Failed: the search is longer than 256 characters")
	},
	// Document B section 7: at most five AND, OR and NOT.
	"search-operators": func(q SearchQuery, _ CallerKind) *Finding {
		return invalidSearch(q.Operators() > maxSearchOperators, "invalid",
			"Validation Failed: more than five AND / OR / NOT operators were used")
	},
	// Document B section 4.1, query rule 2.
	"search-terms": func(q SearchQuery, _ CallerKind) *Finding {
		return invalidSearch(!q.HasTerm(), "invalid",
			"Validation Failed: the search contains only qualifiers; at least one search term is needed")
	},
}

func invalidSearch(failed bool, code, message string) *Finding {
	if !failed {
		return nil
	}
	return &Finding{Status: http.StatusUnprocessableEntity, Message: message, Resource: "Search", Field: "q", Code: code}
}

// Preflight returns the first check of the operation that the request fails,
// or nil. It refuses only what must fail: where q is repeated nothing says
// which one counts, and the search must fail whichever it is.
func (m Match) Preflight(kind CallerKind) *Finding {
	if len(m.Operation.Checks) == 0 {
		return nil
	}
	values, err := url.ParseQuery(m.Query)
	if err != nil {
		panic("policy: not canonical: " + m.Query)
	}
	asked := values["q"]
	if len(asked) == 0 {
		asked = []string{""}
	}
	var f *Finding
	for _, q := range asked {
		if f = m.Operation.check(ParseSearch(q), kind); f == nil {
			return nil
		}
	}
	return f
}

// check returns the first check that the search fails, or nil.
func (o *Operation) check(q SearchQuery, kind CallerKind) *Finding {
	for _, name := range o.Checks {
		if f := checks[name](q, kind); f != nil {
			f.Check = name
			return f
		}
	}
	return nil
}
