package policy

// CallerKind is what the upstream takes a caller for; it decides the primary
// limit before the first response has told it (Document B section 8.1). The
// values are the keys of limits.primary in the configuration.
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

// CallerKinds lists every kind, in the order of Document B section 8.1.
func CallerKinds() []CallerKind {
	return []CallerKind{Unauthenticated, User, Enterprise, Installation, OAuthApp, Workflow}
}

// Caller is who a request is sent for, as the upstream will see it. It holds
// no secret: Account and Class are names or keyed hashes.
type Caller struct {
	Kind CallerKind
	// Account is what the upstream counts against (design section 5.1).
	Account string
	// Class is the security class: two callers share a private answer only
	// when their classes are equal (design section 6.2). It is narrower than
	// the account, because two tokens of one user may see different things.
	Class string
	// Client is the name of the gateway client, empty for pass-through.
	Client string
	// Share is the client's weight among those who wait for one account; zero
	// counts as one. Priority says who goes before all of them.
	Share    int
	Priority Priority
}

// Priority orders those who wait for one account. The values are those of the
// configuration.
type Priority string

// Priorities. Whoever states none is normal.
const (
	Interactive Priority = "interactive"
	Normal      Priority = "normal"
	Batch       Priority = "batch"
)
