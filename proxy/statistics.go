package proxy

import (
	"math"
	"net/http"
	"time"

	"github.com/weirgate/weir/policy"
)

// Statistics says how answers that the upstream still computes (202) are asked
// for again.
type Statistics struct {
	// Wait is how long a client waits unless it says (Prefer: wait=N).
	Wait time.Duration
	// First is the pause before the first poll; each is Factor times longer
	// than the last, Max at most.
	First  time.Duration
	Factor float64
	Max    time.Duration
}

// next decides whether an answer is to be asked for again, and after which
// pause. Only the statistics operations are: other 202s are final answers.
// When the client's time is over it gets the 202, with a Retry-After.
func (s Statistics) next(x *exchange, resp *http.Response, poll int) (wait time.Duration, again bool) {
	if x.match.Operation.Cache.Class != policy.Statistics || resp.StatusCode != http.StatusAccepted {
		return 0, false
	}
	wait = min(time.Duration(float64(s.First)*math.Pow(s.Factor, float64(poll))), s.Max)
	left := time.Until(x.until(s.Wait))
	if left <= 0 {
		resp.Header.Set("Retry-After", seconds(wait))
		return 0, false
	}
	return min(wait, left), true
}
