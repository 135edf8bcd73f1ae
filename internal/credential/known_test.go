package credential

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
)

// knownStep is a step of a random history. Its numbers select a variant.
type knownStep struct {
	do      string
	a, b, c int
}

// A registry that has seen an Authorization value must identify the same caller as a registry that has not. Random histories
// reload the configuration, let time pass, and change the keys of the issuer.
func TestKnownValueIdentifiesTheSameCallerAsANewValue(t *testing.T) {
	step := rapid.Custom(func(t *rapid.T) knownStep {
		number := rapid.IntRange(0, 999)
		// A request is the most frequent step.
		do := rapid.SampledFrom([]string{"request", "request", "request", "request", "new token", "wait", "reload", "publish", "forget", "outage"}).Draw(t, "do")
		return knownStep{do, number.Draw(t, "a"), number.Draw(t, "b"), number.Draw(t, "c")}
	})
	rapid.Check(t, func(rt *rapid.T) {
		history, failure := rapid.SliceOfN(step, 20, 60).Draw(rt, "history"), ""
		synctest.Test(t, func(t *testing.T) { failure = runKnownHistory(newFakeIssuer(t), history) })
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// runKnownHistory returns the first difference between a registry with and without known values.
func runKnownHistory(w *fakeIssuer, history []knownStep) (failure string) {
	second := newSigningKey("a") // another key with the same ID
	signers, published := []signingKey{w.key, second}, [][]jose.JSONWebKey{{w.key.public}, {second.public}, {w.key.public, second.public}}
	values := []string{
		"Bearer key-1", "token key-1", basic("key-2"), "Bearer key-2", "Bearer ghp_a", "Bearer ghp_b", basic("x:ghp_a"), basic("id:secret"), "Bearer weir_x", "  ", "Bearer a, b",
	}
	var config Config
	reload := func(s knownStep) {
		config = Config{
			Dialect: must(policy.LoadDialect("github")), Egress: "shared", PassThrough: s.a%4 > 0, HashKey: []byte{1}, FormerHashKey: []byte{2}[:s.b%2],
			Held:    []Held{{Name: "ci", Kind: policy.User, Token: "held"}, {Name: "own", Kind: policy.User, Account: "octo-bot", Token: "ghp_a"}},
			Issuers: []Issuer{testIssuer(issuerAddress)}, IssuerKeys: w.keys,
		}
		for i, key := range []string{"key-1", "key-2", "ghp_b"} {
			if s.c>>i%2 == 1 {
				config.Clients = append(config.Clients, keyed(fmt.Sprint(key, " by ", s.b), key, "ci"))
			}
		}
		for i, subject := range []string{"builds", "*"} {
			if s.a>>i%2 == 1 {
				match := TokenMatch{Issuer: issuerAddress, Claims: map[string]string{"sub": subject}, Tag: "repository"}
				config.Clients = append(config.Clients, Client{Name: "subject " + subject, Token: match, Credentials: []string{"own"}})
			}
		}
	}
	reload(knownStep{a: 3, c: 7})
	registry := NewRegistry(config)
	for i, s := range history {
		switch s.do {
		case "reload":
			reload(s)
			registry = NewRegistry(config)
		case "wait":
			time.Sleep([]time.Duration{time.Second, 20 * time.Second, time.Minute, keysRefreshAfter, keysUsableFor}[s.a%5])
		case "new token":
			now := time.Now().Unix()
			values = append(values, "Bearer "+signers[s.a%2].token(map[string]any{
				"sub": []string{"builds", "deploys"}[s.a/2%2], "repository": fmt.Sprint(s.a % 3), "exp": now + int64(s.b)/4, "nbf": now - 60 + int64(s.c)/10,
			}))
		case "publish":
			w.change(func() { w.publish["tenant"] = published[s.a%len(published)] })
		case "forget":
			w.keys.Keep(nil)
		case "outage":
			w.answer(nil)
			if s.a%2 == 0 {
				w.answer(func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusBadGateway) })
			}
		case "request":
			choice := values
			if s.c%2 == 0 { // the last values are tokens
				choice = values[len(values)-min(len(values), 4):]
			}
			request := requestWith(choice[s.a%len(choice)])
			// The first request starts a refresh of the keys if they are old. The others use the keys of that refresh.
			_, _ = []*Registry{registry, NewRegistry(config)}[s.b%2].Identify(request)
			synctest.Wait()
			got, err := registry.Identify(request)
			want, wantErr := NewRegistry(config).Identify(request)
			if fmt.Sprint(err) != fmt.Sprint(wantErr) || !equalCallers(got, want) {
				return fmt.Sprintf("step %d, %s: got %+v, %v; want %+v, %v", i, request.Header, got, err, want, wantErr)
			}
		}
	}
	return ""
}

// equalCallers compares callers of two registries of one configuration.
func equalCallers(a, b *caller.Identity) bool {
	if a == nil || b == nil {
		return a == b
	}
	return authorizationOf(a) == authorizationOf(b) &&
		cmp.Equal(*a, *b, cmpopts.IgnoreFields(caller.Identity{}, "Credential", "Pool"))
}

// Requests with a known token still cause the refreshes by which a withdrawn key of the issuer is noticed.
func TestKnownTokenEndsWithTheKeyOfItsIssuer(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		r := w.registry(true, builds)
		value := "Bearer " + w.token(map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()})
		identify(w, r, value)
		w.change(func() { w.publish["tenant"] = []jose.JSONWebKey{newSigningKey("a").public} })
		time.Sleep(keysRefreshAfter)
		identify(w, r, value) // starts the refresh
		synctest.Wait()
		expectRefused(w.TB.(*testing.T), r, []error{ErrInvalidToken}, value)
		w.expectFetches(2, 2)
	})
}

func TestMadeUpCredentialsDoNotReplaceKnownClients(t *testing.T) {
	w := newFakeIssuer(t)
	r := w.registry(true, builds)
	value := "Bearer " + w.token(nil)
	identify(t, r, value)
	before := r.known.find(r.known.hash(value))
	for n := range maxKnown + 1 {
		identify(t, r, fmt.Sprint("Bearer ghp_", n))
	}
	expectRefused(t, r, []error{ErrOwn, ErrForm}, "Bearer weir_x", "Bearer")
	equal(t, "values of clients", r.known.clients.Len(), 1)
	equal(t, "values that are passed through", r.known.passed.Len(), maxKnown)
	equal(t, "known client", r.known.find(r.known.hash(value)) == before && before != nil, true)
}

// The text of a credential must not stay in memory after its request.
func TestKnownValuesContainNoCredential(t *testing.T) {
	const token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
	r := newTestRegistry(true)
	for _, value := range []string{"Bearer " + token, basic("x:" + token)} {
		for range 2 {
			expectForwarded(t, r, value)
		}
	}
	for _, i := range slices.Concat(r.known.passed.Values(), r.known.clients.Values()) {
		failIf(t, strings.Contains(fmt.Sprintf("%+v %+v", *i.identity, i.token), token), "%+v contains the credential", i.identity)
	}
}
