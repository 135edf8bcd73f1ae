package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/testservers"
)

// newClientKey runs "weir key new", and returns the key and the configuration line.
func newClientKey(t *testing.T, name string) (key, line string) {
	t.Helper()
	code, text := runWeir("key", "new", name)
	stopIf(t, code != exitOK, "exit %d: %s", code, text)
	key = regexp.MustCompile(`(?m)^  (weir_\S+)$`).FindStringSubmatch(text)[1]
	line = regexp.MustCompile(`(?m)^  (- .*)$`).FindStringSubmatch(text)[1]
	return key, strings.Replace(line, "[NAME]", "[ci]", 1)
}

// startIssuer starts an OpenID Connect issuer, and returns a function that signs tokens.
func startIssuer(t *testing.T) (url string, bearer func(sub string, ends time.Duration) string) {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	url = serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/.well-known/openid-configuration" {
			_, _ = fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, "http://"+r.Host, "http://"+r.Host+"/keys")
			return
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "a"}}})
	})
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "a")))(t)
	return url, func(sub string, ends time.Duration) string {
		claims := map[string]any{"iss": url, "aud": "weir", "sub": sub, "exp": time.Now().Add(ends).Unix()}
		return "Bearer " + must(jwt.Signed(signer).Claims(claims).Serialize())(t)
	}
}

// TestClientsSpendTheirCredentials sends keys and tokens of clients to a gateway. Each client
// spends its own credentials within its scope. No key or token is forwarded or logged.
func TestClientsSpendTheirCredentials(t *testing.T) {
	var mu sync.Mutex
	var upstream strings.Builder
	var logged testservers.Output
	api := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintf(&upstream, "%s %s %q\n", r.Method, r.URL.Path, r.Header)
		_, _ = w.Write([]byte("{}"))
	})
	issuer, bearer := startIssuer(t)
	key, line := newClientKey(t, "builds")
	unknown, _ := newClientKey(t, "unknown")
	g := openLogged(t, parse(t, `
upstream: {url: "`+api+`"}
limits: {cold_start: trust}
credentials: [{name: ci, kind: user, account: octo-bot, token: held-by-weir}]
issuers: [{name: actions, url: "`+issuer+`", audiences: [weir]}]
clients:
  `+line+`
  - {name: jobs, jwt: {issuer: actions, claims: {sub: "repo:acme/*"}}, credentials: [ci], methods: [GET], operations: ["gitignore/*"]}
`), &logged)
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
		w := sendTo(g, c.method, c.path, "", "Authorization: "+c.authorization)
		last := g.recent()[0]
		failIf(t, w.Code != c.status || last.Client != c.client, "%s: %d as %q, want %d as %q: %s", c.name, w.Code, last.Client, c.status, c.client, w.Body)
	}
	testservers.Eventually(t, "all requests are logged", func(context.Context) bool { return strings.Count(logged.String(), "msg=request") == 8 })
	mu.Lock()
	defer mu.Unlock()
	n := strings.Count(upstream.String(), "Bearer held-by-weir")
	failIf(t, n != 3 || strings.Count(upstream.String(), "\n") != 3, "upstream received\n%s", upstream.String())
	for _, secret := range []string{key, unknown, "held-by-weir", strings.TrimPrefix(expired, "Bearer ")} {
		failIf(t, strings.Contains(logged.String(), secret) || secret != "held-by-weir" && strings.Contains(upstream.String(), secret), "%s is in the log or was forwarded", secret)
	}
}

// The admin API lists what each tag spends: the claim of a client with a JWT, and the field Weir-Tag of another client.
// The client with a JWT cannot choose its tag, also after a change of its credential.
func TestSpendIsShownByTag(t *testing.T) {
	up := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		failIf(t, r.Header.Get("Weir-Tag") != "", "the tag was forwarded")
		if r.Header.Get("Authorization") == "Bearer first" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	issuer, bearer := startIssuer(t)
	key, line := newClientKey(t, "builds")
	g := open(t, parse(t, `
upstream: {url: "`+up+`"}
limits: {cold_start: trust}
credentials:
  - {name: ci, kind: user, account: octo-bot, token: first}
  - {name: cd, kind: user, account: other-bot, token: second}
issuers: [{name: actions, url: "`+issuer+`", audiences: [weir]}]
clients:
  `+line+`
  - {name: jobs, jwt: {issuer: actions, claims: {sub: "acme/*"}, tag: sub}, credentials: [ci, cd]}
`))
	for _, c := range []struct{ authorization, tag string }{
		{bearer("acme/widgets", time.Hour), "forged"},
		{bearer("acme/widgets", time.Hour), ""},
		{bearer("acme/"+strings.Repeat("x", 64), time.Hour), "forged"},
		{"Bearer " + key, "nightly/42"},
		{"Bearer " + key, ""},
	} {
		sendTo(g, http.MethodDelete, "/repos/acme/widgets", "", "Authorization: "+c.authorization, "Weir-Tag: "+c.tag)
	}
	want := []history.Spender{ // each request of jobs was sent with both credentials
		{Client: "jobs", Tag: "acme/widgets", ClientLabel: "jobs", Use: history.Use{Requests: 2, Spent: 4, Upstream: 4}},
		{Client: "builds", Tag: "nightly/42", ClientLabel: "builds", Use: history.Use{Requests: 1, Spent: 1, Upstream: 1}},
	}
	diff := gocmp.Diff(want, adminAPI[history.Costs](t, g, "/api/v1/series").Tags)
	failIf(t, diff != "", "%v", diff)
}

// An account has the configured name, else the login in a response to GET /user, else a shortened hash.
func TestAccountsHaveReadableLabels(t *testing.T) {
	up := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path != "/user":
		case r.Header.Get("Authorization") == "Bearer of-ci":
			_, _ = fmt.Fprint(w, `{"login": "CI", "id": 583232}`)
		default:
			_, _ = fmt.Fprint(w, `{"login": "mona", "id": 583231}`)
		}
	})
	key, line := newClientKey(t, "builds")
	g := open(t, parse(t, `
upstream: {url: "`+up+`"}
limits: {cold_start: trust}
callers: {pass_through: true}
credentials: [{name: ci, kind: user, token: first}]
clients:
  `+line+`
`))
	for _, c := range []struct{ path, credential string }{
		{"/repos/acme/widgets", key}, {"/user", "of-mona"},
		{"/user", "of-ci"}, // a stranger whose login is the name of a configured credential
		{"/repos/acme/widgets", "of-a-stranger"},
	} {
		sendTo(g, http.MethodGet, c.path, "", "Authorization: Bearer "+c.credential)
	}
	labels := map[string]bool{}
	for _, a := range adminAPI[[]history.Account](t, g, "/api/v1/accounts") {
		labels[regexp.MustCompile(`^account [0-9a-f]{8}$`).ReplaceAllString(a.Label, "account HASH")] = true
	}
	diff := gocmp.Diff([]string{"account HASH", "ci", "mona", "user:583232"}, slices.Sorted(maps.Keys(labels)))
	failIf(t, diff != "", "%v", diff)
}

// lending lends the credential "public" to anonymous clients for some operations.
func lending(operations string) func(*config.Config) {
	return func(cfg *config.Config) {
		cfg.Credentials = []config.Credential{userToken("public", "bot", "tok-lent"), userToken("private", "ci", "tok-private")}
		cfg.Clients = []config.Client{clientOf("builds", "weir_key", "private")}
		cfg.Callers.Anonymous = config.Lending{Credential: "public", Operations: []string{operations}}
	}
}

// TestAnonymousClientsReadWithTheLentCredential checks which requests get the lent credential. All other requests of
// clients without a credential are forwarded without one, or refused.
func TestAnonymousClientsReadWithTheLentCredential(t *testing.T) {
	const lent, none, refused = "Bearer tok-lent", "", "refused"
	const repository = "/repos/acme/widgets"
	var got atomic.Value
	up := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.Header.Get("Authorization"))
		w.Header().Set("Cache-Control", "no-store")
	})
	for passThrough, otherwise := range map[bool]string{true: none, false: refused} {
		g := open(t, configure(up, trusting, lending("*"), func(c *config.Config) { c.Upstream.Dialect, c.Callers.PassThrough = "github", passThrough }))
		send := func(method, target, authorization, want string) {
			t.Helper()
			got.Store(refused)
			r := newRequest(method, target, "")
			if authorization != "" {
				r.Header.Set("Authorization", authorization)
			}
			w := serveRequest(g, r)
			failIf(t, got.Load() != want || want == refused && w.Code != http.StatusUnauthorized, "pass_through %v, %s %s with %q: upstream got %q, want %q; status %d", passThrough, method, target, authorization, got.Load(), want, w.Code)
			last := g.recent()[0]
			failIf(t, (last.Client == config.AnonymousClient) != (want == lent), "%s %s: recorded as client %q", method, target, last.Client)
		}
		for _, target := range []string{
			repository, repository + "/releases/latest", repository + "/issues", repository + "/contents/README.md", "/users/octocat",
		} {
			send("GET", target, "", lent)
		}
		send("HEAD", repository, "", lent)
		send("GET", repository, "Bearer weir_key", "Bearer tok-private")
		send("GET", repository, "Bearer weir_WRONGKEYWRONGKEYWRONGKEY12", refused)
		send("GET", repository, "Negotiate x", refused)
		for _, target := range []string{
			"/issues", "/user", "/user/repos", "/notifications", "/made/up", "/orgs/acme/members", "/orgs/acme/hooks", "/orgs/acme/invitations",
			"/orgs/acme/teams", "/users/octocat/events",
		} {
			send("GET", target, "", otherwise)
		}
		for _, path := range []string{
			"made-up", "hooks", "hooks/1/deliveries", "keys", "traffic/views", "traffic/popular/referrers", "collaborators", "invitations", "actions/secrets",
			"actions/variables", "actions/permissions", "code-scanning/alerts", "dependabot/alerts", "secret-scanning/alerts", "vulnerability-alerts",
			"branches/main/protection", "teams",
		} {
			send("GET", repository+"/"+path, "", otherwise)
		}
		send("DELETE", repository, "", otherwise)
		send("PATCH", repository, "", otherwise)
		send("POST", "/graphql", "", refused) // GraphQL has no anonymous access
	}
}

// TestAnonymousClientsHaveNoPrivateClass checks that the cache does not give anonymous clients the responses for another
// credential.
func TestAnonymousClientsHaveNoPrivateClass(t *testing.T) {
	up := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=60")
		_, _ = fmt.Fprintf(w, "for %s", r.Header.Get("Authorization"))
	})
	g := open(t, configure(up, trusting, lending("watching/*"), func(c *config.Config) { c.Callers.PassThrough = false }))
	for i, want := range []string{"for Bearer tok-private", "for Bearer tok-lent", "for Bearer tok-private", "for Bearer tok-lent"} {
		fields := []string{"Authorization: Bearer weir_key"}[i%2:]
		w := sendTo(g, http.MethodGet, "/repos/acme/widgets/subscribers", "", fields...)
		failIf(t, w.Body.String() != want, "request %d: got %q, want %q", i, w.Body, want)
	}
}

// TestClientsCannotSendTheirKeyUpstream puts a generated and a chosen key into each part of a request to the API and to a
// host with files. The request is refused, or reaches the upstream without the key.
func TestClientsCannotSendTheirKeyUpstream(t *testing.T) {
	const generated, chosen = "weir_ABCDEFGHIJKLMNOPQRSTUVWX23", "a9Hq4xWzT7rKp2mVs8bNdXy"
	var sent atomic.Value
	up := serveAPI(t, func(_ http.ResponseWriter, r *http.Request) {
		var text strings.Builder
		_ = r.Header.Write(&text)
		sent.Store(r.RequestURI + "\n" + text.String())
	})
	g := open(t, configure(up, trusting, func(c *config.Config) {
		c.Credentials = []config.Credential{userToken("ci", "ci", "tok-held")}
		c.Clients = []config.Client{clientOf("builds", generated, "ci"), clientOf("deploys", chosen, "ci")}
		c.Hosts = []config.Host{{Name: "files.test", URL: up, Kind: "files"}}
	}))
	for _, key := range []string{generated, chosen} {
		pair := base64.StdEncoding.EncodeToString([]byte("x:" + key))
		for _, c := range []struct{ target, field string }{
			{"/made/up", "Private-Token: " + key}, {"/made/up", "Apikey: Bearer " + key}, {"/made/up", "Authentication: Basic " + pair},
			{"/made/up", "Token: a, " + key}, {"/made/up", "Cookie: session=" + key}, {"/made/up", "X-Api-Key: " + key},
			{"/made/up", "Referer: https://x:" + key + "@gateway.test/"}, {"/users/octocat", "User-Agent: " + key},
			{"/made/up", "Via: 1.1 " + key}, {"/users/octocat", "Via: 1.1 proxy (" + key + ")"},
			{"/made/up?private_token=" + key, ""}, {"/users/octocat?access_token=" + key, ""},
			{"/made/up?q=%41&token=Basic%20" + url.QueryEscape(pair), ""}, {"/made/up?" + key, ""},
			{"/made/up?key=" + url.QueryEscape(url.QueryEscape("?"+key)), ""}, {"/made/" + key, ""},
		} {
			for _, host := range []string{"", "files.test"} {
				for _, method := range []string{"GET", "POST"} {
					sent.Store("")
					w := sendTo(g, method, c.target, "", "Host: "+host, "Authorization: Bearer "+key, cmp.Or(c.field, "Accept: */*"))
					text := sent.Load().(string)
					failIf(t, strings.Contains(text, key) || strings.Contains(text, pair) || strings.Contains(text, url.QueryEscape(pair)), "%s %q %s %s: the upstream got %s", method, host, c.target, c.field, text)
					failIf(t, text == "" && (w.Code != http.StatusBadRequest || !strings.Contains(w.Header().Get("Cache-Status"), "detail=key")), "%s %q %s %s: status %d, %s", method, host, c.target, c.field, w.Code, w.Body)
				}
			}
		}
	}
}
