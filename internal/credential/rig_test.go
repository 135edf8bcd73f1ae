package credential

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// must returns a value that the setup of a test needs.
func must[T any](value T, err error) T { return testservers.Must(value, err) }

func noError(t testing.TB, err error) { t.Helper(); testservers.NoError(t, err) }

// equal compares a value with the expected value.
func equal[T any](t testing.TB, name string, got, want T) {
	t.Helper()
	testservers.Equal(t, name, got, want)
}

// newRegistry returns a registry with pass-through, a held credential "ci" and the changes of a test.
func newRegistry(change func(c *Config)) *Registry {
	c := Config{
		Dialect: must(policy.LoadDialect("github")), HashKey: NewHashKey(), Egress: "shared", PassThrough: true,
		Held: []Held{{Name: "ci", Kind: policy.User, Token: "held"}},
	}
	change(&c)
	return NewRegistry(c)
}

// keyed returns a client that a key identifies.
func keyed(name, key string, credentials ...string) Client {
	return Client{Name: name, Key: sha256.Sum256([]byte(key)), Credentials: credentials}
}

// requestWith returns a request with these Authorization values.
func requestWith(values ...string) *http.Request {
	return &http.Request{Header: http.Header{"Authorization": values}}
}

func identify(t testing.TB, b *Registry, values ...string) *caller.Identity {
	t.Helper()
	c, err := b.Identify(requestWith(values...))
	stopIf(t, err != nil, "identify %q: %v", values, err)
	return c
}

// clientOf returns the name of a client, or an empty string without an identity.
func clientOf(id *caller.Identity) string {
	if id == nil {
		return ""
	}
	return id.Client
}

// expectForwarded checks that the registry forwards Authorization values of unknown clients as they are.
func expectForwarded(t *testing.T, b *Registry, values ...string) {
	t.Helper()
	for _, value := range values {
		c, err := b.Identify(requestWith(value))
		failIf(t, err != nil || c.Client != "" || !c.Passed, "%s: got %+v, %v, want it forwarded", value, c, err)
	}
}

// expectRefused checks that the registry refuses Authorization values with one of these errors.
func expectRefused(t *testing.T, b *Registry, wants []error, values ...string) {
	t.Helper()
	for _, value := range values {
		c, err := b.Identify(requestWith(value))
		failIf(t, c != nil || !slices.ContainsFunc(wants, func(want error) bool { return errors.Is(err, want) }), "%q: got %+v, %v, want one of %v", value, c, err, wants)
	}
}

// tokenResponse returns the response of an upstream to a request for a token of an app.
func tokenResponse(r *http.Request, token string, life time.Duration) *http.Response {
	text := fmt.Sprintf(`{"token":%q,"expires_at":%q}`, token, time.Now().Add(life).UTC().Format(time.RFC3339))
	return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}
}

func basic(pair string) string { return "Basic " + b64(pair) }

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func b64url(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// The fake issuer has these two tenants.
const (
	issuerAddress = "http://localhost/tenant"
	otherAddress  = "http://localhost/other"
)

// fakeIssuer publishes keys over a pipe, so that tests can run in a synctest bubble with virtual time.
type fakeIssuer struct {
	testing.TB
	keys *IssuerKeys
	key  signingKey // published by the first tenant

	mu      sync.Mutex
	fetched int                          // requests for keys
	publish map[string][]jose.JSONWebKey // the published keys, by tenant
	respond func(http.ResponseWriter)    // if set, responds instead of publishing keys
	replace map[string]string            // changes to the metadata
}

func newFakeIssuer(t testing.TB) *fakeIssuer {
	t.Helper()
	k := newSigningKey("a")
	w := &fakeIssuer{TB: t, key: k, publish: map[string][]jose.JSONWebKey{"tenant": {k.public}}}
	mux := http.NewServeMux()
	mux.HandleFunc("/{tenant}/.well-known/openid-configuration", func(rw http.ResponseWriter, r *http.Request) {
		address := "http://localhost/" + r.PathValue("tenant")
		metadata := map[string]string{"issuer": address, "jwks_uri": address + "/keys"}
		w.mu.Lock()
		maps.Copy(metadata, w.replace)
		w.mu.Unlock()
		_ = json.NewEncoder(rw).Encode(metadata)
	})
	mux.HandleFunc("/{tenant}/keys", func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.fetched++
		respond, set := w.respond, jose.JSONWebKeySet{Keys: w.publish[r.PathValue("tenant")]}
		w.mu.Unlock()
		if respond != nil {
			respond(rw)
			return
		}
		_ = json.NewEncoder(rw).Encode(set)
	})
	l := testservers.ServePipe(t, "localhost:80", &http.Server{Handler: mux})
	w.keys = NewIssuerKeys(&http.Transport{DialContext: l.Dial})
	t.Cleanup(w.keys.Close)
	return w
}

// inVirtualTime runs a test with a fake issuer in a synctest bubble.
func inVirtualTime(t *testing.T, test func(w *fakeIssuer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newFakeIssuer(t)) })
}

// change modifies the issuer under its lock.
func (w *fakeIssuer) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

// answer lets the issuer respond to requests for keys with a function; nil publishes the keys.
func (w *fakeIssuer) answer(respond func(http.ResponseWriter)) {
	w.change(func() { w.respond = respond })
}

// expectFetches checks the number of requests for keys since the start.
func (w *fakeIssuer) expectFetches(least, most int) {
	w.Helper()
	w.change(func() {
		failIf(w, w.fetched < least || w.fetched > most, "%d fetches, want %d to %d", w.fetched, least, most)
	})
}

// testIssuer returns the configuration of a tenant.
func testIssuer(address string) Issuer {
	return Issuer{
		Name: address, URL: address, Audiences: []string{"weir", "weir-2"}, Algorithms: []string{"RS256", "ES256", "EdDSA"}, Skew: 30 * time.Second,
	}
}

// verify checks that a token is accepted, or refused with an error that contains want.
func (w *fakeIssuer) verify(name, token, want string) {
	w.Helper()
	_, claims, err := w.keys.verify(context.Background(), testIssuer(issuerAddress), token)
	switch {
	case want == "" && err != nil:
		w.Errorf("%s: %v", name, err)
	case want == "" && claims["sub"] != "builds":
		w.Errorf("%s: claims %v", name, claims)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		w.Errorf("%s: got %v, want %s", name, err, want)
	case err != nil && claims != nil:
		w.Errorf("%s: error %v together with claims", name, err)
	case err != nil && strings.Contains(err.Error(), token) && token != "":
		w.Errorf("%s: the error contains the token: %v", name, err)
	}
}

// token returns a token of the first tenant. See testClaims for the changes.
func (w *fakeIssuer) token(changes map[string]any) string { return w.key.token(changes) }

// registry returns a registry of clients "0", "1" and so on. Claims select the client.
func (w *fakeIssuer) registry(passThrough bool, claims ...map[string]string) *Registry {
	return newRegistry(func(c *Config) {
		c.PassThrough, c.IssuerKeys = passThrough, w.keys
		c.Issuers = []Issuer{testIssuer(otherAddress), testIssuer(issuerAddress)}
		for i, selects := range claims {
			c.Clients = append(c.Clients, Client{
				Name: fmt.Sprint(i), Token: TokenMatch{Issuer: issuerAddress, Claims: selects, Tag: "repository"}, Credentials: []string{"ci"},
				Scope: &policy.Scope{Methods: []string{fmt.Sprint(i)}},
			})
		}
	})
}

// signingKey is a key pair of an issuer.
type signingKey struct {
	private crypto.Signer
	public  jose.JSONWebKey
}

func newSigningKey(kid string) signingKey {
	private := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	return signingKey{private, jose.JSONWebKey{Key: private.Public(), KeyID: kid, Algorithm: "ES256", Use: "sig"}}
}

func newRSAKey(kid string, bits int) signingKey {
	private := must(rsa.GenerateKey(rand.Reader, bits))
	return signingKey{private, jose.JSONWebKey{Key: private.Public(), KeyID: kid, Use: "sig"}}
}

func (k signingKey) token(changes map[string]any) string {
	return sign(k.private, "ES256", k.public.KeyID, testClaims(changes))
}

// testClaims returns the claims of a valid token with changes. A nil value removes a claim.
func testClaims(changes map[string]any) map[string]any {
	now := time.Now()
	c := map[string]any{
		"iss": issuerAddress, "aud": "weir", "sub": "builds",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
	}
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, value any) bool { return value == nil })
	return c
}

// sign returns a signed token. The header has the key ID, unless it is empty, and further names and values.
func sign(with any, algorithm, kid string, claims map[string]any, header ...any) string {
	options := (&jose.SignerOptions{}).WithType("JWT")
	if kid != "" {
		options = options.WithHeader("kid", kid)
	}
	for i := 0; i < len(header); i += 2 {
		options = options.WithHeader(jose.HeaderKey(header[i].(string)), header[i+1])
	}
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(algorithm), Key: with}, options))
	return must(jwt.Signed(signer).Claims(claims).Serialize())
}

// roundTripper is a transport that calls a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
