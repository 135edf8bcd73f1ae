package policy

import (
	"cmp"
	"time"
)

// Limits are the numbers of Document B section 8, for the gateway and for the reference service. The zero value allows
// nothing; start with [DefaultLimits].
type Limits struct {
	Primary struct {
		Unauthenticated int           `yaml:"unauthenticated" desc:"per address"`
		User            int           `yaml:"user" desc:"per user, for all tokens together"`
		Enterprise      int           `yaml:"enterprise" desc:"per user, installation, OAuth app or repository of an enterprise"`
		Installation    int           `yaml:"installation" desc:"per installation, at least"`
		OAuthApp        int           `yaml:"oauth_app" desc:"per app with client id and secret"`
		Workflow        int           `yaml:"workflow" desc:"per repository with workflows"`
		Window          time.Duration `yaml:"window" desc:"length of the window"`
	} `yaml:"primary" desc:"requests per window"`
	Search struct {
		Authenticated   int           `yaml:"authenticated" desc:"per account, except code search"`
		Code            int           `yaml:"code" desc:"code search per account"`
		Unauthenticated int           `yaml:"unauthenticated" desc:"per address"`
		Window          time.Duration `yaml:"window" desc:"length of the window"`
	} `yaml:"search" desc:"searches per window"`
	Concurrent int `yaml:"concurrent" desc:"concurrent requests, REST and GraphQL together"`
	Points     struct {
		REST    int           `yaml:"rest" desc:"per operation"`
		GraphQL int           `yaml:"graphql" desc:"for GraphQL"`
		Window  time.Duration `yaml:"window" desc:"length of the window"`
	} `yaml:"points" desc:"points per window"`
	CPU struct {
		Total   time.Duration `yaml:"total" desc:"for all requests"`
		GraphQL time.Duration `yaml:"graphql" desc:"for GraphQL"`
		Window  time.Duration `yaml:"window" desc:"length of the window"`
		Factor  float64       `yaml:"factor" desc:"fraction of the response time that is CPU time"`
	} `yaml:"cpu" desc:"CPU time per window"`
	Content []Window `yaml:"content" desc:"requests that create content; every window applies"`
}

// Window is a limit of Max in any time span of length Window.
type Window struct {
	Max    int           `yaml:"max" desc:"limit"`
	Window time.Duration `yaml:"window" desc:"length of the window"`
}

// DefaultLimits returns the numbers of Document B section 8.
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

// For returns the documented window of a resource for a caller kind (Document B sections 2.6, 8.1 and 8.2). For
// resources without documented numbers, resources.yaml contains estimates. Other resources have the numbers of core.
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
	for _, r := range resources {
		if r.Name == resource && resource != Core {
			if anonymous {
				return Window{r.Unauthenticated, r.Window}
			}
			return Window{cmp.Or(r.Kinds[kind], r.Limit), r.Window}
		}
	}
	return Window{l.core(kind), l.Primary.Window}
}

func (l Limits) core(kind CallerKind) int {
	if kind != kind.Base() {
		return l.Primary.Enterprise
	}
	switch kind {
	case Unauthenticated:
		return l.Primary.Unauthenticated
	case Installation:
		return l.Primary.Installation
	case OAuthApp:
		return l.Primary.OAuthApp
	case Workflow:
		return l.Primary.Workflow
	}
	return l.Primary.User
}
