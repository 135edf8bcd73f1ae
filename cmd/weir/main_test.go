package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weirgate/weir/internal/testservers"
)

func TestMain(m *testing.M) {
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

// noEnv is an environment without variables.
func noEnv(string) (string, bool) { return "", false }

// output collects the output of a command. It is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// command is a weir command that runs in this process until the test ends.
type command struct {
	*testing.T
	output  output // standard output and standard error
	scanned int    // bytes of output that find has passed
	cancel  context.CancelFunc
}

// start starts a command. The test cancels the command and expects exit code 0.
func start(t *testing.T, args ...string) *command {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &command{T: t, cancel: cancel}
	code := make(chan int, 1)
	go func() { code <- run(ctx, args, os.LookupEnv, &c.output, &c.output) }()
	t.Cleanup(func() {
		cancel()
		if got := <-code; got != exitOK {
			t.Errorf("weir %s: exit code %d", args[0], got)
		}
	})
	return c
}

// find waits until the command writes text that matches a pattern. It returns the last group of the match. The next
// call of find searches the following text.
func (c *command) find(pattern string) (group string) {
	c.Helper()
	re := regexp.MustCompile("(?m)" + pattern)
	testservers.Eventually(c, "the command writes "+pattern, func(context.Context) bool {
		text := c.output.String()[c.scanned:]
		m := re.FindStringSubmatchIndex(text)
		if m == nil {
			return false
		}
		c.scanned += m[1]
		group = text[m[len(m)-2]:m[len(m)-1]]
		return true
	})
	return group
}

// get sends a GET request with header fields in the form "name: value".
func get(t *testing.T, url string, fields ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// write replaces a file atomically.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestServeSpendsCredentialOfClient(t *testing.T) {
	received := make(chan string, 1)
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received <- r.Header.Get("Authorization") }))
	defer up.Close()
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, fmt.Sprintf(`
listen: "127.0.0.1:0"
admin: {listen: "127.0.0.1:0"}
upstream: {url: %q}
credentials: [{name: ci, kind: user, account: octo-bot, token: upstream-token}]
clients: [{name: builds, key: "sha256:%x", credentials: [ci]}]
callers: {pass_through: false}
`, up.URL, sha256.Sum256([]byte("gateway-key"))))
	s := start(t, "serve", "--config", path)
	gateway, admin := "http://"+s.find(`msg="gateway started" address=(\S+)`), "http://"+s.find(`msg="admin listener started" address=(\S+)`)
	if resp, _ := get(t, gateway+"/user", "Authorization: Bearer gateway-key"); resp.StatusCode != 200 {
		t.Errorf("status %d for the key of a client, want 200", resp.StatusCode)
	}
	if got := <-received; got != "Bearer upstream-token" {
		t.Errorf("upstream received %q, want the token of the credential", got)
	}
	for _, value := range []string{"Bearer upstream-token", "Bearer other", ""} {
		if resp, body := get(t, gateway+"/user", "Authorization: "+value); resp.StatusCode != 401 {
			t.Errorf("status %d for %q, want 401: %s", resp.StatusCode, value, body)
		}
	}
	for _, page := range []string{"config", "accounts", "requests"} {
		if _, body := get(t, admin+"/api/v1/"+page); strings.Contains(body, "upstream-token") || strings.Contains(body, "gateway-key") {
			t.Errorf("%s contains a secret: %s", page, body)
		}
	}
}

// TestServeReloadsChangedFile changes the file, sends SIGHUP, and calls the admin API. An invalid file must not change
// the configuration.
func TestServeReloadsChangedFile(t *testing.T) {
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "first") }))
	defer first.Close()
	second := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "second") }))
	defer second.Close()
	path := filepath.Join(t.TempDir(), "weir.yaml")
	file := func(upstream string) string {
		return fmt.Sprintf("listen: \"127.0.0.1:0\"\nadmin: {listen: \"127.0.0.1:0\"}\nupstream: {url: %q}\n", upstream)
	}
	write(t, path, file(first.URL))
	s := start(t, "serve", "--config", path)
	gateway, admin := "http://"+s.find(`msg="gateway started" address=(\S+)`), "http://"+s.find(`msg="admin listener started" address=(\S+)`)
	wantUpstream := func(want string) {
		t.Helper()
		if _, got := get(t, gateway+"/user"); got != want {
			t.Errorf("response %q, want %q", got, want)
		}
	}
	reload := func() *http.Response {
		t.Helper()
		resp, err := http.Post(admin+"/api/v1/reload", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	activeUpstream := func(context.Context) bool {
		var shown struct{ Upstream struct{ URL string } }
		_, body := get(t, admin+"/api/v1/config")
		return json.Unmarshal([]byte(body), &shown) == nil && shown.Upstream.URL == second.URL
	}
	wantUpstream("first")
	write(t, path, file(second.URL))
	testservers.Eventually(t, "the changed file is active", activeUpstream)
	wantUpstream("second")
	write(t, path, "upstream: 7")
	s.find("level=ERROR.*must be a mapping")
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.find("level=ERROR.*must be a mapping")
	if resp := reload(); resp.StatusCode < 400 {
		t.Errorf("reload of an invalid file: %s", resp.Status)
	}
	wantUpstream("second")
	write(t, path, file(first.URL))
	if resp := reload(); resp.StatusCode != 200 {
		t.Errorf("reload of a valid file: %s", resp.Status)
	}
	wantUpstream("first")
}

func TestServeFinishesOpenRequests(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-release
		_, _ = io.WriteString(w, "body")
	}))
	defer up.Close()
	s := start(t, "serve", "--upstream", up.URL, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	gateway := "http://" + s.find(`msg="gateway started" address=(\S+)`)
	response := make(chan string)
	go func() { _, body := get(t, gateway+"/user"); response <- body }()
	<-arrived
	s.cancel()
	testservers.Eventually(t, "new connections are refused", func(context.Context) bool {
		resp, err := http.Get(gateway + "/_weir/none")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err != nil
	})
	close(release)
	if got := <-response; got != "body" {
		t.Errorf("open request got %q, want the response of the upstream", got)
	}
}

func TestServeReportsUnreachableUpstream(t *testing.T) {
	s := start(t, "serve", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	gateway := "http://" + s.find(`msg="gateway started" address=(\S+)`)
	resp, body := get(t, gateway+"/user")
	if resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, `"message":"Bad Gateway: `) {
		t.Errorf("got %d %s, want 502", resp.StatusCode, body)
	}
}

func TestServiceUsesConfiguredLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, "limits: {primary: {unauthenticated: 2}}\n")
	s := start(t, "service", "--listen", "127.0.0.1:0", "--config", path)
	service := "http://" + s.find(`address=(\S+)`)
	for i, want := range []int{200, 200, 403} {
		if resp, body := get(t, service+"/gitignore/templates"); resp.StatusCode != want {
			t.Errorf("request %d: %d %s, want %d", i+1, resp.StatusCode, body, want)
		}
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	for _, name := range []string{"demo", "serve", "service", "judge", "check", "audit", "explain", "budget", "schema", "version"} {
		var out, problems bytes.Buffer
		if code := run(t.Context(), []string{name, "--help"}, os.LookupEnv, &out, &problems); code != exitOK || !strings.Contains(out.String(), "Usage: weir "+name) {
			t.Errorf("weir %s --help: exit code %d, wrote %s%s", name, code, out.String(), problems.String())
		}
	}
}
