package proxy

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/service/quirk"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/tags"
)

// TestRandomTrafficOverTheWholeAPI sends random reads and writes for every operation of the table through four replicas.
// The service counts by its own endpoints and resources: no request may exceed a limit, and no client may read a state
// that is older than its own writes. Two operations count against resources that the catalogue does not know. The load
// exceeds the quota, so the windows must be used almost completely.
func TestRandomTrafficOverTheWholeAPI(t *testing.T) {
	const clients = 40
	calls, seed := testservers.Setting(t, "WEIR_CALLS", 2000), uint64(testservers.Setting(t, "WEIR_SEED", 1))
	synctest.Test(t, func(t *testing.T) {
		most := 900 * calls / 10_000 // so that the load exceeds the quota
		change := func(l *policy.Limits) {
			l.Primary.User, l.Primary.Installation, l.Primary.Window = most, most, 10*time.Minute
			l.Points.REST = max(15, most/15)
			l.Content = []policy.Window{{Max: 60, Window: time.Minute}, {Max: 500, Window: 10 * time.Minute}}
		}
		l := policy.DefaultLimits()
		change(&l)
		upstream, err := service.New(service.Config{
			Limits: l, Quirks: withDelays(200 * time.Millisecond),
			Resources: map[string]policy.Window{"core": {Max: most, Window: 10 * time.Minute}}, // also for the installation
			Unlisted: map[string]service.Resource{
				"repos/list-webhooks":         {Name: "special", Limit: policy.Window{Max: 5, Window: time.Hour}},
				"actions/list-repo-variables": {Name: "special-2", Limit: policy.Window{Max: 20, Window: time.Minute}},
			},
		})
		noError(t, err)
		defer upstream.Close()
		w := newWorld(t, upstream.ServeHTTP, wholeAPI(t, change), identifyByKind)
		replicas, _ := w.replicas(4)
		judge := testservers.NewJudge(upstream.Missing)
		operations := upstream.Operations()
		tokens := []string{"tok-owner", "tok-member", "tok-outsider", "tok-app"}
		statuses := map[int]int{}
		var mu sync.Mutex
		var group sync.WaitGroup
		for i := range clients {
			group.Go(func() {
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				token := tokens[i%len(tokens)]
				transport := judge.Transport(token, anyReplica{random, replicas})
				var reads []string // the latest reads, which are repeated: they may be hits
				for range calls / clients {
					method, target, body := upstream.Sample(operations[random.IntN(len(operations))].ID, random)
					switch {
					case method == http.MethodGet:
						reads = append(reads[max(0, len(reads)-20):], target)
					case len(reads) > 0 && random.IntN(3) > 0:
						method, target, body = http.MethodGet, reads[random.IntN(len(reads))], nil
					}
					status, err := roundTrip(transport, method, target, token, body)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					statuses[status]++
					mu.Unlock()
					time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
				}
			})
		}
		group.Wait()
		got := upstream.Violations()
		judged, unjudged := judge.Judged()
		t.Logf("statuses %v, judged %d, not judged %d, violations %+v", statuses, judged, unjudged, got)
		w.want("violations", got.Violations, 0)
		w.want("sent while limited", got.SentWhileLimited, 0)
		for _, stale := range judge.Stale()[:min(20, len(judge.Stale()))] {
			t.Error(stale)
		}
		w.want("stale reads", len(judge.Stale()), 0)
		core := got.Highest["primary:core"]
		failIf(t, core.Sum*100 < core.Limit*99, "core: used %d of %d, want at least 99 %%", core.Sum, core.Limit)
	})
}

// withDelays returns the quirks of a service that answers as the API does, with random delays.
func withDelays(delay time.Duration) quirk.Set {
	return quirk.Set{ETagsPerToken: true, DelayBefore: quirk.Duration(delay), DelayAfter: quirk.Duration(delay)}
}

// identifyByKind makes a token of the service an installation.
var identifyByKind = identifying(func(r *http.Request, id *caller.Identity) {
	if r.Header.Get("Authorization") == "Bearer tok-app" {
		id.Kind = policy.Installation
	}
})

// anyReplica sends each request to a random replica.
type anyReplica struct {
	random   *rand.Rand
	replicas []*Gateway
}

// RoundTrip implements [http.RoundTripper].
func (a anyReplica) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	a.replicas[a.random.IntN(len(a.replicas))].ServeHTTP(w, r)
	return w.Result(), nil
}

// roundTrip sends a request until it is not refused, as a client does that follows Retry-After, and returns the status.
func roundTrip(transport http.RoundTripper, method, target, token string, body []byte) (int, error) {
	for {
		r := httptest.NewRequest(method, target, bytes.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Prefer", "wait=60")
		resp, err := transport.RoundTrip(r)
		if err != nil {
			return 0, fmt.Errorf("%s %s: %w", method, target, err)
		}
		if _, err = io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusTooManyRequests {
			return resp.StatusCode, err
		}
		wait, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if err != nil {
			return 0, fmt.Errorf("%s %s: 429 without Retry-After", method, target)
		}
		time.Sleep(time.Duration(wait) * time.Second)
	}
}

// polled are the operations that programs poll: a team's bots, dashboards and deployments.
var polled = []string{
	"pulls/list", "pulls/get", "pulls/get", "pulls/list-files", "pulls/list-commits", "pulls/list-reviews", "issues/list-for-repo", "issues/get",
	"issues/list-comments", "issues/list-labels-for-repo", "checks/list-for-ref", "checks/list-for-ref", "repos/get-combined-status-for-ref",
	"repos/list-commits", "repos/get-commit", "repos/get-branch", "repos/list-branches", "repos/get-content", "repos/get-content",
	"repos/get-latest-release", "repos/list-releases", "repos/get", "actions/list-workflow-runs-for-repo", "actions/list-jobs-for-workflow-run",
	"git/get-ref", "repos/compare-commits-with-basehead",
}

// changed are the operations of users and CI in a day, with their number per hour. Users work outside the gateway, and
// CI uses the gateway.
var changed = []struct {
	id      string
	perHour int
	through bool
}{
	{"repos/create-or-update-file-contents", 6, false}, {"issues/create-comment", 20, false}, {"issues/create", 4, false}, {"issues/update", 8, false},
	{"pulls/create", 2, false}, {"pulls/merge", 2, false}, {"pulls/create-review", 5, false}, {"checks/create", 12, true}, {"checks/update", 12, true},
	{"repos/create-commit-status", 12, true}, {"issues/add-labels", 6, true},
}

// TestADayOfPollingCostsASeventh replays a day of 20 programs that poll one busy repository once a minute. Every change
// of a user reaches the gateway as a webhook event. The service judges by its own counts: the quota that the programs
// use must be at most 15 % of the quota that they use without the gateway. See savingsDuration.
func TestADayOfPollingCostsASeventh(t *testing.T) {
	const programs, targets = 20, 12
	duration := savingsDuration(t, 10*time.Minute)
	synctest.Test(t, func(t *testing.T) {
		change := func(l *policy.Limits) { l.Primary.User, l.Points.REST = 1_000_000, 100_000 }
		l := policy.DefaultLimits()
		change(&l)
		upstream := testservers.Must(service.New(service.Config{Limits: l, Quirks: withDelays(100 * time.Millisecond)}))
		defer upstream.Close()
		w := newWorld(t, upstream.ServeHTTP, wholeAPI(t, change), lagging)
		judge := testservers.NewJudge(upstream.Missing)
		tokens := []string{"tok-owner", "tok-member"}
		end := time.Now().Add(duration)
		var group sync.WaitGroup
		var direct, outsideCalls atomic.Int64 // requests that use quota without the gateway, and requests of users
		for i := range programs {
			group.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(i)))
				token := tokens[i%len(tokens)]
				through := judge.Transport(token, anyReplica{random, []*Gateway{w.gateway}})
				var list []string
				for round := 0; time.Now().Before(end); round++ {
					if round%60 == 0 { // the program's interest changes every hour
						list = nil
						for range targets {
							_, target, _ := upstream.Sample(polled[random.IntN(len(polled))], random)
							list = append(list, target)
						}
					}
					for _, target := range list {
						if _, err := roundTrip(through, http.MethodGet, target, token, nil); err != nil {
							t.Error(err)
							return
						}
						direct.Add(1)
					}
					time.Sleep(time.Minute)
				}
			})
		}
		for i, c := range changed {
			group.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(1000+i)))
				outside := roundTripper(func(r *http.Request) (*http.Response, error) {
					w := httptest.NewRecorder()
					upstream.ServeHTTP(w, r)
					return w.Result(), nil
				})
				var transport http.RoundTripper = outside
				const token = "tok-owner"
				counter := &outsideCalls
				if c.through {
					transport, counter = anyReplica{random, []*Gateway{w.gateway}}, &direct
				}
				for {
					time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Hour) / float64(c.perHour)))
					if time.Now().After(end) {
						return
					}
					method, target, body := upstream.Sample(c.id, random)
					if _, err := roundTrip(transport, method, target, token, body); err != nil {
						t.Error(err)
						return
					}
					counter.Add(1)
					time.Sleep(time.Second)
					for _, e := range upstream.Events() {
						w.gateway.Cache.Purge(t.Context(), tags.OfEvent(w.gateway.Catalogue, e.Name, e.Repository, e.Organization, false)...)
					}
				}
			})
		}
		group.Wait()
		got, judged := upstream.Violations(), 0
		judged, _ = judge.Judged()
		spent := got.Answered["core"] - int(outsideCalls.Load())
		share := 100 * float64(spent) / float64(direct.Load())
		t.Logf("%v: %d requests that use quota without the gateway, %d with it: %.1f %%; %d judged reads", duration, direct.Load(), spent, share, judged)
		w.want("stale reads", len(judge.Stale()), 0)
		failIf(t, duration >= 24*time.Hour && share > 15, "the programs used more than 15 %% of the quota")
	})
}
