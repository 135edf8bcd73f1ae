package limitstest

import (
	"math/rand/v2"
	"time"

	"github.com/weirgate/weir/policy"
)

// Linger is the longest time that the upstream works on an abandoned request.
const Linger = 10*time.Second - time.Millisecond

// Rounding is a way to round a time to whole seconds.
type Rounding int

// Directions of a rounding.
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

// Profile describes how an upstream behaves. The zero value of every field except Limits and Kind is harmless.
// Probabilities apply to each request.
type Profile struct {
	Limits policy.Limits
	Kind   policy.CallerKind
	// Grant overrides the documented primary limits by resource.
	Grant map[string]int
	// GraphQL overrides the documented window of GraphQL calls, unless Max is zero. ReportedCosts is the probability that a
	// response has the true cost of its request.
	GraphQL       policy.Window
	ReportedCosts float64

	// Misguessed is the probability that the upstream counts a request against another resource than the claim names:
	// misguessed, whose limit is never reached.
	Misguessed float64

	// Aligned windows begin at a random phase. Other windows begin with their first request. SlidingSearch also limits
	// searches in every sliding minute.
	Aligned, SlidingSearch bool
	// Offset is the lead of the upstream's clock. Date and Reset are the roundings of these header fields.
	Offset      time.Duration
	Date, Reset Rounding
	// Flicker rounds each reset in a random way. Jitter adds or subtracts a second.
	Flicker, Jitter bool
	// Behind is the largest number of requests by which rate headers are behind. They may not even count their own request.
	Behind int
	// NoLimits removes the primary limits and the rate headers. An upstream with primary limits sends the headers
	// (Document B section 8.4), so no upstream has primary limits without headers. NoDate omits the Date field.
	NoLimits, NoDate bool

	// Fastest is the minimum duration of a request, and Latency is the maximum. A stalled request takes up to Stall. Part
	// is the largest fraction of the duration that is CPU time. Busy makes every request use that fraction, and removes
	// the network latency.
	Fastest, Latency, Stall time.Duration
	Part                    float64
	Busy                    bool
	StallOdds               float64
	// Dial is the longest time between the permit and the sending.
	Dial time.Duration
	// Body is the longest time between the headers and the end of the body.
	Body               time.Duration
	BodyOdds, Aborting float64
	// DroppedResponses never arrive; half of their requests are counted. Failing responses are 5xx without rate
	// headers. Unchanged responses (304) are not counted in the primary window, except those to GraphQL calls. The transport sends Resending requests
	// twice.
	DroppedResponses, Failing, Unchanged, Resending float64
	// SecondaryErrors are secondary limit errors without a reason. ClosedWindows exhaust the primary window, like
	// another user of the account. WithoutHeaders is the fraction of secondary limit errors without rate headers.
	SecondaryErrors, ClosedWindows, WithoutHeaders float64
	// OtherTraffic is the number of requests per second of other users of the account.
	OtherTraffic float64
}

// misguessed is the resource of requests whose claim names another resource.
const misguessed = "misguessed"

// unreachable is the limit of misguessed. Not even other users exhaust it, because a ledger could not prevent further
// requests whose claims name another resource.
const unreachable = 1_000_000_000

// chance returns true with a probability of p.
func chance(rng *rand.Rand, p float64) bool { return p > 0 && rng.Float64() < p }

// upTo returns a random duration from 0 to d, in whole microseconds.
func upTo(rng *rand.Rand, d time.Duration) time.Duration {
	if d < time.Microsecond {
		return 0
	}
	return time.Duration(rng.Int64N(d.Microseconds()+1)) * time.Microsecond
}

// moment returns a random duration from one duration to another, and often one of both bounds.
func moment(rng *rand.Rand, from, to time.Duration) time.Duration {
	switch rng.IntN(4) {
	case 0:
		return from
	case 1:
		return to
	}
	return from + upTo(rng, to-from)
}

// latency returns the duration of one request.
func (n *Profile) latency(rng *rand.Rand) time.Duration {
	if chance(rng, n.StallOdds) {
		return upTo(rng, n.Stall)
	}
	return n.Fastest + upTo(rng, n.Latency-n.Fastest)
}

// reportReset returns a reset as the rate headers report it.
func (n *Profile) reportReset(reset time.Time, rng *rand.Rand) time.Time {
	reset = reset.Add(n.Offset)
	rounding := n.Reset
	if n.Flicker {
		rounding = Rounding(rng.IntN(3))
	}
	learned := rounding.round(reset)
	if n.Jitter {
		learned = learned.Add(time.Duration(rng.IntN(3)-1) * time.Second)
	}
	return learned
}
