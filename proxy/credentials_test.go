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
	"github.com/weirgate/weir/proxy/caller"
)

// pooled returns the identity of a client with several credentials.
func pooled(names ...string) *caller.Identity { return pool(names).with(names[0]) }

// pool is a pool whose Pick returns the first credential that is not excluded.
type pool []string

func (n pool) with(name string) *caller.Identity {
	return &caller.Identity{
		Caller:     policy.Caller{Kind: policy.User, Account: "account of " + name, Class: name},
		Credential: fixedCredential{value: name}, Pool: n,
	}
}

func (n pool) Pick(r policy.CredentialRequest, _ time.Time) *caller.Identity {
	for _, name := range n {
		if !slices.Contains(r.Except, name) {
			return n.with(name)
		}
	}
	return nil
}

func (pool) OnHidden(string, policy.CredentialRequest, int, bool, time.Time) {}

// Many clients use several credentials while background requests refresh the responses. The race detector must report
// no race.
func TestCredentialAttemptsDuringBackgroundRefresh(t *testing.T) {
	pools := identifying(func(r *http.Request, id *caller.Identity) {
		*id = *pooled("a", "b", "c")
		if r.Header.Get("Authorization") == "single" {
			*id = *pooled("b")
		}
	})
	setup(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Authorization") {
		case "b":
			setFields(w, "Cache-Control: private, max-age=1, stale-while-revalidate=600")
			fallthrough
		case "a":
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = fmt.Fprint(w, r.Header.Get("Authorization"))
	}, pools).run(t, func(w *world) {
		for range 5 {
			for name, want := range map[string]string{"single": "b", "all": "c"} {
				var clients sync.WaitGroup
				for i := range 20 {
					clients.Go(func() {
						w.want("credential of "+name, w.get(fmt.Sprintf("/repos/acme/r%d/tags", i%5), "Authorization: "+name).body, want)
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
		late := identifying(func(_ *http.Request, id *caller.Identity) { id.Passed, id.Credential = false, lateCredential(arrival) })
		w := newWorld(t, replies("", "Cache-Control: private, max-age=60"), late)
		var clients sync.WaitGroup
		clients.Go(func() {
			r := w.get("/repos/acme/widgets/tags", bearer("x"), "Prefer: respond-async")
			failIf(t, r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Cache-Status") == "" || r.Header.Get("Retry-After") == "", "without a wait: got %d %v %s", r.StatusCode, r.Header, r.body)
		})
		synctest.Wait()
		clients.Go(func() {
			for _, r := range w.concurrently(3, "/repos/acme/widgets/tags", bearer("x")) {
				w.want("status with a wait", r.StatusCode, http.StatusOK)
			}
		})
		clients.Wait()
		w.want("requests", w.upstreamSaw(), 1)
	})
}

// lateCredential is a held credential whose token arrives at a time.
type lateCredential time.Time

func (c lateCredential) Await(ctx context.Context, by time.Time, _ policy.CredentialUse) error {
	if arrival := time.Time(c); arrival.Before(by) {
		return sleep(ctx, time.Until(arrival))
	}
	if err := sleep(ctx, time.Until(by)); err != nil {
		return err
	}
	return &policy.UnusableError{Until: time.Time(c), Cause: errors.New("late")}
}

func (c lateCredential) Authorize(h http.Header, _ policy.CredentialUse) (caller.SentCredential, error) {
	h.Set("Authorization", "Bearer minted")
	return c, nil
}

func (lateCredential) Denied()                                 {}
func (lateCredential) Renewed(context.Context, time.Time) bool { return false }
func (lateCredential) IsUnproven() bool                        { return false }
func (lateCredential) End(*policy.Operation, int, bool) bool   { return false }

// fixedCredential is a held credential that can always be sent.
type fixedCredential struct {
	lateCredential
	value string
}

func (c fixedCredential) Authorize(h http.Header, _ policy.CredentialUse) (caller.SentCredential, error) {
	h.Set("Authorization", c.value)
	return c, nil
}

// deniableCredential is a held credential that counts denials.
type deniableCredential struct {
	lateCredential
	denials *int
}

func (c deniableCredential) Denied() { *c.denials++ }

func (c deniableCredential) Authorize(http.Header, policy.CredentialUse) (caller.SentCredential, error) {
	return c, nil
}

func TestDenialThatAPermissionMayExplainIsReported(t *testing.T) {
	const message = `"message":"Resource not accessible by integration"`
	for _, c := range []struct {
		name, query string
		upstream    http.HandlerFunc
		denials     int
	}{
		{"permission", "", respondsWith(403, "{"+message+"}"), 1},
		{"other reason", "", respondsWith(403, `{"message":"Repository access blocked"}`), 0},
		{"limit", "", respondsWith(403, `{"message":"You have exceeded a secondary rate limit"}`), 0},
		{"other status", "", respondsWith(404, "{"+message+"}"), 0},
		{"GraphQL", "{viewer{login}}", replies(`{"data":null,"errors":[{"type":"FORBIDDEN",` + message + `}]}`), 1},
	} {
		denials := 0
		deniable := identifying(func(_ *http.Request, id *caller.Identity) {
			id.Passed, id.Credential = false, deniableCredential{denials: &denials}
		})
		setup(c.upstream, deniable).sub(t, c.name, func(w *world) {
			if c.query != "" {
				w.graphQL("/graphql", c.query)
			} else {
				w.get("/repos/acme/widgets/tags", bearer("a"))
			}
			w.want("denials", denials, c.denials)
		})
	}
}
