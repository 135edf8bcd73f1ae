package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// pooled returns the identity of a client with several credentials. Pick returns the first credential that is not
// excluded.
func pooled(names ...string) Identity {
	first := names[0]
	return Identity{
		Caller:    policy.Caller{Kind: policy.User, Account: "account of " + first, Class: first},
		Authorize: func(_ context.Context, h http.Header) error { h.Set("Authorization", first); return nil },
		Pick: func(w CredentialRequest) (Identity, bool) {
			for _, name := range names {
				if !slices.Contains(w.Except, name) {
					id := pooled(name)
					id.Pick = pooled(names...).Pick
					return id, true
				}
			}
			return Identity{}, false
		},
		OnHidden: func(CredentialRequest, int, bool) {},
	}
}

// Many clients use several credentials while background requests refresh the responses. The race detector must report
// no race.
func TestCredentialAttemptsDuringBackgroundRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("Authorization") {
			case "b":
				w.Header().Set("Cache-Control", "private, max-age=1, stale-while-revalidate=600")
				fallthrough
			case "a":
				w.WriteHeader(http.StatusNotFound)
			}
			_, _ = fmt.Fprint(w, r.Header.Get("Authorization"))
		}, func(c *Config) {
			c.Identify = func(r *http.Request) (Identity, error) {
				if r.Header.Get("Authorization") == "single" {
					return pooled("b"), nil
				}
				return pooled("a", "b", "c"), nil
			}
		})
		for range 5 {
			var clients sync.WaitGroup
			for _, name := range []string{"single", "all"} {
				for i := range 20 {
					clients.Go(func() {
						r := w.get(fmt.Sprintf("/repos/acme/r%d/tags", i%5), "Authorization: "+name)
						if want := map[string]string{"single": "b", "all": "c"}[name]; r.body != want {
							t.Errorf("%s: %d %q, want %q", name, r.StatusCode, r.body, want)
						}
					})
				}
				clients.Wait()
				time.Sleep(2 * time.Second)
			}
		}
	})
}

// Followers may wait for a new token longer than the leader.
func TestFollowersWaitForATokenAfterTheLeaderGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arrival := time.Now().Add(5 * time.Second)
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Cache-Control", "private, max-age=60") }, func(c *Config) {
			c.Identify = func(r *http.Request) (Identity, error) {
				id, err := identifyByToken(r)
				id.Held, id.Credential = true, lateCredential(arrival)
				return id, err
			}
		})
		var clients sync.WaitGroup
		clients.Go(func() {
			r := w.get("/repos/acme/widgets/tags", "Authorization: Bearer x", "Prefer: respond-async")
			if r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Cache-Status") == "" || r.Header.Get("Retry-After") == "" {
				t.Errorf("without a wait: got %d %v %s", r.StatusCode, r.Header, r.body)
			}
		})
		synctest.Wait()
		for range 3 {
			clients.Go(func() {
				if r := w.get("/repos/acme/widgets/tags", "Authorization: Bearer x"); r.StatusCode != http.StatusOK {
					t.Errorf("with a wait: got %d %s", r.StatusCode, r.body)
				}
			})
		}
		clients.Wait()
		w.want("requests", w.upstreamSaw(), 1)
	})
}

// lateCredential is a held credential whose token arrives at a time.
type lateCredential time.Time

func (c lateCredential) Await(ctx context.Context, by time.Time, _ CredentialUse) error {
	if arrival := time.Time(c); arrival.Before(by) {
		return sleep(ctx, time.Until(arrival))
	}
	if err := sleep(ctx, time.Until(by)); err != nil {
		return err
	}
	return &UnusableError{Until: time.Time(c), Cause: errors.New("late")}
}

func (c lateCredential) Authorize(h http.Header, _ CredentialUse) (SentCredential, error) {
	h.Set("Authorization", "Bearer minted")
	return c, nil
}

func (lateCredential) IsUnproven() bool                      { return false }
func (lateCredential) End(*policy.Operation, int, bool) bool { return false }
