package learned

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

func TestTokenListsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := &ClientTokens{}
		tokens.LimitAddresses(true)
		for i := range 2 * maxTokens {
			end, err := tokens.Begin(t.Context(), netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), fmt.Sprint(i), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			end(http.StatusUnauthorized)
			tokens.Observe(fmt.Sprint(i), http.StatusUnauthorized, true, time.Now())
			tokens.Observe(fmt.Sprint("good ", i), http.StatusOK, true, time.Now())
		}
		if n, m, s := tokens.refused.lru.Len(), tokens.accepted.lru.Len(), tokens.senders.Len(); n != maxTokens || m != maxTokens || s != maxSenders {
			t.Errorf("%d refused and %d accepted tokens, %d addresses", n, m, s)
		}
		time.Sleep(2 * FailedWindow)
		for i := range maxSenders {
			end, _ := tokens.Begin(t.Context(), netip.AddrFrom4([4]byte{10, 0, 0, 0}), fmt.Sprint("later ", i), time.Now())
			end(http.StatusOK)
		}
		if n := tokens.senders.Len(); n != 1 {
			t.Errorf("%d addresses remain, want only the current one", n)
		}
	})
}

// merges records calls of Ledger.Merge.
type merges []string

func (m *merges) merge(from, into string, _ policy.CallerKind) { *m = append(*m, from+" -> "+into) }

func TestReplicasShareIdentities(t *testing.T) {
	user := func(id string) Identity { return Identity{policy.User, id} }
	var one, two Identities
	var stored []string
	exchange := func(_ context.Context, changed []string) ([]string, error) {
		stored = append(stored, changed...)
		return stored, nil
	}
	fails := func(context.Context, []string) ([]string, error) { return nil, errors.New("connection lost") }
	now := time.Now()
	if !one.Learn("an account", user("1"), now) || one.Learn("an account", user("1"), now) || one.Learn("an account", user("2"), now) {
		t.Error("an account did not keep its first identity")
	}
	if one.Learn("user:1", user("1"), now) {
		t.Errorf("an account was merged with itself")
	}
	var first, second merges
	one.Share(t.Context(), first.merge, fails)
	one.Share(t.Context(), first.merge, exchange)
	stored = append(stored, "user 0 x", "root 1 x", "user 1", "")
	two.Share(t.Context(), second.merge, exchange)
	two.Share(t.Context(), second.merge, exchange)
	if len(first) != 0 || fmt.Sprint(second) != "[an account -> user:1]" {
		t.Errorf("merges: %q and %q", first, second)
	}
	if !one.Learn("an account", user("1"), now.Add(renewIdentity)) {
		t.Errorf("a confirmed identity was not shared again")
	}
}

func TestResourcesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards the next two variables
		shared, fails := map[string]string{}, true
		exchange := func(_ context.Context, changed map[string]string) (map[string]string, error) {
			mu.Lock()
			defer mu.Unlock()
			if fails {
				return nil, context.DeadlineExceeded
			}
			maps.Copy(shared, changed)
			return maps.Clone(shared), nil
		}
		var first, second Resources
		first.Learn("repos/get", policy.User, "core", "special")
		first.Learn("graphql", policy.User, policy.GraphQL, "core")
		first.Learn("repos/delete", policy.User, "core", "refused")
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		accepts := func(name string) bool { return name != "refused" }
		go EveryShareInterval(ctx, func() { first.Share(ctx, accepts, exchange) })
		go EveryShareInterval(ctx, func() { second.Share(ctx, accepts, exchange) })
		time.Sleep(5 * shareInterval / 2) // between two exchanges
		check := func(name string, r *Resources, operation string, kind policy.CallerKind, predicted, want string) {
			if got := r.Of(operation, kind, predicted); got != want {
				t.Errorf("%s: resource of %s: got %s, want %s", name, operation, got, want)
			}
		}
		check("without exchange", &second, "repos/get", policy.User, "core", "core")
		mu.Lock()
		fails = false
		mu.Unlock()
		time.Sleep(5 * shareInterval / 2) // between two exchanges
		for _, r := range []*Resources{&first, &second} {
			check("shared", r, "repos/get", policy.User, "core", "special")
			check("GraphQL", r, "graphql", policy.User, policy.GraphQL, policy.GraphQL)
			check("another kind of caller", r, "repos/get", policy.Unauthenticated, "core", "core")
		}
		check("refused name", &second, "repos/delete", policy.User, "core", "core")
		time.Sleep(namedFor)
		check("much later", &second, "repos/get", policy.User, "core", "core")
	})
}

func TestIdentityInMessage(t *testing.T) {
	for message, want := range map[string]string{
		"API rate limit exceeded for user ID 123.":                                                     "user:123",
		"API rate limit exceeded for installation ID 456.":                                             "installation:456",
		"API rate limit exceeded for installation ID: 456":                                             "installation:456",
		"API rate limit exceeded for 192.0.2.1.":                                                       "",
		"You have exceeded a secondary rate limit. Include the request ID 1A2B:123.":                   "",
		"API rate limit exceeded for user ID 0.":                                                       "",
		"API rate limit exceeded for user ID " + strings.Repeat("9", 30):                               "",
		"You have exceeded a secondary rate limit for user ID 5. Please wait a few minutes, request 7": "user:5",
	} {
		i, ok := IdentityIn(message)
		got := i.Account()
		if ok != (want != "") || ok && got != want {
			t.Errorf("%q: %s, %v; want %q", message, got, ok, want)
		}
	}
}
