package credential

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

// kindsHeld is a credential of each kind, and a second user's.
func kindsHeld() []Held {
	held := []Held{{Name: "second", Kind: policy.User, Account: "second", Token: "second:x"}}
	for _, kind := range policy.CallerKinds()[1:] {
		held = append(held, Held{Name: string(kind), Kind: kind, Account: "account " + string(kind), Token: Secret(kind + ":x")})
	}
	return held
}

// poolOf returns the purse of a client of some credentials.
func poolOf(t interface{ Fatal(...any) }, names ...string) *Pool {
	dialect, err := policy.LoadDialect("github")
	if err != nil {
		t.Fatal(err)
	}
	b := NewRegistry(Config{
		Dialect: dialect, HashKey: NewHashKey(), Held: kindsHeld(),
		Clients: []Client{
			{Name: "other", Key: sha256.Sum256([]byte("other")), Credentials: []string{"second", "user"}},
			{Name: "builds", Key: sha256.Sum256([]byte("key")), Credentials: names},
		},
	})
	who, err := b.Identify(&http.Request{Header: http.Header{"Authorization": {"Bearer key"}}})
	if err != nil {
		t.Fatal(err)
	}
	return who.Pool
}

// TestNeverACredentialThatTheClientWasNotGiven: whatever is wanted, left, refused and
// not seen, what is picked, and what is sent, is the client's.
func TestNeverACredentialThatTheClientWasNotGiven(t *testing.T) {
	var names []string
	for _, h := range kindsHeld() {
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
				who, ok := p.Pick(w, now)
				if !ok {
					if len(w.Except) == 0 {
						t.Fatal("nobody pays")
					}
					break
				}
				value, err := p.Authorization(context.Background(), who.Class)
				var unusable *UnusableError
				switch {
				case errors.As(err, &unusable):
				case err != nil:
					t.Fatal(err)
				case who.Client != "builds" || !slices.ContainsFunc(given, func(n string) bool { return spells(n, value) }):
					t.Fatalf("%q is given %v, and spends %s", who.Client, given, value.Reveal())
				}
				if slices.Contains(w.Except, who.Class) {
					t.Fatal("one has two turns")
				}
				status := rapid.SampledFrom([]int{200, 401, 403, 404, 500}).Draw(t, "status")
				p.OnResponse(who.Caller, op, status, now, now)
				p.OnHidden(who.Caller, w, status, rapid.Bool().Draw(t, "seen"), now)
				w.Except = append(w.Except, who.Class)
				w.Limited = rapid.Bool().Draw(t, "limited")
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "later")) * time.Second)
		}
		for _, class := range []string{"", poolOf(t, "second").held[0].Class, "anonymous"} {
			if _, err := p.Authorization(context.Background(), class); !errors.Is(err, errForeign) {
				t.Fatalf("a class of nobody's: %v", err)
			}
		}
	})
}

// spells reports whether an Authorization value is that of a credential of kindsHeld.
func spells(name string, value Secret) bool {
	h := kindsHeld()[slices.IndexFunc(kindsHeld(), func(h Held) bool { return h.Name == name })]
	b := &Registry{accounts: map[string]account{}}
	return value == b.hold(h).Authorization
}

func TestWhoPays(t *testing.T) {
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
		{"nothing is spent: who pays now", nil, "account user"},
		{"as much as the others", budget(10, 10, 10), "account user"},
		{"less, but not clearly", budget(10, 19, 12), "account user"},
		{"twice as much, and more than twice", budget(10, 20, 21), "account enterprise"},
		{"nothing left, and little elsewhere", budget(0, 1, 0), "second"},
		{"nothing left anywhere", budget(0, 0, -1), "account user"},
		{"nobody can tell", budget(-2, 9, 9), "account user"},
		{"nobody can tell of the others", budget(3, -2, -2), "account user"},
	} {
		p := poolOf(t, "user", "second", "enterprise")
		op := policy.Embedded().Operation("watching/list-subscribers")
		got, _ := p.Pick(Request{Operation: op, Resource: policy.Core, Left: c.left}, time.Now())
		if got.Account != c.want {
			t.Errorf("%s: %s pays, want %s", c.name, got.Account, c.want)
		}
		if again, _ := p.Pick(Request{Operation: op, Resource: policy.Core}, time.Now()); again.Class != got.Class {
			t.Errorf("%s: %s pays for the next", c.name, again.Account)
		}
	}
}

// TestNobodyWaitsWhileTheLedgerIsAsked: it may be a store that takes its time.
func TestNobodyWaitsWhileTheLedgerIsAsked(t *testing.T) {
	p := poolOf(t, "user", "second")
	asked := false
	p.Pick(Request{Operation: policy.Embedded().Operation("watching/list-subscribers"), Left: func(policy.Caller) (int, bool) {
		asked = true
		if !p.mu.TryLock() {
			t.Fatal("others wait")
		}
		p.mu.Unlock()
		return 0, false
	}}, time.Now())
	if !asked {
		t.Error("the ledger was not asked")
	}
}

func TestWhichKindsAnOperationTakes(t *testing.T) {
	for id, want := range map[string]string{
		"watching/list-subscribers": "second user enterprise installation oauth_app workflow",
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
		for _, h := range kindsHeld() {
			if takesKind(op, h.Kind) {
				got += " " + h.Name
			}
		}
		if got != " "+want {
			t.Errorf("%s: got%s, want %s", id, got, want)
		}
	}
}

// TestAttack21NoTokenIsOfTheClassOfAnApp: what stands for the tokens of an app is
// nothing that a client could send as one.
func TestAttack21NoTokenIsOfTheClassOfAnApp(t *testing.T) {
	dialect, err := policy.LoadDialect("github")
	if err != nil {
		t.Fatal(err)
	}
	const identity = `["7",42,null]`
	b := NewRegistry(Config{Dialect: dialect, PassThrough: true, HashKey: NewHashKey(), Held: []Held{{
		Name: "bot", Kind: policy.Installation, Account: "installation:42", Source: &Source{Identity: identity},
	}}})
	for _, value := range []string{identity, "source " + identity, "\x00" + identity} {
		who, err := b.Identify(&http.Request{Header: http.Header{"Authorization": {"Bearer " + value}}})
		if err != nil || who.Account == "installation:42" {
			t.Errorf("%q is %+v, %v", value, who.Caller, err)
		}
	}
}

func TestARefusalFromBeforeTheQuarantineTellsNothingNew(t *testing.T) {
	p := poolOf(t, "user", "second")
	op := policy.Embedded().Operation("watching/list-subscribers")
	who, now := p.held[0].Caller, time.Now()
	for range 20 { // they were all in flight
		p.OnResponse(who, op, 401, now.Add(-time.Second), now)
	}
	if q := p.health.Quarantined(); len(q) != 1 || q[0].Times != 1 || !q[0].Until.Equal(now.Add(firstQuarantine)) {
		t.Errorf("%+v", q)
	}
	for range 40 {
		now = now.Add(time.Hour)
		p.OnResponse(who, op, 401, now, now)
	}
	if q := p.health.Quarantined(); !q[0].Until.Equal(now.Add(longestQuarantine)) {
		t.Errorf("%+v at %v", q, now)
	}
	now = now.Add(longestQuarantine)
	var unusable *UnusableError
	if err := p.health.spend(who.Class, "user", now); err != nil {
		t.Errorf("nobody finds out: %v", err)
	}
	if err := p.health.spend(who.Class, "user", now); !errors.As(err, &unusable) || unusable.Name != "user" {
		t.Errorf("two find out: %v", err)
	}
	p.OnResponse(who, op, 502, now, now)
	if len(p.health.Quarantined()) != 1 {
		t.Error("an error of the upstream's accepts it")
	}
	p.OnResponse(who, op, 403, now, now)
	if len(p.health.Quarantined()) != 0 {
		t.Error("it is not accepted again")
	}
}

// TestATokenThatIsReplacedIsInNoQuarantine: it is listed no more once another stands in the
// configuration; one that is refused and stays is.
func TestATokenThatIsReplacedIsInNoQuarantine(t *testing.T) {
	dialect, err := policy.LoadDialect("github")
	if err != nil {
		t.Fatal(err)
	}
	health, now := NewHealth(slog.New(slog.DiscardHandler)), time.Now()
	book := func(tokens ...Secret) *Registry {
		c := Config{Dialect: dialect, HashKey: []byte("key"), Health: health}
		for _, token := range tokens {
			c.Held = append(c.Held, Held{Name: string(token), Kind: policy.User, Token: token})
		}
		return NewRegistry(c)
	}
	b := book("one", "other")
	for class := range b.accounts {
		health.refused(class, class, now, now)
	}
	health.Keep(book("one", "new"))
	health.refused(b.hash("other"), "other", now, now) // it was on its way
	if list := health.Quarantined(); len(list) != 1 || list[0].Name != b.hash("one") {
		t.Errorf("%+v", list)
	}
}

// TestAProbeThatFindsOutNothingMakesRoomForAnother: its client has left, say, or the
// upstream could not be reached.
func TestAProbeThatFindsOutNothingMakesRoomForAnother(t *testing.T) {
	p := poolOf(t, "user", "second")
	op := policy.Embedded().Operation("watching/list-subscribers")
	who, now := p.held[0].Caller, time.Now()
	p.OnResponse(who, op, 401, now, now)
	p.OnResponse(who, op, 0, now, now.Add(time.Second)) // it was sent before
	if err := p.health.spend(who.Class, "user", now.Add(time.Second)); err == nil {
		t.Error("what is not known ends a quarantine")
	}
	now = now.Add(firstQuarantine)
	for range 3 {
		if err := p.health.spend(who.Class, "user", now); err != nil {
			t.Error(err)
		}
		p.OnResponse(who, op, 0, now.Add(-time.Second), now) // another one
		if err := p.health.spend(who.Class, "user", now); err == nil {
			t.Error("two find out")
		}
		now = now.Add(time.Second)
		p.OnResponse(who, op, 0, now, now)
	}
	if q := p.health.Quarantined(); len(q) != 1 || q[0].Times != 1 {
		t.Errorf("%+v", q)
	}
}

func TestWhatIsNotSeenIsRememberedWithinBounds(t *testing.T) {
	p := poolOf(t, "user", "second")
	who, now := p.held[0].Caller, time.Now()
	op := policy.Embedded().Operation("watching/list-subscribers")
	for i := range 3 * maxBlind {
		p.OnHidden(who, Request{Operation: op, Path: fmt.Sprint(i)}, 404, false, now)
	}
	if n := len(p.health.sight); n > maxBlind {
		t.Errorf("%d are remembered", n)
	}
}
