package policy

import (
	"slices"
	"time"
)

// Resources that the code must tell apart; the others are data
// (resources.yaml, Document B section 2.6).
const (
	Core       = "core"
	Search     = "search"
	CodeSearch = "code_search"
)

// Operation is one row of an endpoint table of the documents: a method and a
// path template with everything that decides how a call to it is treated.
// Operations are shared and must not be changed.
type Operation struct {
	// ID names the operation in configuration, spans, metrics and purges, for
	// example "gitignore/get-template". Unknown routes have the ID "unknown".
	ID string `yaml:"id"`
	// Section is the endpoint table of the documents that shows it, for
	// example "B 4.2"; empty for what stands outside the tables and for an
	// unknown route.
	Section string `yaml:"-"`
	Method  string `yaml:"method"`
	// Path is the template as the documents spell it, for example
	// "/gitignore/templates/{name}". Of an unknown route it is the shape.
	Path string `yaml:"path"`
	// Query lists the query parameters that the documents show.
	Query []Parameter `yaml:"query"`
	// Accept lists the media types, beside the plain one, that change the
	// representation: "raw" stands for application/vnd.VENDOR.raw+json,
	// "text-match" for application/vnd.VENDOR.text-match+json.
	Accept []string `yaml:"accept"`
	// Success and Errors are the statuses that the documents list; empty
	// where they say "not shown".
	Success []int `yaml:"success"`
	Errors  []int `yaml:"errors"`
	// Resource is the primary budget a call counts against (Document B 2.6);
	// the upstream's x-ratelimit-resource beats it.
	Resource string `yaml:"resource"`
	// Points is the cost in points per minute and operation (Document B 8.3).
	Points int `yaml:"points"`
	// CreatesContent marks content-generating requests (Document B 8.3): those
	// that create something or notify someone. Of GraphQL the body decides.
	CreatesContent bool `yaml:"creates_content"`
	// Notifies marks requests that send notifications (Document A 4.3).
	Notifies bool `yaml:"notifies"`
	// Cache says whether and for whom an answer may be kept.
	Cache CacheRule `yaml:"cache"`
	// Invalidates names the operations whose kept answers a successful call
	// makes stale: those for the same path parameters, compared by name. A
	// parameter that the call does not have matches every value, so what has
	// none in common is stale for everyone: PUT
	// /repos/{owner}/{repo}/subscription tells neither whose
	// /user/subscriptions has changed nor which {username} the caller is. The
	// call's own target is always stale and is not named.
	Invalidates []string `yaml:"invalidates"`
	// StaleOn names the webhook events (Document B section 6) that make kept
	// answers stale: those about the delivery's repository, or its
	// organization where it names no repository. An operation with neither in
	// its path is stale for everyone. A push counts where it is to the default
	// branch: what is kept of commits is about that one.
	StaleOn []string `yaml:"stale_on"`
	// Auth is "required", or "optional" where the documents allow calls
	// without authentication for public resources.
	Auth string `yaml:"auth"`
	// Role is who may call it beyond holding a token, in the documents' words
	// ("organization owner"); empty where any caller may.
	Role string `yaml:"role"`
	// Scope is the classic scope and Permission the fine-grained permission
	// that a token needs (Document A section 5.4, B section 5.3).
	Scope      string `yaml:"scope"`
	Permission string `yaml:"permission"`
	// Refuses names the token kinds that do not work: app_user,
	// installation, fine_grained (Document A 5.5, B 5.5).
	Refuses []string `yaml:"refuses"`
	// Personal marks operations whose answer is about the caller itself, or which act
	// on what is the caller's own: another user's token is answered something else.
	Personal bool `yaml:"personal"`
	// Checks names the preflight checks ([Match.Preflight]) that apply.
	Checks []string `yaml:"checks"`
}

// Parameter is a query parameter that the documents show.
type Parameter struct {
	Name     string   `yaml:"name"`
	Required bool     `yaml:"required"`
	Default  string   `yaml:"default"`
	Values   []string `yaml:"values"` // allowed values; empty means any
}

// CacheRule says whether an answer may be kept and who else may get it.
type CacheRule struct {
	Class CacheClass `yaml:"class"`
	// TTL is how long a kept answer is fresh, whatever the upstream's
	// Cache-Control allows beyond no-store; 0 leaves freshness to the upstream.
	TTL time.Duration `yaml:"ttl"`
	// NoCoalesce forwards every request. Otherwise simultaneous identical requests share
	// one upstream call.
	NoCoalesce bool `yaml:"no_coalesce"`
}

// CacheClass is who may share a kept answer (design section 6.1).
type CacheClass string

// Cache classes.
const (
	// Shared is reference data: the same bytes for every caller.
	Shared CacheClass = "shared"
	// PerCaller answers are reused for the same credential only.
	PerCaller CacheClass = "account"
	// Statistics answers are computed in the background: 202, then kept.
	Statistics CacheClass = "statistics"
	// Never is for what must always be asked: unsafe methods, GraphQL, rate
	// limit status.
	Never CacheClass = "never"
)

// Known reports whether the documents show the operation.
func (o *Operation) Known() bool { return o.ID != unknownID }

// Safe reports whether the method is safe (RFC 9110 section 9.2.1).
func (o *Operation) Safe() bool { return safeMethod(o.Method) }

// Paged reports whether it answers with pages.
func (o *Operation) Paged() bool {
	return slices.ContainsFunc(o.Query, func(p Parameter) bool { return p.Name == "page" || p.Name == "after" || p.Name == "cursor" })
}

func safeMethod(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS", "TRACE":
		return true
	}
	return false
}
