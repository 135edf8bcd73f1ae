package history

import (
	"testing"
	"time"

	"github.com/weirgate/weir/proxy"
)

func TestExplain(t *testing.T) {
	queued := []proxy.Stage{{Name: "queue", Elapsed: 3 * time.Second, Detail: "points"}, {Name: "attempt", Elapsed: time.Millisecond}}
	for _, c := range []struct {
		name   string
		record proxy.Record
		result Result
		why    string
	}{
		{"fresh", proxy.Record{Outcome: "hit", Status: 200, Cache: "weir; hit; ttl=3600"}, Hit, "A hit: the answer was held, and fresh for another 60 min. It cost nothing."},
		{"from the ledger", proxy.Record{Outcome: "own", Status: 200, Cache: "weir; hit; detail=ledger"}, Hit, "A hit: the ledger knows what is left, so the API was not asked."},
		{"not held", proxy.Record{Outcome: "miss", Status: 200, Cache: "weir; fwd=uri-miss; fwd-status=200; stored; ttl=60", Attempts: 1}, Miss, "A miss: nothing was held for this caller, so the API was asked; it answered 200. The answer was kept, fresh for 60 s."},
		{"held as another representation", proxy.Record{Outcome: "miss", Status: 200, Cache: "weir; fwd=vary-miss; fwd-status=200", Attempts: 1}, Miss, "A miss: what is held is another representation, so the API was asked; it answered 200."},
		{"validated", proxy.Record{Outcome: "validated", Status: 200, Cache: "weir; fwd=stale; fwd-status=304; stored; ttl=60", Attempts: 1}, Validated, "What was held was stale, or purged, so the API was asked whether it has changed: it has not. The answer was kept, fresh for 60 s."},
		{"kept, to be validated each time", proxy.Record{Outcome: "miss", Status: 200, Cache: "weir; fwd=uri-miss; fwd-status=200; stored; ttl=-1", Attempts: 1}, Miss, "A miss: nothing was held for this caller, so the API was asked; it answered 200."},
		{"the client wants it validated", proxy.Record{Outcome: "miss", Status: 200, Cache: "weir; fwd=request; fwd-status=200", Attempts: 1}, Miss, "The client wanted it validated, so the API was asked; it answered 200."},
		{"a write", proxy.Record{Outcome: "bypass", Method: "POST", Status: 201, Cache: "weir; fwd=method; fwd-status=201", Attempts: 1}, Miss, "A POST is always sent, so the API was asked; it answered 201."},
		{"nothing of the kind is kept", proxy.Record{Outcome: "bypass", Status: 200, Cache: "weir; fwd=bypass", Attempts: 1}, Miss, "Nothing of this kind is kept, so it is always sent, so the API was asked."},
		{"a limit error that is passed on", proxy.Record{Outcome: "miss", Status: 403, Cache: "weir; fwd=uri-miss; fwd-status=403", Attempts: 1}, Miss, "A miss: nothing was held for this caller, so the API was asked; the 403 is its own answer."},
		{"the budget is out, and there is a stale one", proxy.Record{Outcome: "stale", Status: 200, Cache: "weir; hit; ttl=-90; detail=primary"}, Stale, "A stale answer, 90 s past its time, was given: the primary budget of this resource is spent until its reset, or what is left of it is in flight, set aside, or not known yet."},
		{"the API is away, and there is a stale one", proxy.Record{Outcome: "stale", Status: 200, Cache: "weir; fwd=stale; ttl=-7200; detail=upstream", Error: "refused"}, Stale, "A stale answer, 2 h past its time, was given: the API cannot be reached, or gave no valid answer."},
		{"waited in the queue", proxy.Record{Outcome: "miss", Status: 200, Cache: "weir; fwd=uri-miss; fwd-status=200", Attempts: 1, Waited: 3 * time.Second, Stages: queued}, Waited, "A miss: nothing was held for this caller, so the API was asked; it answered 200. It waited 3 s, most of it in the queue: the points of this operation for this minute are spent."},
		{"waited in the queue, nobody knows why", proxy.Record{Outcome: "miss", Status: 200, Cache: "weir; fwd=uri-miss", Attempts: 1, Waited: time.Second, Stages: []proxy.Stage{{Name: "queue", Elapsed: time.Second}}}, Waited, "A miss: nothing was held for this caller, so the API was asked. It waited 1 s, most of it in the queue for a permit."},
		{"waited, without stages", proxy.Record{Outcome: "miss", Status: 200, Cache: "weir; fwd=uri-miss", Attempts: 1, Waited: 1500 * time.Millisecond}, Waited, "A miss: nothing was held for this caller, so the API was asked. It waited 1.5 s, for a permit or between polls."},
		{"waited for statistics", proxy.Record{Outcome: "miss", Status: 200, Cache: "weir; fwd=uri-miss; fwd-status=200", Attempts: 3, Waited: 3 * time.Second, Stages: []proxy.Stage{{Name: "poll", Elapsed: 3 * time.Second}}}, Waited, "A miss: nothing was held for this caller, so the API was asked; it answered 200. It waited 3 s, most of it while the API computed the answer. The API was asked 3 times."},
		{"took another's answer", proxy.Record{Outcome: "collapsed", Status: 200, Cache: "weir; fwd=uri-miss; collapsed; ttl=60", Waited: 40 * time.Millisecond}, Waited, "Another request was asking for the same, so this one took its answer and cost nothing. It waited 40 ms for what another had asked."},
		{"took another's answer, with its stage", proxy.Record{Outcome: "collapsed", Status: 200, Cache: "weir; fwd=uri-miss; collapsed; ttl=60", Waited: 40 * time.Millisecond, Stages: []proxy.Stage{{Name: "flight", Elapsed: 40 * time.Millisecond}}}, Waited, "Another request was asking for the same, so this one took its answer and cost nothing. It waited 40 ms, most of it for what another had asked."},
		{"a moment is no wait", proxy.Record{Outcome: "miss", Status: 200, Cache: "weir; fwd=uri-miss", Attempts: 1, Waited: 9 * time.Millisecond}, Miss, "A miss: nothing was held for this caller, so the API was asked."},
		{"refused for a budget", proxy.Record{Outcome: "refused", Status: 429, Cache: "weir; detail=primary"}, Refused, "A refusal: the primary budget of this resource is spent until its reset, or what is left of it is in flight, set aside, or not known yet."},
		{"refused in a cool-down, after a wait", proxy.Record{Outcome: "refused", Status: 429, Cache: "weir; detail=cooldown", Waited: time.Second}, Refused, "A refusal: the API has told this account to pause, and nothing is sent into a cool-down. It waited 1 s, for a permit or between polls."},
		{"must fail by the documents", proxy.Record{Outcome: "own", Status: 422, Cache: "weir; detail=search-length"}, Refused, "A refusal: by the API's own documents it must fail (search-length), so it was not sent."},
		{"no request at all", proxy.Record{Outcome: "refused", Status: 400, Cache: "weir"}, Refused, "A refusal: the request cannot be answered as it is."},
		{"the store is away", proxy.Record{Outcome: "refused", Status: 503, Cache: "weir; detail=store"}, Refused, "An error: the store of the budgets is away."},
		{"the API is away", proxy.Record{Outcome: "refused", Status: 502, Cache: "weir; detail=upstream", Error: "refused"}, Failed, "An error: the API cannot be reached, or gave no valid answer."},
		{"the API answers nobody", proxy.Record{Outcome: "refused", Status: 503, Cache: "weir; detail=breaker"}, Refused, "An error: the API answers nobody at the moment, and is not asked."},
		{"sent again", proxy.Record{Outcome: "miss", Status: 200, Cache: "weir; fwd=uri-miss; fwd-status=200", Attempts: 2, Waited: 80 * time.Millisecond, Stages: []proxy.Stage{{Name: "retry", Elapsed: 80 * time.Millisecond}}}, Waited, "A miss: nothing was held for this caller, so the API was asked; it answered 200. It waited 80 ms, most of it before it was sent again: the connection to the API had broken. The API was asked 2 times."},
		{"the API errs", proxy.Record{Outcome: "miss", Status: 500, Cache: "weir; fwd=uri-miss; fwd-status=500", Attempts: 1}, Failed, "A miss: nothing was held for this caller, so the API was asked; it answered 500."},
		{"the API breaks off", proxy.Record{Outcome: "miss", Status: 502, Cache: "weir; fwd=uri-miss", Attempts: 1}, Failed, "A miss: nothing was held for this caller; it ended with 502."},
		{"a panic", proxy.Record{Outcome: "refused", Status: 500}, Failed, "An error: the request cannot be answered as it is."},
		{"the client left", proxy.Record{Outcome: "miss", Status: 499, Cache: "weir; fwd=uri-miss", Waited: time.Minute}, Failed, "The client left before it had its answer. It waited 60 s, for a permit or between polls."},
		{"in the background", proxy.Record{Outcome: "validated", Status: 200, Cache: "weir; fwd=stale; fwd-status=304", Attempts: 1, Background: true}, Validated, "What was held was stale, or purged, so the API was asked whether it has changed: it has not. No client waited for this: Weir asked by itself, to validate what is held or to poll for what is computed."},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := resultOf(&c.record); got != c.result {
				t.Errorf("came to %s, want %s", got, c.result)
			}
			if got := explain(&c.record); got != c.why {
				t.Errorf("got  %s\nwant %s", got, c.why)
			}
		})
	}
}
