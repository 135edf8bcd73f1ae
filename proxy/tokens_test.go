package proxy

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/policy"
)

// acceptOnly returns an upstream that answers after a delay, and refuses every token without the word good.
func acceptOnly(delay time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(delay)
		w.Header().Set("Cache-Control", "no-store")
		if !strings.Contains(r.Header.Get("Authorization"), "good") {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
}

// limitAddresses bounds the unverified tokens of each address. All clients of a world have one address.
func limitAddresses(c *Config) {
	c.Tokens = &ClientTokens{}
	c.Tokens.LimitAddresses(true)
}

func addressNumber(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

const tags = "/repos/acme/widgets/tags"

func TestRefusedTokenIsNotSentAgain(t *testing.T) {
	setup(acceptOnly(0)).run(t, func(w *world) {
		r := w.get(tags, "Authorization: Bearer bad")
		w.want("first status", r.StatusCode, 401)
		for range 100 {
			r = w.get(tags, "Authorization: Bearer bad")
			w.want("status", r.StatusCode, 401)
			w.want("Cache-Status", r.Header.Get("Cache-Status"), "weir; detail=refused-token")
			if !strings.Contains(r.body, `"message":"Bad credentials"`) || !strings.Contains(r.body, "documentation_url") {
				w.Errorf("body %s", r.body)
			}
		}
		w.want("requests", w.upstreamSaw(), 1)
		w.want("status of another token", w.get(tags, "Authorization: Bearer good").StatusCode, 200)
		w.want("requests with another token", w.upstreamSaw(), 2)

		// The time grows to five minutes: 1, 4, 16, 64 and 256 s, then 300 s.
		for range 3600 {
			time.Sleep(time.Second)
			w.get(tags, "Authorization: Bearer bad")
		}
		if n := w.upstreamSaw() - 2; n < 12 || n > 18 {
			w.Errorf("%d requests upstream in an hour of one request per second, want about 16", n)
		}
	})
}

func TestAcceptedTokenIsNotRefusedForOneMistake(t *testing.T) {
	refuse := false
	setup(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if refuse {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}).run(t, func(w *world) {
		w.get(tags, owner)
		refuse = true
		w.want("status of the mistake", w.get(tags, owner).StatusCode, 401)
		refuse = false
		w.want("status after the mistake", w.get(tags, owner).StatusCode, 200)
		refuse = true
		for range 5 {
			w.want("status of the revoked token", w.get(tags, owner).StatusCode, 401)
		}
		w.want("requests", w.upstreamSaw(), 5)
	})
}

// A 401 to an operation for the credentials of apps, or for users only, says nothing about other tokens.
func TestOnlyConclusiveRefusalsAreRemembered(t *testing.T) {
	setup(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if r.URL.Path != tags {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}, wholeAPI(t, unchanged), func(c *Config) {
		identifying(func(id *Identity, r *http.Request) {
			id.Caller.Kind = c.Dialect.Kind("Bearer", strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		})(c)
	}).run(t, func(w *world) {
		for path, token := range map[string]string{"/app": "Authorization: Bearer ghp_user", "/user": "Authorization: Bearer ghs_app"} {
			w.want(path, w.get(path, token).StatusCode, 401)
			w.want(tags+" after "+path, w.get(tags, token).StatusCode, 200)
		}
	})
}

func TestMadeUpTokensOfOneAddressAreBounded(t *testing.T) {
	for _, delay := range []time.Duration{0, 100 * time.Millisecond} {
		setup(acceptOnly(delay), limitAddresses).sub(t, fmt.Sprint("upstream delay ", delay), func(w *world) {
			w.get(tags, "Authorization: Bearer good, known")
			began, saw := time.Now(), w.upstreamSaw()
			var mu sync.Mutex
			statuses := map[int]int{}
			together(50, func(i int) {
				for j := range 10 {
					r := w.get(tags, fmt.Sprintf("Authorization: Bearer bad %d of %d", j, i))
					mu.Lock()
					statuses[r.StatusCode]++
					mu.Unlock()
				}
			})
			w.want("requests upstream", w.upstreamSaw()-saw, maxUnverified)
			w.want("401", statuses[401], maxUnverified)
			w.want("429", statuses[429], 500-maxUnverified)

			r := w.get(tags, "Authorization: Bearer good, new")
			w.want("status of a new token", r.StatusCode, 429)
			w.want("Cache-Status of a new token", r.Header.Get("Cache-Status"), "weir; detail=unverified-token")
			after, err := strconv.Atoi(r.Header.Get("Retry-After"))
			if err != nil || after < 59 || after > 60 {
				w.Errorf("Retry-After %q after %v", r.Header.Get("Retry-After"), time.Since(began))
			}
			w.want("status of a known token", w.get(tags, "Authorization: Bearer good, known").StatusCode, 200)
			w.want("status without a token", w.get(tags).StatusCode, 401) // the upstream's response
			time.Sleep(time.Duration(after) * time.Second)
			w.want("status after Retry-After", w.get(tags, "Authorization: Bearer good, new").StatusCode, 200)
		})
	}
}

func TestHeldCredentialsNeedNoVerification(t *testing.T) {
	setup(acceptOnly(0), limitAddresses, identifying(func(id *Identity, _ *http.Request) {
		id.Held = true
	})).run(t, func(w *world) {
		for i := range 3 * maxUnverified {
			w.want("status", w.get(tags, fmt.Sprint("Authorization: Bearer bad ", i)).StatusCode, 401)
			w.get(tags, fmt.Sprint("Authorization: Bearer bad ", i))
		}
		w.want("requests", w.upstreamSaw(), 6*maxUnverified)
	})
}

func TestTokenListsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := &ClientTokens{}
		tokens.LimitAddresses(true)
		for i := range 2 * maxTokens {
			end, err := tokens.begin(t.Context(), addressNumber(i), fmt.Sprint(i), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			end(http.StatusUnauthorized)
			tokens.observe(fmt.Sprint(i), http.StatusUnauthorized, true, time.Now())
			tokens.observe(fmt.Sprint("good ", i), http.StatusOK, true, time.Now())
		}
		if n, m, s := tokens.refused.Len(), tokens.accepted.Len(), tokens.senders.Len(); n != maxTokens || m != maxTokens || s != maxSenders {
			t.Errorf("%d refused and %d accepted tokens, %d addresses", n, m, s)
		}
		time.Sleep(2 * failedWindow)
		for i := range maxSenders {
			end, _ := tokens.begin(t.Context(), addressNumber(0), fmt.Sprint("later ", i), time.Now())
			end(http.StatusOK)
		}
		if n := tokens.senders.Len(); n != 1 {
			t.Errorf("%d addresses remain, want only the current one", n)
		}
	})
}

// The tokens come from different addresses, so that each is sent upstream once.
func TestRefusedTokensLeaveNoAccounts(t *testing.T) {
	setup(acceptOnly(0)).run(t, func(w *world) {
		for i := range 500 {
			w.get(tags, bearer(fmt.Sprint("bad ", i)))
		}
		w.get(tags, bearer("good"))
		list := w.accounts(1000)
		if len(list) != 1 || !strings.Contains(list[0].Name, "good") {
			w.Fatalf("%d accounts; want only the accepted one", len(list))
		}
		w.want("kind", list[0].Kind, policy.User)
	})
}
