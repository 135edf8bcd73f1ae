package credential

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

// builds selects the tokens of the tests.
var builds = map[string]string{"sub": "builds"}

func TestTokenSelectsTheFirstMatchingClient(t *testing.T) {
	w := newFakeIssuer(t)
	b := w.registry(true,
		map[string]string{"sub": "repo:acme/deploy:*", "environment": "production"},
		map[string]string{"sub": "repo:acme/*"},
		map[string]string{"groups": "builders"},
		map[string]string{},
		nil,
	)
	for _, c := range []struct {
		name   string
		claims map[string]any
		want   string // client; empty if no client matches
	}{
		{"all claims", map[string]any{"sub": "repo:acme/deploy:ref", "environment": "production"}, "0"},
		{"one of two claims", map[string]any{"sub": "repo:acme/deploy:ref"}, "1"},
		{"pattern", map[string]any{"sub": "repo:acme/widgets"}, "1"},
		{"name with the same prefix", map[string]any{"sub": "repo:acme-evil/widgets"}, ""},
		{"one of a list", map[string]any{"groups": []string{"people", "builders"}}, "2"},
		{"list without a match", map[string]any{"groups": []string{"people", "builders "}}, ""},
		{"number", map[string]any{"groups": 1}, ""},
		{"no claims", map[string]any{"sub": nil}, ""},
	} {
		caller, err := b.Identify(requestWith("Bearer " + w.token(c.claims)))
		failIf(t, clientOf(caller) != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, ErrInvalidToken), "%s: got client %q and error %v, want client %q", c.name, clientOf(caller), err, c.want)
		if err == nil && (authorizationOf(caller) != "Bearer held" || !caller.Scope.Allows(c.want, &policy.Operation{})) {
			t.Errorf("%s: forwarded with %s, scope %v", c.name, authorizationOf(caller), caller.Scope)
		}
	}
}

func TestClaimTagsTheRequest(t *testing.T) {
	w := newFakeIssuer(t)
	b := w.registry(true, builds)
	for _, c := range []struct {
		name  string
		claim any
		want  string
	}{
		{"text", "acme/widgets", "acme/widgets"},
		{"missing", nil, ""},
		{"number", 7, ""},
		{"list of one", []string{"acme/widgets"}, "acme/widgets"},
		{"list of two", []string{"acme/widgets", "acme/gears"}, ""},
	} {
		caller := identify(t, b, "Bearer "+w.token(map[string]any{"repository": c.claim}))
		failIf(t, caller.TokenTag != c.want || !caller.TagFromClaim, "%s: got tag %q (from the claim: %t), want %q", c.name, caller.TokenTag, caller.TagFromClaim, c.want)
	}
}

// A token that names a configured issuer is for this gateway, even if the token is invalid.
func TestTokenOfAConfiguredIssuerIsNeverPassedThrough(t *testing.T) {
	w, stranger := newFakeIssuer(t), newSigningKey("a")
	b := w.registry(true, builds)
	good := w.token(nil)
	c := identify(t, b, "Bearer "+good)
	stopIf(t, c.Client != "0", "valid token: got %+v", c)
	signed := func(claim string, value any) string { return "Bearer " + w.token(map[string]any{claim: value}) }
	expectRefused(t, b, []error{ErrInvalidToken, ErrIssuerUnavailable, ErrForm, ErrOwn},
		signed("exp", 1), signed("aud", "other"), signed("sub", "deploys"), // no client matches
		"Bearer "+withClaims(w.token(nil), json.RawMessage(`{"iss":"`+issuerAddress+`","ISS":"other"}`)),
		"Bearer "+good[:len(good)-4], "Bearer "+stranger.token(nil), "Bearer "+stranger.token(map[string]any{"iss": otherAddress}),
		"Bearer\t"+good, `Bearer "`+good+`"`, basic("x:"+good),
	)
	foreign := "Bearer " + stranger.token(map[string]any{"iss": "http://localhost/unknown"})
	expectForwarded(t, b, foreign)
	expectRefused(t, w.registry(false, builds), []error{ErrUnknown}, foreign)
}

// Only tokens of the client's issuer select the client.
func TestTokenOfAnotherIssuerSelectsNoClient(t *testing.T) {
	w, theirs := newFakeIssuer(t), newSigningKey("a")
	w.publish["other"] = []jose.JSONWebKey{theirs.public}
	b := w.registry(true, builds)
	for _, c := range []struct {
		name, issuer string
		key          signingKey
		client       string
		want, not    error
	}{
		{"own issuer", issuerAddress, w.key, "0", nil, errNoClient},
		{"other issuer", otherAddress, theirs, "", errNoClient, http.ErrNotSupported},
		// Both keys are cached now, with the same key ID.
		{"own issuer, signed by the other key", issuerAddress, theirs, "", ErrInvalidToken, errNoClient},
		{"other issuer, signed by the own key", otherAddress, w.key, "", ErrInvalidToken, errNoClient},
	} {
		got, err := b.Identify(requestWith("Bearer " + c.key.token(map[string]any{"iss": c.issuer})))
		failIf(t, clientOf(got) != c.client || !errors.Is(err, c.want) || errors.Is(err, c.not), "%s: %+v, %v", c.name, got, err)
	}
}

func TestUnreachableIssuerIsATemporaryError(t *testing.T) {
	w := newFakeIssuer(t)
	w.answer(func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) })
	_, err := w.registry(true, builds).Identify(requestWith("Bearer " + w.token(nil)))
	failIf(t, !errors.Is(err, ErrIssuerUnavailable) || errors.Is(err, ErrInvalidToken), "got %v, want ErrIssuerUnavailable", err)
}

// Random clients and claims: the selected client must equal the first client whose claims are all in the token.
func TestTokenSelectionEqualsASimpleSearch(t *testing.T) {
	w := newFakeIssuer(t)
	values := rapid.SampledFrom([]string{"x", "y", "z"})
	names := rapid.SampledFrom([]string{"sub", "env", "ref"})
	rapid.Check(t, func(t *rapid.T) {
		clients := rapid.SliceOfN(rapid.MapOfN(names, values, 0, 3), 0, 5).Draw(t, "clients")
		claims := map[string]any{}
		for name, value := range rapid.MapOf(names, values).Draw(t, "claims") {
			claims[name] = value
		}
		want := ""
		for i, client := range clients {
			matches := len(client) > 0
			for name, value := range client {
				matches = matches && claims[name] == value
			}
			if matches {
				want = fmt.Sprint(i)
				break
			}
		}
		c, err := w.registry(true, clients...).Identify(requestWith("Bearer " + w.token(claims)))
		if clientOf(c) != want || (err == nil) != (want != "") {
			t.Fatalf("got %q, %v; want %q", clientOf(c), err, want)
		}
	})
}

// FuzzAuthorization checks that only the client's own token yields its held credential.
func FuzzAuthorization(f *testing.F) {
	w, good := lasting(f)
	b := w.registry(true, builds)
	for _, seed := range []string{"Bearer " + good, "Basic eDp5", "token x", "Bearer", "", "Bearer a.b.c", "Bearer weir_x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		c, err := b.Identify(requestWith(value))
		held := err == nil && authorizationOf(c) == "Bearer held"
		failIf(t, held != (clientOf(c) != ""), "%q: got %+v, %v", value, c, err)
	})
}
