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

func TestVerifyAcceptsOnlyValidTokensOfTheIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, stranger, rsaKey := newSigningKey(t, "a"), newSigningKey(t, "a"), newRSAKey(t, "r", 2048)
		w := newFakeIssuer(t, good.public, rsaKey.public)
		now := time.Now()
		in := func(d time.Duration) int64 { return now.Add(d).Unix() }
		for _, c := range []struct {
			name  string
			token string
			want  string
		}{
			{"valid", good.token(t, nil), ""},
			{"valid, signed with RSA", sign(t, rsaKey.private, "RS256", "r", testClaims(nil)), ""},
			{"one of two audiences matches", good.token(t, map[string]any{"aud": []string{"other", "weir-2"}}), ""},
			{"wrong audience", good.token(t, map[string]any{"aud": "other"}), "audience"},
			{"no audience", good.token(t, map[string]any{"aud": nil}), "audience"},
			{"audience with our name as prefix", good.token(t, map[string]any{"aud": "weir-"}), "audience"},
			{"expired within the skew", good.token(t, map[string]any{"exp": in(-29 * time.Second)}), ""},
			{"expired", good.token(t, map[string]any{"exp": in(-31 * time.Second)}), "expired"},
			{"no expiry", good.token(t, map[string]any{"exp": nil}), "exp is missing"},
			{"not yet valid, within the skew", good.token(t, map[string]any{"nbf": in(29 * time.Second)}), ""},
			{"not yet valid", good.token(t, map[string]any{"nbf": in(31 * time.Second)}), "not valid yet"},
			{"issued in the future", good.token(t, map[string]any{"iat": in(time.Hour)}), "future"},
			{"wrong issuer", good.token(t, map[string]any{"iss": issuerAddress + "/"}), "issuer"},
			{"no issuer", good.token(t, map[string]any{"iss": nil}), "issuer"},
			{"signed by an unknown key with a known ID", stranger.token(t, nil), "signature"},
			{"unsigned", unsigned(t, testClaims(nil)), "malformed"},
			{"HMAC with the public key as secret", confused(t, good, testClaims(nil)), "malformed"},
			{"algorithm not configured", sign(t, rsaKey.private, "PS256", "r", testClaims(nil)), "malformed"},
			{"ID of a key of another kind", sign(t, rsaKey.private, "RS256", "a", testClaims(nil)), "publishes no key"},
			{"unknown key embedded in the header", embedded(t, stranger), "signature"},
			{"unknown key with a key URL in the header", headed(t, stranger, "jku", "http://localhost/keys"), "signature"},
			{"unsupported critical header", headed(t, good, "crit", []string{"x"}), "signature"},
			{"JSON serialization", inJSON(t, good.token(t, nil)), "malformed"},
			{"no key ID", sign(t, good.private, "ES256", "", testClaims(nil)), "publishes no key"},
			{"modified claims", withClaims(t, good.token(t, nil), testClaims(map[string]any{"sub": "deploys"})), "signature"},
			{"empty", "", "malformed"},
			{"only dots", "..", "malformed"},
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

// confused returns a token signed by HMAC. The secret is the published public key in PEM.
func confused(t testing.TB, k signingKey, claims map[string]any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(k.public.Key)
	if err != nil {
		t.Fatal(err)
	}
	return sign(t, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), "HS256", k.public.KeyID, claims)
}

// headed returns a token with an additional header field.
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

// inJSON returns a token in the JSON serialization (RFC 7515 section 7.2).
func inJSON(t testing.TB, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	text, err := json.Marshal(map[string]string{"protected": parts[0], "payload": parts[1], "signature": parts[2]})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// embedded returns a token with its own public key in the header (RFC 7515 section 4.1.3).
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

func TestVerifyIgnoresUnsuitablePublishedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := newSigningKey(t, "a")
		secret := []byte(strings.Repeat("s", 32))
		small, encrypts := newRSAKey(t, "small", 1024), newSigningKey(t, "enc")
		encrypts.public.Use = "enc"
		w := newFakeIssuer(t, jose.JSONWebKey{Key: secret, KeyID: "s"}, small.public, encrypts.public, good.public)
		i := testIssuer()
		i.Algorithms = []string{"HS256", "RS256", "ES256"} // config refuses HS256
		for name, token := range map[string]string{
			"published secret": sign(t, secret, "HS256", "s", testClaims(nil)),
			"short RSA key":    sign(t, small.private, "RS256", "small", testClaims(nil)),
			"encryption key":   encrypts.token(t, nil),
		} {
			if _, err := w.keys.verify(context.Background(), i, token); !errors.Is(err, ErrInvalidToken) {
				t.Errorf("%s: got %v, want ErrInvalidToken", name, err)
			}
		}
		w.verify("suitable key", good.token(t, nil), "")
	})
}

func TestUnverifiedIssuerReadsTheClaim(t *testing.T) {
	good := newSigningKey(t, "a")
	for _, c := range []struct{ name, token, want string }{
		{"token", good.token(t, nil), issuerAddress},
		{"unsigned token", unsigned(t, testClaims(nil)), issuerAddress},
		{"app assertion with a numeric issuer", good.token(t, map[string]any{"iss": 12345}), ""},
		{"no issuer", good.token(t, map[string]any{"iss": nil}), ""},
		{"upstream token", "ghp_0123456789", ""},
		{"text with dots", "a.b.c", ""},
		{"encrypted token", "a.b.c.d.e", ""},
	} {
		if got := unverifiedIssuer(c.token); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestCheckIssuerURLRequiresHTTPS(t *testing.T) {
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

func TestClaimValuesAreStringsOnly(t *testing.T) {
	c := jwtClaims{"one": "a", "many": []any{"a", 1.0, "b"}, "number": 1.0, "object": map[string]any{"a": "b"}, "null": nil}
	for name, want := range map[string]int{"one": 1, "many": 2, "number": 0, "object": 0, "null": 0, "none": 0} {
		if got := c.values(name); len(got) != want {
			t.Errorf("%s: got values %q, want %d values", name, got, want)
		}
	}
}

func TestVerifyOverTLS(t *testing.T) {
	k := newSigningKey(t, "a")
	mux := http.NewServeMux()
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // hides the expected handshake failure
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
	if claims, err := trusting.verify(t.Context(), i, token); err != nil || claims["sub"] != "builds" {
		t.Errorf("trusted issuer: got claims %v, %v", claims, err)
	}
	distrusting := NewIssuerKeys(&http.Transport{})
	t.Cleanup(distrusting.Close)
	if _, err := distrusting.verify(t.Context(), i, token); !errors.Is(err, ErrIssuerUnavailable) {
		t.Errorf("unknown certificate authority: %v", err)
	}
}

// The test changes one byte of a valid token.
func TestVerifyRefusesModifiedTokens(t *testing.T) {
	keys, i, token := publishedIssuer(t)
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.IntRange(0, len(token)-1).Draw(t, "at")
		changed := []byte(token)
		changed[at] = rapid.SampledFrom([]byte("AZaz09-_.=+/ {\x00")).Draw(t, "with")
		if _, err := keys.verify(context.Background(), i, string(changed)); (err == nil) != sameToken(token, string(changed)) {
			t.Fatalf("%s: %v", changed, err)
		}
	})
}

// sameToken reports whether two tokens decode to the same bytes. Several base64url texts have the same meaning: the
// last character has unused bits, and line breaks are ignored.
func sameToken(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	return slices.EqualFunc(x, y, func(x, y string) bool {
		left, errX := base64.RawURLEncoding.DecodeString(x)
		right, errY := base64.RawURLEncoding.DecodeString(y)
		return errX == nil && errY == nil && string(left) == string(right)
	})
}

// publishedIssuer returns an issuer on a TCP listener, and a valid token of the issuer.
func publishedIssuer(t testing.TB) (*IssuerKeys, Issuer, string) {
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

// FuzzVerify checks that verify never panics, and accepts only the token that the key signed.
func FuzzVerify(f *testing.F) {
	keys, i, good := publishedIssuer(f)
	for _, seed := range []string{good, unsigned(f, testClaims(nil)), confused(f, newSigningKey(f, "a"), testClaims(nil)), "..", "a.b.c", "", "e30.e30.", "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOjF9.AA"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		_ = unverifiedIssuer(token)
		_, err := keys.verify(t.Context(), i, token)
		if (err == nil) != sameToken(good, token) || err != nil && !errors.Is(err, ErrInvalidToken) {
			t.Errorf("%q: %v", token, err)
		}
	})
}
