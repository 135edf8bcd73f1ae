package credential

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

// authorityOfTokens is an issuer that runs.
type authorityOfTokens struct {
	t    testing.TB
	url  string
	key  *ecdsa.PrivateKey
	keys *IssuerKeys
	down bool
}

func newIssuer(t testing.TB) *authorityOfTokens {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authorityOfTokens{t: t, key: key, keys: NewIssuerKeys(&http.Transport{})}
	mux := http.NewServeMux()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.down {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(a.keys.Close)
	a.url = server.URL
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, a.url, a.url+"/keys")
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "a"}}})
	})
	return a
}

// bearer is an Authorization value with a token of these claims.
func (a *authorityOfTokens) bearer(claims map[string]any) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: a.key}, (&jose.SignerOptions{}).WithHeader("kid", "a"))
	if err != nil {
		a.t.Fatal(err)
	}
	all := map[string]any{"iss": a.url, "aud": "weir", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range claims {
		all[name] = value
	}
	token, err := jwt.Signed(signer).Claims(all).Serialize()
	if err != nil {
		a.t.Fatal(err)
	}
	return "Bearer " + token
}

// book is of clients that are known by claims, named in that order.
func (a *authorityOfTokens) book(passThrough bool, claims ...map[string]string) *Registry {
	config := Config{
		Dialect: &policy.Dialect{}, HashKey: NewHashKey(), Egress: "shared", PassThrough: passThrough, IssuerKeys: a.keys,
		Issuers: []Issuer{
			{URL: a.url, Audiences: []string{"weir"}, Algorithms: []string{"ES256"}},
			{URL: a.url + "/other", Audiences: []string{"weir"}, Algorithms: []string{"ES256"}},
		},
		Held: []Held{{Name: "ci", Kind: policy.User, Token: "held"}},
	}
	for i, c := range claims {
		config.Clients = append(config.Clients, Client{Name: fmt.Sprint(i), Token: TokenMatch{a.url, c}, Credentials: []string{"ci"}, Scope: &policy.Scope{Methods: []string{fmt.Sprint(i)}}})
	}
	return NewRegistry(config)
}

func TestTokensNameTheirClient(t *testing.T) {
	a := newIssuer(t)
	b := a.book(true,
		map[string]string{"sub": "repo:acme/deploy:*", "environment": "production"},
		map[string]string{"sub": "repo:acme/*"},
		map[string]string{"groups": "builders"},
		map[string]string{},
		nil,
	)
	for _, c := range []struct {
		name   string
		claims map[string]any
		want   string // empty for none
	}{
		{"all claims", map[string]any{"sub": "repo:acme/deploy:ref", "environment": "production"}, "0"},
		{"one of two: the next client", map[string]any{"sub": "repo:acme/deploy:ref"}, "1"},
		{"a pattern", map[string]any{"sub": "repo:acme/widgets"}, "1"},
		{"a name that begins alike", map[string]any{"sub": "repo:acme-evil/widgets"}, ""},
		{"one of a list", map[string]any{"groups": []string{"people", "builders"}}, "2"},
		{"a list of others", map[string]any{"groups": []string{"people", "builders "}}, ""},
		{"a number", map[string]any{"groups": 1}, ""},
		{"nothing", nil, ""},
	} {
		who, err := b.Identify(with(a.bearer(c.claims)))
		if who.Client != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, ErrInvalidToken) {
			t.Errorf("%s: %q, %v", c.name, who.Client, err)
		}
		if err == nil && (who.Authorization.Reveal() != "Bearer held" || !who.Scope.Allows(c.want, &policy.Operation{})) {
			t.Errorf("%s: pays with %s, may %v", c.name, who.Authorization.Reveal(), who.Scope)
		}
	}
}

// TestAttack59ATokenForUsIsNeverPassedOn: what an issuer of ours has signed, or is
// said to have, is a client's or nobody's.
func TestAttack59ATokenForUsIsNeverPassedOn(t *testing.T) {
	a, other := newIssuer(t), newIssuer(t)
	b := a.book(true, map[string]string{"sub": "builds"})
	good := a.bearer(map[string]any{"sub": "builds"})
	if c, err := b.Identify(with(good)); err != nil || c.Client != "0" {
		t.Fatalf("%+v, %v", c, err)
	}
	for name, value := range map[string]string{
		"expired":                     a.bearer(map[string]any{"sub": "builds", "exp": 1}),
		"for another service":         a.bearer(map[string]any{"sub": "builds", "aud": "other"}),
		"cut off":                     good[:len(good)-4],
		"forged":                      other.bearer(map[string]any{"sub": "builds", "iss": a.url}),
		"of no client":                a.bearer(map[string]any{"sub": "deploys"}),
		"behind a tab":                "Bearer\t" + strings.TrimPrefix(good, "Bearer "),
		"in quotes":                   `Bearer "` + strings.TrimPrefix(good, "Bearer ") + `"`,
		"as a password":               "Basic " + base64.StdEncoding.EncodeToString([]byte("x:"+strings.TrimPrefix(good, "Bearer "))),
		"of one issuer, as another's": other.bearer(map[string]any{"sub": "builds", "iss": a.url + "/other"}),
	} {
		if c, err := b.Identify(with(value)); err == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
	foreign := other.bearer(map[string]any{"sub": "builds"})
	if c, err := b.Identify(with(foreign)); err != nil || c.Client != "" || c.Authorization.Reveal() != foreign {
		t.Errorf("a token that the upstream may know: %+v, %v", c, err)
	}
	if _, err := a.book(false, map[string]string{"sub": "builds"}).Identify(with(foreign)); !errors.Is(err, ErrUnknown) {
		t.Errorf("where none is passed through: %v", err)
	}
}

// TestAttack59OneIssuersWordIsNotAnothers: two issuers that both are believed, and
// claims that only one of them may make.
func TestAttack59OneIssuersWordIsNotAnothers(t *testing.T) {
	ours, theirs := newIssuer(t), newIssuer(t)
	b := NewRegistry(Config{
		Dialect: &policy.Dialect{}, HashKey: NewHashKey(), PassThrough: true, IssuerKeys: ours.keys,
		Issuers: []Issuer{
			{URL: theirs.url, Audiences: []string{"weir"}, Algorithms: []string{"ES256"}},
			{URL: ours.url, Audiences: []string{"weir"}, Algorithms: []string{"ES256"}},
		},
		Held:    []Held{{Name: "ci", Kind: policy.User, Token: "held"}},
		Clients: []Client{{Name: "builds", Token: TokenMatch{ours.url, map[string]string{"sub": "builds"}}, Credentials: []string{"ci"}}},
	})
	if c, err := b.Identify(with(ours.bearer(map[string]any{"sub": "builds"}))); err != nil || c.Client != "builds" {
		t.Errorf("ours: %+v, %v", c, err)
	}
	if c, err := b.Identify(with(theirs.bearer(map[string]any{"sub": "builds"}))); !errors.Is(err, errNobody) {
		t.Errorf("theirs: %+v, %v", c, err)
	}
	for _, value := range []string{ // the keys of both are known now, and have one ID
		theirs.bearer(map[string]any{"sub": "builds", "iss": ours.url}),
		ours.bearer(map[string]any{"sub": "builds", "iss": theirs.url}),
	} {
		if c, err := b.Identify(with(value)); !errors.Is(err, ErrInvalidToken) || errors.Is(err, errNobody) {
			t.Errorf("by the key of the other: %+v, %v", c, err)
		}
	}
}

func TestAnIssuerThatIsAwayIsNoReasonToRefuseForGood(t *testing.T) {
	a := newIssuer(t)
	a.down = true
	_, err := a.book(true, map[string]string{"sub": "builds"}).Identify(with(a.bearer(map[string]any{"sub": "builds"})))
	if !errors.Is(err, ErrIssuerUnavailable) || errors.Is(err, ErrInvalidToken) {
		t.Errorf("%v", err)
	}
}

// TestNeverAnotherClientsToken holds the choice against a naive one: the first
// client all of whose claims the token has.
func TestNeverAnotherClientsToken(t *testing.T) {
	a := newIssuer(t)
	values := rapid.SampledFrom([]string{"x", "y", "z"})
	names := rapid.SampledFrom([]string{"sub", "env", "ref"})
	rapid.Check(t, func(t *rapid.T) {
		clients := rapid.SliceOfN(rapid.MapOfN(names, values, 0, 3), 0, 5).Draw(t, "clients")
		claims := rapid.MapOf(names, values).Draw(t, "claims")
		want := ""
		for i, client := range clients {
			fits := len(client) > 0
			for name, value := range client {
				fits = fits && claims[name] == value
			}
			if fits {
				want = fmt.Sprint(i)
				break
			}
		}
		shown := map[string]any{}
		for name, value := range claims {
			shown[name] = value
		}
		c, err := a.book(true, clients...).Identify(with(a.bearer(shown)))
		if c.Client != want || (err == nil) != (want != "") {
			t.Fatalf("got %q, %v; want %q", c.Client, err, want)
		}
	})
}

// FuzzAuthorization reads whatever a client sends: nobody but the client whose
// token it is gets what it may spend.
func FuzzAuthorization(f *testing.F) {
	a := newIssuer(f)
	b := a.book(true, map[string]string{"sub": "builds"})
	good := a.bearer(map[string]any{"sub": "builds", "exp": time.Now().Add(24 * time.Hour).Unix()})
	for _, seed := range []string{good, "Basic eDp5", "token x", "Bearer", "", "Bearer a.b.c", "Bearer weir_x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		c, err := b.Identify(with(value))
		spends := c.Authorization.Reveal() == "Bearer held"
		if spends != (c.Client != "") || spends && err != nil {
			t.Errorf("%q: %+v, %v", value, c, err)
		}
	})
}
