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
var checks = map[string]func(values url.Values, kind CallerKind) *Finding{
	// Document B section 5.1: code search must be authenticated.
	"search-authentication": func(_ url.Values, kind CallerKind) *Finding {
		if kind != Unauthenticated {
			return nil
		}
		return &Finding{Status: http.StatusUnauthorized, Message: "Requires authentication"}
	},
	// Document B section 4.1: q is required.
	"search-query": func(values url.Values, _ CallerKind) *Finding {
		return invalidSearch(values.Get("q") == "", "missing", "Validation Failed")
	},
	// Document B section 7: at most 256 characters, operators and qualifiers
	// not counted.
	"search-length": func(values url.Values, _ CallerKind) *Finding {
		return invalidSearch(ParseSearch(values.Get("q")).Length() > maxSearchLength, "invalid",
			"Validation Failed: the search is longer than 256 characters")
	},
	// Document B section 7: at most five AND, OR and NOT.
	"search-operators": func(values url.Values, _ CallerKind) *Finding {
		return invalidSearch(ParseSearch(values.Get("q")).Operators() > maxSearchOperators, "invalid",
			"Validation Failed: more than five AND / OR / NOT operators were used")
	},
	// Document B section 4.1, query rule 2.
	"search-terms": func(values url.Values, _ CallerKind) *Finding {
		return invalidSearch(!ParseSearch(values.Get("q")).HasTerm(), "invalid",
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
// or nil.
func (m Match) Preflight(kind CallerKind) *Finding {
	if len(m.Operation.Checks) == 0 {
		return nil
	}
	values, err := url.ParseQuery(m.Query)
	if err != nil {
		panic("policy: not canonical: " + m.Query)
	}
	for _, name := range m.Operation.Checks {
		if f := checks[name](values, kind); f != nil {
			f.Check = name
			return f
		}
	}
	return nil
}
