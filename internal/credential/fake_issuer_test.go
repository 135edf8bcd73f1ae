package credential

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/weirgate/weir/internal/testservers"
)

const (
	issuerAddress = "http://localhost/tenant"
	testAudience  = "weir"
)

// fakeIssuer publishes keys over a pipe, so that tests can run in a synctest bubble with
// virtual time.
type fakeIssuer struct {
	*testing.T
	keys *IssuerKeys

	mu      sync.Mutex
	fetched int                       // requests for keys
	publish []jose.JSONWebKey         // the published keys
	respond func(http.ResponseWriter) // if set, responds instead of publishing keys
	replace map[string]string         // changes to the metadata
}

func newFakeIssuer(t *testing.T, published ...jose.JSONWebKey) *fakeIssuer {
	t.Helper()
	w := &fakeIssuer{T: t, publish: published}
	mux := http.NewServeMux()
	mux.HandleFunc("/tenant/.well-known/openid-configuration", func(rw http.ResponseWriter, _ *http.Request) {
		metadata := map[string]string{"issuer": issuerAddress, "jwks_uri": "http://localhost/keys"}
		w.mu.Lock()
		maps.Copy(metadata, w.replace)
		w.mu.Unlock()
		_ = json.NewEncoder(rw).Encode(metadata)
	})
	mux.HandleFunc("/keys", func(rw http.ResponseWriter, _ *http.Request) {
		w.mu.Lock()
		w.fetched++
		respond, set := w.respond, jose.JSONWebKeySet{Keys: w.publish}
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

// change modifies the issuer under its lock.
func (w *fakeIssuer) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

func (w *fakeIssuer) fetches() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fetched
}

// testIssuer returns the configuration of the fake issuer.
func testIssuer() Issuer {
	return Issuer{URL: issuerAddress, Audiences: []string{testAudience, "weir-2"}, Algorithms: []string{"RS256", "ES256", "EdDSA"}, Skew: 30 * time.Second}
}

// verify checks that a token is accepted, or refused with an error that contains want.
func (w *fakeIssuer) verify(name, token, want string) {
	w.Helper()
	claims, err := w.keys.verify(context.Background(), testIssuer(), token)
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

// signingKey is a key pair of an issuer.
type signingKey struct {
	private crypto.Signer
	public  jose.JSONWebKey
}

func newSigningKey(t testing.TB, kid string) signingKey {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signingKey{private, jose.JSONWebKey{Key: private.Public(), KeyID: kid, Algorithm: "ES256", Use: "sig"}}
}

func newRSAKey(t testing.TB, kid string, bits int) signingKey {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return signingKey{private, jose.JSONWebKey{Key: private.Public(), KeyID: kid, Use: "sig"}}
}

// testClaims returns the claims of a valid token with changes. A nil value removes a claim.
func testClaims(changes map[string]any) map[string]any {
	now := time.Now()
	c := map[string]any{
		"iss": issuerAddress, "aud": testAudience, "sub": "builds",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
	}
	for name, value := range changes {
		if c[name] = value; value == nil {
			delete(c, name)
		}
	}
	return c
}

// sign returns a signed token. An empty key ID is omitted from the header.
func sign(t testing.TB, with any, algorithm, kid string, claims map[string]any) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("JWT")
	if kid != "" {
		options = options.WithHeader("kid", kid)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(algorithm), Key: with}, options)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (k signingKey) token(t testing.TB, changes map[string]any) string {
	t.Helper()
	return sign(t, k.private, "ES256", k.public.KeyID, testClaims(changes))
}
