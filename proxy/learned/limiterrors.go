package learned

import (
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// LimitErrors contains the statuses of the upstream's last limit errors, by account. The zero value is empty and ready for use.
type LimitErrors struct {
	mu       sync.Mutex
	statuses *simplelru.LRU[string, limitStatus]
}

type limitStatus struct {
	status int
	until  time.Time
}

const (
	maxLimitErrors    = 4096
	limitStatusMemory = time.Hour // the longest limit after one response
)

// Add remembers the status of a limit error. GraphQL reports limits with status 200, which is no status for a refusal.
func (l *LimitErrors) Add(account string, status int) {
	if status != http.StatusForbidden && status != http.StatusTooManyRequests {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.statuses == nil {
		l.statuses, _ = simplelru.NewLRU[string, limitStatus](maxLimitErrors, nil) // the size is valid
	}
	l.statuses.Add(account, limitStatus{status, time.Now().Add(limitStatusMemory)})
}

// Last returns the status of the last limit error of an account, or zero.
func (l *LimitErrors) Last(account string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.statuses == nil {
		return 0
	}
	s, ok := l.statuses.Get(account)
	if !ok || time.Now().After(s.until) {
		return 0
	}
	return s.status
}
