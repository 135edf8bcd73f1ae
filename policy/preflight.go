package policy

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

// checks are the preflight checks by their name in the catalogue (design
// section 6.3).
var checks = map[string]func(query string, kind CallerKind) *Finding{}

// Preflight returns the first check of the operation that the request fails,
// or nil.
func (m Match) Preflight(kind CallerKind) *Finding {
	for _, name := range m.Operation.Checks {
		if f := checks[name](m.Query, kind); f != nil {
			return f
		}
	}
	return nil
}
