package limits

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/weirgate/weir/policy"
)

// suspicions counts responses in a row that may be limit errors (policy/limitanswers.yaml, repeated). Each replica counts
// its own responses.
type suspicions struct {
	mu    sync.Mutex
	found *simplelru.LRU[suspect, suspicion]
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

// maxSuspicions bounds the suspicions. The least recently used is removed first.
const maxSuspicions = 1024

func newSuspicions() *suspicions {
	found, _ := simplelru.NewLRU[suspect, suspicion](maxSuspicions, nil) // fails only for a size below 1
	return &suspicions{found: found}
}

// add counts a response, and returns the number of such responses in a row. Responses of different rows count together,
// because the servers of one upstream refuse in different forms.
func (s *suspicions) add(of suspect, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, _ := s.found.Get(of)
	if now.Sub(known.last) > policy.RepeatedWithin {
		known = suspicion{}
	}
	known.count, known.last = known.count+1, now
	s.found.Add(of, known)
	return known.count
}

// remove removes the suspicion after another response.
func (s *suspicions) remove(of suspect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found.Remove(of)
}

// ReadLimitError returns the limit error of a response to a request of an account. It must be called for every response. If
// the response may be a limit error, but further such responses must confirm it, Repeated is not zero.
func (l *Limiter) ReadLimitError(account string, a policy.UpstreamAnswer) policy.LimitError {
	e, of := policy.ReadLimitError(a), suspect{account, a.GraphQL}
	if e.Repeated == 0 {
		l.suspicions.remove(of)
	} else if l.suspicions.add(of, l.now()) >= e.Repeated {
		e.Repeated = 0
	}
	return e
}
