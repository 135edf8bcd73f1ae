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
		buffers.limit = most
		var slow []*http.Response
		for i := range 12 {
			slow = append(slow, w.open(w.client, http.MethodGet, fmt.Sprint("/users/", i), http.NoBody, bearer("a")))
			time.Sleep(time.Second)
			if n := buffers.used.Load(); n > most {
				w.Fatalf("%d bytes are buffered", n)
			}
		}
		if n := buffers.used.Load(); n < most-size {
			w.Errorf("only %d bytes are buffered", n)
		}
		for _, resp := range slow {
			text, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			w.want("bytes", len(text), size)
			w.want("error", err, nil)
		}
		synctest.Wait()
		w.want("buffered bytes at the end", buffers.used.Load(), int64(0))
		w.want("permits in flight", w.inFlight(), 0)
	})
}

func TestPanicWhileBufferingEndsOnlyItsResponse(t *testing.T) {
	setup(replies(strings.Repeat("x", 2*smallBody), "Cache-Control: max-age=60"), func(c *Config) {
		next, n := c.Transport, 0
		c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if n++; n == 1 {
				resp.Body = panicking{resp.Body}
			}
			return resp, err
		})
	}).run(t, func(w *world) {
		if r := w.try(http.MethodGet, "/users/octocat", nil); r.err == nil {
			w.Errorf("got a response of %d bytes", len(r.body))
		}
		w.want("bytes of the next response", len(w.get("/users/octocat").body), 2*smallBody)
	})
}

// Above the bound of polls, clients get the 202 and poll themselves.
func TestPollsAreBounded(t *testing.T) {
	setup(responds(http.StatusAccepted)).run(t, func(w *world) {
		polls := semaphore.NewWeighted(2)
		w.gateway.Background.polls = polls
		time.AfterFunc(10*time.Second, func() { w.want("room for a third poll", polls.TryAcquire(1), false) })
		together(4, func(i int) {
			r := w.get(fmt.Sprintf("/repos/acme/r%d/stats/contributors", i), "Prefer: wait=20")
			w.want("status", r.StatusCode, http.StatusAccepted)
		})
		time.Sleep(10 * time.Minute)
		w.want("room for two polls at the end", polls.TryAcquire(2), true)
	})
}
