package proxy

import (
	"net/http"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// maxAccepted bounds the security classes in memory.
const maxAccepted = 16384

// acceptedCredentials remembers the security classes whose credential the upstream has accepted and not refused since.
// The zero value is empty and ready for use.
type acceptedCredentials struct {
	mu      sync.Mutex
	classes *simplelru.LRU[string, struct{}]
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
		a.classes, _ = simplelru.NewLRU[string, struct{}](maxAccepted, nil) // fails only for a size below 1
	}
	if status == http.StatusUnauthorized {
		a.classes.Remove(class)
	} else {
		a.classes.Add(class, struct{}{})
	}
}

// has reports whether the upstream has accepted the credential of a class.
func (a *acceptedCredentials) has(class string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.classes != nil && a.classes.Contains(class)
}
