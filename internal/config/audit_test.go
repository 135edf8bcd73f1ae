package config

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// safe is a configuration without a finding.
const safe = `listen: "127.0.0.1:8080"
admin: {listen: "127.0.0.1:9090", token: "${LONG}"}
upstream: {url: "https://api.example.com"}
`

// assess is what is found in a file, as "GRADE LINE:COLUMN KEY", where APP is set to app;
// whys gets the reasons.
func assess(t *testing.T, mode fs.FileMode, text, app string, whys map[string]bool) (found []string) {
	t.Helper()
	getenv := func(name string) (string, bool) {
		value, ok := map[string]string{"APP": app, "LONG": strings.Repeat("s", 32), "SHORT": "sesame", "REDIS": "rediss://u:hunter2@redis.example.com:6379"}[name]
		return value, ok
	}
	c, positions, err := ParseWithPositions(Source{Path: "weir.yaml", Getenv: getenv}, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range Assess(AuditedFile{c, positions, mode}) {
		found = append(found, fmt.Sprintf("%s %d:%d %s", f.Grade, f.Line, f.Column, f.Key))
		whys[f.Why] = true
		if shown := f.Why + f.Do; strings.Contains(shown, "hunter2") || f.Why == "" || f.Do == "" {
			t.Errorf("%+v", f)
		}
	}
	return found
}

// appKey is the private key of an app, in PEM.
func appKey(t *testing.T) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

func TestEachRiskIsFoundWhereItIs(t *testing.T) {
	const key = `key: "sha256:0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"`
	const two = `credentials: [{name: a, kind: user, token: "${LONG}"}, {name: b, kind: user, token: "${LONG}"}]` + "\n"
	const issued = `credentials: [{name: a, kind: user, token: "${LONG}"}]
issuers: [{name: i, url: "https://issuer.example", audiences: [weir]}]
clients: [{name: x, credentials: [a], jwt: {issuer: i, claims: %s}}]
`
	issuer := func(old, now string) string {
		return fmt.Sprintf(strings.Replace(issued, old, now, 1), "{sub: builds}")
	}
	claims := func(text string) string { return fmt.Sprintf(issued, text) }
	private := appKey(t)
	app := func(key string) string {
		return "credentials: [{name: a, kind: installation, app: {id: x, installation: 1, key: " + key + "}}]\n"
	}
	whys := map[string]bool{}
	for _, c := range []struct {
		name string
		mode fs.FileMode
		old  string // of safe
		new  string // in its place, or after it
		want []string
	}{
		{"safe", 0o600, "", "", nil},
		{"readable by others, without a secret", 0o644, "", "", nil},
		{"writable by the group", 0o620, "", "", []string{"high 1:1 "}},
		{"writable by all", 0o602, "", "", []string{"high 1:1 "}},
		{"readable by others, with a secret", 0o604, `"${LONG}"`, "hunter2hunter2hunter2", []string{"high 1:1 ", "medium 2:42 admin.token"}},
		{"a secret that only its owner reads", 0o400, `"${LONG}"`, "hunter2hunter2hunter2", []string{"medium 2:42 admin.token"}},
		{"open to all, without TLS", 0o600, "127.0.0.1:8080", ":8080", []string{"high 1:9 listen", "medium 1:1 callers.pass_through"}},
		{"believing everybody", 0o600, "", "callers: {trusted_proxies: [10.0.0.0/8, \"::/0\"]}\n", []string{"medium 4:28 callers.trusted_proxies"}},
		{"open to all by default", 0o600, `listen: "127.0.0.1:8080"`, "", []string{"high 2:1 listen", "medium 2:1 callers.pass_through"}},
		{"no bound on what an address sends", 0o600, `"127.0.0.1:8080"`, "\":8080\"\nlimits: {inbound: {rate: 0}}", []string{"high 1:9 listen", "medium 1:1 callers.pass_through", "low 2:26 limits.inbound.rate"}},
		{"no bound on this machine", 0o600, "", "limits: {inbound: {rate: 0}}", nil},
		{"an upstream without TLS", 0o600, "https:", "http:", []string{"high 3:17 upstream.url"}},
		{"a reference service on this machine", 0o600, "https://api.example.com", "http://localhost:9000", nil},
		{"admin for others, without TLS", 0o600, "127.0.0.1:9090", ":9090", []string{"medium 2:17 admin.listen"}},
		{"admin without a token", 0o600, `, token: "${LONG}"`, "", []string{"low 2:8 admin.token"}},
		{"a token that can be guessed", 0o600, "LONG", "SHORT", []string{"medium 2:42 admin.token"}},
		{"a webhook secret that can be guessed", 0o600, "", `webhooks: {secret: "${SHORT}"}`, []string{"medium 4:20 webhooks.secret"}},
		{"webhooks without a secret", 0o600, "", "webhooks: {path: /_weir/hooks}", []string{"low 4:18 webhooks.path"}},
		{"a Redis for anyone", 0o600, "", `store: {url: "rediss://redis.example.com:6379"}`, []string{"high 4:14 store.url", "medium 1:1 cache.key"}},
		{"open to all, with TLS", 0o600, "127.0.0.1:8080\"", ":8080\"\ntls: {domains: [weir.example.com]}\ncallers: {pass_through: false}\ncredentials: [{name: a, kind: user, token: \"${LONG}\"}]\nclients: [{name: x, " + key + ", credentials: [a]}]", nil},
		{"private keys in Redis", 0o600, "", "store: {url: \"${REDIS}\"}\ntls: {domains: [weir.example.com]}", []string{"high 1:1 cache.key", "medium 1:1 cache.key"}},
		{"a Redis in the clear", 0o600, "", "cache: {key: \"${LONG}\"}\nstore: {url: \"redis://u:hunter2@redis.example.com:6379\"}", []string{"medium 5:14 store.url", "medium 5:14 store.url"}},
		{"a Redis by the environment, sealed", 0o600, "", "cache: {key: \"${LONG}\"}\nstore: {url: \"${REDIS}\"}", nil},
		{"a Redis on this machine", 0o600, "", "cache: {key: \"${LONG}\"}\nstore: {url: \"redis://localhost:6379\"}", nil},
		{"a cluster that begins on this machine", 0o600, "", "cache: {key: \"${LONG}\"}\nstore: {url: \"rediss+cluster://localhost:1?addr=redis.example.com:2\"}", []string{"high 5:14 store.url"}},
		{"one client has all", 0o600, "", two + "clients: [{name: x, " + key + ", credentials: [a, b]}]", []string{"medium 5:114 clients[0].credentials"}},
		{"one client has one", 0o600, "", two + "clients: [{name: x, " + key + ", credentials: [a]}]", nil},
		{"credentials in plain text", 0o600, "", "credentials: [{name: a, kind: user, token: hunter2}]", []string{"medium 4:44 credentials[0].token"}},
		{"tokens of an issuer", 0o600, "", claims(`{sub: "repo:acme/deploy:*", ref: "refs/heads/release*"}`), nil},
		{"any token of an issuer", 0o600, "", claims(`{sub: "*"}`), []string{"high 6:64 clients[0].jwt.claims"}},
		{"any token of a kind", 0o600, "", claims(`{sub: "repo:**", aud: weir, iss: "https://issuer.example"}`), []string{"high 6:64 clients[0].jwt.claims"}},
		{"any subject of one environment", 0o600, "", claims(`{sub: "repo:*", environment: production}`), nil},
		{"a subject that ends in a name", 0o600, "", claims(`{sub: "repo:acme*"}`), []string{"medium 6:70 clients[0].jwt.claims.sub"}},
		{"a subject that goes on after a name", 0o600, "", claims(`{sub: "repo:acme/*:ref:refs/heads/x*"}`), nil},
		{"tokens for the issuer itself", 0o600, "", issuer("[weir]", `[weir, "https://issuer.example/"]`), []string{"medium 5:63 issuers[0].audiences"}},
		{"an issuer on this machine", 0o600, "", issuer("https://issuer.example", "http://127.0.0.1:8000"), []string{"low 5:26 issuers[0].url"}},
		{"an issuer that signs as it likes", 0o600, "", issuer("[weir]", "[weir], algorithms: [RS256, ES256, PS256]"), []string{"low 5:83 issuers[0].algorithms"}},
		{"an issuer that signs by one", 0o600, "", issuer("[weir]", "[weir], algorithms: [ES256]"), nil},
		{"the key of an app in plain text", 0o600, "", app(fmt.Sprintf("%q", private)), []string{"medium 4:80 credentials[0].app.key"}},
		{"the key of an app for others to read", 0o644, "", app(fmt.Sprintf("%q", private)), []string{"high 1:1 ", "medium 4:80 credentials[0].app.key"}},
		{"the key of an app by the environment", 0o600, "", app(`"${APP}"`), nil},
		{"an app beside a Redis", 0o600, "", app(`"${APP}"`) + "store: {url: \"redis://localhost:6379\"}", []string{"medium 1:1 cache.key", "low 1:1 cache.key"}},
		{"a user beside a Redis", 0o600, "", "credentials: [{name: a, kind: user, token: \"${LONG}\"}]\nstore: {url: \"redis://localhost:6379\"}", []string{"medium 1:1 cache.key"}},
		{"an app beside a Redis, sealed", 0o600, "", app(`"${APP}"`) + "cache: {key: \"${LONG}\"}\nstore: {url: \"redis://localhost:6379\"}", nil},
		{"a start that trusts", 0o600, "", "limits: {cold_start: trust}", []string{"medium 4:22 limits.cold_start"}},
		{"a start that trusts what is kept", 0o600, "", "limits: {cold_start: trust}\nstore: {url: \"memory:/var/lib/weir\"}", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := safe + c.new
			if c.old != "" {
				text = strings.Replace(safe, c.old, c.new, 1)
			}
			if diff := cmp.Diff(c.want, assess(t, c.mode, text, private, whys)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
	for _, r := range table {
		if !whys[r.why] {
			t.Errorf("no case has: %s", r.why)
		}
	}
}

func TestTheGravestComeFirst(t *testing.T) {
	found := assess(t, 0o666, "listen: \":1\"\nadmin: {token: hunter2}\nupstream: {url: \"http://api.example.com\"}\nlimits: {cold_start: trust, inbound: {rate: 0}}\n", "", map[string]bool{})
	grades := make([]string, len(found))
	for i, f := range found {
		grades[i], _, _ = strings.Cut(f, " ")
	}
	if want := []string{"high", "high", "high", "high", "medium", "medium", "medium", "medium", "low"}; !slices.Equal(grades, want) {
		t.Errorf("%v", found)
	}
}
