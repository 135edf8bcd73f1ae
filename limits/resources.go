package limits

import (
	"net/http"
	"regexp"
	"sync"

	"github.com/weirgate/weir/policy"
)

// maxResources bounds the resources that an upstream may name beyond resources.yaml. Each name is a window in every
// account that uses the name, and a value of a metric's attribute.
const maxResources = 100

// resourceName matches the names that a resource may have.
var resourceName = regexp.MustCompile(`^[a-z0-9_.-]{1,64}$`)

// resourceNames is the set of the resources that the upstream has named in this process, beyond resources.yaml. The set
// only grows, because a removed name could not be distinguished from a new name. The zero value is an empty set.
type resourceNames struct {
	mu    sync.Mutex
	names map[string]bool
}

// AcceptsResource reports whether a resource that a response named, also one of another replica, may have a window. It adds the name to
// the set.
func (l *Limiter) AcceptsResource(name string) bool {
	if policy.IsResource(name) {
		return true
	}
	switch Reason(name) {
	case Points, CPU, Content, Concurrency: // a listing could not distinguish these budgets from a window
		return false
	}
	if !resourceName.MatchString(name) {
		return false
	}
	s := &l.resources
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names[name] {
		return true
	}
	if len(s.names) >= maxResources {
		return false
	}
	if s.names == nil {
		s.names = map[string]bool{}
	}
	s.names[name] = true
	return true
}

// ReadRate parses the x-ratelimit headers of a response, like [policy.ReadRate]. If the headers name a resource
// that may not have a window, the result is invalid: the response counts like a response without headers. The ledger
// then charges the window of the claim, and not the window of another resource.
func (l *Limiter) ReadRate(h http.Header) policy.Rate {
	r, ok := policy.ReadRate(h, l.now())
	if ok && r.Resource != "" && !l.AcceptsResource(r.Resource) {
		return policy.Rate{Invalid: true}
	}
	return r
}
