//go:build e2e

// Package e2e tests the weir binary from outside. The tests use whole processes, fleets of replicas on a real Redis, a
// real browser, and an ACME server.
//
// The tests need the build tag e2e. Run them with "make e2e". WEIR_BINARY names the program under test. Each other file
// is one scenario. Read fleet_test.go first, because most scenarios use a fleet.
package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/testservers"
)

// program is the path of the weir binary under test.
var program string

func TestMain(m *testing.M) {
	if role := os.Getenv("WEIR_FLOOD"); role != "" {
		if err := runRole(role, os.Getenv("WEIR_FLOOD_ADDRESS")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(runTests(m))
}

// runTests builds the binary with the race detector, unless WEIR_BINARY names a binary.
func runTests(m *testing.M) int {
	if program = os.Getenv("WEIR_BINARY"); program == "" {
		dir, err := os.MkdirTemp("", "weir-e2e")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		program = filepath.Join(dir, "weir")
		if text, err := exec.Command("go", "build", "-race", "-o", program, "../cmd/weir").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build weir: %v\n%s", err, text)
			return 1
		}
	}
	return m.Run()
}

// output collects the output of a process. It is safe for concurrent use.
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

// process is a running weir command.
type process struct {
	*testing.T
	cmd     *exec.Cmd
	output  output // standard output and standard error
	scanned int    // bytes of output that find has passed
	exited  func() error
}

// start starts weir. The test terminates the process, and fails if the race detector has reported a data race in the
// process.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startWith(t, nil, args...)
}

// startWith calls start with additional environment variables.
func startWith(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	c := exec.Command(program, args...)
	c.Env = append(os.Environ(), env...)
	return startCommand(t, c)
}

// startCommand starts a command that runs weir, like start.
func startCommand(t *testing.T, c *exec.Cmd) *process {
	t.Helper()
	p := &process{T: t, cmd: c}
	p.cmd.Env = append(p.cmd.Environ(), "GORACE=atexit_sleep_ms=0")
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.exited = sync.OnceValue(p.cmd.Wait)
	t.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		p.signal(syscall.SIGTERM)
		_ = p.exited()
		text := p.output.String()
		if strings.Contains(text, "WARNING: DATA RACE") {
			t.Errorf("%s: data race:\n%s", c, text)
		} else if t.Failed() {
			t.Logf("%s wrote:\n%s", c, text[max(0, len(text)-4000):])
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// find waits until the process writes text that matches a pattern. It returns the last group of the match. The next
// call of find searches the following text.
func (p *process) find(pattern string) (group string) {
	p.Helper()
	re := regexp.MustCompile("(?m)" + pattern)
	testservers.Eventually(p, "weir writes "+pattern, func(context.Context) bool {
		text := p.output.String()[p.scanned:]
		m := re.FindStringSubmatchIndex(text)
		if m == nil {
			return false
		}
		p.scanned += m[1]
		group = text[m[len(m)-2]:m[len(m)-1]]
		return true
	})
	return group
}

// command runs weir until weir exits, and returns its output and its exit code.
func command(t *testing.T, args ...string) (text string, code int) {
	t.Helper()
	c := exec.CommandContext(t.Context(), program, args...)
	c.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	out, err := c.CombinedOutput()
	if err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// demo is a running "weir demo".
type demo struct {
	*process
	gateway, admin, service string // URLs
}

func startDemo(t *testing.T, flags ...string) *demo {
	t.Helper()
	const free = "127.0.0.1:0"
	args := append([]string{"demo", "--listen", free, "--admin", free, "--service", free}, flags...)
	d := &demo{process: start(t, args...)}
	d.gateway, d.admin, d.service = d.find(`gateway +(http://\S+)`), d.find(`admin +(http://\S+)`), d.find(`service +(http://\S+)`)
	return d
}

// get sends a GET request with header fields in the form "name: value".
func get(t *testing.T, url string, fields ...string) (*http.Response, string) {
	t.Helper()
	return send(t, http.MethodGet, url, "", fields...)
}

// send sends a request and returns the response with its body.
func send(t *testing.T, method, url, body string, fields ...string) (*http.Response, string) {
	t.Helper()
	return sendWith(t, http.DefaultClient, method, url, body, fields...)
}

// sendWith calls send with a client.
func sendWith(t *testing.T, client *http.Client, method, url, body string, fields ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// accounts returns the accounts that an admin listener reports.
func accounts(ctx context.Context, admin string) (list []history.Account, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/api/v1/accounts", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return list, json.NewDecoder(resp.Body).Decode(&list)
}

// permitsInUse returns the number of open permits that an admin listener reports.
func permitsInUse(ctx context.Context, admin string) (n int, err error) {
	list, err := accounts(ctx, admin)
	for _, a := range list {
		n += a.InUse
	}
	return n, err
}

// installed returns the path of a program that "make e2e" installs.
func installed(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../bin/e2e", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
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

// sleep waits for a duration, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) { testservers.Sleep(ctx, d) }

// duration returns a duration from the environment, or a default.
func duration(t *testing.T, variable string, fallback time.Duration) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(cmp.Or(os.Getenv(variable), fallback.String()))
	if err != nil {
		t.Fatal(err)
	}
	return d
}
