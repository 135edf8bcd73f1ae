package credential

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"pgregory.net/rapid"
)

func TestAttack59TokensThatAreNotTheIssuers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, stranger, rsaKey := newSigningKey(t, "a"), newSigningKey(t, "a"), newRSAKey(t, "r", 2048)
		w := newIssuerWorld(t, good.public, rsaKey.public)
		now := time.Now()
		in := func(d time.Duration) int64 { return now.Add(d).Unix() }
		for _, c := range []struct {
			name  string
			token string
			want  string
		}{
			{"a good one", good.token(t, nil), ""},
			{"one by RSA", sign(t, rsaKey.private, "RS256", "r", testClaims(nil)), ""},
			{"another audience among its own", good.token(t, map[string]any{"aud": []string{"other", "weir-2"}}), ""},
			{"not for this gateway", good.token(t, map[string]any{"aud": "other"}), "audience"},
			{"for nobody", good.token(t, map[string]any{"aud": nil}), "audience"},
			{"for a name that begins like ours", good.token(t, map[string]any{"aud": "weir-"}), "audience"},
			{"expired within the skew", good.token(t, map[string]any{"exp": in(-29 * time.Second)}), ""},
			{"expired", good.token(t, map[string]any{"exp": in(-31 * time.Second)}), "expired"},
			{"without an end", good.token(t, map[string]any{"exp": nil}), "no end"},
			{"not yet valid, within the skew", good.token(t, map[string]any{"nbf": in(29 * time.Second)}), ""},
			{"not yet valid", good.token(t, map[string]any{"nbf": in(31 * time.Second)}), "not valid yet"},
			{"issued in the future", good.token(t, map[string]any{"iat": in(time.Hour)}), "future"},
			{"of another issuer", good.token(t, map[string]any{"iss": issuerAddress + "/"}), "issuer"},
			{"of no issuer", good.token(t, map[string]any{"iss": nil}), "issuer"},
			{"signed by a stranger under the same key ID", stranger.token(t, nil), "signature"},
			{"unsigned", unsigned(t, testClaims(nil)), "cannot be read"},
			{"signed with the public key as the secret", confused(t, good, testClaims(nil)), "cannot be read"},
			{"signed by an algorithm that is not configured", sign(t, rsaKey.private, "PS256", "r", testClaims(nil)), "cannot be read"},
			{"under the ID of a key of another kind", sign(t, rsaKey.private, "RS256", "a", testClaims(nil)), "does not publish"},
			{"of another key in its own header", embedded(t, stranger), "signature"},
			{"of a key that its header says where to find", headed(t, stranger, "jku", "http://localhost/keys"), "signature"},
			{"with what must be understood and is not", headed(t, good, "crit", []string{"x"}), "signature"},
			{"in JSON", inJSON(t, good.token(t, nil)), "cannot be read"},
			{"without a key ID, where keys have one", sign(t, good.private, "ES256", "", testClaims(nil)), "does not publish"},
			{"with its claims withClaims", withClaims(t, good.token(t, nil), testClaims(map[string]any{"sub": "deploys"})), "signature"},
			{"nothing", "", "cannot be read"},
			{"dots", "..", "cannot be read"},
		} {
			w.verify(c.name, c.token, c.want)
		}
	})
}

func encodePart(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func unsigned(t testing.TB, claims any) string {
	t.Helper()
	return encodePart(t, map[string]string{"alg": "none", "kid": "a"}) + "." + encodePart(t, claims) + "."
}

// confused is a token by HMAC whose secret is what everybody can read: the key
// as it is published in PEM.
func confused(t testing.TB, k signingKey, claims map[string]any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(k.public.Key)
	if err != nil {
		t.Fatal(err)
	}
	return sign(t, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), "HS256", k.public.KeyID, claims)
}

// headed is a token with one more field in its header.
func headed(t testing.TB, k signingKey, name string, value any) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithHeader("kid", k.public.KeyID).WithHeader(jose.HeaderKey(name), value)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: k.private}, options)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(testClaims(nil)).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// inJSON is a token in the other form that a signature has (RFC 7515, section 7.2).
func inJSON(t testing.TB, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	text, err := json.Marshal(map[string]string{"protected": parts[0], "payload": parts[1], "signature": parts[2]})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// embedded is a token that brings its own key along (RFC 7515 section 4.1.3).
func embedded(t testing.TB, k signingKey) string {
	t.Helper()
	options := (&jose.SignerOptions{EmbedJWK: true}).WithHeader("kid", k.public.KeyID)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: k.private}, options)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(testClaims(nil))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func withClaims(t testing.TB, token string, claims any) string {
	t.Helper()
	parts := strings.Split(token, ".")
	return parts[0] + "." + encodePart(t, claims) + "." + parts[2]
}

func TestASecretAmongTheKeysSignsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := newSigningKey(t, "a")
		secret := []byte(strings.Repeat("s", 32))
		small, encrypts := newRSAKey(t, "small", 1024), newSigningKey(t, "enc")
		encrypts.public.Use = "enc"
		w := newIssuerWorld(t, jose.JSONWebKey{Key: secret, KeyID: "s"}, small.public, encrypts.public, good.public)
		i := testIssuer()
		i.Algorithms = []string{"HS256", "RS256", "ES256"} // which the configuration does not let through
		for name, token := range map[string]string{
			"by a secret that is published": sign(t, secret, "HS256", "s", testClaims(nil)),
			"by a key that is too short":    sign(t, small.private, "RS256", "small", testClaims(nil)),
			"by a key for encryption":       encrypts.token(t, nil),
		} {
			if _, err := w.keys.Verify(context.Background(), i, token); !errors.Is(err, ErrInvalidToken) {
				t.Errorf("%s: %v", name, err)
			}
		}
		w.verify("by the one that is left", good.token(t, nil), "")
	})
}

func TestOfReadsTheIssuer(t *testing.T) {
	good := newSigningKey(t, "a")
	for _, c := range []struct{ name, token, want string }{
		{"a token", good.token(t, nil), issuerAddress},
		{"an unsigned one", unsigned(t, testClaims(nil)), issuerAddress},
		{"of an app, whose issuer is a number", good.token(t, map[string]any{"iss": 12345}), ""},
		{"of nobody", good.token(t, map[string]any{"iss": nil}), ""},
		{"an upstream token", "ghp_0123456789", ""},
		{"a name with dots", "a.b.c", ""},
		{"encrypted", "a.b.c.d.e", ""},
	} {
		if got, ok := issuerOf(c.token); got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %t", c.name, got, ok)
		}
	}
}

func TestCheckIssuerURL(t *testing.T) {
	for url, good := range map[string]bool{
		"https://issuer.example": true, "https://issuer.example/tenant": true, "http://127.0.0.1:1/x": true, "http://localhost": true, "http://[::1]:80": true,
		"": false, "issuer.example": false, "http://issuer.example": false, "http://localhost.example": false, "ftp://issuer.example": false,
		"https://u:p@issuer.example": false, "https://issuer.example#x": false, "https://": false, "file:///etc/passwd": false,
	} {
		if err := CheckIssuerURL(url); (err == nil) != good {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestTextsAreTextsOnly(t *testing.T) {
	c := jwtClaims{"one": "a", "many": []any{"a", 1.0, "b"}, "number": 1.0, "object": map[string]any{"a": "b"}, "null": nil}
	for name, want := range map[string]int{"one": 1, "many": 2, "number": 0, "object": 0, "null": 0, "none": 0} {
		if got := c.values(name); len(got) != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestVerifyOverTLS asks an issuer over TLS, with the certificate of one that is known,
// and of one that is not.
func TestVerifyOverTLS(t *testing.T) {
	k := newSigningKey(t, "a")
	mux := http.NewServeMux()
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // one handshake fails
	server.StartTLS()
	t.Cleanup(server.Close)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, server.URL, server.URL+"/keys")
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{k.public}})
	})
	i := testIssuer()
	i.URL = server.URL
	token := k.token(t, map[string]any{"iss": server.URL})
	trusting := NewIssuerKeys(server.Client().Transport)
	t.Cleanup(trusting.Close)
	if claims, err := trusting.Verify(t.Context(), i, token); err != nil || claims["sub"] != "builds" {
		t.Errorf("%v: %v", claims, err)
	}
	others := NewIssuerKeys(&http.Transport{})
	t.Cleanup(others.Close)
	if _, err := others.Verify(t.Context(), i, token); !errors.Is(err, ErrIssuerUnavailable) {
		t.Errorf("a certificate of nobody: %v", err)
	}
}

// TestNothingButTheTokenItselfIsTaken changes a good token anywhere.
func TestNothingButTheTokenItselfIsTaken(t *testing.T) {
	keys, i, token := servedIssuer(t)
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.IntRange(0, len(token)-1).Draw(t, "at")
		changed := []byte(token)
		changed[at] = rapid.SampledFrom([]byte("AZaz09-_.=+/ {\x00")).Draw(t, "with")
		if _, err := keys.Verify(context.Background(), i, string(changed)); (err == nil) != sameToken(token, string(changed)) {
			t.Fatalf("%s: %v", changed, err)
		}
	})
}

// sameToken reports whether two tokens are the same bytes, however base64url writes
// them: at the end of a part it leaves bits unused, and it reads over line breaks.
func sameToken(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	return slices.EqualFunc(x, y, func(x, y string) bool {
		left, errX := base64.RawURLEncoding.DecodeString(x)
		right, errY := base64.RawURLEncoding.DecodeString(y)
		return errX == nil && errY == nil && string(left) == string(right)
	})
}

// servedIssuer is an issuer outside of any bubble, and a good token of it.
func servedIssuer(t testing.TB) (*IssuerKeys, Issuer, string) {
	t.Helper()
	k := newSigningKey(t, "a")
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, server.URL, server.URL+"/keys")
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{k.public}})
	})
	keys := NewIssuerKeys(&http.Transport{})
	t.Cleanup(keys.Close)
	i := testIssuer()
	i.URL = server.URL
	return keys, i, k.token(t, map[string]any{"iss": server.URL, "exp": time.Now().Add(24 * time.Hour).Unix()})
}

// FuzzVerify gives the whole path of a token whatever it is: nothing panics, and
// nothing is taken but what the key has signed.
func FuzzVerify(f *testing.F) {
	keys, i, good := servedIssuer(f)
	for _, seed := range []string{good, unsigned(f, testClaims(nil)), confused(f, newSigningKey(f, "a"), testClaims(nil)), "..", "a.b.c", "", "e30.e30.", "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOjF9.AA"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		_, _ = issuerOf(token)
		_, err := keys.Verify(t.Context(), i, token)
		if (err == nil) != sameToken(good, token) || err != nil && !errors.Is(err, ErrInvalidToken) {
			t.Errorf("%q: %v", token, err)
		}
	})
}
