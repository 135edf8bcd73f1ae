package credential

import (
	"net/http"
	"strings"
	"time"
)

const (
	// blindFor is how long it is remembered that a credential does not see something.
	blindFor = 5 * time.Minute
	// maxBlind bounds what is remembered.
	maxBlind = 10_000
)

// sight remembers which credential does not see what: until when, by class and what.
// What is not there may be seen. It is guarded by the health's mutex.
type sight map[[2]string]time.Time

func newSight() sight { return sight{} }

// here is what is remembered of one path only, there of all that belongs to a target,
// and by of one operation on it.
func (w Request) here() string  { return "path " + w.Path }
func (w Request) there() string { return "all of " + w.Target }
func (w Request) by() string    { return w.Operation.ID + " " + w.Operation.Path + " of " + w.Target }

// blind reports whether a credential is presumed not to see what is wanted. It may have
// been another client that it was told so, and it may be so no more: such a credential
// is asked last, but it is asked.
func (c *Health) blind(class string, w Request, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, what := range []string{w.here(), w.there(), w.by()} {
		if now.Before(c.sight[[2]string{class, what}]) {
			return true
		}
	}
	return false
}

// noteBlind remembers what a 403 or 404 to a credential means. That another one was
// told more makes it a matter of access, to the operation: many a 404 is for those who
// are no administrators. Where the target itself was 404 all of it is hidden. Else it is
// known of the path alone: it may be that there is nothing.
func (c *Health) noteBlind(class string, w Request, status int, seen bool, now time.Time) {
	what := w.here()
	switch {
	case seen && status == http.StatusNotFound && strings.EqualFold(w.Path, w.Target):
		what = w.there()
	case seen:
		what = w.by()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sight.makeRoom(now)
	c.sight[[2]string{class, what}] = now.Add(blindFor)
}

// makeRoom drops what is over, and where that is not enough any tenth.
func (s sight) makeRoom(now time.Time) {
	if len(s) < maxBlind {
		return
	}
	for key, until := range s {
		if !now.Before(until) {
			delete(s, key)
		}
	}
	for key := range s {
		if len(s) < maxBlind-maxBlind/10 {
			return
		}
		delete(s, key)
	}
}
