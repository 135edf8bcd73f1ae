package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestMalformedValuesAreReported(t *testing.T) {
	all := "admin, cache, callers, clients, credentials, drain, groups, headers, hosts, issuers, limits, listen, proxy, socket, statistics, store, telemetry, tls, upstream, webhooks"
	checkMistakes(t, []mistake{
		{"unknown key", "listne: x", `weir.yaml:2:1: listne: unknown key; did you mean "listen"?`},
		{"unknown key without a suggestion", "store: {location: x}", "weir.yaml:2:9: store.location: unknown key; must be one of url"},
		{"unknown key in a struct with inlined fields", "limits: {primry: {user: 1}}", `weir.yaml:2:10: limits.primry: unknown key; did you mean "primary"?`},
		{"unknown key in a list", "limits: {content: [{max: 1, window: 1s, mix: 2}]}", `weir.yaml:2:41: limits.content[0].mix: unknown key; did you mean "max"?`},
		{"key in upper case", "LISTEN: x", "weir.yaml:2:1: LISTEN: unknown key; must be one of " + all},
		{"empty key", `"": x`, "weir.yaml:2:1: unknown key; must be one of " + all},
		{"merge key", "<<: {listen: x}", "weir.yaml:2:1: <<: unknown key; must be one of " + all},
		{"key that is a mapping", "? {a: b}\n: c", "weir.yaml:2:3: keys must be plain text"},
		{"key that is an alias", "telemetry: {service_name: &listen x, *listen : y}", "weir.yaml:2:38: telemetry: keys must be plain text"},
		{"duplicate key", "listen: \":1\"\nlisten: \":2\"", "weir.yaml:3:1: listen: duplicate key; first on line 2"},
		{"duplicate key in a map", "cache: {operations: {gitignore/list-templates: {ttl: 1s}, gitignore/list-templates: {ttl: 1s}}}", "weir.yaml:2:59: cache.operations.gitignore/list-templates: duplicate key; first on line 2"},
		{"list for a value", "listen: [a]", "weir.yaml:2:9: listen: must be a single value"},
		{"mapping for a value", "limits: {wait: {seconds: 3}}", "weir.yaml:2:16: limits.wait: must be a single value"},
		{"unknown key of Prometheus", "admin: {prometheus: {uri: x}}", `weir.yaml:2:22: admin.prometheus.uri: unknown key; did you mean "url"?`},
		{"list for a secret", "admin: {listen: \":1\", token: [x]}", "weir.yaml:2:30: admin.token: must be a single value"},
		{"value for a mapping", "limits: many", "weir.yaml:2:9: limits: must be a mapping"},
		{"list for a mapping", "limits: []", "weir.yaml:2:9: limits: must be a mapping"},
		{"value for a mapping with required keys", "admin: \":9090\"", "weir.yaml:2:8: admin: must be a mapping"},
		{"value for a list", "clients: me", "weir.yaml:2:10: clients: must be a list"},
		{"value for a map", "cache: {operations: all}", "weir.yaml:2:21: cache.operations: must be a mapping"},
		{"recursive list", "clients: &a [*a]", "weir.yaml:2:10: clients[0]: must be a mapping"},
		{"invalid duration", "limits: {wait: soon}", `weir.yaml:2:16: limits.wait: "soon" is not a duration; use for example 500ms, 30s or 1h30m`},
		{"duration without a unit", "limits: {wait: 30}", `weir.yaml:2:16: limits.wait: "30" has no unit; use 30s`},
		{"negative duration", "limits: {wait: -1s}", `weir.yaml:2:16: limits.wait: "-1s" is not a duration; use for example 500ms, 30s or 1h30m`},
		{"invalid number", "limits: {concurrent: many}", `weir.yaml:2:22: limits.concurrent: "many" is not a whole number`},
		{"fraction for a whole number", "limits: {concurrent: 1.5}", `weir.yaml:2:22: limits.concurrent: "1.5" is not a whole number`},
		{"number that is too large", "limits: {concurrent: 9223372036854775808}", `weir.yaml:2:22: limits.concurrent: "9223372036854775808" is not a whole number`},
		{"word for a fraction", "limits: {headroom: half}", `weir.yaml:2:20: limits.headroom: "half" is not a number`},
		{"not a number", "limits: {headroom: NaN}", `weir.yaml:2:20: limits.headroom: "NaN" is not a number`},
		{"infinity", "statistics: {poll: {factor: Inf}}", `weir.yaml:2:29: statistics.poll.factor: "Inf" is not a number`},
		{"invalid boolean", "callers: {pass_through: yes}", `weir.yaml:2:25: callers.pass_through: "yes": must be true or false`},
		{"invalid size", "cache: {memory: 5 apples}", `weir.yaml:2:17: cache.memory: "5 apples" is not a size; use a number with KiB, MiB or GiB`},
		{"unset variable", "listen: ${NOPE}", `weir.yaml:2:9: listen: environment variable "NOPE" is not set; use ${NOPE:-VALUE} for a default`},
		{"open variable", "listen: ${NOPE", "weir.yaml:2:9: listen: ${ has no closing }; use $${ for a literal ${"},
		{"tag", "listen: !env LISTEN", `weir.yaml:2:9: listen: "!env": YAML tags are not supported; write only the value`},
		{"tag without effect", "tls: {email: !!str me@example.com}", `weir.yaml:2:14: tls.email: "!!str": YAML tags are not supported; write only the value`},
		{"tag on a secret", "admin: {listen: \":1\", token: !env TOKEN}", `weir.yaml:2:30: admin.token: "!env": YAML tags are not supported; write only the value`},
		{"second document", "---\nlisten: \":1\"", "weir.yaml:2:1: a second YAML document starts here; use a single document"},
	})
}

func TestUnusualSyntaxIsAccepted(t *testing.T) {
	for name, text := range map[string]string{
		"byte order mark":    "\ufeff" + minimal,
		"JSON":               `{"upstream": {"url": "https://api.example.com"}, "limits": {"wait": "1s"}}`,
		"quoted number":      minimal + "limits: {concurrent: '5'}",
		"windows line ends":  "upstream:\r\n  url: https://api.example.com\r\n",
		"alias":              "upstream: {url: &u \"https://api.example.com\", egress: *u}",
		"document end":       minimal + "...\n",
		"comment at the end": minimal + "# the end",
	} {
		if _, err := parse(t, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAllMistakesAreReportedInTheOrderOfTheFile(t *testing.T) {
	_, err := parse(t, `listen: here
clients:
  - {name: a, key: "sha256:00", credentials: [none], share: 0, priority: low}
  - {name: a, key: x}
limits:
  headroom: 1
  wait: x
`)
	want := `weir.yaml:1:1: upstream.url: required: the base URL of the API
weir.yaml:1:9: listen: "here" is not an address; use host:port or :port
weir.yaml:3:20: clients[0].key: must be sha256: and 64 hexadecimal digits
weir.yaml:3:47: clients[0].credentials[0]: "none" is not among credentials
weir.yaml:3:61: clients[0].share: 0: must be from 1 to 1000
weir.yaml:3:74: clients[0].priority: "low": must be one of interactive, normal, batch
weir.yaml:4:5: clients[1].credentials: must name at least one credential
weir.yaml:4:12: clients[1].name: "a" is a duplicate
weir.yaml:4:20: clients[1].key: must be sha256: and 64 hexadecimal digits
weir.yaml:6:13: limits.headroom: 1: must be from 0 to below 1
weir.yaml:7:9: limits.wait: "x" is not a duration; use for example 500ms, 30s or 1h30m`
	if err == nil {
		t.Fatal("accepted")
	}
	if diff := cmp.Diff(want, message(err)); diff != "" {
		t.Error(diff)
	}
}

func TestErrorNamesTheOperation(t *testing.T) {
	_, err := parse(t, minimal+"listen: here")
	want := `read config weir.yaml:2:9: listen: "here" is not an address; use host:port or :port`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestMistakesAreReportedInAStableOrder(t *testing.T) {
	text := minimal + "cache: {operations: {a: , b: , c: , d: , e: , f: }}"
	_, first := parse(t, text)
	for range 20 {
		if _, again := parse(t, text); first == nil || message(again) != message(first) {
			t.Fatalf("got %v, then %v", first, again)
		}
	}
}

// The time per problem must not grow with the number of problems.
func TestManyMistakesAreReportedInLinearTime(t *testing.T) {
	const many = 20_000
	start := time.Now()
	_, err := parse(t, minimal+"clients: [&a {name: x}"+strings.Repeat(", *a", many-1)+"]")
	var problems Problems
	if !errors.As(err, &problems) || len(problems) < many {
		t.Fatalf("%d problems", len(problems))
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("took %s", took)
	}
}

func TestSyntaxErrorsHaveAPosition(t *testing.T) {
	for text, want := range map[string]string{
		"a: b: c":            "weir.yaml:1:5: mapping values are not allowed in this context",
		"listen: x\na: \"":   "weir.yaml:2:5: found unexpected end of stream",
		"a: &x *x":           "weir.yaml:1:7: ",
		"x: *nope":           "weir.yaml:1:4: unknown anchor 'nope' referenced",
		"listen: x\n\tb: c":  "weir.yaml:2:1: ",
		"listen: \xff":       "weir.yaml:1:1: invalid leading UTF-8 octet",
		"- a\nb: c":          "weir.yaml:2:1: ",
		"%YAML 9":            "weir.yaml:1:",
		"a: 1\n---\n\nb: \"": "weir.yaml:4:5: ",
	} {
		if _, err := parse(t, text); err == nil || !strings.HasPrefix(message(err), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestNullIsAnEmptySecret(t *testing.T) {
	for _, null := range []string{"", "~", "null", "Null", "NULL"} {
		c := valid(t, minimal+"admin: {token: "+null+"}\nwebhooks: {secret: "+null+"}")
		if c.Admin.Token != "" || c.Webhooks.Secret != "" {
			t.Errorf("%q is the secret %q", null, c.Admin.Token.Reveal())
		}
		if _, err := parse(t, minimal+"admin: {listen: \":9090\", token: "+null+"}"); err == nil {
			t.Errorf("%q is accepted as the token of a public listener", null)
		}
	}
	if c := valid(t, minimal+`admin: {token: "null"}`); c.Admin.Token.Reveal() != "null" {
		t.Errorf("quoted null: got %q", c.Admin.Token.Reveal())
	}
}

func TestSecretsFromFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"token": "t0ken\n", "windows": "t0ken\r\n", "bare": "t0ken", "empty": "", "blank": "\n\n", "two": "t0ken\nother\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	load := func(value string) (*Config, error) {
		source := Source{Path: filepath.Join(dir, "weir.yaml"), Getenv: env("DIR", dir, "VALUE", "file:token")}
		return Parse(source, []byte(minimal+"admin: {token: \""+value+"\"}"))
	}
	for _, value := range []string{"file:token", "file:windows", "file:./bare", "file:${DIR}/token", "${VALUE}", "t0ken"} {
		if c, err := load(value); err != nil || c.Admin.Token.Reveal() != "t0ken" {
			t.Errorf("%s: %v", value, err)
		}
	}
	for value, want := range map[string]string{
		"file:none":  `file "` + dir + `/none": no such file or directory`,
		"file:":      `file "` + dir + `": is a directory`,
		"file:empty": `file "` + dir + `/empty": is empty`,
		"file:blank": `file "` + dir + `/blank": is empty`,
		"file:two":   "contains a space, a line break or another character that is not allowed in a token",
	} {
		prefix := dir + "/weir.yaml:2:16: admin.token: "
		if _, err := load(value); err == nil || message(err) != prefix+want {
			t.Errorf("%s: got %v, want %s", value, err, prefix+want)
		}
	}
}

func TestOnlySecretsAreReadFromFiles(t *testing.T) {
	if c := valid(t, minimal+"telemetry: {service_name: \"file:/etc/passwd\"}"); c.Telemetry.ServiceName != "file:/etc/passwd" {
		t.Errorf("got %q", c.Telemetry.ServiceName)
	}
}

// secretPlaces are invalid files with a secret instead of each %.
var secretPlaces = []string{
	`upstream: {url: "https://user:%@api.example.com"}`,
	`upstream: {url: "ftp://%@api.example.com"}`,
	`upstream: {url: "https://api.example.com?token=%"}`,
	`upstream: {url: "https://us er:%@api.example.com"}`,
	`store: {url: "mysql://user:%@h"}`,
	`store: {url: "redis://user:%@"}`,
	`store: {url: "redis+sentinel://h:x?sentinel_password=%"}`,
	`admin: {token: [%]}`,
	`admin: {token: {%: 1}}`,
	`admin: {token: "% %"}`,
	`admin: {token: "%${NOPE}"}`,
	`admin: {token: "%${NOPE"}`,
	`admin: {token: "%\n"}`,
	`credentials: [{name: a, kind: oauth_app, token: %}]`,
	`credentials: [{name: a, kind: x, token: %}, {name: a, kind: user, token: %}]`,
	`webhooks: {path: /, secret: %}`,
	`clients: [{name: a, key: %, credentials: [a]}]`,
	`clients: [{name: a, key: "sha256:%", credentials: [a]}]`,
}

func TestErrorsQuoteNoSecret(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		for _, place := range rapid.SliceOfN(rapid.SampledFrom(secretPlaces), 1, 4).Draw(t, "positions") {
			text.WriteString(strings.ReplaceAll(place, "%", "hunter2") + "\n")
		}
		_, err := Parse(Source{Path: "weir.yaml", Getenv: env()}, []byte(text.String()))
		if err == nil || strings.Contains(message(err), "hunter2") {
			t.Fatalf("%s\n%v", text.String(), err)
		}
	})
}

func TestFlagsOverrideTheFileAndAreNamedInErrors(t *testing.T) {
	names := map[string]string{"listen": "--listen", "admin.listen": "--admin", "upstream.url": "--upstream", "upstream.dialect": "--dialect", "store.url": "--store", "limits.wait": "--wait"}
	flags := func(pairs ...string) Source {
		s := Source{Path: "weir.yaml", Getenv: env(), Flags: map[string]string{}, FlagNames: names}
		for i := 0; i < len(pairs); i += 2 {
			s.Flags[pairs[i]] = pairs[i+1]
		}
		return s
	}
	c, err := Parse(flags("listen", ":1", "upstream.url", "http://other"), []byte(minimal+"listen: nonsense"))
	if err != nil || c.Listen != ":1" || c.Upstream.URL != "http://other" {
		t.Errorf("configuration %+v, %v", c, err)
	}
	for _, c := range []struct {
		name   string
		source Source
		text   string
		want   string
	}{
		{"unknown value", flags("upstream.dialect", "klingon"), minimal, `--dialect: "klingon": must be one of service, github`},
		{"invalid address", flags("listen", "here"), minimal, `--listen: "here" is not an address; use host:port or :port`},
		{"flag requires a key of the file", flags("admin.listen", ":9"), minimal + "admin: {}", `weir.yaml:2:8: admin.token: required because admin.listen ":9" is not on loopback`},
		{"mistakes in a flag and in the file", flags("store.url", "x"), minimal + "listen: here", "--store: \"x\": must be memory:, memory:/FILE or a URL of one of redis, rediss, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster\n" +
			`weir.yaml:2:9: listen: "here" is not an address; use host:port or :port`},
		{"malformed value", flags("limits.wait", "soon"), minimal, `--wait: "soon" is not a duration; use for example 500ms, 30s or 1h30m`},
		{"value with a password", flags("store.url", "x://u:hunter2@h"), minimal, `--store: "x://•••@h": must be memory:, memory:/FILE or a URL of one of redis, rediss, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Parse(c.source, []byte(c.text)); err == nil || message(err) != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestFlagsWithoutAFile(t *testing.T) {
	s := Source{Flags: map[string]string{"upstream.url": "http://x"}, FlagNames: map[string]string{"upstream.url": "--upstream"}, Getenv: env()}
	if c, err := Load(s); err != nil || c.Upstream.URL != "http://x" {
		t.Errorf("configuration %+v, %v", c, err)
	}
	if _, err := Load(Source{Getenv: env()}); err == nil || message(err) != "upstream.url: required: the base URL of the API" {
		t.Errorf("got %v", err)
	}
}

func TestUnreadableFileIsReported(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{"nowhere.yaml": "nowhere.yaml: no such file or directory", dir: dir + ": is a directory"} {
		_, err := Load(Source{Path: path, Getenv: env()})
		if err == nil || message(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestExpandEnv(t *testing.T) {
	get := env("A", "1", "EMPTY", "", "NESTED", "${A}")
	for text, want := range map[string]string{
		"plain": "plain", "": "", "${A}": "1", "x${A}y${A}": "x1y1", "$A": "$A", "$": "$", "}": "}",
		"${B:-2}": "2", "${B:-}": "", "${A:-9}": "1", "${B:-a:-b}": "a:-b", "${B:-https://h:1}": "https://h:1",
		"${EMPTY}": "", "${EMPTY:-3}": "3",
		"$${A}": "${A}", "$${A": "${A", "$$${A}": "$${A}", "$${A}${A}": "${A}1",
		"${NESTED}": "${A}", // values are not expanded again
	} {
		if got, err := expandEnv(text, get); got != want || err != nil {
			t.Errorf("%s: got %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"${B}":       `environment variable "B" is not set; use ${B:-VALUE} for a default`,
		"${A}${B}":   `environment variable "B" is not set; use ${B:-VALUE} for a default`,
		"${}":        `environment variable "" is not set; use ${:-VALUE} for a default`,
		"${a}":       `environment variable "a" is not set; use ${a:-VALUE} for a default`,
		"${A":        "${ has no closing }; use $${ for a literal ${",
		"${A}${A:-x": "${ has no closing }; use $${ for a literal ${",
	} {
		if got, err := expandEnv(text, get); err == nil || err.Error() != want {
			t.Errorf("%s: got %q, %v; want %s", text, got, err, want)
		}
	}
}

func TestExpandEnvKeepsEscapedText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		escaped := strings.ReplaceAll(text, "${", "$${")
		if got, err := expandEnv(escaped, env()); got != text || err != nil {
			t.Fatalf("%q: got %q, %v", text, got, err)
		}
	})
}

func TestNearest(t *testing.T) {
	names := []string{"listen", "limits", "tls", "url"}
	for key, want := range map[string]string{
		"listne": "listen", "isten": "listen", "listenn": "listen", "Listen": "listen", "limit": "limits",
		"lists": "listen", "lts": "tls", "location": "", "": "", "LISTEN": "", "x": "",
	} {
		if got := nearest(key, names); got != want {
			t.Errorf("%q: got %q, want %q", key, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "12": 12, "12B": 12, "3KiB": 3 << 10, "256MiB": 256 << 20, "2 GiB": 2 << 30} {
		if got, err := parseSize(text); got != want || err != nil {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", " ", "-1", "1.5MiB", "MiB", "1MB", "1mib", "1e3", "0x10", "9999999999GiB"} {
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

func TestSizeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := Size(rapid.Int64Range(0, 1<<50).Draw(t, "size"))
		if got, err := parseSize(size.String()); got != size || err != nil {
			t.Fatalf("%s parses as %d, %v", size, got, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range append(secretPlaces, "", minimal, everything, "a: [", "clients: [{name: ${TOKEN}}]", "limits: {content: [{max: 1}]}", "x: &a [*a]",
		"? {a: b}: c", "admin: !!binary x", "--- a\n--- b", "clients: &a [*a]", "a: *b", "\xff", "%YAML 1.1\n---\n", "{}\n...\n...") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "file:") {
			return // would read a file of this machine
		}
		c, err := Parse(Source{Path: "weir.yaml", Getenv: env("TOKEN", "x")}, []byte(text))
		if err == nil {
			if c == nil {
				t.Fatal("neither a configuration nor an error")
			}
			c.Masked()
			return
		}
		var problems Problems
		if !errors.As(err, &problems) || len(problems) == 0 || c != nil {
			t.Fatalf("want only problems, got configuration %v and error %v", c, err)
		}
		for _, p := range problems {
			if p.File == "" || p.Message == "" || p.Line < 1 || p.Column < 1 {
				t.Errorf("incomplete problem %+v", p)
			}
		}
	})
}

func TestUpstreamLimitsAreOnOrOff(t *testing.T) {
	for text, want := range map[string]Switch{
		"": true, "on": true, "On": true, `"on"`: true, "true": true, "off": false, "OFF": false, `"off"`: false, "'off'": false, "false": false, `"false"`: false,
		`"${SWITCH:-off}"`: false, `"${SWITCH:-on}"`: true,
	} {
		c, err := parse(t, `upstream: {url: "https://api.example.com", limits: `+text+"}")
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if c.Upstream.Limits != want {
			t.Errorf("%s: got %s, want %s", text, c.Upstream.Limits, want)
		}
	}
	for text, want := range map[string]string{
		"maybe": `"maybe": must be on or off`, "1": `"1": must be on or off`, "yes": `"yes": must be on or off`, "[off]": "must be a single value",
	} {
		_, err := parse(t, `upstream: {url: "https://api.example.com", limits: `+text+"}")
		if err == nil || !strings.HasSuffix(err.Error(), "upstream.limits: "+want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}
