package history

import (
	"github.com/weirgate/weir/internal/testservers"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/record"
)

// sharedStage returns a queue stage with the use of a budget by clients. Without a wait, the stage is a refusal.
func sharedStage(wait time.Duration, budget string, limit int64, used ...int64) []record.Stage {
	u := &limits.SharedUse{Budget: budget, Limit: limit}
	for i, n := range used {
		u.Clients = append(u.Clients, limits.ClientUse{Client: []string{"agent", "ci", "gh"}[i], Used: n})
	}
	return []record.Stage{{Name: "queue", Elapsed: wait, Detail: "client", Failed: wait == 0, Shared: u}}
}

func TestExplainGivesResultAndReason(t *testing.T) {
	queued := []record.Stage{{Name: "queue", Elapsed: 3 * time.Second, Detail: "points"}, {Name: "attempt", Elapsed: time.Millisecond}}
	for _, c := range []struct {
		name   string
		record record.Record
		result Result
		why    string
	}{
		{"fresh hit", record.Record{Outcome: "hit", Status: 200, Cache: record.CacheStatus{Hit: true, TTL: 3600, HasTTL: true}}, Hit, "Hit: the stored response is fresh for another 1h; no quota was consumed."},
		{"rate limit status", record.Record{Outcome: "own", Status: 200, Cache: record.CacheStatus{Hit: true, Detail: "ledger"}}, Hit, "Hit: the ledger knows the rate limit status, so no request was sent."},
		{"miss", record.Record{Outcome: "miss", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200, Stored: true, TTL: 60, HasTTL: true}, Sent: 1}, Miss, "Miss: no response was stored for this caller; the upstream responded with 200. The response was stored, fresh for 1m."},
		{"validated", record.Record{Outcome: "validated", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardStale, ForwardStatus: 304, Stored: true, TTL: 60, HasTTL: true}, Sent: 1}, Validated, "The stored response was stale or purged; the upstream confirmed that it has not changed. The response was stored, fresh for 1m."},
		{"suspect", record.Record{Outcome: "miss", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200, Stored: true, HasTTL: true, Detail: "suspect-event"}, Sent: 1}, Miss, "Miss: no response was stored for this caller; the upstream responded with 200. The response is suspect, so its next use revalidates it: it was requested shortly after a webhook event, and the upstream may show the state before the event for some time (cache.lag)."},
		{"was suspect", record.Record{Outcome: "validated", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardStale, ForwardStatus: 304, Stored: true, TTL: 60, HasTTL: true, Detail: "was-suspect-lag"}, Sent: 1}, Validated, "The stored response was stale or purged; the upstream confirmed that it has not changed. The response was stored, fresh for 1m. The stored response was suspect: the upstream returned an earlier state than before (cache.lag)."},
		{"stored, revalidated each time", record.Record{Outcome: "miss", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200, Stored: true, TTL: -1, HasTTL: true}, Sent: 1}, Miss, "Miss: no response was stored for this caller; the upstream responded with 200."},
		{"client requested revalidation", record.Record{Outcome: "miss", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardRequest, ForwardStatus: 200}, Sent: 1}, Miss, "The client requested revalidation; the upstream responded with 200."},
		{"POST", record.Record{Outcome: "bypass", Request: record.Request{Method: "POST"}, Status: 201, Cache: record.CacheStatus{Forward: record.ForwardMethod, ForwardStatus: 201}, Sent: 1}, Miss, "A POST request is always forwarded; the upstream responded with 201."},
		{"operation is not stored", record.Record{Outcome: "bypass", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardBypass}, Sent: 1}, Miss, "Responses of this operation are not stored; the request was forwarded."},
		{"limit error of the upstream", record.Record{Outcome: "miss", Status: 403, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 403}, Sent: 1}, Miss, "Miss: no response was stored for this caller; the upstream refused with 403."},
		{"secondary limit of the upstream", record.Record{Outcome: "miss", Status: 403, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 403}, Sent: 1, Report: record.Report{Limited: policy.LimitSecondary, LimitAnswer: "secondary-text"}}, Limited, "Refused by the API with 403: a secondary limit, so Weir sends nothing for this account during a cool-down."},
		{"primary limit of GraphQL", record.Record{Outcome: "bypass", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMethod, ForwardStatus: 200}, Sent: 1, Report: record.Report{Limited: policy.LimitPrimary, LimitAnswer: "graphql-primary-type"}}, Limited, "Refused by the API with 200: the primary limit of the resource is exhausted."},
		{"content limit of the upstream", record.Record{Outcome: "bypass", Status: 422, Cache: record.CacheStatus{Forward: record.ForwardMethod, ForwardStatus: 422}, Sent: 1, Report: record.Report{Limited: policy.LimitContent, LimitAnswer: "content-validation"}}, Limited, "Refused by the API with 422: content was created too quickly, so Weir sends no request of this account that creates content for a while."},
		{"stale response after a limit error", record.Record{Outcome: "stale", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardStale, ForwardStatus: 403, TTL: -90, HasTTL: true, Detail: "cooldown"}, Sent: 1, Report: record.Report{Limited: policy.LimitSecondary, LimitAnswer: "secondary-text"}}, Stale, "Stale response, expired 1m30s ago: the upstream requested a pause of this account, and Weir sends nothing during a cool-down."},
		{"stale response instead of a primary refusal", record.Record{Outcome: "stale", Status: 200, Cache: record.CacheStatus{Hit: true, TTL: -90, HasTTL: true, Detail: "primary"}}, Stale, "Stale response, expired 1m30s ago: no quota is free in the primary budget of this resource."},
		{"stale response while the upstream is down", record.Record{Outcome: "stale", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardStale, TTL: -7200, HasTTL: true, Detail: "upstream"}, Error: "refused"}, Stale, "Stale response, expired 2h ago: the upstream is unreachable or sent an invalid response."},
		{"waited in the queue", record.Record{Outcome: "miss", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200}, Sent: 1, Waited: 3 * time.Second, Tracing: record.Tracing{Stages: queued}}, Waited, "Miss: no response was stored for this caller; the upstream responded with 200. The request waited 3s, mostly in the queue: the points of this operation are exhausted for this minute."},
		{"waited for a budget that clients share", record.Record{Outcome: "miss", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200}, Sent: 1, Waited: 3200 * time.Millisecond, Tracing: record.Tracing{Stages: sharedStage(3200*time.Millisecond, "points:user/get", 900, 612, 240, 48)}}, Waited, "Miss: no response was stored for this caller; the upstream responded with 200. The request waited 3.2s, mostly in the queue for points of user/get: agent used 612 of 900, ci 240, gh 48."},
		{"refused for a window that clients share", record.Record{Outcome: "refused", Status: 429, Cache: record.CacheStatus{Detail: "client"}, Tracing: record.Tracing{Stages: sharedStage(0, "core", 5000, 4500)}}, Refused, "Refused: the client has used its part of the window, or the rest is kept for other clients of the account. The request needed quota: requests of core: agent used 4500 of 5000."},
		{"refused for CPU time that clients share", record.Record{Outcome: "refused", Status: 429, Cache: record.CacheStatus{Detail: "cpu"}, Tracing: record.Tracing{Stages: sharedStage(0, "cpu", 90000, 88500, 1200)}}, Refused, "Refused: the CPU time of this account is exhausted for this minute. The request needed quota: CPU time: agent used 88.5s of 90s, ci 1.2s."},
		{"refused for content that clients share", record.Record{Outcome: "refused", Status: 429, Cache: record.CacheStatus{Detail: "content"}, Tracing: record.Tracing{Stages: sharedStage(0, "content:1m0s", 80, 80)}}, Refused, "Refused: the limit for content creation is reached. The request needed quota: content creation in 1m0s: agent used 80 of 80."},
		{"refused for slots that clients share", record.Record{Outcome: "refused", Status: 429, Cache: record.CacheStatus{Detail: "concurrency"}, Tracing: record.Tracing{Stages: sharedStage(0, "concurrency", 100, 99)}}, Refused, "Refused: the limit for concurrent requests is reached. The request needed quota: concurrent requests: agent used 99 of 100."},
		{"waited in the queue without a reason", record.Record{Outcome: "miss", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMiss}, Sent: 1, Waited: time.Second, Tracing: record.Tracing{Stages: []record.Stage{{Name: "queue", Elapsed: time.Second}}}}, Waited, "Miss: no response was stored for this caller; the request was forwarded. The request waited 1s, mostly in the queue for a permit."},
		{"waited, no stages", record.Record{Outcome: "miss", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMiss}, Sent: 1, Waited: 1500 * time.Millisecond}, Waited, "Miss: no response was stored for this caller; the request was forwarded. The request waited 1.5s, for a permit or between polls."},
		{"waited for statistics", record.Record{Outcome: "miss", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200}, Sent: 3, Waited: 3 * time.Second, Tracing: record.Tracing{Stages: []record.Stage{{Name: "poll", Elapsed: 3 * time.Second}}}}, Waited, "Miss: no response was stored for this caller; the upstream responded with 200. The request waited 3s, mostly while the upstream computed the response. Weir sent 3 requests upstream."},
		{"coalesced", record.Record{Outcome: "collapsed", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMiss, Collapsed: true, TTL: 60, HasTTL: true}, Waited: 40 * time.Millisecond}, Waited, "Coalesced: an identical request was in progress, and its response was used; no quota was consumed. The request waited 40ms, for an identical request."},
		{"coalesced with a stage", record.Record{Outcome: "collapsed", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMiss, Collapsed: true, TTL: 60, HasTTL: true}, Waited: 40 * time.Millisecond, Tracing: record.Tracing{Stages: []record.Stage{{Name: "coalesce", Elapsed: 40 * time.Millisecond}}}}, Waited, "Coalesced: an identical request was in progress, and its response was used; no quota was consumed. The request waited 40ms, mostly for an identical request."},
		{"short wait", record.Record{Outcome: "miss", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMiss}, Sent: 1, Waited: 9 * time.Millisecond}, Miss, "Miss: no response was stored for this caller; the request was forwarded."},
		{"primary refusal", record.Record{Outcome: "refused", Status: 429, Cache: record.CacheStatus{Detail: "primary"}}, Refused, "Refused: no quota is free in the primary budget of this resource."},
		{"refused by a closed account", record.Record{Outcome: "refused", Status: 429, Cache: record.CacheStatus{Detail: "closed"}}, Refused, "Refused: repeated probes of this account failed, and Weir sends nothing until an operator opens the account (weir account open)."},
		{"refused during a cool-down", record.Record{Outcome: "refused", Status: 429, Cache: record.CacheStatus{Detail: "cooldown"}, Waited: time.Second}, Refused, "Refused: the upstream requested a pause of this account, and Weir sends nothing during a cool-down. The request waited 1s, for a permit or between polls."},
		{"refused by preflight", record.Record{Outcome: "own", Status: 422, Cache: record.CacheStatus{Detail: "search-length"}}, Refused, "Refused: the documents of the upstream say that it must fail (search-length), so it was not sent."},
		{"invalid request", record.Record{Outcome: "refused", Status: 400, Cache: record.CacheStatus{}}, Refused, "Refused: the request is invalid."},
		{"store is down", record.Record{Outcome: "refused", Status: 503, Cache: record.CacheStatus{Detail: "store"}}, Refused, "Error: the store of the budgets does not respond."},
		{"upstream is down", record.Record{Outcome: "refused", Status: 502, Cache: record.CacheStatus{Detail: "upstream"}, Error: "refused"}, Failed, "Error: the upstream is unreachable or sent an invalid response."},
		{"circuit breaker is open", record.Record{Outcome: "refused", Status: 503, Cache: record.CacheStatus{Detail: "breaker"}}, Refused, "Error: the circuit breaker is open, because the upstream does not respond."},
		{"retry", record.Record{Outcome: "miss", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 200}, Sent: 2, Waited: 80 * time.Millisecond, Tracing: record.Tracing{Stages: []record.Stage{{Name: "retry", Elapsed: 80 * time.Millisecond}}}}, Waited, "Miss: no response was stored for this caller; the upstream responded with 200. The request waited 80ms, mostly before a retry: the connection to the upstream broke. Weir sent 2 requests upstream."},
		{"upstream error", record.Record{Outcome: "miss", Status: 500, Cache: record.CacheStatus{Forward: record.ForwardMiss, ForwardStatus: 500}, Sent: 1}, Failed, "Miss: no response was stored for this caller; the upstream responded with 500."},
		{"upstream broke the response off", record.Record{Outcome: "miss", Status: 502, Cache: record.CacheStatus{Forward: record.ForwardMiss}, Sent: 1}, Failed, "Miss: no response was stored for this caller; the request failed with 502."},
		{"panic", record.Record{Outcome: "refused", Status: 500}, Failed, "Error: the request is invalid."},
		{"client disconnected", record.Record{Outcome: "miss", Status: 499, Cache: record.CacheStatus{Forward: record.ForwardMiss}, Waited: time.Minute}, Failed, "The client disconnected before the response was complete. The request waited 1m, for a permit or between polls."},
		{"background request", record.Record{Outcome: "validated", Status: 200, Cache: record.CacheStatus{Forward: record.ForwardStale, ForwardStatus: 304}, Sent: 1, Background: true}, Validated, "The stored response was stale or purged; the upstream confirmed that it has not changed. This was a background request: a revalidation, or a poll for statistics."},
	} {
		equal(t, c.name+": result", resultOf(&c.record), c.result)
		equal(t, c.name+": reason", explain(&c.record), c.why)
	}
}

// TestEveryDetailHasAReason compares the reasons with the details in docs/cache.md.
func TestEveryDetailHasAReason(t *testing.T) {
	text := string(testservers.Must(os.ReadFile("../../docs/cache.md")))
	_, table, _ := strings.Cut(text, "\n## Cache-Status\n")
	table, _, _ = strings.Cut(table, "\n## ")
	found := 0
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		if len(cells) < 3 {
			continue
		}
		for name := range strings.SplitSeq(cells[1], ",") {
			name = strings.Trim(name, " `")
			if name == "detail" || strings.ContainsAny(name, "-…") && (strings.Contains(name, "suspect") || strings.Contains(name, "…")) || strings.HasPrefix(name, "--") {
				continue
			}
			found++
			why := reason(name)
			failIf(t, strings.Contains(why, "the documents of the upstream say"), "%s has no reason", name)
		}
	}
	failIf(t, found < 25, "found %d details", found)
}

// TestRefusalNamesItsEnd checks the time at which the same request would pass.
func TestRefusalNamesItsEnd(t *testing.T) {
	began := time.Date(2026, 1, 2, 14, 0, 0, 0, time.UTC)
	why := explain(&record.Record{Start: began, Until: began.Add(12 * time.Minute), Outcome: "refused", Status: 429, Cache: record.CacheStatus{Detail: "primary"}})
	want := "Refused: no quota is free in the primary budget of this resource. The same request would pass after 12m, at 14:12:00 UTC, if no other request used the quota."
	failIf(t, why != want, "%v", why)
	if why := explain(&record.Record{Status: 401, Outcome: "refused", Cache: record.CacheStatus{Detail: "key"}}); !strings.Contains(why, "does not know the key") {
		t.Error(why)
	}
}
