package limits

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/policy"
)

// suspicions counts responses in a row that may be limit errors (policy/limitanswers.yaml, repeated). Each replica counts
// its own responses. The zero value is empty.
type suspicions struct {
	some  atomic.Bool // false means that found is empty, so that most responses need no lock
	mu    sync.Mutex
	found map[suspect]suspicion
}

// suspect identifies the requests whose responses are counted together.
type suspect struct {
	account string
	graphQL bool
}

type suspicion struct {
	count int // responses in a row
	last  time.Time
}

// maxSuspicions bounds the suspicions. At the bound, add removes an arbitrary suspicion.
const maxSuspicions = 1024

// add counts a response, and returns the number of such responses in a row. Responses of different rows count together,
// because the servers of one upstream refuse in different forms.
func (s *suspicions) add(of suspect, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == nil {
		s.found = map[suspect]suspicion{}
	}
	known := s.found[of]
	if now.Sub(known.last) > policy.RepeatedWithin {
		known = suspicion{}
	}
	for other := range s.found {
		if len(s.found) < maxSuspicions {
			break
		}
		delete(s.found, other)
	}
	known.count, known.last = known.count+1, now
	s.found[of] = known
	s.some.Store(true)
	return known.count
}

// remove removes the suspicion after another response.
func (s *suspicions) remove(of suspect) {
	if !s.some.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.found, of)
	s.some.Store(len(s.found) > 0)
}

// ReadLimitError returns the limit error of a response to a request of an account. It must be called for every response. If
// the response may be a limit error, but further such responses must confirm it, Repeated is not zero.
func (l *Limiter) ReadLimitError(account string, a policy.UpstreamAnswer) LimitError {
	e, of := ReadLimitError(a), suspect{account, a.GraphQL}
	if e.Repeated == 0 {
		l.suspicions.remove(of)
	} else if l.suspicions.add(of, l.now()) >= e.Repeated {
		e.Repeated = 0
	}
	return e
}
