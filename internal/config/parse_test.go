package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/internal/testservers"
)

func TestMalformedValuesAreReported(t *testing.T) {
	all := "admin, cache, callers, clients, credentials, drain, groups, headers, hosts, issuers, limits, listen, proxy, socket, statistics, store, telemetry, tls, upstream, webhooks"
	checkMistakes(t, minimal, []mistake{
		{"unknown key", "listne: x", `2:1: listne: unknown key; did you mean "listen"?`},
		{"unknown key without a suggestion", "store: {location: x}", "2:9: store.location: unknown key; must be one of url"},
		{"unknown key in a struct with inlined fields", "limits: {primry: {user: 1}}", `2:10: limits.primry: unknown key; did you mean "primary"?`},
		{"unknown key in a list", "limits: {content: [{max: 1, window: 1s, mix: 2}]}", `2:41: limits.content[0].mix: unknown key; did you mean "max"?`},
		{"key in upper case", "LISTEN: x", "2:1: LISTEN: unknown key; must be one of " + all},
		{"empty key", `"": x`, "2:1: unknown key; must be one of " + all},
		{"merge key", "<<: {listen: x}", "2:1: <<: unknown key; must be one of " + all},
		{"key that is a mapping", "? {a: b}\n: c", "2:3: keys must be plain text"},
		{"key that is an alias", "telemetry: {service_name: &listen x, *listen : y}", "2:38: telemetry: keys must be plain text"},
		{"duplicate key", "listen: \":1\"\nlisten: \":2\"", "3:1: listen: duplicate key; first on line 2; move its keys there, or remove it"},
		{"duplicate key in a map", "cache: {operations: {gitignore/list-templates: {ttl: 1s}, gitignore/list-templates: {ttl: 1s}}}", "2:59: cache.operations.gitignore/list-templates: duplicate key; first on line 2; move its keys there, or remove it"},
		{"list for a value", "listen: [a]", "2:9: listen: must be a single value"},
		{"mapping for a value", "limits: {wait: {seconds: 3}}", "2:16: limits.wait: must be a single value"},
		{"unknown key of Prometheus", "admin: {prometheus: {uri: x}}", `2:22: admin.prometheus.uri: unknown key; did you mean "url"?`},
		{"list for a secret", "admin: {listen: \":1\", token: [x]}", "2:30: admin.token: must be a single value"},
		{"value for a mapping", "limits: many", "2:9: limits: must be a mapping of keys to values, such as {KEY: VALUE}"},
		{"list for a mapping", "limits: []", "2:9: limits: must be a mapping of keys to values, such as {KEY: VALUE}"},
		{"value for a mapping with required keys", "admin: \":9090\"", "2:8: admin: must be a mapping of keys to values, such as {KEY: VALUE}"},
		{"value for a list", "clients: me", "2:10: clients: must be a list: begin each entry with a dash"},
		{"value for a map", "cache: {operations: all}", "2:21: cache.operations: must be a mapping of keys to values, such as {KEY: VALUE}"},
		{"recursive list", "clients: &a [*a]", "2:10: clients[0]: must be a mapping of keys to values, such as {KEY: VALUE}"},
		{"invalid duration", "limits: {wait: soon}", `2:16: limits.wait: "soon" is not a duration; use for example 500ms, 30s or 1h30m`},
		{"duration without a unit", "limits: {wait: 30}", `2:16: limits.wait: "30" has no unit; use 30s`},
		{"negative duration", "limits: {wait: -1s}", `2:16: limits.wait: "-1s" is negative; use for example 500ms, 30s or 1h30m`},
		{"invalid number", "limits: {concurrent: many}", `2:22: limits.concurrent: "many" is not a whole number; use only digits`},
		{"fraction for a whole number", "limits: {concurrent: 1.5}", `2:22: limits.concurrent: "1.5" is not a whole number; use only digits`},
		{"number that is too large", "limits: {concurrent: 9223372036854775808}", `2:22: limits.concurrent: "9223372036854775808" is not a whole number; use only digits`},
		{"word for a fraction", "limits: {headroom: half}", `2:20: limits.headroom: "half" is not a number; use digits, such as 0.5`},
		{"not a number", "limits: {headroom: NaN}", `2:20: limits.headroom: "NaN" is not a number; use digits, such as 0.5`},
		{"infinity", "statistics: {poll: {factor: Inf}}", `2:29: statistics.poll.factor: "Inf" is not a number; use digits, such as 0.5`},
		{"invalid boolean", "callers: {pass_through: yes}", `2:25: callers.pass_through: "yes": must be true or false`},
		{"invalid size", "cache: {memory: 5 apples}", `2:17: cache.memory: "5 apples" is not a size; use a number with KiB, MiB or GiB`},
		{"unset variable", "listen: ${NOPE}", `2:9: listen: environment variable "NOPE" is not set; set it, or use ${NOPE:-VALUE} for a default`},
		{"open variable", "listen: ${NOPE", "2:9: listen: ${ has no closing }; use $${ for a literal ${"},
		{"tag", "listen: !env LISTEN", `2:9: listen: "!env": YAML tags are not supported; write only the value`},
		{"tag without effect", "tls: {email: !!str me@example.com}", `2:14: tls.email: "!!str": YAML tags are not supported; write only the value`},
		{"tag on a secret", "admin: {listen: \":1\", token: !env TOKEN}", `2:30: admin.token: "!env": YAML tags are not supported; write only the value`},
		{"second document", "---\nlisten: \":1\"", "2:1: a second YAML document starts here; use a single document"},
	})
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
	want := `read config weir.yaml:1:1: upstream.url: required: the base URL of the API
read config weir.yaml:1:9: listen: "here" is not an address; use host:port or :port, with a port up to 65535
read config weir.yaml:3:20: clients[0].key: must be sha256: and 64 hexadecimal digits, not the key; create both with weir key new
read config weir.yaml:3:47: clients[0].credentials[0]: "none" is not among credentials; add it to credentials
read config weir.yaml:3:61: clients[0].share: 0: must be from 1 to 1000
read config weir.yaml:3:74: clients[0].priority: "low": must be one of interactive, normal, batch
read config weir.yaml:4:5: clients[1].credentials: must name at least one credential that the client may spend, such as [main]
read config weir.yaml:4:12: clients[1].name: "a" is a duplicate; each needs its own
read config weir.yaml:4:20: clients[1].key: must be sha256: and 64 hexadecimal digits, not the key; create both with weir key new
read config weir.yaml:6:13: limits.headroom: 1: must be from 0 to below 1
read config weir.yaml:7:9: limits.wait: "x" is not a duration; use for example 500ms, 30s or 1h30m`
	equal(t, "configuration", fmt.Sprint(err), want)
}

func TestMistakesAreReportedInAStableOrder(t *testing.T) {
	text := minimal + "cache: {operations: {a: , b: , c: , d: , e: , f: }}"
	_, first := parse(t, text)
	for range 20 {
		_, again := parse(t, text)
		stopIf(t, first == nil || message(again) != message(first), "got %v, then %v", first, again)
	}
}

// The time per problem must not grow with the number of problems.
func TestManyMistakesAreReportedInLinearTime(t *testing.T) {
	const many = 20_000
	start := time.Now()
	_, err := parse(t, minimal+"clients: [&a {name: x}"+strings.Repeat(", *a", many-1)+"]")
	var problems Problems
	stopIf(t, !errors.As(err, &problems) || len(problems) < many, "%d problems", len(problems))
	took := time.Since(start)
	failIf(t, took > time.Minute, "took %s", took)
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
		_, err := parse(t, text)
		failIf(t, err == nil || !strings.HasPrefix(message(err), want), "%q: got %v, want %s", text, err, want)
	}
}

func TestNullIsAnEmptySecret(t *testing.T) {
	for _, null := range []string{"", "~", "null", "Null", "NULL"} {
		c := valid(t, minimal+"admin: {token: "+null+"}\nwebhooks: {secret: "+null+"}")
		equal(t, null, c.Admin.Token.Reveal()+c.Webhooks.Secret.Reveal(), "")
		_, err := parse(t, minimal+"admin: {listen: \":9090\", token: "+null+"}")
		failIf(t, err == nil, "%q is accepted as the token of a public listener", null)
	}
	equal(t, "quoted null", valid(t, minimal+`admin: {token: "null"}`).Admin.Token.Reveal(), "null")
}

func TestSecretsFromFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"token": "t0ken\n", "windows": "t0ken\r\n", "bare": "t0ken", "empty": "", "blank": "\n\n", "two": "t0ken\nother\n",
		"marked": "\ufefft0ken", "large": strings.Repeat("t", 1<<20+1),
	} {
		testservers.WriteFile(t, filepath.Join(dir, name), text)
	}
	load := func(value string) string {
		source := Source{Path: filepath.Join(dir, "weir.yaml"), Getenv: env("DIR", dir, "VALUE", "file:token")}
		text := minimal + "admin: {token: \"" + value + "\"}"
		return outcome(source, text, func(c *Config) string { return c.Admin.Token.Reveal() })
	}
	problem := dir + "/weir.yaml:2:16: admin.token: "
	testservers.EqualEach(t, load, map[string]string{
		"file:token": "t0ken", "file:windows": "t0ken", "file:./bare": "t0ken", "file:${DIR}/token": "t0ken", "${VALUE}": "t0ken", "t0ken": "t0ken",
		"file:none":   problem + `file "` + dir + `/none": no such file or directory; create the file, or correct its path`,
		"file:":       problem + `file "` + dir + `": is a directory; name a file in it`,
		"file:empty":  problem + `file "` + dir + `/empty": is empty; write the secret into it`,
		"file:blank":  problem + `file "` + dir + `/blank": is empty; write the secret into it`,
		"file:marked": problem + `file "` + dir + `/marked": begins with a byte order mark; save it without one`,
		"file:large":  problem + `file "` + dir + `/large": has more than 1 MiB, so it is not that of a secret; correct its path`,
		"file:two":    problem + "contains a space, a line break or another character that no token has; remove it",
	})
}

func TestOnlySecretsAreReadFromFiles(t *testing.T) {
	equal(t, "service name", valid(t, minimal+"telemetry: {service_name: \"file:/etc/passwd\"}").Telemetry.ServiceName, "file:/etc/passwd")
}

// secretPlaces are invalid files with a secret instead of each %.
var secretPlaces = []string{
	`upstream: {url: "https://user:%@api.example.com"}`,
	`upstream: {url: "ftp://%@api.example.com"}`,
	`upstream: {url: "https://api.example.com?token=%"}`,
	`upstream: {url: "https://us er:%@api.example.com"}`,
	`store: {url: "mysql://user:%@h"}`,
	`store: {url: "redis://user:%@"}`,
	`store: {url: "redis://:12/%@h:6379/0"}`,
	`store: {url: "redis://:12?%@h:6379/0"}`,
	`store: {url: "redis://:12#%@h:6379/0"}`,
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
	`webhooks: {secret:%}`,
	`webhooks: {secret %}`,
	`webhooks: {secret=%}`,
	`clients: [{name: a, key: %, credentials: [a]}]`,
	`clients: [{name: a, key: "sha256:%", credentials: [a]}]`,
}

func TestErrorsQuoteNoTokenAtAWrongPlace(t *testing.T) {
	tokens := []string{"ghp_0123456789abcdef", "github_pat_0123456789", "weir_0123456789abcdef", "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", strings.Repeat("0123456789", 4)}
	for _, token := range tokens {
		for _, place := range []string{
			`credentials: [{name: a, kind: %, token: x}]`, `clients: [{name: a, credentials: ["%"]}]`, `callers: {anonymous: {credential: "%"}}`,
			`"%": 1`, `credentials: [{"%": 1}]`, `admin: {token: "${%}"}`, `admin: {listen: "%"}`, `cache: {operations: {"%": {ttl: 1h}}}`,
		} {
			_, err := parse(t, minimal+strings.ReplaceAll(place, "%", token))
			failIf(t, err == nil || strings.Contains(message(err), token[len(token)-9:]), "%s: %v", place, err)
		}
	}
}

func TestSyntaxErrorsHaveARemedy(t *testing.T) {
	for text, want := range map[string]string{
		"a: b: c":                            "put a value with a colon in quotes",
		"listen: x\na: \"":                   "a quote is not closed",
		"upstream: {url: x\n":                "a brace before it is not closed",
		"clients: [x\n":                      "a bracket before it is not closed",
		"clients:\n- a\nb: c\n d: e":         "put a value with a colon in quotes, or correct the indentation",
		"listen: \"caf\xe9\"":                "save the file as UTF-8",
		"listen: x\x00":                      "save the file as plain text",
		"upstream:\n  url: x\n dialect: y\n": "give the keys of a mapping the same indentation",
	} {
		_, err := parse(t, text)
		failIf(t, err == nil || !strings.Contains(message(err), want), "%q: got %v, want %s", text, err, want)
	}
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
	names := map[string]string{
		"listen": "--listen", "admin.listen": "--admin", "upstream.url": "--upstream", "upstream.dialect": "--dialect", "store.url": "--store",
		"limits.wait": "--wait",
	}
	const stores = "must be memory:, memory:/FILE or a URL of one of redis, rediss, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster"
	for _, c := range []struct {
		name        string
		flag, value string
		text        string
		want        string // the listen address and the URL, or the problems
	}{
		{"address", "listen", ":1", minimal + "listen: nonsense", ":1 https://api.example.com"},
		{"URL", "upstream.url", "http://other", minimal, ":8080 http://other"},
		{"unknown value", "upstream.dialect", "klingon", minimal, `--dialect: "klingon": must be one of service, github`},
		{"invalid address", "listen", "here", minimal, `--listen: "here" is not an address; use host:port or :port, with a port up to 65535`},
		{"flag requires a key of the file", "admin.listen", ":9", minimal + "admin: {}",
			`weir.yaml:2:8: admin.token: required because admin.listen ":9" is not on loopback; set it or tls.client_ca, or listen on 127.0.0.1`},
		{"mistakes in a flag and in the file", "store.url", "x", minimal + "listen: here",
			`--store: "x": ` + stores + "\n" + `weir.yaml:2:9: listen: "here" is not an address; use host:port or :port, with a port up to 65535`},
		{"malformed value", "limits.wait", "soon", minimal, `--wait: "soon" is not a duration; use for example 500ms, 30s or 1h30m`},
		{"value with a password", "store.url", "x://u:hunter2@h", minimal, `--store: "x://•••@h": ` + stores},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := Source{Path: "weir.yaml", Getenv: env(), Flags: map[string]string{c.flag: c.value}, FlagNames: names}
			got := outcome(source, c.text, func(c *Config) string { return c.Listen + " " + c.Upstream.URL })
			equal(t, "outcome", got, c.want)
		})
	}
}

func TestFlagsWithoutAFile(t *testing.T) {
	s := Source{Flags: map[string]string{"upstream.url": "http://x"}, FlagNames: map[string]string{"upstream.url": "--upstream"}, Getenv: env()}
	c, err := Load(s)
	noError(t, err)
	equal(t, "URL", c.Upstream.URL, "http://x")
}

func TestUnreadableFileIsReported(t *testing.T) {
	dir := t.TempDir()
	load := func(path string) string {
		_, err := Load(Source{Path: path, Getenv: env()})
		return message(err)
	}
	testservers.EqualEach(t, load, map[string]string{
		"nowhere.yaml": "nowhere.yaml: no such file or directory; create the file, or correct its path", dir: dir + ": is a directory; name a file in it",
		"": "upstream.url: required: the base URL of the API", // neither a file nor a flag
	})
}

func TestExpandEnv(t *testing.T) {
	get := env("A", "1", "EMPTY", "", "NESTED", "${A}")
	expand := func(text string) string {
		got, err := expandEnv(text, get)
		if err != nil {
			return "error: " + err.Error()
		}
		return got
	}
	testservers.EqualEach(t, expand, map[string]string{
		"plain": "plain", "": "", "${A}": "1", "x${A}y${A}": "x1y1", "$A": "$A", "$": "$", "}": "}",
		"${B:-2}": "2", "${B:-}": "", "${A:-9}": "1", "${B:-a:-b}": "a:-b", "${B:-https://h:1}": "https://h:1",
		"${EMPTY:-3}": "3", "${EMPTY:-}": "", "${EMPTY}": `error: environment variable "EMPTY" is empty; set it, or use ${EMPTY:-VALUE} for a default`,
		"$${A}": "${A}", "$${A": "${A", "$$${A}": "$${A}", "$${A}${A}": "${A}1",
		"${NESTED}":  "${A}", // values are not expanded again
		"${B}":       `error: environment variable "B" is not set; set it, or use ${B:-VALUE} for a default`,
		"${A}${B}":   `error: environment variable "B" is not set; set it, or use ${B:-VALUE} for a default`,
		"${}":        `error: ${} names no variable; use ${NAME}, or $${ for a literal ${`,
		"${a}":       `error: environment variable "a" is not set; set it, or use ${a:-VALUE} for a default`,
		"${A":        "error: ${ has no closing }; use $${ for a literal ${",
		"${A}${A:-x": "error: ${ has no closing }; use $${ for a literal ${",
	})
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
	find := func(key string) string { return nearest(key, []string{"listen", "limits", "tls", "url", "ca"}) }
	testservers.EqualEach(t, find, map[string]string{
		"listne": "listen", "isten": "listen", "listenn": "listen", "Listen": "listen", "limit": "limits",
		"lists": "listen", "lts": "tls", "location": "", "": "", "LISTEN": "", "x": "",
	})
}

func TestSize(t *testing.T) {
	const invalid = -1
	parsed := func(text string) Size {
		size, err := parseSize(text)
		if err != nil {
			return invalid
		}
		return size
	}
	testservers.EqualEach(t, parsed, map[string]Size{
		"0": 0, "12": 12, "12B": 12, "3KiB": 3 << 10, "256MiB": 256 << 20, "2 GiB": 2 << 30,
		"": invalid, " ": invalid, "-1": invalid, "1.5MiB": invalid, "MiB": invalid, "1MB": invalid, "1mib": invalid, "1e3": invalid,
		"0x10": invalid, "9999999999GiB": invalid,
	})
	testservers.EqualEach(t, Size.String, map[Size]string{0: "0B", 1: "1B", 1 << 20: "1MiB", 1536: "1536B", 1536 << 10: "1536KiB"})
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
			stopIf(t, c == nil, "neither a configuration nor an error")
			c.Masked()
			return
		}
		var problems Problems
		stopIf(t, !errors.As(err, &problems) || len(problems) == 0 || c != nil, "want only problems, got configuration %v and error %v", c, err)
		for _, p := range problems {
			failIf(t, p.File == "" || p.Message == "" || p.Line < 1 || p.Column < 1, "incomplete problem %+v", p)
		}
	})
}

func TestUpstreamLimitsAreOnOrOff(t *testing.T) {
	parsed := func(text string) string {
		c, err := parse(t, `upstream: {url: "https://api.example.com", limits: `+text+"}")
		if err != nil {
			_, problem, _ := strings.Cut(err.Error(), "upstream.limits: ")
			return problem
		}
		return c.Upstream.Limits.String()
	}
	testservers.EqualEach(t, parsed, map[string]string{
		"": "on", "on": "on", "On": "on", `"on"`: "on", "true": "on", "off": "off", "OFF": "off", `"off"`: "off", "'off'": "off", "false": "off",
		`"false"`: "off", `"${SWITCH:-off}"`: "off", `"${SWITCH:-on}"`: "on",
		"maybe": `"maybe": must be on or off`, "1": `"1": must be on or off`, "yes": `"yes": must be on or off`, "[off]": "must be a single value",
	})
}
