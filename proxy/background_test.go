package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/weirgate/weir/proxy/bodies"
)

// A follower whose leader received another variant does not wait for a second leader.
func TestVariantsAreFetchedConcurrently(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept-Language")
		setRate(w.Header(), "", 5000, 1, time.Now().Add(time.Hour))
		slowly(r.Header.Get("Accept-Language"))(w, r)
	}).run(t, func(w *world) {
		languages := []string{"de", "fr", "it", "rm"}
		all := func() time.Duration {
			start := time.Now()
			together(40, func(i int) {
				language := languages[i%len(languages)]
				w.want("body", w.get(watchers, "Accept-Language: "+language).body, language)
			})
			return time.Since(start)
		}
		w.want("duration before Vary is known", all(), 2*time.Second)
		w.want("requests upstream", w.upstreamSaw(), len(languages))
		time.Sleep(2 * time.Minute)
		w.want("duration after Vary is known", all(), time.Second)
		w.want("requests upstream", w.upstreamSaw(), 2*len(languages))
	})
}

// An account with quota does not wait as a follower of an account without quota.
func TestExhaustedAccountDoesNotDelayOthers(t *testing.T) {
	setup(slowly("all"), oneSlot).run(t, func(w *world) {
		var clients sync.WaitGroup
		clients.Go(func() { w.get("/users/octocat", "Authorization: Bearer a") }) // uses the only permit of account a
		synctest.Wait()
		clients.Go(func() { w.want("body of a", w.get("/gitignore/templates", "Authorization: Bearer a").body, "all") })
		synctest.Wait()
		start := time.Now()
		together(25, func(i int) {
			w.want("body of b", w.get("/gitignore/templates", bearer(fmt.Sprint("b", i%5))).body, "all")
			w.want("duration", time.Since(start), time.Second+shortWait)
		})
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 3) // including the later request of account a
	})
}

// Buffers for clients that read slowly have a total bound. Above the bound, responses are passed through without a
// buffer.
func TestBufferedBodiesAreBounded(t *testing.T) {
	const size, most = 1 << 20, 5 << 20
	setup(replies(strings.Repeat("x", size), "Cache-Control: max-age=60", fmt.Sprint("Content-Length: ", size))).run(t, func(w *world) {
		buffers := &w.gateway.Background.buffers
		buffers.Limit = most
		var slow []*http.Response
		for i := range 12 {
			slow = append(slow, w.open(w.client, http.MethodGet, fmt.Sprint("/users/", i), http.NoBody, bearer("a")))
			time.Sleep(time.Second)
			n := buffers.Used()
			stopIf(w, n > most, "%d bytes are buffered", n)
		}
		n := buffers.Used()
		failIf(w, n < most-size, "only %d bytes are buffered", n)
		for _, resp := range slow {
			text, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			w.want("bytes", len(text), size)
			w.want("error", err, nil)
		}
		synctest.Wait()
		w.want("buffered bytes at the end", buffers.Used(), int64(0))
		w.want("permits in flight", w.inFlight(), 0)
	})
}

func TestPanicWhileBufferingEndsOnlyItsResponse(t *testing.T) {
	setup(replies(strings.Repeat("x", 2*bodies.Small), "Cache-Control: max-age=60"), func(c *Config) {
		next, n := c.Transport, 0
		c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if n++; n == 1 {
				resp.Body = panicking{resp.Body}
			}
			return resp, err
		})
	}).run(t, func(w *world) {
		r := w.try(http.MethodGet, "/users/octocat", nil)
		failIf(w, r.err == nil, "got a response of %d bytes", len(r.body))
		w.want("bytes of the next response", len(w.get("/users/octocat").body), 2*bodies.Small)
	})
}

// Above the bound of polls, clients get the 202 and poll themselves.
func TestPollsAreBounded(t *testing.T) {
	setup(responds(http.StatusAccepted)).run(t, func(w *world) {
		polls := semaphore.NewWeighted(2)
		w.gateway.Background.polls = polls
		time.AfterFunc(10*time.Second, func() { w.want("room for a third poll", polls.TryAcquire(1), false) })
		together(4, func(i int) {
			w.wantReply("", w.get(fmt.Sprintf("/repos/acme/r%d/stats/contributors", i), "Prefer: wait=20"), http.StatusAccepted)
		})
		time.Sleep(10 * time.Minute)
		w.want("room for two polls at the end", polls.TryAcquire(2), true)
	})
}

// computing returns an upstream whose statistics are ready after the given time.
func computing(ready time.Duration) http.HandlerFunc {
	var start time.Time
	return func(w http.ResponseWriter, r *http.Request) {
		if start.IsZero() {
			start = time.Now()
		}
		if time.Since(start) < ready {
			w.WriteHeader(http.StatusAccepted)
		}
		_, _ = fmt.Fprint(w, `{"all":[1]}`)
	}
}

func TestStatisticsArePolledUntilReady(t *testing.T) {
	const participation = "/repos/acme/widgets/stats/participation"
	for _, c := range []struct {
		name, path, prefer string
		ready              time.Duration
		status, attempts   int
		duration           time.Duration
		retry              string
	}{
		{"ready at the second poll", participation, "", 2 * time.Second, 200, 3, 3 * time.Second, ""},
		{"ready immediately", participation, "", 0, 200, 1, 0, ""},
		{"not ready in the default wait", participation, "", time.Hour, 202, 4, 10 * time.Second, "6"},
		{"the client waits longer", participation, "wait=20", 14 * time.Second, 200, 5, 15 * time.Second, ""},
		{"the client does not wait", participation, "respond-async", time.Second, 202, 1, 0, "2"},
		{"another operation's 202 is final", "/repos/acme/widgets/forks", "", time.Second, 202, 1, 0, ""},
	} {
		setup(computing(c.ready)).sub(t, c.name, func(w *world) {
			start := time.Now()
			r := w.wantReply("", w.get(c.path, "Prefer: "+c.prefer), c.status)
			w.want("attempts", w.upstreamSaw(), c.attempts)
			w.want("duration", time.Since(start), c.duration)
			w.want("retry-after", r.Header.Get("Retry-After"), c.retry)
		})
	}
}

const contributors = "/repos/acme/widgets/stats/contributors"

func TestPollsAreShared(t *testing.T) {
	setup(computing(10*time.Second)).run(t, func(w *world) {
		start := time.Now()
		for _, r := range w.concurrently(200, contributors, "Prefer: wait=60") {
			stopIf(w, r.StatusCode != http.StatusOK, "%v", r.Status)
		}
		w.want("polls", w.upstreamSaw(), 5) // at 0, 1, 3, 7 and 15 s
		w.want("duration", time.Since(start), 15*time.Second)
	})
}

func TestPollingContinuesAfterA202(t *testing.T) {
	setup(computing(10*time.Second)).run(t, func(w *world) {
		w.wantReply("first", w.get(contributors, "Prefer: wait=5"), http.StatusAccepted, "Retry-After: 3")
		time.Sleep(3 * time.Second)
		w.want("status while computing", w.get(contributors, "Prefer: respond-async").StatusCode, http.StatusAccepted)
		time.Sleep(8 * time.Second)
		w.want("Cache-Status afterwards", w.get(contributors).Header.Get("Cache-Status")[:9], "weir; hit")
		w.want("polls", w.upstreamSaw(), 5)
	})
}

func TestPollingEndsAfterItsBudget(t *testing.T) {
	setup(computing(24*time.Hour)).run(t, func(w *world) {
		w.get(contributors)
		time.Sleep(time.Hour)
		// Weir polls at 0, 1, 3, 7, 15, 30 and 45 s, then every 15 s for five minutes.
		w.want("polls", w.upstreamSaw(), 24)
		w.want("status after the budget", w.get(contributors).StatusCode, http.StatusAccepted)
	})
}

func TestPollingEndsWithAnyFinalStatus(t *testing.T) {
	for _, status := range []int{200, 204, 404, 422} {
		setup(inOrder(responds(http.StatusAccepted), responds(http.StatusAccepted), responds(status))).run(t, func(w *world) {
			for _, r := range w.concurrently(10, contributors) {
				w.want("status", r.StatusCode, status)
			}
			w.want(fmt.Sprint("polls until ", status), w.upstreamSaw(), 3)
		})
	}
}

func TestStaleStatisticsAreServedWhileComputing(t *testing.T) {
	setup(inOrder(replies("good"), responds(http.StatusAccepted))).run(t, func(w *world) {
		w.get(contributors)
		time.Sleep(2 * time.Minute)
		start := time.Now()
		r := w.get(contributors)
		w.want("body while computing", r.body, "good")
		w.want("Cache-Status while computing", r.Header.Get("Cache-Status"), "weir; hit; ttl=-70; detail=computing")
		w.want("duration", time.Since(start), w.gateway.Statistics.Wait)
		w.want("Age", r.Header.Get("Age"), "130")
		w.gateway.Cache.Purge(w.Context(), "repo:acme/widgets")
		w.wantReply("after a push", w.get(contributors), http.StatusAccepted, "Cache-Status: weir; fwd=stale; fwd-status=202; collapsed")
	})
}

func TestPollErrorDoesNotEndSharedPolling(t *testing.T) {
	good := computing(20 * time.Second)
	setup(inOrder(good, good, responds(http.StatusBadGateway), good)).run(t, func(w *world) {
		for _, r := range w.concurrently(50, contributors, "Prefer: wait=60", "Authorization: a") {
			w.want("status", r.StatusCode, http.StatusOK)
		}
		n := w.upstreamSaw()
		failIf(w, n > 10, "%d requests upstream", n)
	})
}

func TestPollingListsActivePolls(t *testing.T) {
	setup(computing(5*time.Second)).run(t, func(w *world) {
		start := time.Now()
		w.want("polls before", len(w.gateway.Polling()), 0)
		go w.get(contributors, "Prefer: wait=60")
		time.Sleep(4 * time.Second) // polls at 0, 1 and 3 s
		polls := w.gateway.Polling()
		stopIf(w, len(polls) != 1, "got %+v, want one poll", polls)
		p := polls[0]
		w.want("path", p.Path, contributors)
		w.want("since", p.Since.Sub(start), time.Duration(0))
		w.want("next", p.Next.Sub(start), 7*time.Second)
		w.want("polls", p.Polls, 3)
		w.want("waiting", p.Waiting, 1)
		time.Sleep(10 * time.Second)
		w.want("polls after", len(w.gateway.Polling()), 0)
	})
}
