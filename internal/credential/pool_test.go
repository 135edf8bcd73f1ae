package credential

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
)

// heldOfEachKind returns a credential of each kind, and a credential of a second user.
func heldOfEachKind() []Held {
	held := []Held{{Name: "second", Kind: policy.User, Account: "second", Token: "second:x"}}
	for _, kind := range []policy.CallerKind{policy.User, policy.Enterprise, policy.Installation, policy.OAuthApp, policy.Workflow,
		policy.EnterpriseInstallation, policy.EnterpriseOAuthApp, policy.EnterpriseWorkflow} {
		held = append(held, Held{Name: string(kind), Kind: kind, Account: "account " + string(kind), Token: Secret(kind + ":x")})
	}
	return held
}

// subscribers is an operation that accepts all kinds of credentials.
var subscribers = policy.Embedded().Operation("watching/list-subscribers")

// poolOf returns the pool of a client with the named credentials.
func poolOf(names ...string) *Pool {
	b := newRegistry(func(c *Config) {
		c.Held = heldOfEachKind()
		c.Clients = []Client{keyed("other", "other", "second", "user"), keyed("builds", "key", names...)}
	})
	client := b.Client("builds")
	if client.Pool == nil {
		c := client.Credential.(*heldCredential)
		return &Pool{held: []*heldCredential{c}, health: c.health, current: map[string]string{}}
	}
	return client.Pool.(*Pool)
}

// authorizationOf returns the value of the held credential that a request with an identity sends upstream.
func authorizationOf(id *caller.Identity) string {
	h := http.Header{}
	if id.Credential != nil {
		must(id.Credential.Authorize(h, policy.CredentialUse{}))
	}
	return h.Get("Authorization")
}

// The test varies operations, budgets, rejections and hidden targets at random.
func TestPoolReturnsOnlyCredentialsOfTheClient(t *testing.T) {
	var names []string
	for _, h := range heldOfEachKind() {
		names = append(names, h.Name)
	}
	rapid.Check(t, func(t *rapid.T) {
		given := rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, len(names), rapid.ID).Draw(t, "given")
		p := poolOf(given...)
		ops := policy.Embedded().Operations()
		now := time.Now()
		for range rapid.IntRange(1, 30).Draw(t, "requests") {
			op := rapid.SampledFrom(ops).Draw(t, "operation")
			w := policy.CredentialRequest{Operation: op, Resource: op.Resource, Path: rapid.SampledFrom([]string{"/a", "/b"}).Draw(t, "path"), Target: "t"}
			if rapid.Bool().Draw(t, "spends") {
				w.Left = func(policy.Caller) (int, bool) {
					return rapid.IntRange(-1, 9).Draw(t, "left"), rapid.Bool().Draw(t, "known")
				}
			}
			for {
				caller := p.Pick(w, now)
				if caller == nil {
					if len(w.Except) == 0 {
						t.Fatal("the first attempt has no credential")
					}
					break
				}
				h := http.Header{}
				sent, err := caller.Credential.Authorize(h, policy.CredentialUse{Safe: true, Repeatable: true})
				var unusable *policy.UnusableError
				switch {
				case errors.As(err, &unusable), errors.Is(err, policy.ErrCredentialBusy):
				case err != nil:
					t.Fatal(err)
				case caller.Client != "builds" || !slices.ContainsFunc(given, func(n string) bool { return isHeld(n, h.Get("Authorization")) }):
					t.Fatalf("client %q has %v, and got %s", caller.Client, given, h.Get("Authorization"))
				}
				if slices.Contains(w.Except, caller.Class) {
					t.Fatal("a credential was tried twice")
				}
				status := rapid.SampledFrom([]int{200, 401, 403, 404, 500}).Draw(t, "status")
				if sent != nil {
					sent.End(op, status, false)
				}
				p.OnHidden(caller.Class, w, status, rapid.Bool().Draw(t, "seen"), now)
				w.Except = append(w.Except, caller.Class)
				w.Limited = rapid.Bool().Draw(t, "limited")
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "later")) * time.Second)
		}
	})
}

// isHeld reports whether an Authorization value belongs to a credential of heldOfEachKind.
func isHeld(name, value string) bool {
	b := &Registry{accounts: map[string]policy.Caller{}}
	return slices.ContainsFunc(heldOfEachKind(), func(h Held) bool { return h.Name == name && value == b.hold(h).authorization.Reveal() })
}

func TestPickPrefersClearlyLargerBudgets(t *testing.T) {
	budget := func(left ...int) func(policy.Caller) (int, bool) {
		return func(c policy.Caller) (int, bool) {
			i := slices.Index([]string{"account user", "second", "account enterprise"}, c.Account)
			return left[i], left[i] > -2
		}
	}
	for _, c := range []struct {
		name string
		left func(policy.Caller) (int, bool)
		want string
	}{
		{"no budget spent", nil, "account user"},
		{"equal budgets", budget(10, 10, 10), "account user"},
		{"slightly less", budget(10, 19, 12), "account user"},
		{"other accounts have twice as much or more", budget(10, 20, 21), "account enterprise"},
		{"nothing left, little elsewhere", budget(0, 1, 0), "second"},
		{"nothing left anywhere", budget(0, 0, -1), "account user"},
		{"own budget unknown", budget(-2, 9, 9), "account user"},
		{"budgets of the other accounts are unknown", budget(3, -2, -2), "account user"},
	} {
		p := poolOf("user", "second", "enterprise")
		got := p.Pick(policy.CredentialRequest{Operation: subscribers, Resource: policy.Core, Left: c.left}, time.Now())
		equal(t, c.name, got.Account, c.want)
		again := p.Pick(policy.CredentialRequest{Operation: subscribers, Resource: policy.Core}, time.Now())
		failIf(t, again.Class != got.Class, "%s: the next request uses %s", c.name, again.Account)
	}
}

// The ledger may be in Redis, so Pick must not hold its lock during the call.
func TestPickReadsBudgetsWithoutItsLock(t *testing.T) {
	p := poolOf("user", "second")
	called := false
	p.Pick(policy.CredentialRequest{Operation: subscribers, Left: func(policy.Caller) (int, bool) {
		called = true
		stopIf(t, !p.mu.TryLock(), "Pick holds its lock")
		p.mu.Unlock()
		return 0, false
	}}, time.Now())
	failIf(t, !called, "Left was not called")
}

func TestKindsThatAnOperationAccepts(t *testing.T) {
	for id, want := range map[string]string{
		"watching/list-subscribers": "second user enterprise installation oauth_app workflow enterprise_installation enterprise_oauth_app enterprise_workflow",
		"watching/get-subscription": "second user enterprise",
		"watching/list-mine":        "second user enterprise",
		"migrations/start-user":     "second user enterprise",

		"migrations/list-organization": "second user enterprise",
	} {
		got := ""
		for _, h := range heldOfEachKind() {
			if policy.Embedded().Operation(id).Accepts(h.Kind) {
				got += " " + h.Name
			}
		}
		equal(t, id, got, " "+want)
	}
}

// The class of an app's tokens is derived from the app. No token of a client may have this class.
func TestNoClientTokenGetsTheClassOfAnApp(t *testing.T) {
	r := newAppTest(t)
	identity := r.app.identity()
	b := newRegistry(func(c *Config) {
		c.Held = []Held{{Name: "bot", Kind: policy.Installation, Account: "installation:42", Source: r.source(r.cache(nil), nil)}}
	})
	for _, value := range []string{identity, "source " + identity, "\x00" + identity} {
		account := b.AccountOf(value)
		failIf(t, account == "installation:42", "%q has the account of the app", value)
	}
}

// answered sends a request with the first credential of a pool, which is answered with a status at once. A status of 0 is no
// response. It reports whether the request is repeated.
func (p *Pool) answered(sent time.Time, status int) (repeated bool) {
	s := &sentCredential{held: p.held[0], use: policy.CredentialUse{Safe: true, Repeatable: true}, at: sent}
	return s.End(subscribers, status, false)
}

// mustBegin begins a request, and checks that no second request may begin: they test whether the credential works.
func mustBegin(t *testing.T, p *Pool) caller.SentCredential {
	t.Helper()
	use := policy.CredentialUse{Safe: true, Repeatable: true}
	sent, err := p.held[0].Authorize(http.Header{}, use)
	noError(t, err)
	if _, err := p.held[0].Authorize(http.Header{}, use); !errors.Is(err, policy.ErrCredentialBusy) {
		t.Errorf("two requests test the credential: %v", err)
	}
	return sent
}

// expectQuarantine checks how often the first credential was quarantined in a row, and how long it remains so.
func expectQuarantine(t *testing.T, what string, p *Pool, times int, remains time.Duration) {
	t.Helper()
	got := p.health.Quarantined()
	if times == 0 && len(got) == 0 {
		return
	}
	failIf(t, len(got) != 1 || got[0].Times != times || time.Until(got[0].Until) != remains, "%s: quarantine %+v, want %d times and %v", what, got, times, remains)
	var unusable *policy.UnusableError
	_, err := p.held[0].Authorize(http.Header{}, policy.CredentialUse{})
	failIf(t, remains > 0 && (!errors.As(err, &unusable) || unusable.Name != "user"), "%s: a request is sent in quarantine: %v", what, err)
}

func TestQuarantineGrowsAndEndsAfterAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := poolOf("user", "second"), time.Now()
		for range 20 { // sent before the quarantine
			failIf(t, p.answered(began, 401), "a rejected request is repeated")
		}
		expectQuarantine(t, "repeated refusals", p, 1, firstQuarantine)
		for n := range 3 {
			time.Sleep(firstQuarantine << n)
			p.answered(time.Now(), 401)
			expectQuarantine(t, "refusal after a quarantine", p, n+2, firstQuarantine<<(n+1))
		}
		for range 40 {
			time.Sleep(time.Hour)
			p.answered(time.Now(), 401)
		}
		expectQuarantine(t, "many refusals", p, 44, longestQuarantine)
		time.Sleep(longestQuarantine)
		mustBegin(t, p).End(subscribers, 502, false)
		expectQuarantine(t, "a 502", p, 44, 0)
		p.answered(time.Now(), 403)
		expectQuarantine(t, "a 403", p, 0, 0)
	})
}

// One 401 of an accepted credential is confirmed by one request, while the others wait.
func TestSingle401OfAnAcceptedCredentialQuarantinesNothing(t *testing.T) {
	for status, times := range map[int]int{200: 0, 404: 0, 401: 1} {
		synctest.Test(t, func(t *testing.T) {
			p := poolOf("user", "second")
			p.answered(time.Now(), 200)
			time.Sleep(time.Second)
			for range 2 {
				stopIf(t, !p.answered(time.Now(), 401) || len(p.health.Quarantined()) > 0, "one 401 counts")
			}
			noError(t, p.held[0].Await(t.Context(), time.Now().Add(time.Minute), policy.CredentialUse{Safe: true, Repeatable: true}))
			failIf(t, mustBegin(t, p).End(subscribers, status, false), "%d: the confirming request is repeated", status)
			expectQuarantine(t, fmt.Sprint(status), p, times, firstQuarantine)
		})
	}
}

// A credential that stays in the configuration stays in quarantine.
func TestKeepEndsTheQuarantineOfReplacedCredentials(t *testing.T) {
	health, now := NewHealth(slog.New(slog.DiscardHandler)), time.Now()
	registry := func(tokens ...Secret) *Registry {
		return newRegistry(func(c *Config) {
			c.HashKey, c.Health, c.Held = []byte("key"), health, nil
			for _, token := range tokens {
				c.Held = append(c.Held, Held{Name: string(token), Kind: policy.User, Token: token})
			}
		})
	}
	b := registry("one", "other")
	for class := range b.accounts {
		health.record(class, class, false, now, now)
	}
	health.Keep(registry("one", "new"))
	health.record(b.hash("other"), "other", false, now, now) // a response that arrives late
	list := health.Quarantined()
	failIf(t, len(list) != 1 || list[0].Name != b.hash("one"), "quarantine after Keep: %+v", list)
}

// A probe gets no response if its client disconnects or the upstream is unreachable.
func TestProbeWithoutResponsePermitsAnotherProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := poolOf("user", "second")
		p.answered(time.Now(), 401)
		p.answered(time.Now(), 0) // this request is not a probe
		expectQuarantine(t, "a request without response", p, 1, firstQuarantine)
		time.Sleep(firstQuarantine)
		for range 3 {
			probe := mustBegin(t, p)
			p.answered(time.Now().Add(-time.Second), 0) // sent before the probe
			_, err := p.held[0].Authorize(http.Header{}, policy.CredentialUse{})
			failIf(t, err == nil, "two probes permitted")
			time.Sleep(time.Second)
			probe.End(subscribers, 0, false)
		}
		q := p.health.Quarantined()
		failIf(t, len(q) != 1 || q[0].Times != 1, "quarantine after probes without response: %+v", q)
	})
}

func TestHiddenTargetsAreBounded(t *testing.T) {
	p := poolOf("user", "second")
	class, now := p.held[0].Class, time.Now()
	for i := range 3 * maxHidden {
		p.OnHidden(class, policy.CredentialRequest{Operation: subscribers, Path: fmt.Sprint(i)}, 404, false, now)
	}
	n := p.health.hidden.Len()
	failIf(t, n > maxHidden, "%d hidden targets, want at most %d", n, maxHidden)
}

func TestOAuthAppOfAnEnterpriseIsSentAsBasic(t *testing.T) {
	p := poolOf("enterprise_oauth_app", "enterprise_installation")
	for i, want := range []string{basic("enterprise_oauth_app:x"), "Bearer enterprise_installation:x"} {
		equal(t, "authorization", authorizationOf(&p.held[i].Identity), want)
	}
}

// TestStandingAfterEachAnswer checks each transition of the state machine.
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
		text := strings.Join(got, ", ")
		failIf(t, text != c.want, "%s:\n%s, want\n%s", c.name, text, c.want)
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
	return tokenResponse(r, fmt.Sprint("ghs_", len(a.minted)), a.life), nil
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

// bot returns the credential of a client with an app as its only credential.
func bot(s *Source) caller.HeldCredential {
	r := newRegistry(func(c *Config) {
		c.Held = []Held{{Name: "bot", Kind: policy.Installation, Account: "installation:42", Source: s}}
		c.Clients = []Client{keyed("builds", "key", "bot")}
	})
	return r.Client("builds").Credential
}

// request sends a request as the proxy does, and returns the status for the client, or 0 with the reason.
func (a *slowAPI) request(c caller.HeldCredential, u policy.CredentialUse, wait time.Duration) (status int, err error) {
	by := time.Now().Add(wait)
	for {
		if err := c.Await(context.Background(), by, u); err != nil {
			return 0, err
		}
		h := http.Header{}
		sent, err := c.Authorize(h, u)
		if errors.Is(err, policy.ErrCredentialBusy) {
			continue
		}
		if err != nil {
			return 0, err
		}
		status := a.respond(Secret(h.Get("Authorization")))
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
			var bots []caller.HeldCredential
			app := testApp()
			for range 2 {
				m := NewAppTokens(a, store, slog.New(slog.DiscardHandler))
				defer m.Close()
				bots = append(bots, bot(m.Source("bot", &app)))
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
					u := policy.CredentialUse{Safe: !e.writes || a.early != http.StatusUnauthorized, Repeatable: true}
					clients.Go(func() {
						if status, err := a.request(bots[e.replica], u, 30*time.Second); status != http.StatusOK {
							rt.Errorf("%v: got %d, %v", time.Since(began), status, err)
						}
					})
				}
			}
			clients.Wait()
			a.mu.Lock() // a token may be renewed now
			defer a.mu.Unlock()
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
			now := time.Now()
			failIf(r, s.newest.isFresh(now) != c.fresh || s.newest.isFresh(now.Add(freshFor)), "%s: fresh %v, want %v", c.name, !c.fresh, c.fresh)
		})
	}
}
