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

// runningIssuer is an issuer on a TCP listener.
type runningIssuer struct {
	t    testing.TB
	url  string
	key  *ecdsa.PrivateKey
	keys *IssuerKeys
	down bool
}

func newRunningIssuer(t testing.TB) *runningIssuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &runningIssuer{t: t, key: key, keys: NewIssuerKeys(&http.Transport{})}
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

// bearer returns an Authorization value with a signed token of these claims.
func (a *runningIssuer) bearer(claims map[string]any) string {
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

// registry returns a registry of clients "0", "1" and so on. Claims select the client.
func (a *runningIssuer) registry(passThrough bool, claims ...map[string]string) *Registry {
	config := Config{
		Dialect: &policy.Dialect{}, HashKey: NewHashKey(), Egress: "shared", PassThrough: passThrough, IssuerKeys: a.keys,
		Issuers: []Issuer{
			{URL: a.url, Audiences: []string{"weir"}, Algorithms: []string{"ES256"}},
			{URL: a.url + "/other", Audiences: []string{"weir"}, Algorithms: []string{"ES256"}},
		},
		Held: []Held{{Name: "ci", Kind: policy.User, Token: "held"}},
	}
	for i, c := range claims {
		config.Clients = append(config.Clients, Client{Name: fmt.Sprint(i), Token: TokenMatch{a.url, c, "repository"}, Credentials: []string{"ci"}, Scope: &policy.Scope{Methods: []string{fmt.Sprint(i)}}})
	}
	return NewRegistry(config)
}

func TestTokenSelectsTheFirstMatchingClient(t *testing.T) {
	a := newRunningIssuer(t)
	b := a.registry(true,
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
		{"no claims", nil, ""},
	} {
		caller, err := b.Identify(requestWith(a.bearer(c.claims)))
		if caller.Client != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, ErrInvalidToken) {
			t.Errorf("%s: got client %q and error %v, want client %q", c.name, caller.Client, err, c.want)
		}
		if err == nil && (caller.Authorization.Reveal() != "Bearer held" || !caller.Scope.Allows(c.want, &policy.Operation{})) {
			t.Errorf("%s: forwarded with %s, scope %v", c.name, caller.Authorization.Reveal(), caller.Scope)
		}
	}
}

func TestClaimTagsTheRequest(t *testing.T) {
	a := newRunningIssuer(t)
	b := a.registry(true, map[string]string{"sub": "builds"})
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
		caller, err := b.Identify(requestWith(a.bearer(map[string]any{"sub": "builds", "repository": c.claim})))
		if err != nil || caller.Tag != c.want || !caller.TagFromClaim {
			t.Errorf("%s: got tag %q (from the claim: %t) and error %v, want %q", c.name, caller.Tag, caller.TagFromClaim, err, c.want)
		}
	}
}

// A token that names a configured issuer is for this gateway, even if the token is invalid.
func TestTokenOfAConfiguredIssuerIsNeverPassedThrough(t *testing.T) {
	a, other := newRunningIssuer(t), newRunningIssuer(t)
	b := a.registry(true, map[string]string{"sub": "builds"})
	good := a.bearer(map[string]any{"sub": "builds"})
	if c, err := b.Identify(requestWith(good)); err != nil || c.Client != "0" {
		t.Fatalf("valid token: got %+v, %v", c, err)
	}
	for name, value := range map[string]string{
		"expired":                             a.bearer(map[string]any{"sub": "builds", "exp": 1}),
		"other audience":                      a.bearer(map[string]any{"sub": "builds", "aud": "other"}),
		"truncated":                           good[:len(good)-4],
		"forged":                              other.bearer(map[string]any{"sub": "builds", "iss": a.url}),
		"no matching client":                  a.bearer(map[string]any{"sub": "deploys"}),
		"after a tab":                         "Bearer\t" + strings.TrimPrefix(good, "Bearer "),
		"quoted":                              `Bearer "` + strings.TrimPrefix(good, "Bearer ") + `"`,
		"as a Basic password":                 "Basic " + base64.StdEncoding.EncodeToString([]byte("x:"+strings.TrimPrefix(good, "Bearer "))),
		"signed by another configured issuer": other.bearer(map[string]any{"sub": "builds", "iss": a.url + "/other"}),
	} {
		if c, err := b.Identify(requestWith(value)); err == nil {
			t.Errorf("%s: accepted as %+v", name, c)
		}
	}
	foreign := other.bearer(map[string]any{"sub": "builds"})
	if c, err := b.Identify(requestWith(foreign)); err != nil || c.Client != "" || c.Authorization.Reveal() != foreign {
		t.Errorf("token of an unknown issuer: %+v, %v", c, err)
	}
	if _, err := a.registry(false, map[string]string{"sub": "builds"}).Identify(requestWith(foreign)); !errors.Is(err, ErrUnknown) {
		t.Errorf("pass-through off: %v", err)
	}
}

// Only tokens of the client's issuer select the client.
func TestTokenOfAnotherIssuerSelectsNoClient(t *testing.T) {
	ours, theirs := newRunningIssuer(t), newRunningIssuer(t)
	b := NewRegistry(Config{
		Dialect: &policy.Dialect{}, HashKey: NewHashKey(), PassThrough: true, IssuerKeys: ours.keys,
		Issuers: []Issuer{
			{URL: theirs.url, Audiences: []string{"weir"}, Algorithms: []string{"ES256"}},
			{URL: ours.url, Audiences: []string{"weir"}, Algorithms: []string{"ES256"}},
		},
		Held:    []Held{{Name: "ci", Kind: policy.User, Token: "held"}},
		Clients: []Client{{Name: "builds", Token: TokenMatch{ours.url, map[string]string{"sub": "builds"}, ""}, Credentials: []string{"ci"}}},
	})
	if c, err := b.Identify(requestWith(ours.bearer(map[string]any{"sub": "builds"}))); err != nil || c.Client != "builds" {
		t.Errorf("own issuer: %+v, %v", c, err)
	}
	if c, err := b.Identify(requestWith(theirs.bearer(map[string]any{"sub": "builds"}))); !errors.Is(err, errNoClient) {
		t.Errorf("other issuer: %+v, %v", c, err)
	}
	for _, value := range []string{ // both keys are cached now, with the same key ID
		theirs.bearer(map[string]any{"sub": "builds", "iss": ours.url}),
		ours.bearer(map[string]any{"sub": "builds", "iss": theirs.url}),
	} {
		if c, err := b.Identify(requestWith(value)); !errors.Is(err, ErrInvalidToken) || errors.Is(err, errNoClient) {
			t.Errorf("signed by the other key: %+v, %v", c, err)
		}
	}
}

func TestUnreachableIssuerIsATemporaryError(t *testing.T) {
	a := newRunningIssuer(t)
	a.down = true
	_, err := a.registry(true, map[string]string{"sub": "builds"}).Identify(requestWith(a.bearer(map[string]any{"sub": "builds"})))
	if !errors.Is(err, ErrIssuerUnavailable) || errors.Is(err, ErrInvalidToken) {
		t.Errorf("got %v, want ErrIssuerUnavailable", err)
	}
}

// Random clients and claims: the selected client must equal the first client whose claims are all in the token.
func TestTokenSelectionEqualsASimpleSearch(t *testing.T) {
	a := newRunningIssuer(t)
	values := rapid.SampledFrom([]string{"x", "y", "z"})
	names := rapid.SampledFrom([]string{"sub", "env", "ref"})
	rapid.Check(t, func(t *rapid.T) {
		clients := rapid.SliceOfN(rapid.MapOfN(names, values, 0, 3), 0, 5).Draw(t, "clients")
		claims := rapid.MapOf(names, values).Draw(t, "claims")
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
		shown := map[string]any{}
		for name, value := range claims {
			shown[name] = value
		}
		c, err := a.registry(true, clients...).Identify(requestWith(a.bearer(shown)))
		if c.Client != want || (err == nil) != (want != "") {
			t.Fatalf("got %q, %v; want %q", c.Client, err, want)
		}
	})
}

// FuzzAuthorization checks that only the client's own token yields its held credential.
func FuzzAuthorization(f *testing.F) {
	a := newRunningIssuer(f)
	b := a.registry(true, map[string]string{"sub": "builds"})
	good := a.bearer(map[string]any{"sub": "builds", "exp": time.Now().Add(24 * time.Hour).Unix()})
	for _, seed := range []string{good, "Basic eDp5", "token x", "Bearer", "", "Bearer a.b.c", "Bearer weir_x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		c, err := b.Identify(requestWith(value))
		held := c.Authorization.Reveal() == "Bearer held"
		if held != (c.Client != "") || held && err != nil {
			t.Errorf("%q: got %+v, %v", value, c, err)
		}
	})
}
