package main

import (
	"bytes"
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirgate/weir/internal/authority"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/judge"
)

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	valid, invalid, missing := filepath.Join(dir, "valid.yaml"), filepath.Join(dir, "invalid.yaml"), filepath.Join(dir, "missing.yaml")
	write(t, valid, "upstream: {url: \"https://api.example.com\"}\n")
	write(t, invalid, "upstream: {url: here}\nlisten: there\n")
	for _, c := range []struct {
		code int
		args []string
	}{
		{exitOK, []string{"--help"}},                                            // help
		{exitOK, []string{"check", valid}},                                      // check of a valid configuration
		{exitOK, []string{"explain", "GET", "/user", "--config", valid}},        // explain of a known operation
		{exitOK, []string{"schema"}},                                            // schema
		{exitOK, []string{"version"}},                                           // version
		{exitFailure, []string{"check", invalid}},                               // check of an invalid configuration
		{exitFailure, []string{"explain", "GET", "user"}},                       // explain of an invalid target
		{exitFailure, []string{"explain", "GET", "/user", "--config", invalid}}, // explain with an invalid configuration
		{exitFailure, []string{"serve", "--config", invalid}},                   // serve with an invalid configuration
		{exitFailure, []string{"budget", "--admin", "127.0.0.1:1"}},             // budget of an unreachable gateway
		{exitFailure, []string{"budget", "--admin", "127.0.0.1:1", "--watch"}},  // watched budget of an unreachable gateway
		{exitUsage, []string{"budget", "--admin", "here"}},                      // invalid admin address
		{exitUsage, []string{"budget", "--interval", "0s"}},                     // interval of zero
		{exitUsage, []string{"budget", "--interval", "soon"}},                   // invalid interval
		{exitUsage, []string{"budget", "--token", "a b"}},                       // token of two words
		{exitUsage, nil},                                                         // no command
		{exitOK, []string{"help"}},                                               // help as a command
		{exitOK, []string{"help", "key", "new"}},                                 // help of a subcommand
		{exitUsage, []string{"help", "dance"}},                                   // help of an unknown command
		{exitUsage, []string{"dance"}},                                           // unknown command
		{exitUsage, []string{"version", "--short"}},                              // unknown flag
		{exitUsage, []string{"explain", "GET", "/user", "--dialect", "klingon"}}, // unknown dialect
		{exitUsage, []string{"check"}},                                           // missing argument
		{exitUsage, []string{"check", missing}},                                  // missing file
		{exitUsage, []string{"check", dir}},                                      // directory instead of a file
	} {
		var out, problems bytes.Buffer
		code := run(t.Context(), c.args, noEnv, &out, &problems)
		failIf(t, code != c.code, "weir %q: exit code %d, want %d: %s%s", c.args, code, c.code, out.String(), problems.String())
		failed := code != exitOK
		failIf(t, failed != (problems.Len() > 0), "weir %q: exit code %d with standard error %q", c.args, code, problems.String())
		for line := range strings.Lines(problems.String()) {
			failIf(t, !strings.HasPrefix(line, "weir") && !regexp.MustCompile(`^run weir( \w+)* --help for usage\n$`).MatchString(line), "weir %q: line %q does not start with the name of the program", c.args, line)
		}
	}
}

func TestErrorOfUsedAddressNamesConfigurationKey(t *testing.T) {
	taken := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = taken.Close() }()
	free, address := "127.0.0.1:0", taken.Addr().String()
	serve := func(listen, admin string) []string {
		return []string{"serve", "--upstream", "http://127.0.0.1:1", "--listen", listen, "--admin", admin}
	}
	demo := func(listen, admin, service string) []string {
		return []string{"demo", "--listen", listen, "--admin", admin, "--service", service}
	}
	for _, c := range []struct {
		args []string
		key  string
	}{
		{serve(address, free), "listen"}, {serve(free, address), "admin.listen"},
		{demo(address, free, free), "listen"}, {demo(free, address, free), "admin.listen"}, {demo(free, free, address), "service"},
	} {
		var problems bytes.Buffer
		code := run(t.Context(), c.args, noEnv, io.Discard, &problems)
		text := problems.String()
		failIf(t, code != exitFailure || !strings.Contains(text, "weir: "+c.key+": listen tcp "+address), "weir %q: exit code %d, wrote %q", c.args, code, text)
	}
}

func TestExplainGroupsEventsAndTags(t *testing.T) {
	got := groupEvents([]string{"pull_request", "push", "pull_request_review", "pull_request_review_thread", "public"})
	got += "; " + groupTags([]string{"me/issues", "repo:acme/widgets/.", "repo:acme/widgets/pulls", "all"})
	want := "public, pull_request (also _review, _review_thread), push; me/issues, repo:acme/widgets/{.,pulls}, all"
	failIf(t, got != want, "got %s, want %s", got, want)
}

// TestExplainNamesTheRuleOfAQuery checks the last row of weir explain POST /graphql --query FILE.
func TestExplainNamesTheRuleOfAQuery(t *testing.T) {
	dir := t.TempDir()
	config, query := filepath.Join(dir, "weir.yaml"), filepath.Join(dir, "query.graphql")
	write(t, config, "upstream: {url: \"https://api.example.com\"}\ncache: {graphql: {gh: true, rules: [{operation: List, ttl: 45s}, {field: viewer, ttl: 2m}]}}\n")
	for _, c := range []struct{ query, want string }{
		{"query List { user(login: 1) { id } }", "stored for 45s by the rule for operation List in cache.graphql.rules"},
		{"{ viewer { id } }", "stored for 2m by the rule for field viewer in cache.graphql.rules"},
		{"query IssueList { user(login: 1) { id } }", "stored for 30s by the rule for operation IssueList in cache.graphql.gh"},
		{"{ user(login: 1) { id } }", "shared by identical queries in progress; not stored, because no rule of cache.graphql matches"},
		{"mutation { a(input: {}) { id } }", "neither shared nor stored"},
	} {
		write(t, query, c.query)
		code, text := runWeir("explain", "POST", "/graphql", "--query", query, "--config", config)
		var got string
		for line := range strings.Lines(text) {
			if name, value, _ := strings.Cut(line, " "); name == "response" {
				got = strings.TrimSpace(value)
			}
		}
		failIf(t, code != exitOK || got != c.want, "%s: exit code %d, got %q, want %q", c.query, code, got, c.want)
	}
}

// TestAuditOfSampleConfigurations compares the findings for every sample configuration with
// testdata/audit. WEIR_UPDATE=1 rewrites the files.
func TestAuditOfSampleConfigurations(t *testing.T) {
	ready, err := filepath.Glob("../../configs/*.yaml")
	stopIf(t, err != nil || len(ready) < 4, "%v %v", ready, err)
	variables := map[string]string{
		"UPSTREAM_URL": "https://api.example.com", "CI_TOKEN": "canary", "UPSTREAM_TOKEN": "canary", "BUILDS_KEY_SHA256": strings.Repeat("0f", 32),
		"REDIS_URL": "rediss://user:canary@redis.internal:6379/0", "HOOK_SECRET": strings.Repeat("canary", 6), "ADMIN_TOKEN_FILE": filepath.Join(t.TempDir(), "admin"),
		"APP_ID": "4200", "APP_KEY_FILE": filepath.Join(t.TempDir(), "app.pem"), "BOT_TOKEN": "canary", "CACHE_KEY": strings.Repeat("canary", 6),
	}
	write(t, variables["APP_KEY_FILE"], privateKey().Reveal())
	write(t, variables["ADMIN_TOKEN_FILE"], strings.Repeat("canary", 6))
	getenv := func(name string) (string, bool) { value, ok := variables[name]; return value, ok }
	golden := must(filepath.Abs("testdata/audit"))(t)
	texts := map[string]string{}
	for _, path := range append(ready, "testdata/audit/bad.yaml") {
		texts[filepath.Base(path)] = string(must(os.ReadFile(path))(t))
	}
	t.Chdir(t.TempDir())
	for name, text := range texts {
		mode := os.FileMode(0o644) // the mode of a checkout
		noError(t, os.WriteFile(name, []byte(text), mode))
		noError(t, os.Chmod(name, mode)) // independent of the umask
		var out, problems bytes.Buffer
		code := run(context.Background(), []string{"audit", name}, getenv, &out, &problems)
		failIf(t, (code == exitFailure) != strings.Contains(out.String(), "high  ") || code == exitUsage || strings.Contains(out.String()+problems.String(), "canary"), "%s: %d %s%s", name, code, out.String(), problems.String())
		file := filepath.Join(golden, strings.TrimSuffix(name, ".yaml")+".txt")
		if os.Getenv("WEIR_UPDATE") != "" {
			write(t, file, out.String())
		}
		want, err := os.ReadFile(file)
		diff := cmp.Diff(string(want), out.String())
		failIf(t, err != nil || diff != "", "%s: %v: %s", name, err, diff)
	}
}

// TestCheckWarnsOfURLsThatPassTheGateway checks the warning about URLs in bodies, which is no mistake.
func TestCheckWarnsOfURLsThatPassTheGateway(t *testing.T) {
	for text, warns := range map[string]bool{
		`upstream: {url: "https://api.github.com", dialect: github}`:                     true,
		`upstream: {url: "https://api.github.com", dialect: github, rewrite_urls: "on"}`: false,
		`upstream: {url: "https://api.example.com"}`:                                     false,
	} {
		file := filepath.Join(t.TempDir(), "weir.yaml")
		write(t, file, text+"\n")
		code, out := runWeir("check", file)
		failIf(t, code != exitOK || strings.Contains(out, "warning: upstream.rewrite_urls is off") != warns, "%s: exit %d\n%s", text, code, out)
	}
}

func TestCAInitCreatesAnAuthorityForTheHosts(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "weir.yaml")
	// The configuration names the files before they exist.
	configuration := "upstream: {url: \"https://api.example\"}\nhosts: [{name: files.example}]\n" +
		"proxy: {listen: \":3128\", ca: {certificate: weir-ca.crt, key: weir-ca.key}}\n"
	write(t, file, configuration)
	code, text := runWeir("ca", "init", "--config", file, "--name", "Mirror.example", "--out", dir)
	stopIf(t, code != exitOK || !strings.Contains(text, "api.example, files.example, mirror.example"), "exit %d\n%s", code, text)
	for _, line := range []string{"cp " + filepath.Join(dir, "weir-ca.crt") + " /usr/local/share", "keytool -importcert", "NODE_EXTRA_CA_CERTS=" + dir, "SSL_CERT_FILE=BUNDLE"} {
		failIf(t, !strings.Contains(text, line), "the instructions lack %q:\n%s", line, text)
	}
	a := must(authority.Load(filepath.Join(dir, "weir-ca.crt"), filepath.Join(dir, "weir-ca.key")))(t)
	for _, name := range []string{"api.example", "files.example", "mirror.example"} {
		_, err := a.Certificate(name)
		failIf(t, err != nil, "%v", err)
	}
	wantWeir(t, exitOK, "", "check", file)
	wantWeir(t, exitFailure, "exists", "ca", "init", "--config", file, "--out", dir) // a second authority in the same folder
	wantWeir(t, exitOK, "", "ca", "init", "--config", file, "--out", filepath.Join(dir, "new", "folder"))
}

func TestCAInitRefusesInvalidArguments(t *testing.T) {
	wantWeir(t, exitUsage, "no names: give --config FILE or --name NAME", "ca", "init", "--out", t.TempDir())
	wantWeir(t, exitUsage, "--validity: 1m: must be from 1h to 43800h", "ca", "init", "--out", t.TempDir(), "--name", "a.example", "--validity", "1m")
}

func TestInitWritesAConfigurationForAnApp(t *testing.T) {
	dir := t.TempDir()
	pemFile, file := filepath.Join(dir, "app.pem"), filepath.Join(dir, "weir.yaml")
	write(t, pemFile, privateKey().Reveal())
	code, out := runWeir("init", "--out", file, "--upstream", "http://127.0.0.1:9000", "--credential", "app",
		"--app", "42", "--app-key", pemFile, "--installation", "7", "--client", "builds", "--store", "redis://127.0.0.1:6379")
	stopIf(t, code != exitOK, "exit %d: %s", code, out)
	cfg := must(load(file))(t)
	c := cfg.Credentials[0]
	failIf(t, c.App.ID != "42" || c.App.Installation != 7 || c.Kind != "installation" || cfg.Callers.PassThrough, "credential %+v, pass_through %v", c, cfg.Callers.PassThrough)
	info := must(os.Stat(file))(t)
	failIf(t, info.Mode().Perm() != 0o600, "mode %v, want 0600", info.Mode())
}

func TestInitForAgentsLimitsTheirWrites(t *testing.T) {
	agents := []string{"init", "--case", "agents", "--upstream", "https://api.github.com", "--credential", "token", "--repository", "acme/*", "--repository", "!acme/secret"}
	for flag, tagged := range map[string]bool{"--client=agent-1": false, "--issuer=https://issuer.example.com": true} {
		file := filepath.Join(t.TempDir(), "weir.yaml")
		code, out := runWeir(append(agents, flag, "--out", file)...)
		stopIf(t, code != exitOK, "exit %d: %s", code, out)
		cfg, err := config.Load(config.Source{Path: file, Getenv: func(string) (string, bool) { return "token", true }})
		noError(t, err)
		c := cfg.Clients[0]
		failIf(t, c.Writes.PerMinute == 0 || !c.Scope().CountsWrites || (c.TagWrites.PerHour > 0) != tagged || !cfg.Cache.GraphQL.GH || cfg.Webhooks.Secret == "" || cfg.Callers.PassThrough || !slices.Equal(c.Repositories, []string{"acme/*", "!acme/secret"}), "%s: client %+v", flag, c)
	}
	const page = "../../docs/recipes/agents.md"
	text := string(must(os.ReadFile(page))(t))
	file := filepath.Join(t.TempDir(), "weir.yaml")
	_, flags, _ := strings.Cut(strings.ReplaceAll(text, "\\\n", ""), "weir init ")
	flags, _, _ = strings.Cut(strings.ReplaceAll(flags, "'", ""), "\n")
	wantWeir(t, exitOK, "agent-02", append([]string{"init", "--out", file}, strings.Fields(flags)...)...)
	_, want, _ := strings.Cut(text, "# weir.yaml\n")
	want, _, _ = strings.Cut(want, "```")
	_, got, _ := strings.Cut(string(must(os.ReadFile(file))(t)), "\n") // without the comment that names weir check
	hash := regexp.MustCompile(`[0-9a-f]{64}`)
	diff := cmp.Diff(hash.ReplaceAllString(want, ""), hash.ReplaceAllString(got, ""))
	failIf(t, diff != "", "%s shows another file than weir init writes (-page +file):\n%s", page, diff)
	wantWeir(t, exitUsage, "--case: \"fleet\": the only case is agents", "init", "--case", "fleet", "--upstream", "https://api.github.com", "--credential", "token", "--client", "a")
	wantWeir(t, exitUsage, "--case agents: needs --credential token or app", "init", "--case", "agents", "--upstream", "https://api.github.com", "--credential", "none")
	wantWeir(t, exitUsage, "--repository: required with --case agents", "init", "--case", "agents", "--upstream", "https://api.github.com", "--credential", "token", "--client", "a")
	wantWeir(t, exitUsage, "--repository: needs --case agents", "init", "--repository", "acme/*", "--upstream", "https://api.github.com", "--credential", "token", "--client", "a")
	wantWeir(t, exitUsage, "--issuer: needs --case agents", "init", "--issuer", "https://a.example", "--upstream", "https://api.github.com", "--credential", "token")
}

func TestInitPromptsForMissingValues(t *testing.T) {
	for _, c := range []struct {
		name, answers string
		want          initCommand
	}{
		{"defaults", "\n\n\n", initCommand{Upstream: "https://api.github.com", Credential: "token", Client: []string{"builds"}}},
		{"own tokens", "https://api.example.com\nnone\n", initCommand{Upstream: "https://api.example.com", Credential: "none"}},
		{"an app", "https://api.example.com\napp\n42\nkey.pem\n7\nci bot\n", initCommand{
			Upstream: "https://api.example.com", Credential: "app", App: "42", AppKey: "key.pem", Installation: 7, Client: []string{"ci", "bot"},
		}},
	} {
		var got initCommand
		var out strings.Builder
		noError(t, got.prompt(&process{stdout: &out}, strings.NewReader(c.answers)))
		diff := cmp.Diff(c.want, got)
		failIf(t, diff != "", "%s: (-want +got):\n%s\n%s", c.name, diff, &out)
	}
	var c initCommand
	err := c.prompt(&process{stdout: new(strings.Builder)}, strings.NewReader("https://api.example.com\napp\n42\nkey.pem\nseven\n"))
	failIf(t, err == nil || err.Error() != `read the installation: "seven" is not a number; use the number in the URL of the installation`, "error %v", err)
}

// Ctrl-D at a terminal ends the input. No default may answer for the operator then.
func TestInitStopsAtTheEndOfInput(t *testing.T) {
	for _, answers := range []string{"", "\n", "\n\n", "\napp\n42\nkey.pem\n"} {
		var c initCommand
		err := c.prompt(&process{stdout: io.Discard}, strings.NewReader(answers))
		failIf(t, err == nil || !strings.Contains(err.Error(), "the input ended"), "%q: got %v, want an error because the input ended", answers, err)
	}
}

func TestJudgedGatewayHasTheLimitsOfTheJudge(t *testing.T) {
	cfg := must(load("../../.ci/judge/weir.yaml"))(t)
	diff := cmp.Diff(judge.Limits(), cfg.Limits.Limits)
	failIf(t, diff != "", "%v", diff)
}

func TestJudgeReportsProxyWithAnotherUpstream(t *testing.T) {
	var requests atomic.Int32
	proxy := serveAPI(t, func(w http.ResponseWriter, r *http.Request) { requests.Add(1); http.NotFound(w, r) })
	code, got := runWeir("judge", "--listen", "127.0.0.1:0", proxy)
	want := "weir: probe " + proxy + ": the proxy did not forward the request to the judge; set its upstream to http://127.0.0.1:"
	failIf(t, code != exitFailure || !strings.HasPrefix(got, want), "exit code %d, wrote %q, want %q", code, got, want)
	n := requests.Load()
	failIf(t, n != 1, "the judge sent %d requests to another API, want 1", n)
}

// TestDocumentsNameExistingTests checks that each test that a document names as evidence exists.
func TestDocumentsNameExistingTests(t *testing.T) {
	var source strings.Builder
	err := filepath.WalkDir("../..", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() && entry.Name() == "bin" {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		source.Write(text)
		return err
	})
	noError(t, err)
	documents := map[string]int{"../../SECURITY.md": 30, "../../docs/internals/attacks.md": 30, "../../docs/upgrade.md": 3}
	for _, recipe := range recipes(t) {
		documents[recipe] = 1
	}
	for document, least := range documents {
		text := must(os.ReadFile(document))(t)
		names := regexp.MustCompile("`(Test|Fuzz)[A-Za-z0-9]+`").FindAllString(string(text), -1)
		failIf(t, len(names) < least, "%s names %d tests, want at least %d", document, len(names), least)
		for _, name := range names {
			failIf(t, !strings.Contains(source.String(), "\nfunc "+strings.Trim(name, "`")+"("), "%s names %s, which does not exist", document, name)
		}
	}
}

// recipes returns the pages in the table of the recipes.
func recipes(t *testing.T) (pages []string) {
	t.Helper()
	index := must(os.ReadFile("../../docs/recipes/README.md"))(t)
	for _, m := range regexp.MustCompile(`(?m)^\| \[.+?\]\((.+?)\)`).FindAllStringSubmatch(string(index), -1) {
		pages = append(pages, "../../docs/recipes/"+m[1])
	}
	failIf(t, len(pages) < 10, "%d recipes, want at least 10", len(pages))
	return pages
}

func TestRecipesHaveTheSameSections(t *testing.T) {
	want := regexp.MustCompile(`^## Configure Weir\n## Configure .+\n## Check\n## Throttles\n## What to expect\n## Limits of the recipe$`)
	for _, page := range recipes(t) {
		text := must(os.ReadFile(page))(t)
		sections := strings.Join(regexp.MustCompile("(?m)^## .+").FindAllString(string(text), -1), "\n")
		failIf(t, !want.MatchString(sections), "%s has the sections\n%s\nwant\n%s", page, sections, want)
	}
}

func TestMemoryBudgetIsShared(t *testing.T) {
	for _, c := range []struct {
		limit, configured, cache int64
		waiting                  int
	}{
		{math.MaxInt64, 256 << 20, 256 << 20, 10_000},
		{4 << 30, 256 << 20, 256 << 20, 10_000},
		{1 << 30, 256 << 20, 256 << 20, 6_898},
		{256 << 20, 256 << 20, 128 << 20, 1_724},
	} {
		cache, waiting := memoryShares(c.limit, c.configured)
		failIf(t, cache != c.cache || waiting != c.waiting, "limit %d: cache %d, %d waiting; want %d and %d", c.limit, cache, waiting, c.cache, c.waiting)
	}
}

func TestDescriptorBudgetIsShared(t *testing.T) {
	for descriptors, want := range map[int]int{0: 0, 100: 64, 1024: 384, 65536: 32640} {
		got := maxConnections(descriptors)
		failIf(t, got != want, "%d descriptors: %d for connections, want %d", descriptors, got, want)
	}
}
