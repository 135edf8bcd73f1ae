package policy

// CallerKind is the kind of an account. The kind decides the primary limit until the first response reports the limit
// (Document B section 8.1). The values are the keys of limits.primary in the configuration.
type CallerKind string

// Caller kinds.
const (
	Unauthenticated CallerKind = "unauthenticated"
	User            CallerKind = "user"
	Enterprise      CallerKind = "enterprise"
	Installation    CallerKind = "installation"
	OAuthApp        CallerKind = "oauth_app"
	Workflow        CallerKind = "workflow"
)

// Caller is the identity of a request. Caller contains no secret, because Account and Class are names or keyed hashes.
type Caller struct {
	Kind CallerKind
	// Account is the account against which the upstream counts the request.
	Account string
	// Class is the security class: callers share a private response only if their classes are equal. A class is
	// narrower than an account, because two tokens of one user may see different resources.
	Class string
	// Client is the name of the configured client, or empty for pass-through.
	Client string
	// Share is the weight of the client in the queue of its account; zero counts as 1.
	Share    int
	Priority Priority
}

// Priority orders the requests that wait for one account. The values are those of the configuration.
type Priority string

// Priorities. The default is Normal.
const (
	Interactive Priority = "interactive"
	Normal      Priority = "normal"
	Batch       Priority = "batch"
)
