package credential

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/testservers"
)

func TestVerifyAcceptsOnlyValidTokensOfTheIssuer(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		stranger, rsaKey := newSigningKey("a"), newRSAKey("r", 2048)
		w.publish["tenant"] = append(w.publish["tenant"], rsaKey.public)
		now := time.Now()
		with := func(claim string, value any) string { return w.token(map[string]any{claim: value}) }
		in := func(d time.Duration) int64 { return now.Add(d).Unix() }
		es256 := func(k signingKey, header ...any) string {
			return sign(k.private, "ES256", "a", testClaims(nil), header...)
		}
		for _, c := range []struct{ name, token, want string }{
			{"valid", w.token(nil), ""},
			{"valid, signed with RSA", sign(rsaKey.private, "RS256", "r", testClaims(nil)), ""},
			{"one of two audiences matches", with("aud", []string{"other", "weir-2"}), ""},
			{"wrong audience", with("aud", "other"), "audience"},
			{"no audience", with("aud", nil), "audience"},
			{"audience with our name as prefix", with("aud", "weir-"), "audience"},
			{"expired within the skew", with("exp", in(-29*time.Second)), ""},
			{"expired", with("exp", in(-31*time.Second)), "expired"},
			{"no expiry", with("exp", nil), "exp is missing"},
			{"not yet valid, within the skew", with("nbf", in(29*time.Second)), ""},
			{"not yet valid", with("nbf", in(31*time.Second)), "not valid yet"},
			{"issued in the future", with("iat", in(time.Hour)), "future"},
			{"wrong issuer", with("iss", issuerAddress+"/"), "issuer"},
			{"no issuer", with("iss", nil), "issuer"},
			{"signed by an unknown key with a known ID", stranger.token(nil), "signature"},
			{"unsigned", unsigned(testClaims(nil)), "malformed"},
			{"HMAC with the public key as secret", confused(w.key), "malformed"},
			{"algorithm not configured", sign(rsaKey.private, "PS256", "r", testClaims(nil)), "malformed"},
			{"ID of a key of another kind", sign(rsaKey.private, "RS256", "a", testClaims(nil)), "publishes no key"},
			{"unknown key embedded in the header", es256(stranger, "jwk", stranger.public), "signature"}, // RFC 7515 section 4.1.3
			{"unknown key with a key URL in the header", es256(stranger, "jku", "http://localhost/keys"), "signature"},
			{"unsupported critical header", es256(w.key, "crit", []string{"x"}), "signature"},
			{"JSON serialization", inJSON(w.token(nil)), "malformed"},
			{"no key ID", sign(w.key.private, "ES256", "", testClaims(nil)), "publishes no key"},
			{"modified claims", withClaims(w.token(nil), testClaims(map[string]any{"sub": "deploys"})), "signature"},
			{"empty", "", "malformed"},
			{"only dots", "..", "malformed"},
		} {
			w.verify(c.name, c.token, c.want)
		}
	})
}

func encodePart(v any) string { return b64url(string(must(json.Marshal(v)))) }

func unsigned(claims any) string {
	return encodePart(map[string]string{"alg": "none", "kid": "a"}) + "." + encodePart(claims) + "."
}

// confused returns a token signed by HMAC. The secret is the published public key in PEM.
func confused(k signingKey) string {
	der := must(x509.MarshalPKIXPublicKey(k.public.Key))
	return sign(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), "HS256", k.public.KeyID, testClaims(nil))
}

// inJSON returns a token in the JSON serialization (RFC 7515 section 7.2).
func inJSON(token string) string {
	parts := strings.Split(token, ".")
	return string(must(json.Marshal(map[string]string{"protected": parts[0], "payload": parts[1], "signature": parts[2]})))
}

func withClaims(token string, claims any) string {
	parts := strings.Split(token, ".")
	return parts[0] + "." + encodePart(claims) + "." + parts[2]
}

func TestVerifyIgnoresUnsuitablePublishedKeys(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		secret, small, encrypts := []byte(strings.Repeat("s", 32)), newRSAKey("small", 1024), newSigningKey("enc")
		encrypts.public.Use = "enc"
		w.publish["tenant"] = append(w.publish["tenant"], jose.JSONWebKey{Key: secret, KeyID: "s"}, small.public, encrypts.public)
		i := testIssuer(issuerAddress)
		i.Algorithms = []string{"HS256", "RS256", "ES256"} // config refuses HS256
		for name, token := range map[string]string{
			"published secret": sign(secret, "HS256", "s", testClaims(nil)),
			"short RSA key":    sign(small.private, "RS256", "small", testClaims(nil)),
			"encryption key":   encrypts.token(nil),
		} {
			_, _, err := w.keys.verify(context.Background(), i, token)
			failIf(w, !errors.Is(err, ErrInvalidToken), "%s: got %v, want ErrInvalidToken", name, err)
		}
		w.verify("suitable key", w.token(nil), "")
	})
}

func TestUnverifiedIssuerReadsTheClaim(t *testing.T) {
	good := newSigningKey("a")
	for _, c := range []struct{ name, token, want string }{
		{"token", good.token(nil), issuerAddress},
		{"unsigned token", unsigned(testClaims(nil)), issuerAddress},
		{"app assertion with a numeric issuer", good.token(map[string]any{"iss": 12345}), ""},
		{"no issuer", good.token(map[string]any{"iss": nil}), ""},
		{"upstream token", "ghp_0123456789", ""},
		{"text with dots", "a.b.c", ""},
		{"encrypted token", "a.b.c.d.e", ""},
	} {
		equal(t, c.name, unverifiedIssuer(c.token), c.want)
	}
}

func TestCheckIssuerURLRequiresHTTPS(t *testing.T) {
	valid := func(url string) bool { return CheckIssuerURL(url) == nil }
	testservers.EqualEach(t, valid, map[string]bool{
		"https://issuer.example": true, "https://issuer.example/tenant": true, "http://127.0.0.1:1/x": true, "http://localhost": true,
		"http://[::1]:80": true,
		"":                false, "issuer.example": false, "http://issuer.example": false, "http://localhost.example": false,
		"ftp://issuer.example": false, "https://u:p@issuer.example": false, "https://issuer.example#x": false, "https://": false,
		"file:///etc/passwd": false,
	})
}

func TestClaimValuesAreStringsOnly(t *testing.T) {
	c := jwtClaims{"one": "a", "many": []any{"a", 1.0, "b"}, "number": 1.0, "object": map[string]any{"a": "b"}, "null": nil}
	count := func(name string) int { return len(c.values(name)) }
	testservers.EqualEach(t, count, map[string]int{"one": 1, "many": 2, "number": 0, "object": 0, "null": 0, "none": 0})
}

func TestVerifyOverTLS(t *testing.T) {
	k := newSigningKey("a")
	var server *httptest.Server
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { // metadata and keys
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": server.URL, "jwks_uri": server.URL, "keys": []any{k.public}})
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // hides the expected handshake failure
	server.StartTLS()
	t.Cleanup(server.Close)
	token := k.token(map[string]any{"iss": server.URL})
	for _, c := range []struct {
		name      string
		transport http.RoundTripper
		want      error
	}{{"trusted issuer", server.Client().Transport, nil}, {"unknown certificate authority", &http.Transport{}, ErrIssuerUnavailable}} {
		keys := NewIssuerKeys(c.transport)
		t.Cleanup(keys.Close)
		_, claims, err := keys.verify(t.Context(), testIssuer(server.URL), token)
		failIf(t, !errors.Is(err, c.want) || err == nil && claims["sub"] != "builds", "%s: got claims %v and the error %v, want %v", c.name, claims, err, c.want)
	}
}

// lasting returns an issuer and its token for tests with many requests.
func lasting(t testing.TB) (w *fakeIssuer, token string) {
	w = newFakeIssuer(t)
	return w, w.token(map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()})
}

// The test changes one byte of a valid token.
func TestVerifyRefusesModifiedTokens(t *testing.T) {
	w, token := lasting(t)
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.IntRange(0, len(token)-1).Draw(t, "at")
		changed := []byte(token)
		changed[at] = rapid.SampledFrom([]byte("AZaz09-_.=+/ {\x00")).Draw(t, "with")
		_, _, err := w.keys.verify(context.Background(), testIssuer(issuerAddress), string(changed))
		if (err == nil) != sameToken(token, string(changed)) {
			t.Fatalf("%s: %v", changed, err)
		}
	})
}

// sameToken reports whether two tokens decode to the same bytes. Several base64url texts have the same meaning: the
// last character has unused bits, and line breaks are ignored.
func sameToken(a, b string) bool {
	return slices.EqualFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) bool {
		left, errX := base64.RawURLEncoding.DecodeString(x)
		right, errY := base64.RawURLEncoding.DecodeString(y)
		return errX == nil && errY == nil && string(left) == string(right)
	})
}

// FuzzVerify checks that verify never panics, and accepts only the token that the key signed.
func FuzzVerify(f *testing.F) {
	w, good := lasting(f)
	for _, seed := range []string{
		good, unsigned(testClaims(nil)), confused(newSigningKey("a")), "..", "a.b.c", "", "e30.e30.", "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOjF9.AA",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		_ = unverifiedIssuer(token)
		_, _, err := w.keys.verify(t.Context(), testIssuer(issuerAddress), token)
		failIf(t, (err == nil) != sameToken(good, token) || err != nil && !errors.Is(err, ErrInvalidToken), "%q: %v", token, err)
	})
}

func TestVerifyFetchesKeysAtMostOncePerPause(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		token := w.token(map[string]any{"exp": time.Now().Add(time.Hour).Unix()})
		var flood sync.WaitGroup
		for n := range 1000 {
			flood.Go(func() {
				time.Sleep(time.Duration(n) * 59 * time.Millisecond) // spread over 59 seconds
				w.verify("unknown key ID", sign(w.key.private, "ES256", fmt.Sprintf("kid %d", n), testClaims(nil)), "publishes no key")
				w.verify("known key ID", token, "")
			})
		}
		flood.Wait()
		w.expectFetches(5, 6)
	})
}

func TestConcurrentVerificationsShareOneFetch(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		w.answer(func(http.ResponseWriter) { time.Sleep(time.Second); w.answer(nil) })
		var all sync.WaitGroup
		for _, c := range []struct{ name, want string }{{"during the outage", "unavailable"}, {"after the outage", ""}} {
			for range 100 {
				all.Go(func() { w.verify(c.name, w.token(nil), c.want) })
			}
			all.Wait()
			time.Sleep(keysFetchPause)
		}
		w.expectFetches(2, 2)
	})
}

func TestVerifyAfterKeyRotation(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		second := newSigningKey("2")
		w.verify("first key", w.token(nil), "")
		time.Sleep(keysFetchPause)
		w.change(func() { w.publish["tenant"] = []jose.JSONWebKey{w.key.public, second.public} })
		w.verify("added key", second.token(nil), "")
		w.change(func() { w.publish["tenant"] = []jose.JSONWebKey{second.public} })
		time.Sleep(keysRefreshAfter)
		w.verify("added key during the refresh", second.token(nil), "")
		synctest.Wait()
		w.verify("removed key", w.token(nil), "publishes no key")
		w.verify("added key after the refresh", second.token(nil), "")
	})
}

func TestVerifyUsesCachedKeysForAnHourWithoutTheIssuer(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		w.verify("before the outage", w.token(nil), "")
		w.answer(func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusBadGateway) })
		for range 11 {
			time.Sleep(5 * time.Minute)
			w.verify("during the outage", w.token(nil), "")
		}
		synctest.Wait()
		w.expectFetches(5, 15)
		time.Sleep(5 * time.Minute)
		w.verify("after an hour of outage", w.token(nil), "unavailable")
		w.answer(nil)
		time.Sleep(keysFetchPause)
		w.verify("after the outage", w.token(nil), "")
	})
}

func TestVerifyStopsWaitingForAHangingIssuer(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		hang, start := make(chan struct{}), time.Now()
		w.answer(func(http.ResponseWriter) { <-hang })
		for _, name := range []string{"after the timeout", "within the pause"} {
			w.verify(name, w.token(nil), "unavailable")
			equal(w, name+", waited", time.Since(start), keysFetchTimeout)
		}
		time.Sleep(keysFetchPause)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _, err := w.keys.verify(ctx, testIssuer(issuerAddress), w.token(nil))
		failIf(w, !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrIssuerUnavailable), "client disconnected: %v", err)
		w.keys.Close() // cancels the fetch
		close(hang)
		w.verify("after Close", w.token(nil), "unavailable")
	})
}

func TestVerifyRefusesInvalidKeyResponses(t *testing.T) {
	key, followed := string(must(newSigningKey("a").public.MarshalJSON())), false
	body := func(text string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { _, _ = io.WriteString(w, text) }
	}
	for name, respond := range map[string]func(http.ResponseWriter){
		"not JSON":   body("<html>"),
		"no keys":    body("{}"),
		"status 500": func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"redirect to keys": func(w http.ResponseWriter) {
			if followed = !followed; followed {
				w.Header().Set("Location", "/tenant/keys")
				w.WriteHeader(http.StatusFound)
				return
			}
			body(`{"keys":[` + key + `]}`)(w)
		},
		"response over the size limit": body(`{"keys":[` + strings.Repeat(" ", 1<<20) + key + `]}`),
		"truncated response":           func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"unsupported keys":             body(`{"keys":[{"kty":"XYZ","kid":"a"},{"kty":"EC"},7,null,{"kty":"oct","k":"c2VjcmV0","kid":"a"}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w *fakeIssuer) {
				w.answer(respond)
				w.verify("no keys", w.token(nil), "unavailable")
			})
		})
	}
}

func TestVerifyRefusesInvalidMetadata(t *testing.T) {
	for name, c := range map[string]struct{ field, value, want string }{
		"metadata of another issuer": {"issuer", "https://evil.example", "metadata name the issuer"},
		"keys over plain HTTP":       {"jwks_uri", "http://evil.example/keys", "https://"},
		"keys from a file":           {"jwks_uri", "file:///etc/passwd", "absolute"},
		"no key URL":                 {"jwks_uri", "", "absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w *fakeIssuer) {
				w.change(func() { w.replace = map[string]string{c.field: c.value} })
				w.verify("invalid metadata", w.token(nil), c.want)
				w.expectFetches(0, 0)
			})
		})
	}
}

// Two issuers may publish keys with the same key ID.
func TestVerifyUsesOnlyKeysOfTheTokensIssuer(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		w.verify("token of the key's issuer", w.token(nil), "")
		token := w.token(map[string]any{"iss": otherAddress})
		_, _, err := w.keys.verify(context.Background(), testIssuer(otherAddress), token)
		failIf(w, !errors.Is(err, ErrIssuerUnavailable), "token of another issuer: %v", err)
	})
}

func TestKeepDiscardsKeysOfOtherIssuers(t *testing.T) {
	inVirtualTime(t, func(w *fakeIssuer) {
		w.verify("before the outage", w.token(nil), "")
		w.keys.Keep([]Issuer{testIssuer(issuerAddress)})
		w.verify("issuer kept", w.token(nil), "")
		w.expectFetches(1, 1)
		w.keys.Keep(nil)
		w.verify("issuer discarded", w.token(nil), "")
		w.expectFetches(2, 2)
	})
}
