package main

import (
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestMistakesNameKeyValueAndRemedy starts the gateway with frequent mistakes of new users. Each message names the key, the
// value and a remedy.
func TestMistakesNameKeyValueAndRemedy(t *testing.T) {
	taken := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = taken.Close() }()
	dir := t.TempDir()
	writePair(t, dir, newPair(t, servedName, nil))
	_, other := pemOf(t, newPair(t, servedName, nil))
	write(t, filepath.Join(dir, "other.key"), other)
	const api = `upstream: {url: "https://api.github.com"}` + "\n"
	const token = "credentials: [{name: main, kind: user, token: t}]\n"
	client := func(name, key, settings string) string {
		return fmt.Sprintf("{name: %s, key: %q, credentials: [main]%s}", name, keyHash(key), settings)
	}
	for _, c := range []struct{ name, text, key, value, remedy string }{
		{"misspelled key", "upstraem: {url: \"https://api.github.com\"}", "upstraem", "unknown key", `did you mean "upstream"`},
		{"URL without a scheme", "upstream: {url: api.github.com}", "upstream.url", `"api.github.com"`, "absolute http or https URL"},
		{"URL with a bad port", `upstream: {url: "http://127.0.0.1:90000"}`, "upstream.url", ":90000", "from 1 to 65535"},
		{"no API", "listen: :8080", "upstream.url", "required", "base URL of the API"},
		{"unset variable", api + `credentials: [{name: main, kind: user, token: "${WEIR_TEST_UNSET}"}]`, "credentials[0].token", `"WEIR_TEST_UNSET" is not set`, "set it, or use ${WEIR_TEST_UNSET:-VALUE}"},
		{"missing file of a secret", api + `credentials: [{name: main, kind: user, token: "file:none"}]`, "credentials[0].token", "none\": no such file", "create the file, or correct its path"},
		{"missing certificate", api + `tls: {certificates: [{certificate: none.pem, key: none.key}]}`, "tls.certificates[0]", "none.pem", "create the file, or correct its path"},
		{"duration without a unit", api + "limits: {wait: 10}", "limits.wait", `"10" has no unit`, "use 10s"},
		{"port without a colon", api + "listen: 8080", "listen", `"8080"`, "use host:port or :port"},
		{"port in use", api + fmt.Sprintf("listen: %q", taken.Addr()), "listen", taken.Addr().String(), "stop it, or choose another port"},
		{"bad port of Redis", api + `store: {url: "redis://127.0.0.1:63790000"}`, "store.url", "63790000", "as in redis://127.0.0.1:6379"},
		{"public admin listener", api + "admin: {listen: :9090}", "admin.token", `required because admin.listen ":9090"`, "set it or tls.client_ca, or listen on 127.0.0.1"},
		{"port above 65535", api + "listen: :99999", "listen", `":99999"`, "a port up to 65535"},
		{"two listeners on one port", api + "listen: :9090", "admin.listen", `"127.0.0.1:9090" has the port of listen`, "choose another port"},
		{"key of another certificate", api + "tls: {certificates: [{certificate: tls.crt, key: other.key}]}", "tls.certificates[0]", "other.key", "name the certificate and the key of one pair"},
		{"unknown dialect", `upstream: {url: "https://api.github.com", dialect: githb}`, "upstream.dialect", `"githb"`, "one of service, github"},
		{"token of two lines", api + `credentials: [{name: main, kind: user, token: "ghp_a\nghp_b"}]`, "credentials[0].token", "a line break", "remove it"},
		{"two clients with one name", api + token + "clients: [" + client("ci", "a", "") + ", " + client("ci", "b", "") + "]", "clients[1].name", `"ci" is a duplicate`, "each needs its own"},
		{"guarantees above the whole", api + token + "clients: [" + client("a", "a", ", guarantee: 0.6") + ", " + client("b", "b", ", guarantee: 0.6") + "]", "clients[1].guarantee", "0.6", "lower one"},
		{"entry instead of a list", api + "clients: {name: ci}", "clients", "must be a list", "begin each entry with a dash"},
		{"duration above its bound", api + "drain: {timeout: 100h}", "drain.timeout", "100h", "from 1s to 1h"},
		{"ledger in a missing folder", api + "store: {url: memory:/none/ledger}", "store.url", "/none/ledger", "create its folder"},
		{"unknown credential", api + token + "clients: [{name: ci, key: \"" + keyHash("k") + "\", credentials: [mian]}]", "clients[0].credentials[0]", `"mian"`, "use one of main"},
		{"key instead of its hash", api + token + "clients: [{name: ci, key: weir_abc, credentials: [main]}]", "clients[0].key", "must be sha256:", "create both with weir key new"},
		{"client without a credential", api + token + "clients: [{name: ci, key: \"" + keyHash("k") + "\"}]", "clients[0].credentials", "must name at least one", "such as [main]"},
		{"token beside an app", api + "credentials: [{name: main, kind: installation, token: t, app: {id: 1, key: k, installation: 1}}]", "credentials[0].token", "must be empty if app is set", "remove token or app"},
		{"app without its key", api + "credentials: [{name: main, kind: installation, app: {id: 1, installation: 1}}]", "credentials[0].app.key", "required", "such as file:app.pem"},
		{"value instead of a mapping", api + "cache: 1h", "cache", "must be a mapping of keys to values", "such as {KEY: VALUE}"},
		{"percentage", api + "limits: {headroom: 10%}", "limits.headroom", `"10%" is not a number`, "use 0.1"},
		{"word instead of a fraction", api + "telemetry: {sample: all}", "telemetry.sample", `"all" is not a number`, "use digits, such as 0.5"},
		{"thousands", api + "limits: {primary: {user: 5k}}", "limits.primary.user", `"5k" is not a whole number`, "use only digits"},
		{"days", api + "webhooks: {fresh: 2d}", "webhooks.fresh", `"2d" has days`, "use 48h"},
		{"space in a duration", api + "limits: {wait: 1 h}", "limits.wait", `"1 h" is not a duration`, "use for example 500ms"},
		{"section twice", api + "upstream: {timeout: 5s}", "upstream", "duplicate key; first on line 1", "move its keys there"},
		{"web site instead of the API", `upstream: {url: "https://github.com"}`, "upstream.url", `"https://github.com"`, "use https://api.github.com"},
		{"endpoint instead of the API", `upstream: {url: "https://api.github.com/graphql"}`, "upstream.url", `"https://api.github.com/graphql"`, "remove /graphql"},
		{"URL as an address", api + `listen: "http://0.0.0.0:8080"`, "listen", `"http://0.0.0.0:8080"`, "use host:port or :port"},
		{"address as the name of a certificate", api + "tls: {domains: [10.0.0.1]}", "tls.domains[0]", `"10.0.0.1" is an IP address`, "use a domain name"},
		{"part of the memory", api + "cache: {memory: 10%}", "cache.memory", `"10%" is not a size`, "use a number with KiB"},
		{"path as an operation", api + token + "clients: [" + client("ci", "a", `, operations: ["GET /user"]`) + "]", "clients[0].operations[0]", `"GET /user"`, "list the names with weir catalogue"},

		{"unknown operation", api + "cache: {operations: {repos/gett: {ttl: 1h}}}", "cache.operations.repos/gett", "unknown operation", `did you mean "repos/get"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(dir, "weir.yaml")
			write(t, file, c.text+"\n")
			code, out := runWeir("serve", "--config", file)
			for _, part := range []string{c.key + ": ", c.value, c.remedy} {
				failIf(t, code != exitFailure || !strings.Contains(out, part), "exit %d, %q lacks %q", code, out, part)
			}
		})
	}
}

// TestMistakesOfArgumentsNameARemedy runs commands with arguments that look right.
func TestMistakesOfArgumentsNameARemedy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, file, "upstream: {url: \"https://api.github.com\"}\n")
	for _, name := range []string{"https://api.example.com", "api.example.com:443", "x y"} {
		wantWeir(t, exitUsage, fmt.Sprintf("--name: %q: must be only a host name such as api.example.com", name), "ca", "init", "--out", t.TempDir(), "--name="+name)
	}
	wantWeir(t, exitUsage, "--credential: required; use token, app or none", "init", "--upstream", "https://api.github.com")
	wantWeir(t, exitUsage, `--credential: "tokn": use token, app or none`, "init", "--upstream", "https://api.github.com", "--credential", "tokn")
	wantWeir(t, exitUsage, "is a directory; give the path of an access log", "replay", "--config", file, t.TempDir())
	wantWeir(t, exitFailure, "listen: stat /none: no such file or directory; create the folder", "serve", "--config", file, "--listen", "unix:/none/weir.sock")
	dir := t.TempDir()
	t.Chdir(dir)
	const unreadable = "no such file or directory; create the file, or correct its path\n"
	made := []string{"init", "--upstream", "https://api.github.com", "--credential", "token", "--client", "a"}
	for _, c := range []struct {
		code    int
		message string
		args    []string
	}{
		{exitUsage, "<file>: required", []string{"check"}},
		{exitUsage, "<target> ...: required", []string{"judge"}},
		{exitUsage, "new: required", []string{"key"}},
		{exitUsage, "--config=FILE: required", []string{"replay"}},
		{exitUsage, "--tag or --url: required", []string{"cache", "purge"}},
		{exitUsage, "--tag and --url: give only one", []string{"cache", "purge", "--tag", "org:a", "--url", "/a"}},
		{exitUsage, "--config: give a value", []string{"serve", "--config"}},
		{exitUsage, `--traffic: "maybe": use on or off`, []string{"demo", "--traffic", "maybe"}},
		{exitUsage, `<shell>: "csh": use bash, zsh or fish`, []string{"completion", "csh"}},
		{exitUsage, `--seed: "x": use a whole number`, []string{"service", "--seed", "x"}},
		{exitUsage, `--seed: "-1": use a whole number of at least 0`, []string{"service", "--seed=-1"}},
		{exitUsage, `--programs: "x": use a whole number`, []string{"judge", "--programs", "x", "true"}},
		{exitUsage, `--interval: "1" has no unit; use 1s`, []string{"budget", "--interval", "1"}},
		{exitUsage, `--interval: "soon" is not a duration; use for example 500ms, 30s or 1h30m`, []string{"budget", "--interval", "soon"}},
		{exitUsage, `--validity: "-1h": if this is the value, write --validity="-1h"`, []string{"ca", "init", "--name", "a", "--validity", "-1h"}},
		{exitUsage, `--cache: "full": use hit, stale, validated, miss, waited, refused, limited or error`, []string{"tail", "--cache", "full"}},
		{exitUsage, "--ca: open none: " + unreadable, []string{"budget", "--ca", "none"}},
		{exitUsage, "--certificate: open none: " + unreadable, []string{"budget", "--certificate", "none", "--key", "none"}},
		{exitUsage, "--key: required with --certificate", []string{"budget", "--certificate", "none"}},
		{exitUsage, "--certificate: required with --key", []string{"budget", "--key", "none"}},
		{exitFailure, "--diff: open none: " + unreadable, []string{"catalogue", "--diff", "none"}},
		{exitFailure, "--query: open " + filepath.Join(dir, "none: ") + unreadable, []string{"explain", "POST", "/graphql", "--query", "none"}},
		{exitUsage, `--client: "ci" is not a client of the configuration; give --config FILE, and one of its clients`, []string{"explain", "GET", "/user", "--client", "ci"}},
		{exitFailure, "http://127.0.0.1:1 refused the connection; start the gateway, or give its admin listener with --admin", []string{"budget", "--admin", "127.0.0.1:1"}},
		{exitFailure, `read config --client: "a" is a duplicate; each needs its own`, append(made, "--client", "a")},
		{exitFailure, `read config --listen: "80" is not an address; use host:port`, append(made, "--listen", "80")},
		{exitFailure, `read config --admin: "x" is not an address; use host:port`, append(made, "--admin", "x")},
		{exitFailure, `read config --store: "x": must be memory:`, append(made, "--store", "x")},
		{exitFailure, `read config --dialect: "x": must be one of service, github`, append(made, "--dialect", "x")},
		{exitFailure, `read config --upstream: "x": must be an absolute http or https URL`, append(made, "--upstream", "x")},
	} {
		wantWeir(t, c.code, "weir: "+c.message, c.args...)
	}
}

// TestCertificatesThatEndAreNamed checks the warnings of weir check, of the start and of a reload.
func TestCertificatesThatEndAreNamed(t *testing.T) {
	dir := t.TempDir()
	end := func(life time.Duration) {
		writePair(t, dir, newPair(t, servedName, nil, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-72*time.Hour), time.Now().Add(life)
		}))
	}
	text := fmt.Sprintf("upstream: {url: \"https://api.example.com\"}\ntls: {certificates: [{certificate: %q, key: %q}]}\n", filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	file := filepath.Join(dir, "weir.yaml")
	write(t, file, text)
	for life, want := range map[time.Duration]string{
		-time.Hour:           `warning: tls.certificates\[0\]: the certificate .*tls.crt expired on \d{4}-\d\d-\d\d; replace the files`,
		48 * time.Hour:       `warning: tls.certificates\[0\]: the certificate .*tls.crt expires on `,
		100 * 24 * time.Hour: `^[^\n]*valid\n$`,
	} {
		end(life)
		code, out := runWeir("check", file)
		failIf(t, code != exitOK || !regexp.MustCompile(want).MatchString(out), "%s: exit %d: %s", life, code, out)
	}
	s := serve(t, text)
	end(-time.Hour)
	status := s.reload()
	stopIf(t, status != http.StatusOK, "%v", status)
	s.find(`level=WARN msg="configuration has a problem" key=tls.certificates\[0\] problem="the certificate .* expired on .*" remedy="replace`)
}

// TestDialectOfTheAPIIsInferredAndChecked checks that the gateway of a well-known API needs no dialect, and that a dialect of
// another API is named before the first request, or after the first response.
func TestDialectOfTheAPIIsInferredAndChecked(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		`{url: "https://api.github.com"}`:                   "upstream.dialect: github, because of the host api.github.com",
		`{url: "https://api.octocorp.ghe.com"}`:             "upstream.dialect: github, because of the host api.octocorp.ghe.com",
		`{url: "https://git.example.org/api/v3"}`:           "upstream.dialect: github, because of the path /api/v3",
		`{url: "https://api.github.com", dialect: service}`: `warning: upstream.dialect: "service" does not fit the host api.github.com`,
	} {
		file := filepath.Join(dir, "weir.yaml")
		write(t, file, "upstream: "+text+"\n")
		code, out := runWeir("check", file)
		failIf(t, code != exitOK || !strings.Contains(out, want), "%s: exit %d: %s", text, code, out)
	}
	write(t, filepath.Join(dir, "weir.yaml"), "upstream: {url: \"https://api.github.com\", dialect: service}\n")
	_, out := runWeir("audit", filepath.Join(dir, "weir.yaml"))
	failIf(t, !strings.Contains(out, "upstream.dialect: "), "%v", out)
	up := newServiceServer(t, "github")
	s := serve(t, fmt.Sprintf("upstream: {url: %q}\n", up))
	get(t, "http://"+s.gateway+"/gitignore/templates")
	s.find(`level=WARN msg="configuration has a problem" key=upstream.dialect problem="the upstream answers as the dialect github, but upstream.dialect is service" remedy="set upstream.dialect to github"`)
	_, checks := runDoctor(t, t.TempDir(), fmt.Sprintf("upstream: {url: %q}\n", up))
	assertCheck(t, checks, "dialect", checkWarning, "answers as the dialect github")
}
