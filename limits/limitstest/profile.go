package limitstest

import (
	"math/rand/v2"
	"time"

	"github.com/weirgate/weir/policy"
)

// Linger is less than what the upstream works on after a request was given up.
const Linger = 10*time.Second - time.Millisecond

// Rounding is how a time becomes whole seconds.
type Rounding int

// Roundings.
const (
	Down Rounding = iota
	Nearest
	Up
)

func (r Rounding) round(t time.Time) time.Time {
	down := time.Unix(t.Unix(), 0)
	rest := t.Sub(down)
	if r == Up && rest > 0 || r == Nearest && rest >= time.Second/2 {
		return down.Add(time.Second)
	}
	return down
}

// Profile is what an upstream is like. The zero value of each field but Limits
// and Kind is harmless. Odds are of each request.
type Profile struct {
	Limits policy.Limits
	Kind   policy.CallerKind
	// Grant overrides the primary limit of resources: what the upstream grants
	// this account rather than what the documents say.
	Grant map[string]int

	// Aligned windows begin at a random phase, others with a first request.
	// SlidingSearch counts searches of every minute.
	Aligned, SlidingSearch bool
	// Offset is how far its clock is ahead; Date and reset are rounded.
	Offset      time.Duration
	Date, Reset Rounding
	// Flicker tells the reset rounded either way, at random; Jitter adds a
	// second or takes one away.
	Flicker, Jitter bool
	// Stale answers carry the rate headers of an earlier answer, which do not
	// count the request itself.
	Stale float64
	// NoRateHeaders upstreams send no rate headers, NoDate ones no Date.
	NoRateHeaders, NoDate bool

	// Latency is the longest that a request takes, unless it stalls (for up to
	// Stall); Fastest the shortest. Part is the most of it that is CPU time.
	// Busy upstreams always need that part, and the network takes no time.
	Fastest, Latency, Stall time.Duration
	Part                    float64
	Busy                    bool
	StallOdds               float64
	// Dial is the longest time from a permit to sending.
	Dial time.Duration
	// Body is the longest time from the headers to the end of the answer.
	Body               time.Duration
	BodyOdds, Aborting float64
	// LostAnswers answers never arrive, half of them were counted. Failing ones are
	// 5xx without rate headers. Unchanged ones (304) are not counted in the
	// primary window. Resending ones were sent twice by the transport.
	LostAnswers, Failing, Unchanged, Resending float64
	// SecondaryErrors answers are secondary limit errors for no reason; ClosedWindows ones
	// close the primary window, as if somebody else had used it up.
	// WithoutHeaders is the part of the secondary errors that have no rate headers.
	SecondaryErrors, ClosedWindows, WithoutHeaders float64
	// OtherTraffic is how many requests a second somebody else makes.
	OtherTraffic float64
}

// odds throws a die.
func odds(rng *rand.Rand, p float64) bool { return p > 0 && rng.Float64() < p }

// upTo is a random time from 0 to d, in whole microseconds.
func upTo(rng *rand.Rand, d time.Duration) time.Duration {
	if d < time.Microsecond {
		return 0
	}
	return time.Duration(rng.Int64N(d.Microseconds()+1)) * time.Microsecond
}

// moment is some moment between two, often one of them.
func moment(rng *rand.Rand, from, to time.Duration) time.Duration {
	switch rng.IntN(4) {
	case 0:
		return from
	case 1:
		return to
	}
	return from + upTo(rng, to-from)
}

// latency is how long one request takes.
func (n *Profile) latency(rng *rand.Rand) time.Duration {
	if odds(rng, n.StallOdds) {
		return upTo(rng, n.Stall)
	}
	return n.Fastest + upTo(rng, n.Latency-n.Fastest)
}

// tells is how the upstream tells a reset.
func (n *Profile) tells(reset time.Time, rng *rand.Rand) time.Time {
	reset = reset.Add(n.Offset)
	rounding := n.Reset
	if n.Flicker {
		rounding = Rounding(rng.IntN(3))
	}
	told := rounding.round(reset)
	if n.Jitter {
		told = told.Add(time.Duration(rng.IntN(3)-1) * time.Second)
	}
	return told
}
