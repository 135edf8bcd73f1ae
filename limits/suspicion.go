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

// count counts a response that may be a limit error, and returns the number of such responses in a row. Another response ends the
// row. Responses of different rows of the table count together, because the servers of one upstream refuse in different forms.
func (s *suspicions) count(of suspect, suspicious bool, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !suspicious {
		s.found.Remove(of)
		return 0
	}
	known, _ := s.found.Get(of)
	if now.Sub(known.last) > policy.RepeatedWithin {
		known = suspicion{}
	}
	known.count, known.last = known.count+1, now
	s.found.Add(of, known)
	return known.count
}

// ReadLimitError returns the limit error of a response to a request of an account. It must be called for every response. If
// the response may be a limit error, but further such responses must confirm it, Repeated is not zero.
func (l *Limiter) ReadLimitError(account string, a policy.UpstreamAnswer) policy.LimitError {
	e := policy.ReadLimitError(a)
	if l.suspicions.count(suspect{account, a.GraphQL}, e.Repeated > 0, l.now()) >= e.Repeated {
		e.Repeated = 0
	}
	return e
}
