package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
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
	if err := json.Unmarshal([]byte(out.String()), &list); err != nil {
		t.Fatalf("exit %d, %v: %s%s", code, err, &out, &messages)
	}
	checks = map[string]checkup{}
	for _, c := range list {
		if (c.Result == checkWarning || c.Result == checkFailed) && c.Remedy == "" || c.Result == checkOK && c.Remedy != "" {
			t.Errorf("%s is %s and has the remedy %q", c.Name, c.Result, c.Remedy)
		}
		checks[c.Name] = c
	}
	return code, checks
}

func assertCheck(t *testing.T, checks map[string]checkup, name, result, found string) {
	t.Helper()
	if c := checks[name]; c.Result != result || !strings.Contains(c.Found, found) {
		t.Errorf("%s: %s: %s, want %s with %q", name, c.Result, c.Found, result, found)
	}
}

// newServiceServer starts the reference service in a dialect.
func newServiceServer(t *testing.T, dialect string) *httptest.Server {
	t.Helper()
	d, err := policy.LoadDialect(dialect)
	if err != nil {
		t.Fatal(err)
	}
	s := service.New(service.Config{Limits: policy.DefaultLimits(), Seed: 1, Dialect: d})
	t.Cleanup(s.Close)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server
}

func TestDoctorAcceptsAHealthyConfiguration(t *testing.T) {
	up := newServiceServer(t, "github")
	code, checks := runDoctor(t, t.TempDir(), fmt.Sprintf(`
listen: "127.0.0.1:0"
upstream: {url: %q, dialect: github}
credentials: [{name: ci, kind: user, account: octo-bot, token: tok-owner}]
`, up.URL))
	if code != exitOK {
		t.Errorf("exit %d: %+v", code, checks)
	}
	assertCheck(t, checks, "configuration", checkOK, "valid")
	assertCheck(t, checks, "upstream", checkOK, "responds in")
	assertCheck(t, checks, "clock", checkOK, "differs")
	assertCheck(t, checks, "credential ci", checkOK, "5000 of 5000 requests of core are left; scopes: admin:org, repo, user")
	assertCheck(t, checks, "redis", checkSkipped, "memory")
	assertCheck(t, checks, "webhooks", checkSkipped, "webhooks.secret is empty")
}

// The requests of the checks spend no quota.
func TestDoctorSpendsNoQuota(t *testing.T) {
	up := newServiceServer(t, "service")
	for range 3 {
		runDoctor(t, t.TempDir(), fmt.Sprintf("upstream: {url: %q}\ncredentials: [{name: ci, kind: user, token: tok-owner}]\n", up.URL))
	}
	if resp, _ := get(t, up.URL+"/rate_limit", "Authorization: Bearer tok-owner"); resp.Header.Get("X-Ratelimit-Remaining") != "5000" {
		t.Errorf("%s requests left, want 5000", resp.Header.Get("X-Ratelimit-Remaining"))
	}
}

func TestDoctorReportsProblemsOfTheUpstream(t *testing.T) {
	var status int
	var offset time.Duration
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(offset).UTC().Format(http.TimeFormat))
		w.WriteHeader(status)
	}))
	defer up.Close()
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
		code, checks := runDoctor(t, t.TempDir(), fmt.Sprintf(configuration, up.URL))
		assertCheck(t, checks, "upstream", c.upstream, "")
		assertCheck(t, checks, "clock", c.clk, "differs")
		if failed := c.upstream == checkFailed || c.clk == checkFailed; failed != (code == exitFailure) {
			t.Errorf("%d, offset %v: exit %d", c.status, c.offset, code)
		}
	}
	code, checks := runDoctor(t, t.TempDir(), fmt.Sprintf(configuration, "http://127.0.0.1:1"))
	assertCheck(t, checks, "upstream", checkFailed, "connection refused")
	if code != exitFailure {
		t.Errorf("exit %d for an unreachable upstream", code)
	}
}

func TestDoctorReportsProblemsOfCredentials(t *testing.T) {
	up := newServiceServer(t, "github")
	accepting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{}`)) }))
	defer accepting.Close()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "app.pem"), privateKey(t).Reveal())
	code, checks := runDoctor(t, dir, fmt.Sprintf(`
upstream: {url: %q, dialect: github}
credentials:
  - {name: revoked, kind: user, token: unknown-token}
  - {name: app, kind: installation, app: {id: "1", key: "file:app.pem", installation: 99}}
`, up.URL))
	assertCheck(t, checks, "credential revoked", checkFailed, "401")
	assertCheck(t, checks, "credential app", checkFailed, "request installation token: upstream returned")
	if code != exitFailure {
		t.Errorf("exit %d", code)
	}
	code, checks = runDoctor(t, dir, fmt.Sprintf(`
upstream: {url: %q, dialect: github}
credentials: [{name: ci, kind: user, token: ghs_0123456789}]
`, accepting.URL))
	assertCheck(t, checks, "credential ci", checkWarning, "looks like kind installation, not user")
	if code != exitOK {
		t.Errorf("exit %d for a warning", code)
	}
}

// The upstream does not know a new installation token at once.
func TestDoctorRepeatsTheCheckOfANewToken(t *testing.T) {
	var checked atomic.Int32
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"token":"ghs_new","expires_at":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		case r.Header.Get("Authorization") == "Bearer ghs_new" && checked.Add(1) == 1:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			_, _ = w.Write([]byte(`{}`))
		}
	}))
	defer up.Close()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "app.pem"), privateKey(t).Reveal())
	_, checks := runDoctor(t, dir, fmt.Sprintf(`
upstream: {url: %q, dialect: github}
credentials: [{name: app, kind: installation, app: {id: "1", key: "file:app.pem", installation: 99}}]
`, up.URL))
	assertCheck(t, checks, "credential app", checkOK, "accepted")
}

func TestDoctorReportsAForbiddenAccount(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer up.Close()
	code, checks := runDoctor(t, t.TempDir(), fmt.Sprintf("upstream: {url: %q}\ncredentials: [{name: ci, kind: user, token: tok}]\n", up.URL))
	assertCheck(t, checks, "credential ci", checkFailed, "403")
	if code != exitFailure {
		t.Errorf("exit %d", code)
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
	if err := client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	assertCheck(t, check("unix://"+socket), "redis eviction", checkWarning, "allkeys-lru")
	assertCheck(t, check("redis://127.0.0.1:1"), "redis", checkFailed, "connection refused")
}

func TestDoctorReportsCertificatesThatExpire(t *testing.T) {
	up := newServiceServer(t, "service")
	dir := t.TempDir()
	for name, validity := range map[string]time.Duration{"soon": 5 * 24 * time.Hour, "later": 90 * 24 * time.Hour} {
		certificate, key, err := authority.Create([]string{"weir.example"}, validity, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name+".crt"), string(certificate))
		write(t, filepath.Join(dir, name+".key"), string(key))
	}
	_, checks := runDoctor(t, dir, fmt.Sprintf(`
upstream: {url: %q}
tls: {certificates: [{certificate: later.crt, key: later.key}]}
proxy: {listen: "127.0.0.1:0", ca: {certificate: soon.crt, key: soon.key}}
`, up.URL))
	assertCheck(t, checks, "certificate "+filepath.Join(dir, "later.crt"), checkOK, "expires on")
	assertCheck(t, checks, "authority of the proxy", checkWarning, "expires on")
}

func TestDoctorDeliversASignedPing(t *testing.T) {
	up := newServiceServer(t, "github")
	dir := t.TempDir()
	configuration := fmt.Sprintf(`
listen: "127.0.0.1:0"
admin: {listen: "127.0.0.1:0"}
upstream: {url: %q, dialect: github}
webhooks: {secret: 0123456789abcdef0123456789abcdef}
`, up.URL)
	file := filepath.Join(dir, "serve.yaml")
	write(t, file, configuration)
	s := start(t, "serve", "--config", file)
	gateway := "http://" + s.find(`msg="gateway started" address=(\S+)`)
	_, checks := runDoctor(t, dir, configuration, "--url", gateway)
	assertCheck(t, checks, "webhooks", checkOK, "accepts signed deliveries")
	_, checks = runDoctor(t, dir, configuration)
	assertCheck(t, checks, "webhooks", checkSkipped, "no public URL")
	code, checks := runDoctor(t, dir, strings.ReplaceAll(configuration, "0123456789abcdef0", "another9abcdef0"), "--url", gateway)
	assertCheck(t, checks, "webhooks", checkFailed, "returned 401: signature mismatch")
	if code != exitFailure {
		t.Errorf("exit %d for a wrong secret", code)
	}
}

// The URL of the gateway may contain a password by mistake.
func TestDoctorPrintsNoPasswordOfTheURL(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, file, "upstream: {url: \"http://127.0.0.1:1\"}\nwebhooks: {secret: 0123456789abcdef0123456789abcdef}\n")
	for _, address := range []string{"http://user:hunter2@127.0.0.1:1", "http://user:hunter2@127.0.0.1:1x"} {
		code, out := runWeir("doctor", file, "--url", address)
		if code != exitUsage || strings.Contains(out, "hunter2") || !strings.Contains(out, "--url") {
			t.Errorf("%s: exit %d: %s", address, code, out)
		}
	}
}
