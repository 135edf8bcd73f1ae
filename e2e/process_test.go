//go:build e2e

// Package e2e tests the weir binary from outside. The tests use whole processes, fleets of replicas on a real Redis, a
// real browser, and an ACME server.
//
// The tests need the build tag e2e. Run them with "make e2e". WEIR_BINARY names the program under test. Each other file
// is one scenario. Read fleet_test.go first, because most scenarios use a fleet.
package e2e

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

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
		build := exec.Command("go", "build", "-race", "-o", program, "../cmd/weir")
		build.Env = append(os.Environ(), "CGO_ENABLED=1")
		if text, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build weir: %v\n%s", err, text)
			return 1
		}
	}
	defer func() { closeChromium() }()
	return m.Run()
}

// process is a running weir command.
type process struct {
	*testing.T
	cmd    *exec.Cmd
	output testservers.Output // standard output and standard error
	exited func() error
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
	p.cmd.Stderr = &p.output
	if p.cmd.Stdout == nil {
		p.cmd.Stdout = &p.output
	}
	must(t, p.cmd.Start())
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

// find waits until the process writes text that matches a pattern, and returns the last group of the match.
func (p *process) find(pattern string) (group string) {
	p.Helper()
	return p.output.Find(p, pattern)
}

// replica is a gateway process.
type replica struct {
	*process
	address, admin string // host and port
	url            string // plain HTTP
}

// serve starts a gateway with a configuration, and waits until it listens.
func serve(t *testing.T, config string, env ...string) *replica {
	t.Helper()
	return serveAt(t, config, anyPort, anyPort, env...)
}

// anyPort is a loopback address with any free port.
const anyPort = "127.0.0.1:0"

// serveAt starts a gateway at addresses.
func serveAt(t *testing.T, config, listen, admin string, env ...string) *replica {
	t.Helper()
	r := &replica{process: startWith(t, env, "serve", "--config", config, "--listen", listen, "--admin", admin)}
	r.awaitStart()
	return r
}

// awaitStart waits until a gateway listens.
func (r *replica) awaitStart() {
	r.Helper()
	r.address, r.admin = r.find(`msg="gateway started" address=(\S+)`), r.find(`msg="admin listener started" address=(\S+)`)
	r.url = "http://" + r.address
}

// serveText starts a gateway with the text of a configuration.
func serveText(t *testing.T, config string, env ...string) *replica {
	t.Helper()
	return serve(t, write(t, filepath.Join(t.TempDir(), "weir.yaml"), config), env...)
}

// command runs weir until weir exits, and returns its output and its exit code.
func command(t *testing.T, args ...string) (text string, code int) {
	t.Helper()
	return commandWith(t, nil, args...)
}

// commandWith calls command with additional environment variables.
func commandWith(t *testing.T, env []string, args ...string) (text string, code int) {
	t.Helper()
	c := exec.CommandContext(t.Context(), program, args...)
	c.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), env...)
	out, err := c.CombinedOutput()
	stopIf(t, err != nil && c.ProcessState == nil, "%v", err)
	return string(out), c.ProcessState.ExitCode()
}

// newKey creates a key of a client, and returns it with its hash.
func newKey(t *testing.T, client string) (key, hash string) {
	t.Helper()
	text, _ := command(t, "key", "new", client)
	m := regexp.MustCompile(`(?s)(weir_[A-Z0-9]+).*sha256:([0-9a-f]{64})`).FindStringSubmatch(text)
	stopIf(t, m == nil, "weir key new wrote %s", text)
	return m[1], m[2]
}

// demo is a running "weir demo".
type demo struct {
	*process
	gateway, admin, service string // URLs
}

func startDemo(t *testing.T, flags ...string) *demo {
	t.Helper()
	args := append([]string{"demo", "--listen", anyPort, "--admin", anyPort, "--service", anyPort}, flags...)
	d := &demo{process: start(t, args...)}
	d.gateway, d.admin, d.service = d.find(`gateway +(http://\S+)`), d.find(`admin +(http://\S+)`), d.find(`service +(http://\S+)`)
	return d
}

// newRequest returns a request with header fields in the form "name: value".
func newRequest(ctx context.Context, method, url, body string, fields ...string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		panic(err) // the tests use valid methods and URLs
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Set(name, value)
	}
	return req
}

// do sends a request, and reads the response.
func do(client *http.Client, req *http.Request) (*http.Response, string, error) {
	resp, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), err
}

// get sends a GET request, and returns the response with its body.
func get(t testing.TB, url string, fields ...string) (*http.Response, string) {
	t.Helper()
	return send(t, http.MethodGet, url, "", fields...)
}

// send sends a request, and returns the response with its body.
func send(t testing.TB, method, url, body string, fields ...string) (*http.Response, string) {
	t.Helper()
	return sendWith(t, http.DefaultClient, method, url, body, fields...)
}

// sendWith calls send with a client.
func sendWith(t testing.TB, client *http.Client, method, url, body string, fields ...string) (*http.Response, string) {
	t.Helper()
	resp, text, err := do(client, newRequest(t.Context(), method, url, body, fields...))
	must(t, err)
	return resp, text
}

// serveHTTP starts a server, and returns its URL.
func serveHTTP(t testing.TB, handler http.Handler) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

// reply sends a response in JSON.
func reply(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the client checks the response
}

// toJSON returns a value in JSON.
func toJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // the tests use encodable values
	}
	return string(text)
}

// certify writes a certificate for weir, and the certificate of its authority, into a folder: tls.crt, tls.key and ca.pem.
func certify(t testing.TB, dir string, names ...string) (roots *x509.CertPool) {
	t.Helper()
	ca, err := testservers.NewCA()
	must(t, err)
	must(t, ca.Issue(dir, names...))
	must(t, ca.Write(filepath.Join(dir, "ca.pem")))
	roots = x509.NewCertPool()
	roots.AddCert(ca.Certificate)
	return roots
}

// accounts returns the accounts that an admin listener reports.
func accounts(ctx context.Context, admin string) (list []history.Account, err error) {
	_, text, err := do(http.DefaultClient, newRequest(ctx, http.MethodGet, "http://"+admin+"/api/v1/accounts", ""))
	if err != nil {
		return nil, err
	}
	return list, json.Unmarshal([]byte(text), &list)
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
	must(t, err)
	return path
}

// must ends the test if an operation has failed.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want compares a value.
func want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// wantMatch compares a text with a pattern.
func wantMatch(t testing.TB, what, got, pattern string) {
	t.Helper()
	failIf(t, !regexp.MustCompile("(?s)"+pattern).MatchString(got), "%s: got %s, want a match of %s", what, got, pattern)
}

// write replaces a file atomically, and returns its path.
func write(t *testing.T, path, text string) string {
	t.Helper()
	must(t, os.WriteFile(path+".new", []byte(text), 0o600))
	must(t, os.Rename(path+".new", path))
	return path
}

// readFile returns the text of a file.
func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

// sleep waits for a duration, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) { testservers.Sleep(ctx, d) }

// duration returns a duration from the environment, or a default.
func duration(t *testing.T, variable string, fallback time.Duration) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(cmp.Or(os.Getenv(variable), fallback.String()))
	must(t, err)
	return d
}
