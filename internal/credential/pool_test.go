package credential

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
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

// poolOf returns the pool of a client with the named credentials.
func poolOf(t interface{ Fatal(...any) }, names ...string) *Pool {
	dialect, err := policy.LoadDialect("github")
	if err != nil {
		t.Fatal(err)
	}
	b := NewRegistry(Config{
		Dialect: dialect, HashKey: NewHashKey(), Held: heldOfEachKind(),
		Clients: []Client{
			{Name: "other", Key: sha256.Sum256([]byte("other")), Credentials: []string{"second", "user"}},
			{Name: "builds", Key: sha256.Sum256([]byte("key")), Credentials: names},
		},
	})
	caller, err := b.Identify(&http.Request{Header: http.Header{"Authorization": {"Bearer key"}}})
	if err != nil {
		t.Fatal(err)
	}
	return caller.Pool
}

// The test varies operations, budgets, rejections and hidden targets at random.
func TestPoolReturnsOnlyCredentialsOfTheClient(t *testing.T) {
	var names []string
	for _, h := range heldOfEachKind() {
		names = append(names, h.Name)
	}
	rapid.Check(t, func(t *rapid.T) {
		given := rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, len(names), rapid.ID).Draw(t, "given")
		p := poolOf(t, given...)
		ops := policy.Embedded().Operations()
		now := time.Now()
		for range rapid.IntRange(1, 30).Draw(t, "requests") {
			op := rapid.SampledFrom(ops).Draw(t, "operation")
			w := Request{Operation: op, Resource: op.Resource, Path: rapid.SampledFrom([]string{"/a", "/b"}).Draw(t, "path"), Target: "t"}
			if rapid.Bool().Draw(t, "spends") {
				w.Left = func(policy.Caller) (int, bool) {
					return rapid.IntRange(-1, 9).Draw(t, "left"), rapid.Bool().Draw(t, "known")
				}
			}
			for {
				caller, ok := p.Pick(w, now)
				if !ok {
					if len(w.Except) == 0 {
						t.Fatal("the first attempt has no credential")
					}
					break
				}
				sent, err := p.Begin(caller.Class, Use{Safe: true, Repeatable: true})
				var unusable *UnusableError
				switch {
				case errors.As(err, &unusable), errors.Is(err, ErrBusy):
				case err != nil:
					t.Fatal(err)
				case caller.Client != "builds" || !slices.ContainsFunc(given, func(n string) bool { return isHeld(n, sent.Authorization) }):
					t.Fatalf("client %q has %v, and got %s", caller.Client, given, sent.Authorization.Reveal())
				}
				if slices.Contains(w.Except, caller.Class) {
					t.Fatal("a credential was tried twice")
				}
				status := rapid.SampledFrom([]int{200, 401, 403, 404, 500}).Draw(t, "status")
				if sent != nil {
					sent.End(op, status, false)
				}
				p.OnHidden(caller.Caller, w, status, rapid.Bool().Draw(t, "seen"), now)
				w.Except = append(w.Except, caller.Class)
				w.Limited = rapid.Bool().Draw(t, "limited")
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "later")) * time.Second)
		}
		for _, class := range []string{"", poolOf(t, "second").held[0].Class, "anonymous"} {
			if _, err := p.Begin(class, Use{}); !errors.Is(err, errNotInPool) {
				t.Fatalf("class of another client: %v", err)
			}
		}
	})
}

// isHeld reports whether an Authorization value belongs to a credential of heldOfEachKind.
func isHeld(name string, value Secret) bool {
	h := heldOfEachKind()[slices.IndexFunc(heldOfEachKind(), func(h Held) bool { return h.Name == name })]
	b := &Registry{accounts: map[string]policy.Caller{}}
	return value == b.hold(h).Authorization
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
		p := poolOf(t, "user", "second", "enterprise")
		op := policy.Embedded().Operation("watching/list-subscribers")
		got, _ := p.Pick(Request{Operation: op, Resource: policy.Core, Left: c.left}, time.Now())
		if got.Account != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got.Account, c.want)
		}
		if again, _ := p.Pick(Request{Operation: op, Resource: policy.Core}, time.Now()); again.Class != got.Class {
			t.Errorf("%s: the next request uses %s", c.name, again.Account)
		}
	}
}

// The ledger may be in Redis, so Pick must not hold its lock during the call.
func TestPickReadsBudgetsWithoutItsLock(t *testing.T) {
	p := poolOf(t, "user", "second")
	called := false
	p.Pick(Request{Operation: policy.Embedded().Operation("watching/list-subscribers"), Left: func(policy.Caller) (int, bool) {
		called = true
		if !p.mu.TryLock() {
			t.Fatal("Pick holds its lock")
		}
		p.mu.Unlock()
		return 0, false
	}}, time.Now())
	if !called {
		t.Error("Left was not called")
	}
}

func TestKindsThatAnOperationAccepts(t *testing.T) {
	for id, want := range map[string]string{
		"watching/list-subscribers": "second user enterprise installation oauth_app workflow enterprise_installation enterprise_oauth_app enterprise_workflow",
		"watching/get-subscription": "second user enterprise",
		"watching/list-mine":        "second user enterprise",
		"migrations/start-user":     "second user enterprise",

		"migrations/list-organization": "second user enterprise",
	} {
		op := policy.Embedded().Operation(id)
		if op == nil {
			t.Fatalf("no operation %s", id)
		}
		got := ""
		for _, h := range heldOfEachKind() {
			if op.Accepts(h.Kind) {
				got += " " + h.Name
			}
		}
		if got != " "+want {
			t.Errorf("%s: got%s, want %s", id, got, want)
		}
	}
}

// The class of an app's tokens is derived from the app. No token of a client may have this class.
func TestNoClientTokenGetsTheClassOfAnApp(t *testing.T) {
	dialect, err := policy.LoadDialect("github")
	if err != nil {
		t.Fatal(err)
	}
	app := &App{Upstream: apiURL(t, "https://api.test"), ID: "7", Installation: 42}
	identity := app.identity()
	cache := NewAppTokens(http.DefaultTransport, nil, slog.New(slog.DiscardHandler))
	t.Cleanup(cache.Close)
	b := NewRegistry(Config{Dialect: dialect, PassThrough: true, HashKey: NewHashKey(), Held: []Held{{
		Name: "bot", Kind: policy.Installation, Account: "installation:42", Source: cache.Source("bot", app),
	}}})
	for _, value := range []string{identity, "source " + identity, "\x00" + identity} {
		if account := b.AccountOf(value); account == "installation:42" {
			t.Errorf("%q has the account of the app", value)
		}
	}
}

// sent is a request with the first credential of a pool at a time.
func (p *Pool) sent(at time.Time) *Sent {
	return &Sent{held: &p.held[0], health: p.health, use: Use{Safe: true, Repeatable: true}, at: at}
}

func TestQuarantineGrowsAndEndsAfterAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := poolOf(t, "user", "second")
		op := policy.Embedded().Operation("watching/list-subscribers")
		began, class := time.Now(), p.held[0].Class
		for range 20 { // sent before the quarantine
			if p.sent(began).End(op, 401, false) {
				t.Error("a rejected request is repeated")
			}
		}
		if q := p.health.Quarantined(); len(q) != 1 || q[0].Times != 1 || !q[0].Until.Equal(began.Add(firstQuarantine)) {
			t.Errorf("quarantine after repeated refusals: %+v", q)
		}
		for range 40 {
			time.Sleep(time.Hour)
			p.sent(time.Now()).End(op, 401, false)
		}
		if q := p.health.Quarantined(); !q[0].Until.Equal(time.Now().Add(longestQuarantine)) {
			t.Errorf("%+v at %v", q, time.Now())
		}
		var unusable *UnusableError
		if _, err := p.Begin(class, Use{}); !errors.As(err, &unusable) || unusable.Name != "user" {
			t.Errorf("a request is sent in quarantine: %v", err)
		}
		time.Sleep(longestQuarantine)
		probe, err := p.Begin(class, Use{})
		if err != nil {
			t.Fatalf("no probe permitted: %v", err)
		}
		if _, err := p.Begin(class, Use{}); !errors.Is(err, ErrBusy) {
			t.Errorf("two probes permitted: %v", err)
		}
		probe.End(op, 502, false)
		if len(p.health.Quarantined()) != 1 {
			t.Error("a 502 ended the quarantine")
		}
		p.sent(time.Now()).End(op, 403, false)
		if len(p.health.Quarantined()) != 0 {
			t.Error("a 403 did not end the quarantine")
		}
	})
}

// One 401 of an accepted credential is confirmed by one request, while the others wait.
func TestSingle401OfAnAcceptedCredentialQuarantinesNothing(t *testing.T) {
	op := policy.Embedded().Operation("watching/list-subscribers")
	for _, c := range []struct {
		status      int
		quarantined bool
	}{{200, false}, {404, false}, {401, true}} {
		synctest.Test(t, func(t *testing.T) {
			p := poolOf(t, "user", "second")
			class, use := p.held[0].Class, Use{Safe: true, Repeatable: true}
			p.sent(time.Now()).End(op, 200, false)
			time.Sleep(time.Second)
			earlier := p.sent(time.Now())
			if !p.sent(time.Now()).End(op, 401, false) || !earlier.End(op, 401, false) || len(p.health.Quarantined()) > 0 {
				t.Fatal("one 401 counts")
			}
			if err := p.Await(t.Context(), time.Now().Add(time.Minute), class, use); err != nil {
				t.Fatal(err)
			}
			confirming, err := p.Begin(class, use)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Begin(class, use); !errors.Is(err, ErrBusy) {
				t.Errorf("two requests confirm a 401: %v", err)
			}
			if confirming.End(op, c.status, false) {
				t.Errorf("%d: the confirming request is repeated", c.status)
			}
			if got := len(p.health.Quarantined()) > 0; got != c.quarantined {
				t.Errorf("%d: quarantined %v", c.status, got)
			}
		})
	}
}

// A credential that stays in the configuration stays in quarantine.
func TestKeepEndsTheQuarantineOfReplacedCredentials(t *testing.T) {
	dialect, err := policy.LoadDialect("github")
	if err != nil {
		t.Fatal(err)
	}
	health, now := NewHealth(slog.New(slog.DiscardHandler)), time.Now()
	registry := func(tokens ...Secret) *Registry {
		c := Config{Dialect: dialect, HashKey: []byte("key"), Health: health}
		for _, token := range tokens {
			c.Held = append(c.Held, Held{Name: string(token), Kind: policy.User, Token: token})
		}
		return NewRegistry(c)
	}
	b := registry("one", "other")
	for class := range b.accounts {
		health.record(class, class, false, now, now)
	}
	health.Keep(registry("one", "new"))
	health.record(b.hash("other"), "other", false, now, now) // a response that arrives late
	if list := health.Quarantined(); len(list) != 1 || list[0].Name != b.hash("one") {
		t.Errorf("quarantine after Keep: %+v", list)
	}
}

// A probe gets no response if its client disconnects or the upstream is unreachable.
func TestProbeWithoutResponsePermitsAnotherProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := poolOf(t, "user", "second")
		op := policy.Embedded().Operation("watching/list-subscribers")
		class := p.held[0].Class
		p.sent(time.Now()).End(op, 401, false)
		p.sent(time.Now()).End(op, 0, false) // this request is not a probe
		if _, err := p.Begin(class, Use{}); err == nil {
			t.Error("a request without response ended the quarantine")
		}
		time.Sleep(firstQuarantine)
		for range 3 {
			probe, err := p.Begin(class, Use{})
			if err != nil {
				t.Fatal(err)
			}
			p.sent(time.Now().Add(-time.Second)).End(op, 0, false) // sent before the probe
			if _, err := p.Begin(class, Use{}); err == nil {
				t.Error("two probes permitted")
			}
			time.Sleep(time.Second)
			probe.End(op, 0, false)
		}
		if q := p.health.Quarantined(); len(q) != 1 || q[0].Times != 1 {
			t.Errorf("quarantine after probes without response: %+v", q)
		}
	})
}

func TestHiddenTargetsAreBounded(t *testing.T) {
	p := poolOf(t, "user", "second")
	caller, now := p.held[0].Caller, time.Now()
	op := policy.Embedded().Operation("watching/list-subscribers")
	for i := range 3 * maxHidden {
		p.OnHidden(caller, Request{Operation: op, Path: fmt.Sprint(i)}, 404, false, now)
	}
	if n := p.health.hidden.Len(); n > maxHidden {
		t.Errorf("%d hidden targets, want at most %d", n, maxHidden)
	}
}

func TestOperationsAcceptKindsOfAnEnterpriseLikeTheirBaseKinds(t *testing.T) {
	for _, held := range heldOfEachKind() {
		for _, op := range policy.Embedded().Operations() {
			if got, want := op.Accepts(held.Kind), op.Accepts(held.Kind.Base()); got != want {
				t.Errorf("%s: accepts(%s) is %v, want %v", op.ID, held.Kind, got, want)
			}
		}
	}
	for kind, want := range map[policy.CallerKind]bool{
		policy.Enterprise: true, policy.EnterpriseInstallation: false, policy.EnterpriseOAuthApp: false, policy.EnterpriseWorkflow: false,
	} {
		if got := (&policy.Operation{Personal: true}).Accepts(kind); got != want {
			t.Errorf("personal operation: accepts(%s) is %v, want %v", kind, got, want)
		}
	}
}

func TestOAuthAppOfAnEnterpriseIsSentAsBasic(t *testing.T) {
	p := poolOf(t, "enterprise_oauth_app", "enterprise_installation")
	for i, want := range []string{"Basic " + base64.StdEncoding.EncodeToString([]byte("enterprise_oauth_app:x")), "Bearer enterprise_installation:x"} {
		if got := p.held[i].Authorization.Reveal(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
