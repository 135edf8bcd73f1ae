package policy

// CallerKind is the kind of an account. The kind decides the primary limit until the first response reports the limit
// (Document B section 8.1). The values are those of credentials[].kind in the configuration.
type CallerKind string

// Caller kinds. Enterprise is a user of an enterprise.
const (
	Unauthenticated        CallerKind = "unauthenticated"
	User                   CallerKind = "user"
	Enterprise             CallerKind = "enterprise"
	Installation           CallerKind = "installation"
	EnterpriseInstallation CallerKind = "enterprise_installation"
	OAuthApp               CallerKind = "oauth_app"
	EnterpriseOAuthApp     CallerKind = "enterprise_oauth_app"
	Workflow               CallerKind = "workflow"
	EnterpriseWorkflow     CallerKind = "enterprise_workflow"
)

// Base returns the kind without the enterprise. A caller of an enterprise has another primary limit, and is otherwise
// like a caller of the base kind.
func (k CallerKind) Base() CallerKind {
	switch k {
	case Enterprise:
		return User
	case EnterpriseInstallation:
		return Installation
	case EnterpriseOAuthApp:
		return OAuthApp
	case EnterpriseWorkflow:
		return Workflow
	}
	return k
}

// Caller is the identity of a request. Caller contains no secret, because Account and Class are names or keyed hashes.
type Caller struct {
	Kind CallerKind
	// Account is the account against which the upstream counts the request.
	Account string
	// Class is the security class: callers share a private response only if their classes are equal. A class is
	// narrower than an account, because two tokens of one user may see different resources.
	Class string
	// Client is the name of the configured client, or empty for pass-through. Group is the name of its group, if any.
	Client, Group string
	// Tag is the name of the budget for the tag of the request, such as "ci/run-17" ([limits.Limiter.TagBudget]). It is
	// empty if the client has no limit for tags.
	Tag string
	// Share is the weight of the client in the queue of its account; zero counts as 1.
	Share    int
	Priority Priority
	// Paced means that the client has the priority Batch, so that its requests are spread evenly over sliding windows. The polls of
	// other clients have the priority, but no pace.
	Paced bool
	// Clients divides the primary windows of the account among its clients. It is empty if the account has one client
	// without a limit for tags and without a guarantee.
	Clients []ClientBudget
}

// ClientBudget is the part of each primary window of an account that one client or group of clients has.
type ClientBudget struct {
	Client string // or group
	// Share is the weight of the client, or zero for a group.
	Share int
	// Guarantee is the fraction of the window that is kept for the client. Limit is the fraction that the client may use.
	Guarantee, Limit float64
	// TagLimit is the fraction that the requests of the client with one tag may use, or zero for no limit.
	TagLimit float64
	// Batch means that the client has this priority: its requests are spread evenly over the window.
	Batch bool
}

// Priority orders the requests that wait for one account. The values are those of the configuration.
type Priority string

// Priorities. The default is Normal. Requests with the priority Batch are spread evenly over each window.
const (
	Interactive Priority = "interactive"
	Normal      Priority = "normal"
	Batch       Priority = "batch"
)
