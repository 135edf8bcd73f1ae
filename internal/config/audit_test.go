package config

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

// risks is the number of different risks that Assess can report.
const risks = 29

// safe is a configuration without a finding.
const safe = `listen: "127.0.0.1:8080"
admin: {listen: "127.0.0.1:9090", token: "${LONG}"}
upstream: {url: "https://api.example.com"}
`

// assess returns the findings of a file as "GRADE LINE:COLUMN KEY". The variable APP has the
// value app. The reason of each finding is recorded in reasons.
func assess(t *testing.T, mode fs.FileMode, text, app string, reasons map[string]bool) (found []string) {
	t.Helper()
	getenv := func(name string) (string, bool) {
		value, ok := map[string]string{"APP": app, "LONG": strings.Repeat("s", 32), "SHORT": "sesame", "REDIS": "rediss://u:hunter2@redis.example.com:6379"}[name]
		return value, ok
	}
	c, positions, err := ParseWithPositions(Source{Path: "weir.yaml", Getenv: getenv}, []byte(text))
	noError(t, err)
	for _, f := range Assess(AuditedFile{c, positions, mode}) {
		found = append(found, fmt.Sprintf("%s %d:%d %s", f.Grade, f.Line, f.Column, f.Key))
		reasons[f.Why] = true
		shown := f.Why + f.Do
		failIf(t, strings.Contains(shown, "hunter2") || f.Why == "" || f.Do == "", "finding with a secret or without text: %+v", f)
	}
	return found
}

func TestAssessFindsEachRisk(t *testing.T) {
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
	private := testservers.AppKey()
	app := func(key string) string {
		return "credentials: [{name: a, kind: installation, app: {id: x, installation: 1, key: " + key + "}}]\n"
	}
	files := certificates(t)
	reasons := map[string]bool{}
	for _, c := range []struct {
		name string
		mode fs.FileMode
		old  string // text in safe to replace
		new  string // replacement, or text to append if old is empty
		want []string
	}{
		{"safe", 0o600, "", "", nil},
		{"readable by all users, without a secret", 0o644, "", "", nil},
		{"writable by the group", 0o620, "", "", []string{"high 1:1 "}},
		{"writable by all", 0o602, "", "", []string{"high 1:1 "}},
		{"readable by all users, with a secret", 0o604, `"${LONG}"`, "hunter2hunter2hunter2", []string{"high 1:1 ", "medium 2:42 admin.token"}},
		{"readable by the owner only, with a secret", 0o400, `"${LONG}"`, "hunter2hunter2hunter2", []string{"medium 2:42 admin.token"}},
		{"public listener without TLS", 0o600, "127.0.0.1:8080", ":8080", []string{"high 1:9 listen", "medium 1:1 callers.pass_through"}},
		{"every address is a trusted proxy", 0o600, "", "callers: {trusted_proxies: [10.0.0.0/8, \"::/0\"]}\n", []string{"medium 4:28 callers.trusted_proxies"}},
		{"host with a credential over plain HTTP", 0o600, "", "hosts: [{name: a.example, url: \"http://a.example\", credential: true}]\n", []string{"high 4:32 hosts[0].url"}},
		{"host of the API over plain HTTP", 0o600, "", "hosts: [{name: a.example, url: \"http://a.example\", kind: api}]\n", []string{"high 4:32 hosts[0].url"}},
		{"host without a credential over plain HTTP", 0o600, "", "hosts: [{name: a.example, url: \"http://a.example\"}]\n", nil},
		{"public forward proxy", 0o600, "", fmt.Sprintf("proxy: {listen: \":3128\", ca: {certificate: %q, key: %q}}\n", files+"/own.pem", files+"/own.key"), []string{"medium 4:17 proxy.listen"}},
		{"forward proxy on loopback", 0o600, "", fmt.Sprintf("proxy: {listen: \"127.0.0.1:3128\", ca: {certificate: %q, key: %q}}\n", files+"/own.pem", files+"/own.key"), nil},
		{"credential for anonymous clients", 0o600, "", "credentials: [{name: a, kind: user, token: \"${LONG}\"}]\ncallers: {anonymous: {credential: a, operations: [\"watching/*\"]}}\n", []string{"medium 5:35 callers.anonymous.credential"}},
		{"public listener by default", 0o600, `listen: "127.0.0.1:8080"`, "", []string{"high 2:1 listen", "medium 2:1 callers.pass_through"}},
		{"no inbound limit", 0o600, `"127.0.0.1:8080"`, "\":8080\"\nlimits: {inbound: {rate: 0}}", []string{"high 1:9 listen", "medium 1:1 callers.pass_through", "low 2:26 limits.inbound.rate"}},
		{"no inbound limit on loopback", 0o600, "", "limits: {inbound: {rate: 0}}", nil},
		{"upstream without TLS", 0o600, "https:", "http:", []string{"high 3:17 upstream.url"}},
		{"local upstream without TLS", 0o600, "https://api.example.com", "http://localhost:9000", nil},
		{"public admin listener without TLS", 0o600, "127.0.0.1:9090", ":9090", []string{"medium 2:17 admin.listen"}},
		{"token for Prometheus over plain HTTP", 0o600, `token: "${LONG}"}`, `token: "${LONG}", prometheus: {url: "http://prometheus:9090", token: "${LONG}"}}`, []string{"medium 2:71 admin.prometheus.url"}},
		{"token for a local Prometheus", 0o600, `token: "${LONG}"}`, `token: "${LONG}", prometheus: {url: "http://127.0.0.1:9091", token: "${LONG}"}}`, nil},
		{"admin without a token", 0o600, `, token: "${LONG}"`, "", []string{"low 2:8 admin.token"}},
		{"short admin token", 0o600, "LONG", "SHORT", []string{"medium 2:42 admin.token"}},
		{"short webhook secret", 0o600, "", `webhooks: {secret: "${SHORT}"}`, []string{"medium 4:20 webhooks.secret"}},
		{"webhooks without a secret", 0o600, "", "webhooks: {path: /_weir/hooks}", []string{"low 4:18 webhooks.path"}},
		{"Redis without a password", 0o600, "", `store: {url: "rediss://redis.example.com:6379"}`, []string{"high 4:14 store.url", "medium 1:1 cache.key"}},
		{"public listener with TLS", 0o600, "127.0.0.1:8080\"", ":8080\"\ntls: {domains: [weir.example.com]}\ncallers: {pass_through: false}\ncredentials: [{name: a, kind: user, token: \"${LONG}\"}]\nclients: [{name: x, " + key + ", credentials: [a]}]", nil},
		{"TLS keys in Redis, unencrypted", 0o600, "", "store: {url: \"${REDIS}\"}\ntls: {domains: [weir.example.com]}", []string{"high 1:1 cache.key", "medium 1:1 cache.key"}},
		{"Redis without TLS", 0o600, "", "cache: {key: \"${LONG}\"}\nstore: {url: \"redis://u:hunter2@redis.example.com:6379\"}", []string{"medium 5:14 store.url", "medium 5:14 store.url"}},
		{"Redis URL from the environment, with a cache key", 0o600, "", "cache: {key: \"${LONG}\"}\nstore: {url: \"${REDIS}\"}", nil},
		{"local Redis", 0o600, "", "cache: {key: \"${LONG}\"}\nstore: {url: \"redis://localhost:6379\"}", nil},
		{"cluster with a local and a remote node", 0o600, "", "cache: {key: \"${LONG}\"}\nstore: {url: \"rediss+cluster://localhost:1?addr=redis.example.com:2\"}", []string{"high 5:14 store.url"}},
		{"client with all credentials", 0o600, "", two + "clients: [{name: x, " + key + ", credentials: [a, b]}]", []string{"medium 5:114 clients[0].credentials"}},
		{"client with one credential", 0o600, "", two + "clients: [{name: x, " + key + ", credentials: [a]}]", nil},
		{"credentials in plain text", 0o600, "", "credentials: [{name: a, kind: user, token: hunter2}]", []string{"medium 4:44 credentials[0].token"}},
		{"claims that select one repository", 0o600, "", claims(`{sub: "repo:acme/deploy:*", ref: "refs/heads/release*"}`), nil},
		{"claims that match every token", 0o600, "", claims(`{sub: "*"}`), []string{"high 6:64 clients[0].jwt.claims"}},
		{"claims that match every token of a kind", 0o600, "", claims(`{sub: "repo:**", aud: weir, iss: "https://issuer.example"}`), []string{"high 6:64 clients[0].jwt.claims"}},
		{"any subject in one environment", 0o600, "", claims(`{sub: "repo:*", environment: production}`), nil},
		{"subject pattern that extends a name", 0o600, "", claims(`{sub: "repo:acme*"}`), []string{"medium 6:70 clients[0].jwt.claims.sub"}},
		{"subject pattern after a complete name", 0o600, "", claims(`{sub: "repo:acme/*:ref:refs/heads/x*"}`), nil},
		{"audience of the issuer itself", 0o600, "", issuer("[weir]", `[weir, "https://issuer.example/"]`), []string{"medium 5:63 issuers[0].audiences"}},
		{"local issuer without TLS", 0o600, "", issuer("https://issuer.example", "http://127.0.0.1:8000"), []string{"low 5:26 issuers[0].url"}},
		{"issuer with many algorithms", 0o600, "", issuer("[weir]", "[weir], algorithms: [RS256, ES256, PS256]"), []string{"low 5:83 issuers[0].algorithms"}},
		{"issuer with one algorithm", 0o600, "", issuer("[weir]", "[weir], algorithms: [ES256]"), nil},
		{"app key in plain text", 0o600, "", app(fmt.Sprintf("%q", private)), []string{"medium 4:80 credentials[0].app.key"}},
		{"app key readable by all users", 0o644, "", app(fmt.Sprintf("%q", private)), []string{"high 1:1 ", "medium 4:80 credentials[0].app.key"}},
		{"app key from the environment", 0o600, "", app(`"${APP}"`), nil},
		{"app with Redis, without a cache key", 0o600, "", app(`"${APP}"`) + "store: {url: \"redis://localhost:6379\"}", []string{"medium 1:1 cache.key", "low 1:1 cache.key"}},
		{"user with Redis, without a cache key", 0o600, "", "credentials: [{name: a, kind: user, token: \"${LONG}\"}]\nstore: {url: \"redis://localhost:6379\"}", []string{"medium 1:1 cache.key"}},
		{"app with Redis and a cache key", 0o600, "", app(`"${APP}"`) + "cache: {key: \"${LONG}\"}\nstore: {url: \"redis://localhost:6379\"}", nil},
		{"cold start trust", 0o600, "", "limits: {cold_start: trust}", []string{"medium 4:22 limits.cold_start"}},
		{"cold start trust with a ledger file", 0o600, "", "limits: {cold_start: trust}\nstore: {url: \"memory:/var/lib/weir\"}", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := safe + c.new
			if c.old != "" {
				text = strings.Replace(safe, c.old, c.new, 1)
			}
			equal(t, "findings", assess(t, c.mode, text, private, reasons), c.want)
		})
	}
	equal(t, "risks in the cases", len(reasons), risks)
}

func TestAssessSortsByGrade(t *testing.T) {
	found := assess(t, 0o666, "listen: \":1\"\nadmin: {token: hunter2}\nupstream: {url: \"http://api.example.com\"}\nlimits: {cold_start: trust, inbound: {rate: 0}}\n", "", map[string]bool{})
	grades := make([]string, len(found))
	for i, f := range found {
		grades[i], _, _ = strings.Cut(f, " ")
	}
	want := []string{"high", "high", "high", "high", "medium", "medium", "medium", "medium", "low"}
	failIf(t, !slices.Equal(grades, want), "findings %v, want the grades %v", found, want)
}
