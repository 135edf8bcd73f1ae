package proxy

import (
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// maxAccepted bounds the security classes in memory.
	maxAccepted = 16384
	// acceptedFor is the time for which a credential counts as accepted after its last response. The upstream may revoke
	// a credential at any time.
	acceptedFor = 10 * time.Minute
)

// acceptedCredentials remembers the security classes whose credential the upstream accepted recently. The zero value is
// empty and ready for use.
type acceptedCredentials struct {
	mu    sync.Mutex
	times *simplelru.LRU[string, time.Time] // by security class
}

// observe records the status of a response to a request with the credential of a class.
func (a *acceptedCredentials) observe(class string, status int, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.times == nil {
		a.times, _ = simplelru.NewLRU[string, time.Time](maxAccepted, nil) // fails only for a size below 1
	}
	switch {
	case status == http.StatusUnauthorized:
		a.times.Remove(class)
	case status < http.StatusInternalServerError:
		a.times.Add(class, now)
	}
}

// has reports whether the upstream accepted the credential of a class recently.
func (a *acceptedCredentials) has(class string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.times == nil {
		return false
	}
	at, ok := a.times.Get(class)
	return ok && now.Sub(at) < acceptedFor
}
