package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// TestVariantsAreAskedForSideBySide: who waits for a question and finds that its answer
// is another variant waits for no second one in vain.
func TestVariantsAreAskedForSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "Accept-Language")
			w.Header().Set("X-RateLimit-Limit", "5000")
			w.Header().Set("X-RateLimit-Used", "1")
			w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10))
			slowly(r.Header.Get("Accept-Language"))(w, r)
		})
		languages := []string{"de", "fr", "it", "rm"}
		all := func() time.Duration {
			began := time.Now()
			var clients sync.WaitGroup
			for i := range 40 {
				clients.Go(func() {
					language := languages[i%len(languages)]
					w.want("body", w.get(watchers, "Accept-Language: "+language).body, language)
				})
			}
			clients.Wait()
			return time.Since(began)
		}
		w.want("while nobody knows that they differ", all(), 2*time.Second)
		w.want("requests upstream", w.upstreamSaw(), len(languages))
		time.Sleep(2 * time.Minute)
		w.want("when it is known", all(), time.Second)
		w.want("requests upstream", w.upstreamSaw(), 2*len(languages))
	})
}

// TestWhoMayGoWaitsForNobodyWhoMayNot: of two accounts that ask for what all share the
// one whose budget is out does not hold up the other; nor does a batch job a person.
func TestWhoMayGoWaitsForNobodyWhoMayNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := policy.DefaultLimits()
		rules.Concurrent = 1
		w := newWorld(t, slowly("all"), limited(rules))
		var clients sync.WaitGroup
		clients.Go(func() { w.get("/users/octocat", "Authorization: Bearer a") }) // takes its only place
		synctest.Wait()
		clients.Go(func() { w.want("the first", w.get("/gitignore/templates", "Authorization: Bearer a").body, "all") })
		synctest.Wait()
		began := time.Now()
		for i := range 25 {
			clients.Go(func() {
				w.want("the other", w.get("/gitignore/templates", fmt.Sprint("Authorization: Bearer b", i%5)).body, "all")
				w.want("took", time.Since(began), time.Second+shortWait)
			})
		}
		clients.Wait()
		w.want("requests upstream", w.upstreamSaw(), 3) // one is not let go in vain, but later
	})
}

// TestThereIsABoundToWhatIsReadAhead: what is read ahead of clients that do not read
// has so much room in all; who finds none is answered all the same.
func TestThereIsABoundToWhatIsReadAhead(t *testing.T) {
	const size, most = 1 << 20, 5 << 20
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Length", strconv.Itoa(size))
			_, _ = io.WriteString(w, strings.Repeat("x", size))
		})
		held := &w.gateway.Background.room
		held.most = most
		var slow []*http.Response
		for i := range 12 {
			req, err := http.NewRequest(http.MethodGet, fmt.Sprint("http://gateway.test/users/", i), http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer a")
			resp, err := w.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			slow = append(slow, resp)
			time.Sleep(time.Second)
			if n := held.held.Load(); n > most {
				t.Fatalf("%d bytes are held", n)
			}
		}
		if n := held.held.Load(); n < most-size {
			t.Errorf("%d bytes are held: the room is not used", n)
		}
		for _, resp := range slow {
			text, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			w.want("bytes", len(text), size)
			w.want("error", err, nil)
		}
		synctest.Wait()
		w.want("bytes that are held in the end", held.held.Load(), int64(0))
		w.want("permits in flight", w.inFlight(), 0)
	})
}

// TestAPanicOfWhatIsReadAhead ends its answer, and nothing else.
func TestAPanicOfWhatIsReadAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			_, _ = fmt.Fprint(w, strings.Repeat("x", 2*smallBody))
		}, func(c *Config) {
			next, n := c.Transport, 0
			c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				resp, err := next.RoundTrip(r)
				if n++; n == 1 {
					resp.Body = panicking{resp.Body}
				}
				return resp, err
			})
		})
		if r := w.ask(http.MethodGet, "/users/octocat", nil); r.err == nil {
			t.Errorf("an answer, %d bytes", len(r.body))
		}
		w.want("again", len(w.get("/users/octocat").body), 2*smallBody)
	})
}

// TestPollsAreBounded: what is computed for too many at once is left to its clients.
func TestPollsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
		polls := &w.gateway.Background.polls
		*polls = make(chan struct{}, 2)
		var clients sync.WaitGroup
		for i := range 4 {
			clients.Go(func() {
				r := w.get(fmt.Sprintf("/repos/acme/r%d/stats/contributors", i), "Prefer: wait=20")
				w.want("status", r.StatusCode, http.StatusAccepted)
			})
		}
		time.Sleep(10 * time.Second)
		w.want("polls", len(*polls), 2)
		clients.Wait()
		time.Sleep(10 * time.Minute)
		w.want("polls in the end", len(*polls), 0)
	})
}
