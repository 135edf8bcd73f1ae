package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// env returns an environment of alternating names and values.
func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// must returns a value that the setup of a test needs.
func must[T any](value T, err error) T { return testservers.Must(value, err) }

func noError(t testing.TB, err error) { t.Helper(); testservers.NoError(t, err) }

// equal compares a value with the expected value.
func equal[T any](t testing.TB, name string, got, want T) {
	t.Helper()
	testservers.Equal(t, name, got, want)
}

func parse(t *testing.T, text string) (*Config, error) {
	t.Helper()
	return parseAt("weir.yaml", text)
}

// parseAt parses the text of a file with this path.
func parseAt(path, text string) (*Config, error) {
	getenv := env("TOKEN", "s3cret", "EMPTY", "", "N", "7", "PEM", testservers.AppKey())
	return Parse(Source{Path: path, Getenv: getenv}, []byte(text))
}

// valid parses a valid file.
func valid(t *testing.T, text string) *Config {
	t.Helper()
	c, err := parse(t, text)
	noError(t, err)
	return c
}

// minimal is the shortest valid file.
const minimal = "upstream: {url: \"https://api.example.com\"}\n"

// mistake is an invalid text after a beginning of the file, and the expected problem at a line and column of weir.yaml.
type mistake struct{ name, text, want string }

// message returns an error of Parse without the operation that starts each line.
func message(err error) string { return strings.ReplaceAll(err.Error(), "read config ", "") }

// outcome returns a value of a valid file, or the problems of an invalid file.
func outcome(s Source, text string, value func(c *Config) string) string {
	c, err := Parse(s, []byte(text))
	if err != nil {
		return message(err)
	}
	return value(c)
}

// checkMistakes checks that each file has exactly the expected problem.
func checkMistakes(t *testing.T, beginning string, mistakes []mistake) {
	t.Helper()
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			c, err := parse(t, beginning+m.text)
			var problems Problems
			want := "weir.yaml:" + m.want
			failIf(t, !errors.As(err, &problems) || c != nil || len(problems) != 1 || problems[0].String() != want, "got  %v, %v\nwant %s", c, err, want)
		})
	}
}

func TestMinimalFileHasTheDefaults(t *testing.T) {
	c := valid(t, minimal)
	want := Default()
	want.Upstream.URL = "https://api.example.com"
	equal(t, "configuration", c, want)
	equal(t, "configuration", c.Limits.Limits, policy.DefaultLimits())
}

func TestDefaultReturnsACopy(t *testing.T) {
	Default().Limits.Content[0].Max = 1
	equal(t, "default after a change of the returned value", Default().Limits.Content[0].Max, 80)
}

func TestFileOverridesTheDefaults(t *testing.T) {
	c := valid(t, minimal+`
tls:
statistics: ~
limits: {primary: {user: "${N}"}, wait: 1m30s, inbound: {rate: 0}, content: [{max: 5, window: 1s}]}
credentials: [{name: ci, kind: user, token: "${TOKEN}"}]
clients: [{name: a, key: "sha256:`+strings.Repeat("0F", 32)+`", credentials: [ci], priority: batch}]
`)
	want := Default()
	want.Upstream.URL = "https://api.example.com"
	want.Limits.Primary.User = 7
	want.Limits.Wait = 90 * time.Second
	want.Limits.Inbound.Rate = 0
	want.Limits.Content = []policy.Window{{Max: 5, Window: time.Second}}
	want.Credentials = []Credential{{Name: "ci", Kind: policy.User, Token: "s3cret"}}
	want.Clients = []Client{{Name: "a", Key: "sha256:" + strings.Repeat("0F", 32), Credentials: []string{"ci"}, Share: 1, Priority: "batch", Limit: 0.9}}
	equal(t, "configuration", c, want)
}

// everything is a file with almost all keys.
const everything = `
listen: ":8080"
admin: {listen: "127.0.0.1:9090", token: t0ken, prometheus: {url: "https://prometheus.internal/weir", token: t0ken}}
upstream: {url: "https://api.example.com/api/v3", dialect: github, timeout: 30s, egress: shared}
store: {url: "rediss://default:t0ken@redis.internal:6379/0"}
credentials: [{name: ci, kind: user, account: octo-bot, token: "${TOKEN}"}]
clients: [{name: builds, key: "sha256:0000000000000000000000000000000000000000000000000000000000000000", credentials: [ci], share: 3, priority: batch}]
callers: {pass_through: true}
limits:
  headroom: 0
  on_store_loss: share
  cold_start: ramp
  wait: 10s
  refusal_status: 403
  inbound: {rate: 500, burst: 1000}
  primary: {unauthenticated: 60, user: 5000, enterprise: 15000, installation: 5000, oauth_app: 5000, workflow: 1000, window: 1h}
  search: {authenticated: 30, code: 10, unauthenticated: 10, window: 1m}
  concurrent: 100
  points: {rest: 900, graphql: 2000, window: 1m}
  cpu: {total: 90s, graphql: 60s, window: 1m, factor: 1.0}
  content: [{max: 80, window: 1m}, {max: 500, window: 1h}]
cache: {memory: 256MiB, operations: {gitignore/get-template: {ttl: 24h}}, graphql: {gh: true, rules: [{operation: List, ttl: 30s}]}}
statistics: {wait: 10s, poll: {first: 1s, factor: 2, max: 15s, budget: 5m}}
webhooks: {path: /_weir/webhooks, secret: "${TOKEN}"}
tls: {domains: [weir.example.com], email: ops@example.com, ca: "https://ca.internal/directory", storage: store, http: ":80"}
telemetry: {service_name: weir, sample: 1.0}
headers: {ratelimit: draft-08}
`

func TestMaskedHidesSecrets(t *testing.T) {
	want := map[string]any{
		"listen":      ":8080",
		"admin":       map[string]any{"listen": "127.0.0.1:9090", "token": "•••", "hosts": []any{}, "tls": map[string]any{"certificate": "", "key": "", "client_ca": ""}, "prometheus": map[string]any{"url": "https://prometheus.internal/weir", "token": "•••"}},
		"upstream":    map[string]any{"url": "https://api.example.com/api/v3", "aliases": []any{}, "dialect": "github", "timeout": "30s", "limits": "on", "rewrite_urls": "off", "proxy": "", "no_proxy": []any{}, "egress": "shared"},
		"store":       map[string]any{"url": "rediss://•••@redis.internal:6379/0"},
		"credentials": []any{map[string]any{"name": "ci", "kind": "user", "account": "octo-bot", "token": "•••"}},
		"clients": []any{map[string]any{
			"name": "builds", "key": "sha256:" + strings.Repeat("0", 64), "certificate": "", "jwt": map[string]any{"issuer": "", "claims": map[string]any{}, "repositories": "", "tag": ""},
			"repositories": []any{}, "organizations": []any{},
			"methods": []any{}, "operations": []any{}, "credentials": []any{"ci"},
			"graphql": map[string]any{"depth": 0, "nodes": 0, "cost": 0, "read_only": false, "operations": []any{}, "repositories": []any{}, "persisted": []any{}},
			"group":   "", "share": 3, "priority": "batch", "guarantee": 0, "limit": 0.9, "tag_limit": 0,
			"writes": map[string]any{"per_minute": 0, "per_hour": 0}, "tag_writes": map[string]any{"per_minute": 0, "per_hour": 0}, "refusal_status": 0, "debug": false,
		}},
		"groups":  []any{},
		"hosts":   []any{},
		"issuers": []any{},
		"proxy":   map[string]any{"listen": "", "ca": map[string]any{"certificate": "", "key": ""}, "others": "refuse", "allow": []any{}},
		"socket":  map[string]any{"mode": "0660", "owner": ""},
		"callers": map[string]any{"anonymous": map[string]any{"credential": "", "operations": []any{}}, "pass_through": true, "trusted_proxies": []any{}},
		"limits": map[string]any{
			"headroom": 0, "probes": 10, "on_store_loss": "share", "cold_start": "ramp", "wait": "10s", "refusal_status": 403,
			"inbound":    map[string]any{"rate": 500, "burst": 1000, "body": "10m0s"},
			"primary":    map[string]any{"unauthenticated": 60, "user": 5000, "enterprise": 15000, "installation": 5000, "oauth_app": 5000, "workflow": 1000, "window": "1h0m0s"},
			"search":     map[string]any{"authenticated": 30, "code": 10, "unauthenticated": 10, "window": "1m0s"},
			"concurrent": 100,
			"points":     map[string]any{"rest": 900, "graphql": 2000, "window": "1m0s"},
			"cpu":        map[string]any{"total": "1m30s", "graphql": "1m0s", "window": "1m0s", "factor": 1},
			"content":    []any{map[string]any{"max": 80, "window": "1m0s"}, map[string]any{"max": 500, "window": "1h0m0s"}},
		},
		"cache": map[string]any{"memory": "256MiB", "etags": "computed", "key": "", "lag": "2s", "graphql": map[string]any{"gh": true, "rules": []any{map[string]any{"operation": "List", "field": "", "ttl": "30s"}}}, "operations": map[string]any{"gitignore/get-template": map[string]any{"coalesce": true, "max_ttl": "0s", "ttl": "24h0m0s"}}},
		"statistics": map[string]any{
			"wait": "10s", "poll": map[string]any{"first": "1s", "factor": 2, "max": "15s", "budget": "5m0s"},
		},
		"webhooks":  map[string]any{"fresh": "0s", "path": "/_weir/webhooks", "secret": "•••", "secrets": []any{}},
		"tls":       map[string]any{"domains": []any{"weir.example.com"}, "email": "ops@example.com", "ca": "https://ca.internal/directory", "storage": "store", "http": ":80", "certificates": []any{}, "client_ca": ""},
		"telemetry": map[string]any{"service_name": "weir", "sample": 1, "access_log": "all", "log_format": "text", "propagate": "off"},
		"headers":   map[string]any{"ratelimit": "draft-08"},
		"drain":     map[string]any{"delay": "0s", "timeout": "10s"},
	}
	c := valid(t, everything)
	equal(t, "configuration", c.Masked(), want)
	equal(t, "URL after masking", c.Store.URL, "rediss://default:t0ken@redis.internal:6379/0")
}

func TestRedacted(t *testing.T) {
	testservers.EqualEach(t, redacted, map[string]string{
		"memory:":                             "memory:",
		"redis://h:6379/0":                    "redis://h:6379/0",
		"redis://:pw@h/0":                     "redis://•••@h/0",
		"rediss://user:p@w@h":                 "rediss://•••@h",
		"redis://u:p/w?x#y@h":                 "redis://•••@h",
		"redis+sentinel://u:p@h":              "redis+sentinel://•••@h",
		"u:pw@h":                              "•••@h",
		"pw@x://u:pw@h":                       "•••@h",
		"redis://u:p\nw@h":                    "redis://•••@h",
		"redis://h?sentinel_password=pw":      "redis://h?sentinel_password=•••",
		"https://h?a=1&Access_Token=pw&b=2#c": "https://h?a=1&Access_Token=•••&b=2#c",
	})
}

func TestRedactedHidesPasswords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		junk := rapid.StringMatching(`[ -~]{0,8}`)
		scheme := rapid.SampledFrom([]string{"", "redis://", "rediss://", "redis+cluster://", "://", "//"}).Draw(t, "scheme")
		raw := scheme + junk.Draw(t, "user") + ":hunter2" + junk.Draw(t, "more") + "@" + junk.Draw(t, "host")
		if got := redacted(raw); strings.Contains(got, "hunter2") {
			t.Fatalf("%q is redacted to %q", raw, got)
		}
	})
}

func TestCatalogueAppliesCacheRules(t *testing.T) {
	equal(t, "TTL", must(valid(t, everything).Catalogue()).Operation("gitignore/get-template").Cache.TTL, 24*time.Hour)
	bounded := valid(t, "cache: {operations: {pulls/list: {max_ttl: 5s}}}\nupstream: {url: \"https://api.github.com\", dialect: github}\n")
	equal(t, "longest lifetime", must(bounded.Catalogue()).Operation("pulls/list").Cache.MaxTTL, 5*time.Second)
}

func TestReadyConfigurationsAreValid(t *testing.T) {
	root, files := schema(t), must(filepath.Glob("../../configs/*.yaml"))
	stopIf(t, len(files) < 4, "%v", files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			equal(t, "violations of the schema", violations(t, root, string(must(os.ReadFile(file)))), []string(nil))
			c, err := Load(Source{Path: file, Getenv: sampleEnv(t)})
			noError(t, err)
			failIf(t, c.Admin.Token != "" && c.Admin.Token.Reveal() != "t0ken", "the secret contains the newline of its file")
			shown := fmt.Sprint(c.Masked())
			failIf(t, strings.Contains(shown, "t0ken") || strings.Contains(shown, ":pw@"), "a secret is visible: %s", shown)
			if _, err := c.Catalogue(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Every block of the documentation that is marked yaml must be valid together with the required keys. Recipes mark the
// configuration of another program with yml.
func TestDocumentedConfigurationsAreValid(t *testing.T) {
	files, found := certificates(t), 0
	pages := slices.Concat(must(filepath.Glob("../../docs/*.md")), must(filepath.Glob("../../docs/*/*.md")), []string{"../../README.md"})
	for _, page := range pages {
		text := must(os.ReadFile(page))
		for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
			shown := strings.NewReplacer(`"file:/run/secrets/weir-cache"`, `"${CACHE_KEY}"`, `"file:admin"`, `"${CACHE_KEY}"`, `"file:cache"`, `"${CACHE_KEY}"`, `"file:hook"`, `"${CACHE_KEY}"`, "tls.crt", files+"/own.pem", "tls.key", files+"/own.key",
				"/etc/weir/weir-ca.crt", files+"/own.pem", "/etc/weir/weir-ca.key", files+"/own.key").Replace(block[1])
			for _, absent := range []string{minimal, "credentials: [{name: ci, kind: user, account: octo-bot, token: \"${CI_TOKEN}\"}]\n"} {
				if key, _, _ := strings.Cut(absent, ":"); !regexp.MustCompile("(?m)^" + key + ":").MatchString(shown) {
					shown = absent + shown
				}
			}
			found++
			_, err := Parse(Source{Path: filepath.Base(page), Getenv: sampleEnv(t)}, []byte(shown))
			failIf(t, err != nil, "%v\n%s", err, block[1])
		}
	}
	failIf(t, found < 7, "%d blocks found, want 7 or more", found)
}

// sampleEnv returns an environment with the variables of all ready configurations.
func sampleEnv(t *testing.T) func(string) (string, bool) {
	t.Helper()
	token, app := filepath.Join(t.TempDir(), "admin"), filepath.Join(t.TempDir(), "app.pem")
	testservers.WriteFile(t, token, "t0ken\n")
	testservers.WriteFile(t, app, testservers.AppKey())
	named := env("APP_ID", "4200", "APP_KEY_FILE", app, "BOT_TOKEN", "t0ken", "CACHE_KEY", strings.Repeat("t0ken", 8),
		"UPSTREAM_URL", "https://api.example.com", "CI_TOKEN", "t0ken", "UPSTREAM_TOKEN", "t0ken",
		"REDIS_URL", "rediss://user:pw@redis.internal:6379/0", "HOOK_SECRET", "t0ken", "ADMIN_TOKEN_FILE", token)
	return func(name string) (string, bool) {
		if strings.HasSuffix(name, "_KEY_SHA256") {
			return fmt.Sprintf("%x", sha256.Sum256([]byte(name))), true
		}
		return named(name)
	}
}

func TestReadyConfigurationsDocumentTheirVariables(t *testing.T) {
	for name, variables := range map[string][]string{
		"demo": nil, "github": nil,
		"single":  {"UPSTREAM_URL", "CI_TOKEN", "BUILDS_KEY_SHA256"},
		"cluster": {"UPSTREAM_URL", "REDIS_URL", "HOOK_SECRET"},
	} {
		path := filepath.Join("../../configs", name+".yaml")
		_, err := Load(Source{Path: path, Getenv: env()})
		comments := regexp.MustCompile(`(?m)^ *#.*`).FindAllString(string(must(os.ReadFile(path))), -1)
		for _, variable := range variables {
			failIf(t, err == nil || !strings.Contains(err.Error(), fmt.Sprintf("environment variable %q is not set", variable)), "%s: does not require %s: %v", name, variable, err)
			failIf(t, !strings.Contains(strings.Join(comments, "\n"), variable), "%s: no comment names %s", name, variable)
		}
		failIf(t, variables == nil && err != nil, "%s: requires a variable: %v", name, err)
	}
}

func TestDemoConfigurationEqualsTheDemoDefaults(t *testing.T) {
	c, err := Load(Source{Path: "../../configs/demo.yaml", Getenv: env()})
	noError(t, err)
	want := Default()
	want.Listen, want.Admin.Listen = "127.0.0.1:8080", "127.0.0.1:9090"
	want.Upstream.URL = "http://127.0.0.1:9000"
	want.Limits.ColdStart = "trust"
	want.Limits.Inbound.Rate = 0
	equal(t, "configuration", c, want)
}

func TestAppCredential(t *testing.T) {
	c := valid(t, minimal+`credentials: [{name: bot, kind: installation, app: {id: Iv1.x, key: "${PEM}", installation: 42, permissions: {contents: read}}}]`)
	app := c.Credentials[0].App
	failIf(t, app.ID != "Iv1.x" || app.Installation != 42 || app.Permissions["contents"] != "read" || app.Key == "", "app %+v", app)
	shown := fmt.Sprint(c.Masked())
	failIf(t, strings.Contains(shown, "PRIVATE") || !strings.Contains(shown, "•••"), "shown: %s", shown)
}

func TestPathOfTheUpstreamIsMasked(t *testing.T) {
	for raw, want := range map[string]string{
		"https://api.test": "https://api.test", "https://ghe.test/api/v3/": "https://ghe.test/api/v3", "https://proxy.test/s3cr3t/api": "https://proxy.test/•••",
		"https://user:s3cr3t@api.test/?key=s3cr3t": "https://api.test", "http://[::1]:1/a%2Fb": "http://[::1]:1/•••",
	} {
		equal(t, raw, (Upstream{URL: raw}).Shown(), want)
		c := Default()
		c.Upstream.URL, c.Hosts = raw, []Host{{Name: "a.test", URL: raw}}
		text := fmt.Sprint(c.Masked())
		failIf(t, strings.Contains(text, "s3cr3t"), "Masked contains %s", text)
	}
}
