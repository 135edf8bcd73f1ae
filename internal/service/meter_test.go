package service

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/policy"
)

const secondaryLimit = "Retry-After: 60\nsecondary rate limit\n/secondary-rate-limits"

// wantViolations checks the number of violations, and that all violations are of one limit.
func (t *tester) wantViolations(limits string, times int) {
	t.Helper()
	v := t.s.Violations()
	failIf(t, v.Violations != times || limits != "" && v.ByLimit[limits] != times, "got violations %+v, want %d of %s", v, times, limits)
}

func TestPointsExpireAfterOneMinute(t *testing.T) {
	runWithService(t, func(t *tester) {
		for range 899 {
			t.do("owner", getTemplates)
		}
		time.Sleep(30 * time.Second)
		t.do("owner", getTemplates)
		time.Sleep(30*time.Second - time.Nanosecond)
		t.wantViolations("", 0)
		t.call("owner", getTemplates, 403, secondaryLimit)
		time.Sleep(time.Minute)
		t.call("owner", getTemplates, 200, "")
	})
}

func TestGraphQLCountsPointsAndContent(t *testing.T) {
	runWithService(t, func(t *tester) {
		query := graphQLRequest("{ viewer { login } }")
		mutate := graphQLRequest(`mutation { updateSubscription(input: {subscribableId: "R_1001", state: SUBSCRIBED}) { clientMutationId } }`)
		for range 80 {
			t.call("owner", mutate, 200, "")
		}
		t.call("owner", query, 200, "")
		v := t.s.Violations()
		failIf(t, v.Highest["points:graphql"].Sum != 401 || v.Highest["content:1m0s"].Sum != 80 || v.Answered["graphql"] != 81, "got violations %+v", v)
		t.call("owner", mutate, 403, secondaryLimit)
		t.wantViolations("content:1m0s", 1)
		t.call("", query, 401, "")
	})
}

func TestContentIsLimitedPerHour(t *testing.T) {
	runWithService(t, func(t *tester) {
		for i := range 500 {
			if i%80 == 0 {
				time.Sleep(time.Minute)
			}
			t.call("owner", fmt.Sprintf("POST /app-manifests/%d/conversions", i), 201, "")
		}
		time.Sleep(time.Minute)
		t.wantViolations("", 0)
		t.call("owner", "POST /app-manifests/x/conversions", 403, secondaryLimit)
		t.wantViolations("content:1h0m0s", 1)
	})
}

// sendConcurrently sends n requests at the same time and counts the statuses.
func (t *tester) sendConcurrently(n int, as, request string) (statuses map[int]int) {
	statuses = map[int]int{}
	var group sync.WaitGroup
	var mu sync.Mutex
	for range n {
		group.Go(func() {
			code := t.do(as, request).Code
			mu.Lock()
			defer mu.Unlock()
			statuses[code]++
		})
	}
	group.Wait()
	return statuses
}

func TestConcurrentRequestsAreLimited(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.quirks.Put(quirk.Set{DelayAfter: quirk.Duration(time.Second)})
		if got := t.sendConcurrently(100, "owner", getTemplates); got[200] != 100 {
			t.Errorf("got statuses %v", got)
		}
		t.wantViolations("", 0)
		got := t.sendConcurrently(101, "member", getTemplates)
		failIf(t, got[403] == 0, "got statuses %v", got)
		t.wantViolations("concurrency", 1)
		v := t.s.Violations()
		failIf(t, v.MaxConcurrent != 101 || v.SentWhileLimited != 0, "got violations %+v", v)
	})
}

func TestCPUTimeIsLimited(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.quirks.Put(quirk.Set{DelayBefore: quirk.Duration(4 * time.Second), DelayIsCPU: true})
		got := t.sendConcurrently(100, "owner", getTemplates)
		v := t.s.Violations()
		failIf(t, v.ByLimit["cpu"] == 0 || v.Highest["cpu"].Sum <= 90_000 || got[200] == 0, "got statuses %v and violations %+v", got, v)
		time.Sleep(2 * time.Minute)
		before := v.Violations
		for range 20 {
			t.call("owner", getTemplates, 200, "")
		}
		t.wantViolations("", before)
	})
}

func TestSecondaryLimitRefusesUntilTheCooldownEnds(t *testing.T) {
	runWithService(t, func(t *tester) {
		t.s.quirks.Put(quirk.Set{SecondaryEvery: 3, LimitAnswers: quirk.Forms{"rest_429"}})
		t.do("owner", getTemplates)
		t.do("owner", getTemplates)
		t.call("owner", getTemplates, 429, "Retry-After: 60")
		t.wantViolations("", 0)
		time.Sleep(time.Minute - time.Nanosecond)
		t.call("owner", getTemplates, 429, "")
		t.call("member", getTemplates, 200, "")
		v := t.s.Violations()
		failIf(t, v.SentWhileLimited != 1 || v.Violations != 0, "got violations %+v", v)
		time.Sleep(time.Nanosecond)
		t.call("owner", getTemplates, 200, "")
	})
}

func TestInstallationLimitDependsOnItsSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := seed(1, time.Now(), documentedBot)
		repositories, users := w.installationSize("acme")
		m := &meter{Config: Config{Limits: policy.DefaultLimits()}}
		if limit := m.installationLimit(repositories, users); limit != 6100 {
			t.Errorf("%d repositories, %d users: got limit %d", repositories, users, limit)
		}
		for _, c := range []struct{ repositories, users, limit int }{
			{0, 0, 5000}, {20, 20, 5000}, {21, 20, 5050}, {20, 21, 5050}, {30, 25, 5750}, {170, 20, 12_500}, {5000, 5000, 12_500},
		} {
			limit := m.installationLimit(c.repositories, c.users)
			failIf(t, limit != c.limit, "%+v: got limit %d", c, limit)
		}
	})
}

// TestHighestSumOfSearchesExcludesFreeResponses checks that a search counts from the moment at which the meter counted
// the search. A 304 must not count.
func TestHighestSumOfSearchesExcludesFreeResponses(t *testing.T) {
	runWithService(t, func(t *tester) {
		const search = "GET /search/users?q=acme"
		etag := t.do("owner", search).Header().Get("ETag")
		for range 35 {
			t.call("owner\nIf-None-Match: "+etag, search, 304, "")
		}
		t.wantEqual("one search and 35 responses with 304", Highest{1, 30}, t.s.Violations().Highest["search"])
		t.s.quirks.Put(quirk.Set{DelayAfter: quirk.Duration(20 * time.Second)})
		for range 3 {
			time.Sleep(time.Minute)
			got := t.sendConcurrently(10, "member", search)
			failIf(t, got[200] != 10, "got statuses %v", got)
		}
		t.wantEqual("10 searches per minute", 10, t.s.Violations().Highest["search"].Sum)
	})
}

// TestGatewayNeverCountsLess compares the costs of all operations of the table: the gateway counts at least the points and
// the content that the service counts.
func TestGatewayNeverCountsLess(t *testing.T) {
	for _, dialect := range []string{"github", "service"} {
		t := (&tester{T: t}).newService(dialect, 1)
		catalogue, random := policy.CatalogueOf(dialect), rand.New(rand.NewPCG(1, 2))
		for _, op := range t.s.Operations() {
			method, target, body := t.s.Sample(op.ID, random)
			in := httptest.NewRequestWithContext(t.Context(), method, target, bytes.NewReader(body))
			counted := t.s.demand(&request{Request: in, op: op})
			match, err := catalogue.Classify(method, in.URL.EscapedPath(), in.URL.RawQuery)
			if err != nil {
				t.Errorf("%s: %v", op.ID, err)
				continue
			}
			known := match.Operation
			failIf(t, known.Points < counted.points || counted.content && !known.CreatesContent, "%s: the gateway counts %d points, content %t; the service %d points, content %t",
				op.ID, known.Points, known.CreatesContent, counted.points, counted.content)
		}
	}
}
