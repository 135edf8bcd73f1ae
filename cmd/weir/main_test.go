package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weirgate/weir/internal/testservers"
)

// TestMain lets more tests run in parallel than there are processors, because the parallel tests mostly wait.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	testscript.Main(m, map[string]func(){"weir": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"admin": startAdmin, "events": startEvents, "requests": waitForRequests},
		Setup: func(e *testscript.Env) error {
			e.Values[adminRequests{}] = new(chan struct{}) // the scripts run in parallel
			e.Setenv("GORACE", "atexit_sleep_ms=50")       // by default, a command with the race detector exits after a second
			return nil
		},
	})
}

func TestServeSpendsCredentialOfClient(t *testing.T) {
	received := make(chan string, 1)
	api := serveAPI(t, func(_ http.ResponseWriter, r *http.Request) { received <- r.Header.Get("Authorization") })
	s := serve(t, fmt.Sprintf(`
upstream: {url: %q}
credentials: [{name: ci, kind: user, account: octo-bot, token: upstream-token}]
clients: [{name: builds, key: %q, credentials: [ci]}]
callers: {pass_through: false}
`, api, keyHash("gateway-key")))
	if resp, _ := get(t, "http://"+s.gateway+"/user", "Authorization: Bearer gateway-key"); resp.StatusCode != 200 {
		t.Errorf("status %d for the key of a client, want 200", resp.StatusCode)
	}
	got := <-received
	failIf(t, got != "Bearer upstream-token", "upstream received %q, want the token of the credential", got)
	for _, value := range []string{"Bearer upstream-token", "Bearer other", ""} {
		resp, body := get(t, "http://"+s.gateway+"/user", "Authorization: "+value)
		failIf(t, resp.StatusCode != 401, "status %d for %q, want 401: %s", resp.StatusCode, value, body)
	}
	for _, page := range []string{"config", "accounts", "requests"} {
		_, body := get(t, "http://"+s.admin+"/api/v1/"+page)
		failIf(t, strings.Contains(body, "upstream-token") || strings.Contains(body, "gateway-key"), "%s contains a secret: %s", page, body)
	}
}

// TestServeReloadsChangedFile changes the file, sends SIGHUP, and calls the admin API. An invalid file must not change
// the configuration. Each reload is in the audit trail.
func TestServeReloadsChangedFile(t *testing.T) {
	file := func(answer string) string {
		return "upstream: {url: " + serveAPI(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }) + "}\n"
	}
	first, second := file("first"), file("second")
	s := serve(t, first)
	wantUpstream := func(want string) {
		t.Helper()
		_, got := get(t, "http://"+s.gateway+"/user")
		failIf(t, got != want, "response %q, want %q", got, want)
	}
	wantUpstream("first")
	s.write(t, second)
	s.find(`msg=audit operator=file address="" action=reload target=\S+weir.yaml outcome="in force"`)
	wantUpstream("second")
	s.write(t, "upstream: 7\nnonsense: 1")
	s.find("level=ERROR.*must be a mapping")
	s.find(`msg=audit operator=file .*outcome="failed: .*must be a mapping`)
	noError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	s.find("level=ERROR.*must be a mapping")
	s.find("msg=audit operator=signal")
	if status := s.reload(); status != http.StatusUnprocessableEntity {
		t.Errorf("reload of an invalid file: %d", status)
	}
	s.find(`msg=audit operator=loopback address=127.0.0.1:\d+ action=reload target=configuration outcome="failed: `)
	wantUpstream("second")
	_, body := get(t, "http://"+s.admin+"/api/v1/audit")
	failIf(t, strings.Count(body, `"action": "reload"`) != 4, "want four reloads in the audit trail, got %s", body)
	s.write(t, first)
	status := s.reload()
	failIf(t, status != 200, "reload of a valid file: %d", status)
	wantUpstream("first")
}

func TestServeFinishesOpenRequests(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	s := serve(t, "upstream: {url: "+serveAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-release
		_, _ = io.WriteString(w, "body")
	})+"}")
	response := make(chan string)
	go func() { _, body := get(t, "http://"+s.gateway+"/user"); response <- body }()
	<-arrived
	s.cancel()
	testservers.Eventually(t, "new connections are refused", func(context.Context) bool {
		resp, err := http.Get("http://" + s.gateway + "/_weir/none")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err != nil
	})
	close(release)
	got := <-response
	failIf(t, got != "body", "open request got %q, want the response of the upstream", got)
}

func TestServeReportsUnreachableUpstream(t *testing.T) {
	w := sendTo(open(t, configure(nowhere)), http.MethodGet, "/user", "")
	failIf(t, w.Code != http.StatusBadGateway || !strings.Contains(w.Body.String(), `"message":"Bad Gateway: `), "got %d %s, want 502", w.Code, w.Body)
}

func TestServiceUsesConfiguredLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, "limits: {primary: {unauthenticated: 2}}\n")
	service := "http://" + start(t, "service", "--listen", "127.0.0.1:0", "--config", path).find(`address=(\S+)`)
	for i, want := range []int{200, 200, 403} {
		resp, body := get(t, service+"/gitignore/templates")
		failIf(t, resp.StatusCode != want, "request %d: %d %s, want %d", i+1, resp.StatusCode, body, want)
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	for _, name := range []string{"demo", "serve", "service", "judge", "check", "audit", "explain", "budget", "schema", "version"} {
		wantWeir(t, exitOK, "Usage: weir "+name, name, "--help")
		wantWeir(t, exitOK, "Usage: weir "+name, "help", name)
	}
	wantWeir(t, exitUsage, "Usage: weir <command>")
	wantWeir(t, exitOK, "Usage: weir <command>", "help")
	wantWeir(t, exitUsage, "run weir account open --help for usage", "account", "open")
}
