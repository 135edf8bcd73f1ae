package learned

import (
	"net/http"
	"sync"
	"time"
)

// LimitErrors contains the statuses of the upstream's last limit errors, by account. The zero value is empty and ready for use.
type LimitErrors struct {
	mu       sync.Mutex
	statuses bounded[string, limitStatus]
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
	l.statuses.list(maxLimitErrors).Add(account, limitStatus{status, time.Now().Add(limitStatusMemory)})
}

// Last returns the status of the last limit error of an account, or zero.
func (l *LimitErrors) Last(account string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.statuses.list(maxLimitErrors).Get(account)
	if !ok || time.Now().After(s.until) {
		return 0
	}
	return s.status
}
