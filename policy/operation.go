package policy

import (
	"slices"
	"time"
)

// Resources that the code distinguishes. resources.yaml lists all resources (Document B section 2.6).
const (
	Core       = "core"
	Search     = "search"
	CodeSearch = "code_search"
)

// Operation is a row of the catalogue: a method and a path template with all rules for calls to it. Operations are shared
// and must not be modified.
type Operation struct {
	// ID names the operation in configuration, spans, metrics and purges, such as "gitignore/get-template". Unknown
	// routes have the ID "unknown".
	ID string `yaml:"id"`
	// Section is the endpoint table of the documents, such as "B 4.2", or empty outside the tables.
	Section string `yaml:"-"`
	Method  string `yaml:"method"`
	// Path is the template of the documents, such as "/gitignore/templates/{name}", or the shape of an unknown route.
	Path string `yaml:"path"`
	// OtherPaths are further templates of the same operation.
	OtherPaths []string `yaml:"other_paths"`
	// Template is Path with {+name} for parameters that may contain slashes. It is empty without such parameters.
	Template string `yaml:"-"`
	// Category is the section of the published description, such as "issues". It is empty for the documents' operations.
	Category string `yaml:"-"`
	// Products are the products that have the operation, such as "cloud" and "ghes-3.19".
	Products []string `yaml:"-"`
	// Deprecated marks operations that the upstream will remove.
	Deprecated bool `yaml:"-"`
	// Query lists the documented query parameters.
	Query []Parameter `yaml:"query"`
	// Accept lists media types that change the representation: "raw" is application/vnd.VENDOR.raw+json, "text-match"
	// is application/vnd.VENDOR.text-match+json.
	Accept []string `yaml:"accept"`
	// Success and Errors are the documented statuses, or empty if the documents show no status.
	Success []int `yaml:"success"`
	Errors  []int `yaml:"errors"`
	// Resource is the primary budget of a call (Document B 2.6). x-ratelimit-resource of a response takes precedence.
	Resource string `yaml:"resource"`
	// Points is the cost of a call in points (Document B 8.3).
	Points int `yaml:"points"`
	// CreatesContent marks requests that create content or send notifications (Document B 8.3). For GraphQL the body
	// decides.
	CreatesContent bool `yaml:"creates_content"`
	// Content is the reason for CreatesContent: creates, notifies, neither or unsure. It is empty for the documents'
	// operations and for methods that never create content.
	Content string `yaml:"-"`
	// Notifies marks requests that send notifications (Document A 4.3).
	Notifies bool `yaml:"notifies"`
	// ReadsOnly marks unsafe methods that change nothing that a response shows, such as rendering Markdown.
	ReadsOnly bool `yaml:"-"`
	// Cache is the cache rule.
	Cache CacheRule `yaml:"cache"`
	// Invalidates names operations whose collections a successful call makes stale ([Catalogue.ChangedBy]). The target of the
	// call always becomes stale and is not listed.
	Invalidates []string `yaml:"invalidates"`
	// StaleOn names the webhook events (Document B section 6) that make the collection of the operation stale
	// ([Catalogue.ChangedByEvent]). A push counts only on the default branch.
	StaleOn []string `yaml:"stale_on"`
	// Auth is "required", or "optional" if the documents allow unauthenticated calls for public resources. "app" is for
	// operations that accept only the credentials of an app (its assertion, or its client ID and secret) or a password.
	Auth string `yaml:"auth"`
	// Role is the required role in the words of the documents ("organization owner"); empty for any caller.
	Role string `yaml:"role"`
	// Scope is the required classic scope. Permission is the required fine-grained permission (Document A 5.4, B 5.3).
	Scope      string `yaml:"scope"`
	Permission string `yaml:"permission"`
	// Refuses names the token kinds that the operation rejects: app_user, installation, fine_grained (Document A 5.5, B
	// 5.5).
	Refuses []string `yaml:"refuses"`
	// Personal marks operations about the caller: the tokens of different users get different responses.
	Personal bool `yaml:"personal"`
	// Checks names the preflight checks ([Match.Preflight]) that apply.
	Checks []string `yaml:"checks"`
}

// Parameter is a documented query parameter.
type Parameter struct {
	Name     string   `yaml:"name"`
	Required bool     `yaml:"required"`
	Default  string   `yaml:"default"`
	Values   []string `yaml:"values"` // allowed values; empty means any
}

// CacheRule decides whether a response may be stored and which callers share it.
type CacheRule struct {
	Class CacheClass `yaml:"class"`
	// TTL is the lifetime of a stored response. A TTL above 0 overrides the Cache-Control of the upstream except
	// no-store; 0 uses that Cache-Control.
	TTL time.Duration `yaml:"ttl"`
	// MaxTTL bounds the lifetime of a stored response, also with webhooks; 0 has no bound.
	MaxTTL time.Duration `yaml:"-"`
	// NoCoalesce is set if every request is forwarded. Otherwise simultaneous identical requests share one upstream
	// call.
	NoCoalesce bool `yaml:"no_coalesce"`
}

// CacheClass decides which callers share a stored response.
type CacheClass string

// Cache classes.
const (
	// Shared is reference data: the same bytes for every caller.
	Shared CacheClass = "shared"
	// Immutable responses describe an object that a full hash at the end of the path names. They are reused for the same credential
	// only. With another value, such as a branch, they are like PerCaller (see [Match.Immutable]).
	Immutable CacheClass = "immutable"
	// PerCaller responses are reused for the same credential only.
	PerCaller CacheClass = "account"
	// Statistics responses are computed by the upstream in the background (202), then stored.
	Statistics CacheClass = "statistics"
	// Query is GraphQL. Identical queries share a call, and rules store responses ([GraphQLCache]) for the same credential
	// only. Mutations are never stored.
	Query CacheClass = "query"
	// Never marks responses that are not stored: responses to unsafe methods, the rate limit status, and responses with
	// secrets or signed URLs.
	Never CacheClass = "never"
)

// Known reports whether the operation is in the catalogue.
func (o *Operation) Known() bool { return o.ID != UnknownID }

// publicOperations are the IDs of public.yaml.
var publicOperations = func() map[string]bool {
	set := map[string]bool{}
	for _, id := range mustDecode[[]string]("public.yaml") {
		set[id] = true
	}
	return set
}()

// Public reports whether everyone gets the same response about a public resource, without authentication.
func (o *Operation) Public() bool { return publicOperations[o.ID] }

// Safe reports whether the method is safe (RFC 9110 section 9.2.1).
func (o *Operation) Safe() bool {
	return slices.Contains([]string{"GET", "HEAD", "OPTIONS", "TRACE"}, o.Method)
}

// Paged reports whether the response is paginated.
func (o *Operation) Paged() bool {
	return slices.ContainsFunc(o.Query, func(p Parameter) bool { return p.Name == "page" || p.Name == "after" || p.Name == "cursor" })
}

// Accepts reports whether the operation accepts a kind of caller, according to the API's documents. An OAuth app reads
// public data only (Document B section 5.6). Personal operations need a user. Some operations refuse installations
// (Document A section 5.5).
func (o *Operation) Accepts(kind CallerKind) bool {
	kind = kind.Base()
	switch {
	case o.Auth == "app": // the credential of an app itself, which no caller kind has
		return false
	case o.Personal:
		return kind == User
	case kind == OAuthApp:
		return o.Safe() && (o.Auth == "optional" || !o.Known())
	case kind == Installation || kind == Workflow:
		return !slices.Contains(o.Refuses, string(Installation))
	}
	return true
}
