package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/weirgate/weir/internal/config"
)

// newClientKey runs "weir key new", and returns the key and the configuration line.
func newClientKey(t *testing.T, name string) (key, line string) {
	t.Helper()
	var out bytes.Buffer
	nothing := func(string) (string, bool) { return "", false }
	if code := run(t.Context(), []string{"key", "new", name}, nothing, &out, &out); code != exitOK {
		t.Fatalf("exit %d: %s", code, out.String())
	}
	key = regexp.MustCompile(`(?m)^  (weir_\S+)$`).FindStringSubmatch(out.String())[1]
	line = regexp.MustCompile(`(?m)^  (- .*)$`).FindStringSubmatch(out.String())[1]
	return key, strings.Replace(line, "[NAME]", "[ci]", 1)
}

// startIssuer starts an OpenID Connect issuer, and returns a function that signs tokens.
func startIssuer(t *testing.T) (url string, bearer func(sub string, ends time.Duration) string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, server.URL, server.URL+"/keys")
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "a"}}})
	})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "a"))
	if err != nil {
		t.Fatal(err)
	}
	return server.URL, func(sub string, ends time.Duration) string {
		token, err := jwt.Signed(signer).Claims(map[string]any{"iss": server.URL, "aud": "weir", "sub": sub, "exp": time.Now().Add(ends).Unix()}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + token
	}
}

// TestClientsSpendTheirCredentials sends keys and tokens of clients to a gateway. Each client
// spends its own credentials within its scope. No key or token is forwarded or logged.
func TestClientsSpendTheirCredentials(t *testing.T) {
	var mu sync.Mutex
	var upstream, logged strings.Builder
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintf(&upstream, "%s %s %q\n", r.Method, r.URL.Path, r.Header)
		_, _ = w.Write([]byte("{}"))
	}))
	t.Cleanup(api.Close)
	issuer, bearer := startIssuer(t)
	key, line := newClientKey(t, "builds")
	unknown, _ := newClientKey(t, "unknown")
	cfg, err := config.Parse(config.Source{Path: "weir.yaml", Getenv: func(string) (string, bool) { return "", false }}, []byte(`
upstream: {url: "`+api.URL+`"}
limits: {cold_start: trust}
credentials: [{name: ci, kind: user, account: octo-bot, token: held-by-weir}]
issuers: [{name: actions, url: "`+issuer+`", audiences: [weir]}]
clients:
  `+line+`
  - {name: jobs, jwt: {issuer: actions, claims: {sub: "repo:acme/*"}}, credentials: [ci], methods: [GET], operations: ["gitignore/*"]}
`))
	if err != nil {
		t.Fatal(err)
	}
	g, err := newGateway(cfg, slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	expired := bearer("repo:acme/widgets", -time.Hour)
	for _, c := range []struct {
		name, method, path, authorization string
		status                            int
		client                            string
	}{
		{"key", "GET", "/gitignore/templates", "Bearer " + key, 200, "builds"},
		{"key of a client without scope", "DELETE", "/repos/acme/widgets", "token " + key, 200, "builds"},
		{"token", "GET", "/gitignore/templates/Go", bearer("repo:acme/widgets", time.Hour), 200, "jobs"},
		{"token of a client with read access, write request", "DELETE", "/repos/acme/widgets", bearer("repo:acme/widgets", time.Hour), 403, "jobs"},
		{"token of a client without access to search", "GET", "/search/code", bearer("repo:acme/widgets", time.Hour), 403, "jobs"},
		{"token that matches no client", "GET", "/gitignore/templates", bearer("repo:evil/widgets", time.Hour), 401, ""},
		{"expired token", "GET", "/gitignore/templates", expired, 401, ""},
		{"unknown key", "GET", "/gitignore/templates", "Bearer " + unknown, 401, ""},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(c.method, c.path, nil)
		r.Header.Set("Authorization", c.authorization)
		g.ServeHTTP(w, r)
		last := g.current.Load().proxy.Recent()[0]
		if w.Code != c.status || last.Client != c.client {
			t.Errorf("%s: %d as %q, want %d as %q: %s", c.name, w.Code, last.Client, c.status, c.client, w.Body)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if n := strings.Count(upstream.String(), "Bearer held-by-weir"); n != 3 || strings.Count(upstream.String(), "\n") != 3 {
		t.Errorf("upstream received\n%s", upstream.String())
	}
	for _, secret := range []string{key, unknown, "held-by-weir", strings.TrimPrefix(expired, "Bearer ")} {
		if strings.Contains(logged.String(), secret) || secret != "held-by-weir" && strings.Contains(upstream.String(), secret) {
			t.Errorf("%s is in the log or was forwarded", secret)
		}
	}
}
