package limitstest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirgate/weir/policy"
)

// RunFairness checks the properties of fairness between the clients of one account, in a number of random scenarios for
// each property. If all is not set, RunFairness leaves out the properties that take long with Redis. Scenarios with an odd
// seed are small: they have fewer replicas, clients and requests. The function run runs a scenario in a bubble of virtual
// time. The upstream counts the requests of each client, so the checks do not depend on package limits.
func RunFairness(t *testing.T, scenarios int, all bool, run func(*testing.T, Scenario) Report) {
	for _, p := range []struct {
		name  string
		long  bool // takes long with Redis
		check func(*judge)
	}{
		{"a guarantee holds after 50 minutes of greed", false, guaranteeAfterGreed},
		{"points are divided by share", true, func(j *judge) { sharesAtSaturation(j, j.points()) }},
		{"content is divided by share", true, func(j *judge) { sharesAtSaturation(j, contestedContent) }},
		{"searches are divided by share", true, func(j *judge) { sharesAtSaturation(j, contestedSearch) }},
		{"a late client gets its share", true, lateClient},
		{"batch leaves points to an interactive client", true, func(j *judge) { interactiveBesideBatch(j, j.points(), 3*time.Second, time.Second) }},
		{"batch leaves searches to an interactive client", true, func(j *judge) { interactiveBesideBatch(j, contestedSearch, searchGap, searchClosed) }},
		{"a greedy client leaves points to a client with few requests", true, fewBesideGreedy},
		{"batch leaves slots to an interactive client", true, func(j *judge) { interactiveBesideBatch(j, contestedSlots, time.Second, time.Second) }},
	} {
		if p.long && !all {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			j := &judge{T: t, runScenario: run}
			for j.seed = 1; j.seed <= uint64(scenarios); j.seed++ {
				j.rng = rand.New(rand.NewPCG(j.seed, 11))
				p.check(j)
			}
			j.print()
		})
	}
}

const (
	// minute is the window of every contested budget.
	minute = time.Minute
	// cycle is a time in which each token of a saturated budget is used at least once: a window, the latency of a request,
	// and an exchange of the replicas. In a window each token is used at most once.
	cycle = minute + 2*time.Second
	// settling is the time that the clients have for a new division, in addition to one window.
	settling = 5 * time.Second
)

// searchGap is the mean pause of an interactive client that searches. The client then needs a quarter of the searches.
// With a mean pause of 3 s it would need two thirds, which is more than its share. searchClosed is the longest time for
// which a window of searches is closed: between its last request and the time at which it has certainly ended.
const (
	searchGap    = 8 * time.Second
	searchClosed = 5 * time.Second
)

// guaranteeAfterGreed checks a guarantee. Greedy clients send without a pause from the start of an hour. A client with
// a guarantee comes after 50 minutes. In that hour it gets at least its guarantee, less one request per loop. At most 1
// % of the hour's requests remain unused. In a small scenario an hour has ten minutes.
func guaranteeAfterGreed(j *judge) {
	const limit = 1000
	hour := time.Hour
	if j.small() {
		hour /= 6
	}
	b := contested{Saturation{Limit: primary, Window: hour, rules: func(l *policy.Limits) {
		unlimitedCPU(l)
		l.Primary.User, l.Primary.Window, l.Points.REST = limit, hour, 1_000_000
	}}, limit, operations()[0].Claim}
	replicas := 1 + j.rng.IntN(j.most(8))
	clients := j.crowd(2+j.rng.IntN(j.most(5)), b)
	for i := range clients {
		clients[i].Loops, clients[i].Replicas = 1+j.rng.IntN(20), j.anywhere(replicas)
	}
	late := &clients[0]
	late.Name, late.From, late.Guarantee = "late", hour*5/6, 0.1+0.3*j.rng.Float64()

	r := j.run(b, replicas, clients, 0, hour+time.Second)

	got, least := r.served(primary, late.Name, 0, hour), int64(late.Guarantee*limit)-int64(late.Loops)
	used := r.served(primary, "", 0, hour)
	j.check(got >= least, "the late client got %d requests, at least %d", got, least)
	j.check(used >= limit*99/100, "%d of %d requests were used", used, limit)
}

// sharesAtSaturation checks the division of a budget. Clients that all send without a pause divide a budget by their
// shares. After one window, each client gets at most its part of the limit in the next three windows, and at least its
// part in three cycles. The tolerance is 5 %, or if this is more one request per window and two more, because both edges
// cut a burst. This holds for clients at one replica, clients at different replicas, and clients that change the replica
// with each request. Every window is used to at least 99 %. In a small scenario each client has its replica.
func sharesAtSaturation(j *judge, b contested) {
	const windows, arrivals = 3, 10 * time.Second
	placements := []string{"a replica each", "one replica", "moving"}
	if j.small() {
		placements = placements[:1]
	}
	for _, placement := range placements {
		clients := j.crowd(2+j.rng.IntN(j.most(5)), b)
		replicas, sum := len(clients)+j.rng.IntN(j.most(9-len(clients))), 0
		for i := range clients {
			f := &clients[i]
			f.Loops = 200 / len(clients) // more than the concurrency slots, so that requests always wait
			f.Replicas = map[string][]int{"one replica": {0}, "a replica each": {i}, "moving": upToN(replicas)}[placement]
			if i > 0 {
				f.From = upTo(j.rng, arrivals)
			}
			sum += f.Share
		}
		start := arrivals + minute
		end := start + windows*cycle

		r := j.run(b, replicas, clients, start, end)

		worst, worstError := "", 0.0 // the error is a multiple of the tolerance
		for _, f := range clients {
			most := float64(r.served(b.Limit, f.Name, start, start+windows*minute))
			least := float64(r.served(b.Limit, f.Name, start, end))
			fair := float64(windows*b.max) * float64(f.Share) / float64(sum)
			tolerance := max(0.05*fair, (windows+2)*b.cost())
			if e := max(most-fair, fair-least) / tolerance; e >= worstError {
				worst = fmt.Sprintf("share %d of %d got %.0f to %.0f, %.0f ± %.0f", f.Share, sum, most, least, fair, tolerance)
				worstError = e
			}
		}
		j.check(worstError <= 1, "%s: %s", placement, worst)
		full := r.Fullness(b.Limit)
		j.check(full >= b.least(), "%s: %s of each window used", placement, percent(full))
	}
}

// lateClient checks that a new client gets its share. A greedy client has all points. A second client with the same
// share arrives later. In the cycle that begins settling after its arrival, the second client gets at least half of the
// limit, less 10 %, because the edge of a cycle cuts a burst. In the following cycles each client gets its half. One window
// and settling after the departure of the first client, the second client gets all points: until then a replica may keep
// tokens for its recent requests.
func lateClient(j *judge) {
	const cycles = 4
	b := j.points()
	replicas := 2 + j.rng.IntN(j.most(7))
	clients := j.crowd(2, b)
	first, second := &clients[0], &clients[1]
	first.Loops, first.Replicas = 100, []int{0}
	second.Loops, second.Replicas, second.Share = 100, j.anywhere(replicas), first.Share
	second.From = minute + upTo(j.rng, minute)
	start := second.From + settling
	first.Until = start + cycles*cycle
	lent := first.Until + minute + settling
	end := lent + cycle

	r := j.run(b, replicas, clients, 0, end)

	least := b.max / 2 * 90 / 100
	for n := range cycles {
		from := start + time.Duration(n)*cycle
		own := r.served(b.Limit, second.Name, from, from+cycle)
		other := r.served(b.Limit, first.Name, from, from+cycle)
		j.check(own >= least && (n == 0 || other >= least), "cycle %d: the second client got %d, the first %d", n+1, own, other)
	}
	alone := r.served(b.Limit, second.Name, lent, end)
	j.check(alone >= b.max*95/100, "the second client alone got %d of %d", alone, b.max)
}

// fewBesideGreedy checks the waits of a client with few requests, without any configuration: all clients have the same
// share and priority. A greedy client sends without a pause. After one window, another client sends at least 200 single
// requests at random times. Of their waits for a permit, 99 % are at most a second. Every window is used to at least 99 %.
func fewBesideGreedy(j *judge) {
	const requests, gap = 200, 2 * time.Second
	b := j.points()
	replicas := 1 + j.rng.IntN(j.most(8))
	clients := j.crowd(2+j.rng.IntN(j.most(3)), b)
	for i := range clients {
		clients[i].Share, clients[i].Loops, clients[i].Replicas = 1, 100, j.anywhere(replicas)
	}
	few := &clients[0]
	few.Loops, few.Gap, few.From = 1, gap, 2*minute
	for i := range clients[2:] { // only one of the others is active
		clients[2+i].Loops = 0
	}

	r := j.run(b, replicas, clients, 2*minute, 2*minute+requests*gap*6/5)

	waits := slices.Sorted(slices.Values(r.Waits[few.Name]))
	j.check(len(waits) >= requests, "%d requests", len(waits))
	p99 := waits[len(waits)*99/100]
	j.check(p99 <= time.Second, "waits: median %v, p99 %v, most %v", waits[len(waits)/2].Round(time.Millisecond),
		p99.Round(time.Millisecond), waits[len(waits)-1].Round(time.Millisecond))
	full := r.Fullness(b.Limit)
	j.check(full >= b.least(), "%s of each window used", percent(full))
}

// interactiveBesideBatch checks the waits of an interactive client. Batch clients send without a pause. After one
// window, an interactive client sends at least 200 single requests at random times. Of their waits for a permit, 99 %
// are at most longest. The interactive client has half of the shares, and needs less than half of the budget.
func interactiveBesideBatch(j *judge, b contested, gap, longest time.Duration) {
	const requests = 200
	replicas := 1 + j.rng.IntN(j.most(8))
	clients := j.crowd(2+j.rng.IntN(j.most(3)), b)
	for i := range clients {
		clients[i].Loops, clients[i].Replicas, clients[i].Priority = 20, j.anywhere(replicas), policy.Batch
	}
	person := &clients[0]
	person.Priority, person.Loops, person.Gap, person.From = policy.Interactive, 1, gap, minute
	person.Share = 0
	for _, batch := range clients[1:] {
		person.Share += batch.Share
	}

	r := j.run(b, replicas, clients, 0, minute+requests*gap*6/5)

	waits := slices.Sorted(slices.Values(r.Waits[person.Name]))
	j.check(len(waits) >= requests, "%d interactive requests", len(waits))
	p99 := waits[len(waits)*99/100]
	j.check(p99 <= longest, "waits: median %v, p99 %v, most %v", waits[len(waits)/2].Round(time.Millisecond),
		p99.Round(time.Millisecond), waits[len(waits)-1].Round(time.Millisecond))
}
