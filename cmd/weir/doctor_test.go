package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/authority"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// runDoctor runs weir doctor --json for a configuration and returns its exit code and the results by name.
func runDoctor(t *testing.T, dir, configuration string, flags ...string) (code int, checks map[string]checkup) {
	t.Helper()
	file := filepath.Join(dir, "weir.yaml")
	write(t, file, configuration)
	var out, messages strings.Builder
	code = run(t.Context(), append([]string{"doctor", file, "--json"}, flags...), noEnv, &out, &messages)
	var list []checkup
	err := json.Unmarshal([]byte(out.String()), &list)
	stopIf(t, err != nil, "exit %d, %v: %s%s", code, err, &out, &messages)
	checks = map[string]checkup{}
	for _, c := range list {
		failIf(t, (c.Result == checkWarning || c.Result == checkFailed) && c.Remedy == "" || c.Result == checkOK && c.Remedy != "", "%s is %s and has the remedy %q", c.Name, c.Result, c.Remedy)
		checks[c.Name] = c
	}
	return code, checks
}

func assertCheck(t *testing.T, checks map[string]checkup, name, result, found string) {
	t.Helper()
	c := checks[name]
	failIf(t, c.Result != result || !strings.Contains(c.Found, found), "%s: %s: %s, want %s with %q", name, c.Result, c.Found, result, found)
}

// newServiceServer starts the reference service in a dialect, and returns its URL.
func newServiceServer(t *testing.T, dialect string) string {
	t.Helper()
	s := must(service.New(service.Config{Limits: policy.DefaultLimits(), Seed: 1, Dialect: must(policy.LoadDialect(dialect))(t)}))(t)
	t.Cleanup(s.Close)
	return serveAPI(t, s.ServeHTTP)
}

// The requests of the checks spend no quota.
func TestDoctorAcceptsAHealthyConfiguration(t *testing.T) {
	for _, dialect := range []string{"github", "service"} {
		up := newServiceServer(t, dialect)
		for range 2 {
			code, checks := runDoctor(t, t.TempDir(), fmt.Sprintf(`
listen: "127.0.0.1:0"
upstream: {url: %q, dialect: %s}
credentials: [{name: ci, kind: user, account: octo-bot, token: tok-owner}]
`, up, dialect))
			failIf(t, code != exitOK, "exit %d: %+v", code, checks)
			assertCheck(t, checks, "configuration", checkOK, "valid")
			assertCheck(t, checks, "upstream", checkOK, "responds in")
			assertCheck(t, checks, "clock", checkOK, "differs")
			assertCheck(t, checks, "credential ci", checkOK, "5000 of 5000 requests of core are left; scopes: admin:org, repo, user")
			assertCheck(t, checks, "redis", checkSkipped, "memory")
			assertCheck(t, checks, "webhooks", checkSkipped, "webhooks.secret is empty")
		}
	}
}

// TestDoctorAndAuditWarnOfEndingVersions asks a running gateway for each version of the dialect.
func TestDoctorAndAuditWarnOfEndingVersions(t *testing.T) {
	dialect := must(policy.LoadDialect("github"))(t)
	g := open(t, configure(newServiceServer(t, "github"), trusting, onLoopback, func(c *config.Config) { c.Upstream.Dialect = "github" }))
	_, admin := serveOnListeners(t, g)
	for _, version := range append(dialect.Versions, "2020-01-01", "") {
		sendTo(g, "GET", "/zen", "", "Authorization: Bearer tok-owner", dialect.VersionHeader+": "+version)
	}
	g.observer.Flush()
	dir := t.TempDir()
	code, checks := runDoctor(t, dir, fmt.Sprintf("upstream: {url: %q, dialect: github}\nadmin: {listen: %q}\n", g.current.Load().config.Upstream.URL, admin))
	_, risks := runWeir("audit", filepath.Join(dir, "weir.yaml"))
	for _, ending := range dialect.Ending {
		found := fmt.Sprintf("asked for version %s of the API 1 times in the last hour; its support may end from %s", ending.Version, ending.Since)
		assertCheck(t, checks, "version of the API", checkWarning, found)
		n := strings.Count(risks, "its support may end")
		failIf(t, !strings.Contains(risks, found) || n != len(dialect.Ending), "doctor ends with %d; audit warns %d times: %s", code, n, risks)
	}
}

func TestDoctorWarnsOfOtherNamesOfTheUpstream(t *testing.T) {
	body, status := "", http.StatusOK
	up := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	})
	for _, c := range []struct {
		status              int
		body, aliases, want string
	}{
		{200, `{"user_url":"http://ghe.test/api/v3/users/{user}","user_repositories_url":"http://ghe.test/users/{user}/repos"}`, "", checkWarning},
		{200, `{"emojis_url":"http://ghe.test/api/v3/emojis"}`, "", checkWarning},
		{200, `{"emojis_url":"http://ghe.test/api/v3/emojis","html_url":"https://ghe.test/settings/connections"}`, "ghe.test", checkOK},
		{200, `{"emojis_url":"` + up + `/emojis"}`, "", checkOK},
		{200, `not JSON`, "", checkSkipped},
		{401, `{}`, "", checkSkipped},
	} {
		body, status = c.body, c.status
		_, checks := runDoctor(t, t.TempDir(), fmt.Sprintf("upstream: {url: %q, dialect: github, aliases: [%s]}\n", up, c.aliases))
		assertCheck(t, checks, "upstream names", c.want, "")
	}
}

func TestDoctorReportsProblemsOfTheUpstream(t *testing.T) {
	var status int
	var offset time.Duration
	up := serveAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(offset).UTC().Format(http.TimeFormat))
		w.WriteHeader(status)
	})
	const configuration = "upstream: {url: %q}\n"
	for _, c := range []struct {
		status        int
		offset        time.Duration
		upstream, clk string
	}{
		{200, 0, checkOK, checkOK},
		{401, 0, checkOK, checkOK}, // the upstream knows no anonymous clients
		{404, 0, checkWarning, checkOK},
		{301, 0, checkFailed, checkOK},
		{502, 0, checkFailed, checkOK},
		{200, 10 * time.Second, checkOK, checkWarning},
		{200, -time.Minute, checkOK, checkFailed},
	} {
		status, offset = c.status, c.offset
		code, checks := runDoctor(t, t.TempDir(), fmt.Sprintf(configuration, up))
		assertCheck(t, checks, "upstream", c.upstream, "")
		assertCheck(t, checks, "clock", c.clk, "differs")
		failed := c.upstream == checkFailed || c.clk == checkFailed
		failIf(t, failed != (code == exitFailure), "%d, offset %v: exit %d", c.status, c.offset, code)
	}
	code, checks := runDoctor(t, t.TempDir(), fmt.Sprintf(configuration, "http://127.0.0.1:1"))
	assertCheck(t, checks, "upstream", checkFailed, "connection refused")
	failIf(t, code != exitFailure, "exit %d for an unreachable upstream", code)
}

func TestDoctorChecksCredentials(t *testing.T) {
	api := newServiceServer(t, "github")
	accepting := serveAPI(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) })
	forbidding := serveAPI(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	var checked atomic.Int32
	late := serveAPI(t, func(w http.ResponseWriter, r *http.Request) { // does not know a new installation token at once
		switch {
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"token":"ghs_new","expires_at":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		case r.Header.Get("Authorization") == "Bearer ghs_new" && checked.Add(1) == 1:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			_, _ = w.Write([]byte(`{}`))
		}
	})
	dir := t.TempDir()
	write(t, filepath.Join(dir, "app.pem"), privateKey().Reveal())
	const app = `kind: installation, app: {id: "1", key: "file:app.pem", installation: 99}`
	for _, c := range []struct {
		upstream, credential string
		code                 int
		result, found        string
	}{
		{api, "kind: user, token: unknown-token", exitFailure, checkFailed, "401"},
		{api, app, exitFailure, checkFailed, "request installation token: upstream returned"},
		{accepting, "kind: user, token: ghs_0123456789", exitOK, checkWarning, "looks like kind installation, not user"},
		{forbidding, "kind: user, token: tok", exitFailure, checkFailed, "403"},
		{late, app, exitOK, checkOK, "accepted"},
	} {
		code, checks := runDoctor(t, dir, fmt.Sprintf("upstream: {url: %q, dialect: github}\ncredentials: [{name: ci, %s}]\n", c.upstream, c.credential))
		assertCheck(t, checks, "credential ci", c.result, c.found)
		failIf(t, code != c.code, "%s: exit %d, want %d", c.credential, code, c.code)
	}
}

func TestDoctorReportsRedisThatEvicts(t *testing.T) {
	socket := testservers.Redis(t)
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer func() { _ = client.Close() }()
	// A configuration cannot name the socket on which tests start Redis.
	check := func(address string) map[string]checkup {
		d := &doctor{cfg: config.Default()}
		d.cfg.Store.URL = address
		d.checkRedis(t.Context())
		checks := map[string]checkup{}
		for _, c := range d.found {
			checks[c.Name] = c
		}
		return checks
	}
	checks := check("unix://" + socket)
	assertCheck(t, checks, "redis", checkOK, "responds in")
	assertCheck(t, checks, "redis eviction", checkOK, "noeviction")
	noError(t, client.ConfigSet(t.Context(), "requirepass", "hunter2").Err())
	if c := check("unix://" + socket)["redis"]; c.Result != checkFailed || !strings.HasPrefix(c.Remedy, "store.url: add the password to the URL") {
		t.Errorf("without the password: %+v", c)
	}
	noError(t, client.ConfigSet(t.Context(), "requirepass", "").Err()) // the connection was opened before the password
	noError(t, client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	assertCheck(t, check("unix://"+socket), "redis eviction", checkWarning, "allkeys-lru")
	assertCheck(t, check("redis://127.0.0.1:1"), "redis", checkFailed, "connection refused")
}

func TestDoctorReportsCertificatesThatExpire(t *testing.T) {
	up := newServiceServer(t, "service")
	dir := t.TempDir()
	for name, validity := range map[string]time.Duration{"soon": 5 * 24 * time.Hour, "later": 90 * 24 * time.Hour} {
		certificate, key, err := authority.Create([]string{"weir.example"}, validity, time.Now())
		noError(t, err)
		write(t, filepath.Join(dir, name+".crt"), string(certificate))
		write(t, filepath.Join(dir, name+".key"), string(key))
	}
	_, checks := runDoctor(t, dir, fmt.Sprintf(`
upstream: {url: %q}
tls: {certificates: [{certificate: later.crt, key: later.key}]}
proxy: {listen: "127.0.0.1:0", ca: {certificate: soon.crt, key: soon.key}}
`, up))
	assertCheck(t, checks, "certificate "+filepath.Join(dir, "later.crt"), checkOK, "expires on")
	assertCheck(t, checks, "authority of the proxy", checkWarning, "expires on")
}

func TestDoctorDeliversASignedPing(t *testing.T) {
	up := newServiceServer(t, "github")
	dir := t.TempDir()
	configuration := fmt.Sprintf(`
upstream: {url: %q, dialect: github}
webhooks: {secret: 0123456789abcdef0123456789abcdef}
`, up)
	gateway := serveAPI(t, open(t, parse(t, configuration)).ServeHTTP)
	_, checks := runDoctor(t, dir, configuration, "--url", gateway)
	assertCheck(t, checks, "webhooks", checkOK, "accepts signed deliveries")
	_, checks = runDoctor(t, dir, configuration)
	assertCheck(t, checks, "webhooks", checkSkipped, "no public URL")
	code, checks := runDoctor(t, dir, strings.ReplaceAll(configuration, "0123456789abcdef0", "another9abcdef0"), "--url", gateway)
	assertCheck(t, checks, "webhooks", checkFailed, "returned 401: signature mismatch")
	failIf(t, code != exitFailure, "exit %d for a wrong secret", code)
}

// The URL of the gateway may contain a password by mistake.
func TestDoctorPrintsNoPasswordOfTheURL(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, file, "upstream: {url: \"http://127.0.0.1:1\"}\nwebhooks: {secret: 0123456789abcdef0123456789abcdef}\n")
	for _, address := range []string{"http://user:hunter2@127.0.0.1:1", "http://user:hunter2@127.0.0.1:1x"} {
		code, out := runWeir("doctor", file, "--url", address)
		failIf(t, code != exitUsage || strings.Contains(out, "hunter2") || !strings.Contains(out, "--url"), "%s: exit %d: %s", address, code, out)
	}
}
