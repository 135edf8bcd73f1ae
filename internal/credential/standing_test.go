package credential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

// TestStandingAfterEachAnswer is the table of the state machine.
func TestStandingAfterEachAnswer(t *testing.T) {
	answers := []answer{answerNone, answerUnknown, answerRefused, answerHidden, answerOther, answerSuccess}
	minted := time.Unix(0, 0)
	for _, c := range []struct {
		name string
		from standing
		age  time.Duration
		want string // new state and verdict for each answer
	}{
		{"fresh", standing{minted: minted}, freshFor - 1, "unproven counts, unproven repeat, unproven repeat, unproven repeat, unproven counts, proven accepts"},
		{"fresh, refused before", standing{minted: minted, refusals: 3}, freshFor - 1, "unproven counts, unproven repeat, unproven repeat, unproven repeat, unproven counts, proven accepts"},
		{"not fresh", standing{minted: minted}, freshFor, "unproven counts, unproven counts, rejected rejects, proven accepts, proven accepts, proven accepts"},
		{"not fresh, refused before", standing{minted: minted, refusals: 3}, freshFor, "unproven counts, rejected rejects, rejected rejects, proven accepts, proven accepts, proven accepts"},
		{"configured", standing{}, 1, "unproven counts, unproven counts, rejected rejects, proven accepts, proven accepts, proven accepts"},
		{"proven", standing{state: proven, minted: minted}, 1, "proven counts, proven counts, doubted repeat, proven accepts, proven accepts, proven accepts"},
		{"doubted", standing{state: doubted}, 1, "doubted counts, doubted counts, rejected rejects, proven accepts, proven accepts, proven accepts"},
		{"doubted later", standing{state: doubted, since: minted.Add(2)}, 1, "doubted counts, doubted counts, doubted repeat, doubted counts, doubted counts, doubted counts"},
		{"rejected", standing{state: rejected}, 1, "rejected counts, rejected counts, rejected rejects, proven accepts, proven accepts, proven accepts"},
		{"rejected later", standing{state: rejected, since: minted.Add(2)}, 1, "rejected counts, rejected counts, rejected counts, rejected counts, rejected counts, rejected counts"},
	} {
		var got []string
		for _, a := range answers {
			s, now := c.from, minted.Add(c.age)
			v := s.observe(a, now, now)
			got = append(got, []string{"unproven", "proven", "doubted", "rejected"}[s.state]+" "+[]string{"counts", "accepts", "repeat", "rejects"}[v])
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.name, text, c.want)
		}
	}
}

// slowAPI mints tokens that it knows some time later.
type slowAPI struct {
	unknown []time.Duration // after the minting of each token, in turn
	life    time.Duration
	latency time.Duration
	early   int // status of the response to an unknown token

	mu      sync.Mutex
	minted  []time.Time
	revoked int // number of the last revoked token
	refused int
}

// RoundTrip mints a token.
func (a *slowAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(a.latency)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.minted = append(a.minted, time.Now())
	text := fmt.Sprintf(`{"token":"ghs_%d","expires_at":%q}`, len(a.minted), time.Now().Add(a.life).UTC().Format(time.RFC3339))
	return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

// respond returns the status of the response to a request.
func (a *slowAPI) respond(authorization Secret) int {
	time.Sleep(a.latency)
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	_, _ = fmt.Sscanf(authorization.Reveal(), "Bearer ghs_%d", &n)
	switch age := time.Since(a.minted[n-1]); {
	case age < a.unknown[n%len(a.unknown)]:
		a.refused++
		return a.early
	case n <= a.revoked, age >= a.life:
		a.refused++
		return http.StatusUnauthorized
	}
	return http.StatusOK
}

// revoke revokes all tokens, unless the last one is new.
func (a *slowAPI) revoke() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.minted)
	if n == 0 || n == a.revoked || time.Since(a.minted[n-1]) < 2*freshFor {
		return false
	}
	a.revoked = n
	return true
}

// botPool returns a pool with an app as its only credential.
func botPool(s *Source) *Pool {
	r := newRegistry(func(c *Config) {
		c.Held = []Held{{Name: "bot", Kind: policy.Installation, Account: "installation:42", Source: s}}
		c.Clients = []Client{keyed("builds", "key", "bot")}
	})
	return must(r.Identify(requestWith("Bearer key"))).Pool
}

// request sends a request as the proxy does, and returns the status for the client, or 0 with the reason.
func (a *slowAPI) request(p *Pool, u Use, wait time.Duration) (status int, err error) {
	by := time.Now().Add(wait)
	for {
		if err := p.Await(context.Background(), by, p.held[0].Class, u); err != nil {
			return 0, err
		}
		sent, err := p.Begin(p.held[0].Class, u)
		if errors.Is(err, ErrBusy) {
			continue
		}
		if err != nil {
			return 0, err
		}
		status := a.respond(sent.Authorization)
		if !sent.End(subscribers, status, false) {
			return status, nil
		}
	}
}

// Two replicas share a store. Tokens become known late, expire and are revoked. No request of a client that waits fails, and
// only the first use, an expiry or a revocation mints a token.
func TestTokensServeEveryClientThatWaits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		milliseconds := func(name string, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(rt, name)) * time.Millisecond
		}
		a := &slowAPI{
			life:    time.Duration(rapid.IntRange(8, 60).Draw(rt, "minutes")) * time.Minute,
			latency: 1 + milliseconds("latency", 300),
			early:   rapid.SampledFrom([]int{401, 403, 404}).Draw(rt, "early"),
		}
		for range 5 {
			a.unknown = append(a.unknown, milliseconds("unknown", 8000))
		}
		type event struct {
			after   time.Duration
			replica int
			burst   int
			writes  bool
			revokes bool
		}
		var events []event
		for range rapid.IntRange(1, 40).Draw(rt, "events") {
			after := milliseconds("milliseconds", 900)
			if rapid.IntRange(0, 2).Draw(rt, "long") == 0 {
				after = milliseconds("pause", 1_500_000)
			}
			events = append(events, event{after, rapid.IntRange(0, 1).Draw(rt, "replica"), rapid.IntRange(1, 6).Draw(rt, "burst"),
				rapid.IntRange(0, 3).Draw(rt, "writes") == 0, rapid.IntRange(0, 5).Draw(rt, "revokes") == 0})
		}
		synctest.Test(t, func(t *testing.T) {
			store, began := &memoryTokens{}, time.Now()
			var pools []*Pool
			app := testApp()
			for range 2 {
				m := NewAppTokens(a, store, slog.New(slog.DiscardHandler))
				defer m.Close()
				pools = append(pools, botPool(m.Source("bot", &app)))
			}
			revocations, requests := 0, 0
			var clients sync.WaitGroup
			for _, e := range events {
				time.Sleep(e.after)
				if e.revokes && a.revoke() {
					revocations++
				}
				for range e.burst {
					requests++
					u := Use{Safe: !e.writes || a.early != http.StatusUnauthorized, Repeatable: true}
					clients.Go(func() {
						if status, err := a.request(pools[e.replica], u, 30*time.Second); status != http.StatusOK {
							rt.Errorf("%v: got %d, %v", time.Since(began), status, err)
						}
					})
				}
			}
			clients.Wait()
			causes := 1 + revocations + int(time.Since(began)/(a.life-renewBefore))
			if len(a.minted) > causes {
				rt.Errorf("%d tokens minted for %d causes", len(a.minted), causes)
			}
			if most := 20*(len(a.minted)+revocations) + 12*revocations; a.refused > most {
				rt.Errorf("%d refusals for %d tokens and %d revocations", a.refused, len(a.minted), revocations)
			}
		})
	})
}

// A token of another replica is fresh by the time of its minting.
func TestAgeOfATokenIsThatOfItsMinting(t *testing.T) {
	for _, c := range []struct {
		name   string
		minted time.Duration // before now
		fresh  bool
	}{{"new", time.Second, true}, {"old", freshFor, false}, {"clock of the other replica is ahead", -time.Hour, true}, {"version 0.2", 0, false}} {
		inBubble(t, func(r *appTest) {
			token := AppToken{Value: "ghs_other", Expires: time.Now().Add(time.Hour)}
			if c.minted != 0 {
				token.Minted = time.Now().Add(-c.minted)
			}
			s := r.source(r.cache(&memoryTokens{token: token}), nil)
			r.want(s, "ghs_other")
			if now := time.Now(); s.newest.isFresh(now) != c.fresh || s.newest.isFresh(now.Add(freshFor)) {
				r.Errorf("%s: fresh %v, want %v", c.name, !c.fresh, c.fresh)
			}
		})
	}
}
