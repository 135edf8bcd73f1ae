package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/policy"
)

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

func parse(t *testing.T, text string) (*Config, error) {
	t.Helper()
	return Parse(Source{Path: "weir.yaml", Getenv: env("TOKEN", "s3cret", "EMPTY", "", "N", "7")}, []byte(text))
}

const minimal = "upstream: {url: \"https://api.example.com\"}\n"

func TestDefaultsAreThoseOfTheDocuments(t *testing.T) {
	c, err := parse(t, minimal)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Upstream.URL = "https://api.example.com"
	if diff := cmp.Diff(want, c); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(policy.DefaultLimits(), c.Limits.Limits); diff != "" {
		t.Error(diff)
	}
}

func TestFileIsLaidOverTheDefaults(t *testing.T) {
	c, err := parse(t, minimal+"tls:\nlimits: {primary: {user: \"${N}\"}, wait: 1m30s}\ncredentials: [{name: ci, kind: user, token: \"${TOKEN}\"}]")
	if err != nil {
		t.Fatal(err)
	}
	if c.Limits.Primary.User != 7 || c.Limits.Primary.Workflow != 1000 || c.Limits.Wait != 90*time.Second || c.Credentials[0].Token.Reveal() != "s3cret" {
		t.Errorf("%+v", c)
	}
}

func TestEachMistakeSaysWhereAndWhat(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown key", "listne: x", `weir.yaml:2:1: listne: unknown key; did you mean "listen"?`},
		{"unknown key far from any", "store: {location: x}", "weir.yaml:2:9: store.location: unknown key; must be one of url"},
		{"key twice", "listen: \":1\"\nlisten: \":2\"", "weir.yaml:3:1: listen: stands twice; first in line 2"},
		{"list for a value", "listen: [a]", "weir.yaml:2:9: listen: want a single value"},
		{"value for a mapping that holds what is required", "admin: {listen: \":1\", token: [x]}", "weir.yaml:2:30: admin.token: want a single value"},
		{"value for a mapping", "limits: many", "weir.yaml:2:9: limits: want a mapping"},
		{"value for a list", "clients: me", "weir.yaml:2:10: clients: want a list"},
		{"no duration", "limits: {wait: soon}", `weir.yaml:2:16: limits.wait: "soon" is not a duration: write for example 500ms, 30s or 1h30m`},
		{"negative duration", "limits: {wait: -1s}", `weir.yaml:2:16: limits.wait: "-1s" is not a duration: write for example 500ms, 30s or 1h30m`},
		{"no number", "limits: {concurrent: many}", `weir.yaml:2:22: limits.concurrent: "many" is not a whole number`},
		{"number out of range", "limits: {primary: {user: 0}}", "weir.yaml:2:26: limits.primary.user: 0: must be 1 or more"},
		{"no boolean", "callers: {pass_through: yes}", `weir.yaml:2:25: callers.pass_through: "yes": must be true or false`},
		{"no size", "cache: {memory: 5 apples}", `weir.yaml:2:17: cache.memory: "5 apples" is not a size: write a number and KiB, MiB or GiB`},
		{"enum", "limits: {cold_start: hot}", `weir.yaml:2:22: limits.cold_start: "hot": must be one of ramp, strict, trust`},
		{"number enum", "limits: {refusal_status: 503}", `weir.yaml:2:26: limits.refusal_status: "503": must be one of 429, 403`},
		{"no address", "listen: here", `weir.yaml:2:9: listen: "here" is not an address: write host:port or :port`},
		{"admin without a token", "admin: {listen: \":9090\"}", `weir.yaml:2:8: admin.token: required because admin.listen ":9090" is not on loopback`},
		{"unset variable", "listen: ${NOPE}", `weir.yaml:2:9: listen: environment variable "NOPE" is not set; ${NOPE:-default} gives it a default`},
		{"open variable", "listen: ${NOPE", "weir.yaml:2:9: listen: ${ is not closed; write $${ for a literal one"},
		{"secret file", "admin: {token: \"file:/nowhere\"}", `weir.yaml:2:16: admin.token: file "/nowhere": no such file or directory`},
		{"store", "store: {url: \"mysql://a:hunter2@b\"}", `weir.yaml:2:14: store.url: "mysql://a:%E2%80%A2%E2%80%A2%E2%80%A2@b": must be memory: or a URL of one of redis, rediss, redis+sentinel, redis+cluster`},
		{"operation", "cache: {operations: {gitignore/none: {ttl: 1h}}}", "weir.yaml:2:38: cache.operations.gitignore/none: unknown operation; weir explain METHOD PATH tells the name"},
		{"operation that is not reference data", "cache: {operations: {watching/list-mine: {ttl: 1h}}}", "weir.yaml:2:42: cache.operations.watching/list-mine: is not reference data: how long its answers are fresh is the upstream's to say"},
		{"webhook path", "webhooks: {path: /hooks}", `weir.yaml:2:18: webhooks.path: "/hooks": must begin with /_weir/`},
		{"sample", "telemetry: {sample: 1.5}", "weir.yaml:2:21: telemetry.sample: 1.5: must be from 0 to 1"},
		{"nobody could call", "callers: {pass_through: false}", "weir.yaml:2:25: callers.pass_through: is false and there are no clients: nobody could call"},
		{"credential without token", "credentials: [{name: a, kind: user}]", "weir.yaml:2:15: credentials[0].token: required"},
		{"poll", "statistics: {poll: {first: 20s}}", "weir.yaml:2:20: statistics.poll.max: 15s: must not be less than first, 20s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(t, minimal+c.text)
			var problems Problems
			if !errors.As(err, &problems) {
				t.Fatalf("accepted, or %v", err)
			}
			if len(problems) != 1 || problems[0].String() != c.want {
				t.Errorf("got  %s\nwant %s", err, c.want)
			}
		})
	}
}

func TestAllMistakesAtOnceInTheOrderOfTheFile(t *testing.T) {
	_, err := parse(t, `listen: here
clients:
  - {name: a, key: "sha256:00", credentials: [none], share: 0, priority: low}
  - {name: a, key: x}
limits:
  headroom: 1
  wait: x
`)
	want := `weir.yaml:1:1: upstream.url: required: the base URL of the API
weir.yaml:1:9: listen: "here" is not an address: write host:port or :port
weir.yaml:3:20: clients[0].key: must be sha256: and 64 hexadecimal digits
weir.yaml:3:47: clients[0].credentials[0]: "none" is not among credentials
weir.yaml:3:61: clients[0].share: 0: must be 1 or more
weir.yaml:3:74: clients[0].priority: "low": must be one of interactive, normal, batch
weir.yaml:4:5: clients[1].credentials: must name at least one credential
weir.yaml:4:12: clients[1].name: "a" stands twice
weir.yaml:4:20: clients[1].key: must be sha256: and 64 hexadecimal digits
weir.yaml:6:13: limits.headroom: 1: must be from 0 to below 1
weir.yaml:7:9: limits.wait: "x" is not a duration: write for example 500ms, 30s or 1h30m`
	if err == nil {
		t.Fatal("accepted")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Error(diff)
	}
}

func TestSyntaxErrorsHaveAPosition(t *testing.T) {
	for _, text := range []string{"a: [", "a: b: c", "a: \"", "- a\nb: c", "a: &x *x", "%YAML 9"} {
		_, err := parse(t, text)
		var problems Problems
		if !errors.As(err, &problems) || problems[0].Line < 1 || problems[0].Column < 1 {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestNoErrorQuotesASecret(t *testing.T) {
	_, err := parse(t, `
upstream: {url: "https://user:hunter2@api.example.com"}
admin: {token: [hunter2]}
credentials: [{name: a, kind: oauth_app, token: hunter2}, {name: a, kind: x, token: {hunter2: 1}}]
`)
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}

func TestExpandEnv(t *testing.T) {
	get := env("A", "1", "EMPTY", "")
	for text, want := range map[string]string{
		"plain": "plain", "${A}": "1", "x${A}y${A}": "x1y1", "${B:-2}": "2", "${B:-}": "", "${EMPTY:-3}": "3", "${EMPTY}": "",
		"$${A}": "${A}", "$A": "$A", "${A:-9}": "1",
	} {
		if got, err := expandEnv(text, get); got != want || err != nil {
			t.Errorf("%s: got %q, %v", text, got, err)
		}
	}
}

func TestFlagsOverrideTheFileAndAreNamedInErrors(t *testing.T) {
	names := map[string]string{"listen": "--listen", "upstream.url": "--upstream", "upstream.dialect": "--dialect"}
	flags := func(values map[string]string) Source {
		return Source{Path: "weir.yaml", Getenv: env(), Flags: values, FlagNames: names}
	}
	c, err := Parse(flags(map[string]string{"listen": ":1", "upstream.url": "http://other"}), []byte(minimal+"listen: \":2\""))
	if err != nil || c.Listen != ":1" || c.Upstream.URL != "http://other" {
		t.Errorf("%+v, %v", c, err)
	}
	_, err = Parse(flags(map[string]string{"upstream.dialect": "klingon"}), []byte(minimal))
	if want := `--dialect: "klingon": must be one of service, github`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err = Parse(Source{Flags: map[string]string{"upstream.url": "http://x"}, FlagNames: names, Getenv: env()}, nil); err != nil {
		t.Errorf("no file at all: %v", err)
	}
}

func TestReadyConfigurations(t *testing.T) {
	files, err := filepath.Glob("../../configs/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	token := filepath.Join(t.TempDir(), "admin")
	if err := os.WriteFile(token, []byte("t0ken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	samples := env("UPSTREAM_URL", "https://api.example.com", "CI_TOKEN", "x", "BUILDS_KEY_SHA256", strings.Repeat("0f", 32),
		"REDIS_URL", "rediss://user:pw@redis.internal:6379/0", "HOOK_SECRET", "x", "ADMIN_TOKEN_FILE", token)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c, err := Load(Source{Path: file, Getenv: samples})
			if err != nil {
				t.Fatal(err)
			}
			if c.Admin.Token != "" && c.Admin.Token.Reveal() != "t0ken" {
				t.Error("the newline belongs to the file, not to the secret")
			}
			if shown := fmt.Sprint(c.Masked()); strings.Contains(shown, "t0ken") || strings.Contains(shown, ":pw@") {
				t.Errorf("a secret shows: %s", shown)
			}
			if _, err := c.Catalogue(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMissingFile(t *testing.T) {
	_, err := Load(Source{Path: "nowhere.yaml", Getenv: env()})
	if want := "nowhere.yaml: no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "12": 12, "12B": 12, "3KiB": 3 << 10, "256MiB": 256 << 20, "2 GiB": 2 << 30} {
		if got, err := parseSize(text); got != want || err != nil {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "1.5MiB", "MiB", "1MB", "9999999999GiB"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q: accepted as %d", text, got)
		}
	}
	for size, want := range map[Size]string{0: "0B", 1: "1B", 1 << 20: "1MiB", 1536: "1536B", 1536 << 10: "1536KiB"} {
		if size.String() != want {
			t.Errorf("%d: got %s, want %s", int64(size), size, want)
		}
	}
}

func TestSchemaSaysWhatTheFileMay(t *testing.T) {
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	type node struct {
		Type        string
		Description string
		Enum        []any
		Default     any
		Properties  map[string]node
		Items       *node
		Additional  any `json:"additionalProperties"`
	}
	var root node
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	if root.Additional != false || root.Properties["limits"].Properties["primary"].Additional != false {
		t.Error("unknown keys are allowed")
	}
	dialect := root.Properties["upstream"].Properties["dialect"]
	if diff := cmp.Diff([]any{"service", "github"}, dialect.Enum); diff != "" || dialect.Default != "service" {
		t.Error(diff, dialect)
	}
	if got := root.Properties["limits"].Properties["wait"].Default; got != "10s" {
		t.Errorf("limits.wait: default %v", got)
	}
	var undescribed func(key string, n node)
	undescribed = func(key string, n node) {
		if n.Description == "" && key != "" && !strings.HasSuffix(key, "[]") {
			t.Errorf("%s has no description", key)
		}
		for name, p := range n.Properties {
			undescribed(strings.TrimPrefix(key+"."+name, "."), p)
		}
		if n.Items != nil {
			undescribed(key+"[]", *n.Items)
		}
	}
	undescribed("", root)
}

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "weir.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(minimal)
	type result struct {
		c   *Config
		err error
	}
	results := make(chan result)
	hup := make(chan os.Signal)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- Watch(ctx, Source{Path: path, Getenv: env()}, hup, func(c *Config, err error) { results <- result{c, err} })
	}()
	hup <- os.Interrupt
	if r := <-results; r.err != nil {
		t.Errorf("on a signal: %v", r.err)
	}
	write(minimal + "listen: \":1234\"")
	if r := <-results; r.err != nil || r.c.Listen != ":1234" {
		t.Errorf("on a change: %+v", r)
	}
	write("nonsense: 1")
	if r := <-results; r.c != nil || r.err == nil {
		t.Errorf("on an invalid change: %+v", r)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", minimal, "a: [", "clients: [{name: ${TOKEN}}]", "limits: {content: [{max: 1}]}", "x: &a [*a]", "? {a: b}: c", "admin: !!binary x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse(Source{Path: "weir.yaml", Getenv: env("TOKEN", "x")}, []byte(text))
		if err == nil {
			if c == nil {
				t.Fatal("neither a configuration nor an error")
			}
			return
		}
		var problems Problems
		if !errors.As(err, &problems) || len(problems) == 0 {
			t.Fatalf("%v", err)
		}
		for _, p := range problems {
			if p.File == "" || p.Message == "" || p.Line < 0 {
				t.Errorf("%+v", p)
			}
		}
	})
}
