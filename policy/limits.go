package policy

import "time"

// Limits are the numbers of Document B section 8, as the gateway keeps them
// and as the reference service enforces them. The zero value allows nothing;
// start from [DefaultLimits].
type Limits struct {
	Primary struct {
		Unauthenticated int           `yaml:"unauthenticated" desc:"of each address"`
		User            int           `yaml:"user" desc:"of each user, all tokens together"`
		Enterprise      int           `yaml:"enterprise" desc:"of users of the enterprise plan"`
		Installation    int           `yaml:"installation" desc:"of each installation, at least"`
		OAuthApp        int           `yaml:"oauth_app" desc:"of each app, by client id and secret"`
		Workflow        int           `yaml:"workflow" desc:"of each repository's workflows"`
		Window          time.Duration `yaml:"window" desc:"length of the window"`
	} `yaml:"primary" desc:"requests in a window"`
	Search struct {
		Authenticated   int           `yaml:"authenticated" desc:"of each caller, all searches but code search"`
		Code            int           `yaml:"code" desc:"code search of each caller"`
		Unauthenticated int           `yaml:"unauthenticated" desc:"of each address"`
		Window          time.Duration `yaml:"window" desc:"length of the window"`
	} `yaml:"search" desc:"searches in a window"`
	Concurrent int `yaml:"concurrent" desc:"requests at one time, REST and GraphQL together"`
	Points     struct {
		REST    int           `yaml:"rest" desc:"of each operation"`
		GraphQL int           `yaml:"graphql" desc:"of GraphQL"`
		Window  time.Duration `yaml:"window" desc:"length of the window"`
	} `yaml:"points" desc:"points in a window"`
	CPU struct {
		Total   time.Duration `yaml:"total" desc:"of all requests"`
		GraphQL time.Duration `yaml:"graphql" desc:"of GraphQL"`
		Window  time.Duration `yaml:"window" desc:"length of the window"`
		Factor  float64       `yaml:"factor" desc:"CPU time of the upstream in its response time"`
	} `yaml:"cpu" desc:"CPU time in a window"`
	Content []Window `yaml:"content" desc:"requests that create content; all windows must allow"`
}

// Window is at most Max in any span of Window.
type Window struct {
	Max    int           `yaml:"max" desc:"at most this many"`
	Window time.Duration `yaml:"window" desc:"length of the window"`
}

// DefaultLimits are the numbers of Document B section 8.
func DefaultLimits() Limits {
	var l Limits
	l.Primary.Unauthenticated = 60
	l.Primary.User = 5000
	l.Primary.Enterprise = 15000
	l.Primary.Installation = 5000
	l.Primary.OAuthApp = 5000
	l.Primary.Workflow = 1000
	l.Primary.Window = time.Hour
	l.Search.Authenticated = 30
	l.Search.Code = 10
	l.Search.Unauthenticated = 10
	l.Search.Window = time.Minute
	l.Concurrent = 100
	l.Points.REST = 900
	l.Points.GraphQL = 2000
	l.Points.Window = time.Minute
	l.CPU.Total = 90 * time.Second
	l.CPU.GraphQL = 60 * time.Second
	l.CPU.Window = time.Minute
	l.CPU.Factor = 1
	l.Content = []Window{{Max: 80, Window: time.Minute}, {Max: 500, Window: time.Hour}}
	return l
}

// For returns the documented window of a resource for a kind of caller
// (Document B sections 2.6, 8.1 and 8.2; the resources for which the documents
// give no number have theirs in resources.yaml). An unknown resource counts
// like core.
func (l Limits) For(kind CallerKind, resource string) Window {
	anonymous := kind == Unauthenticated
	switch resource {
	case Search:
		if anonymous {
			return Window{l.Search.Unauthenticated, l.Search.Window}
		}
		return Window{l.Search.Authenticated, l.Search.Window}
	case CodeSearch:
		if anonymous {
			return Window{0, l.Search.Window}
		}
		return Window{l.Search.Code, l.Search.Window}
	}
	if r, ok := resources[resource]; ok && resource != Core {
		if anonymous {
			return Window{r.Unauthenticated, r.Window}
		}
		return Window{r.Limit, r.Window}
	}
	return Window{l.core(kind), l.Primary.Window}
}

// Installation limits grow with what is installed, up to a bound (Document B
// section 8.1).
const (
	installationFree  = 20 // repositories, and users, that add nothing
	installationExtra = 50 // requests for each one more
	installationMost  = 12_500
)

// OfInstallation is the primary limit of an installation outside the
// enterprise plan, by what it is installed on (Document B section 8.1). Weir
// learns it from the upstream, which alone knows these numbers.
func (l Limits) OfInstallation(repositories, users int) int {
	more := max(0, repositories-installationFree) + max(0, users-installationFree)
	return max(l.Primary.Installation, min(l.Primary.Installation+installationExtra*more, installationMost))
}

func (l Limits) core(kind CallerKind) int {
	switch kind {
	case Unauthenticated:
		return l.Primary.Unauthenticated
	case Enterprise:
		return l.Primary.Enterprise
	case Installation:
		return l.Primary.Installation
	case OAuthApp:
		return l.Primary.OAuthApp
	case Workflow:
		return l.Primary.Workflow
	}
	return l.Primary.User
}
