package proxy

import (
	"net/http"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// maxAccepted bounds the security classes in memory.
const maxAccepted = 16384

// acceptedCredentials remembers whether the upstream accepted or refused the credential of a security class last. The
// zero value is empty and ready for use.
type acceptedCredentials struct {
	mu      sync.Mutex
	classes *simplelru.LRU[string, bool] // true for an accepted credential
}

// observe records the status of a response to a request with the credential of a class. Only a success proves that the
// upstream accepted the credential, because a 403 or a 404 may also be an answer to a wrong one.
func (a *acceptedCredentials) observe(class string, status int) {
	if status >= http.StatusBadRequest && status != http.StatusUnauthorized {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.classes == nil {
		a.classes, _ = simplelru.NewLRU[string, bool](maxAccepted, nil) // fails only for a size below 1
	}
	a.classes.Add(class, status != http.StatusUnauthorized)
}

// has reports whether the upstream accepted the credential of a class. Without a response, the result is presumed.
func (a *acceptedCredentials) has(class string, presumed bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.classes == nil {
		return presumed
	}
	accepted, known := a.classes.Get(class)
	return accepted || !known && presumed
}
