package main

import (
	"bufio"
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
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"weir": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"admin": startAdmin, "happening": happen, "asked": waitForAsks},
		Setup: func(e *testscript.Env) error {
			e.Values[adminAsked{}] = new(chan struct{}) // scripts run side by side
			return nil
		},
	})
}

// started is a command that runs in this process until the test ends.
type started struct {
	*testing.T
	lines  *bufio.Scanner // of what it prints
	cancel context.CancelFunc
	code   chan int
}

// start runs a command, its standard output and error together.
func start(t *testing.T, args ...string) *started {
	t.Helper()
	return startIn(context.Background(), t, args...)
}

// startIn is start of a command that ends with ctx, too.
func startIn(ctx context.Context, t *testing.T, args ...string) *started {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	var both sync.Mutex
	out := writer(func(p []byte) (int, error) {
		both.Lock()
		defer both.Unlock()
		return w.Write(p)
	})
	s := &started{t, bufio.NewScanner(r), cancel, make(chan int, 1)}
	go func() {
		s.code <- run(ctx, args, os.LookupEnv, out, out)
		_ = w.Close()
	}()
	t.Cleanup(func() {
		cancel()
		_, _ = io.Copy(io.Discard, r)
		if code := <-s.code; code != exitOK {
			t.Errorf("ended with %d", code)
		}
	})
	return s
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// says waits for a line that matches, and returns its first group.
func (s *started) says(pattern string) string {
	s.Helper()
	re := regexp.MustCompile(pattern)
	for s.lines.Scan() {
		if m := re.FindStringSubmatch(s.lines.Text()); m != nil {
			return m[len(m)-1]
		}
	}
	s.Fatalf("never said %q", pattern)
	return ""
}

// drain lets the command go on printing.
func (s *started) drain() {
	go func() {
		for s.lines.Scan() {
			continue // reading is all
		}
	}()
}

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

func TestDemo(t *testing.T) {
	s := start(t, "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--service", "127.0.0.1:0")
	gateway := s.says(`gateway +(http://\S+)`)
	admin := s.says(`admin +(http://\S+)`)
	service := s.says(`service +(http://\S+)`)
	s.drain()
	for i, want := range []string{"weir; fwd=uri-miss; fwd-status=200; stored;", "weir; hit;"} {
		resp, body := get(t, gateway+"/gitignore/templates")
		if !strings.HasPrefix(resp.Header.Get("Cache-Status"), want) || !strings.Contains(body, `"Go"`) || resp.Header.Get("X-RateLimit-Limit") != "60" {
			t.Errorf("request %d: %v %s", i+1, resp.Header, body)
		}
	}
	const activity = "/repos/acme/widgets/stats/commit_activity"
	resp, before := get(t, gateway+activity)
	if resp.StatusCode != 200 || !strings.Contains(before, `"total"`) {
		t.Errorf("statistics: %d %s", resp.StatusCode, before)
	}
	push, err := http.Post(service+"/_service/events", "application/json", strings.NewReader(`{"event":"push","repository":"acme/widgets","commits":3}`))
	if err != nil || push.StatusCode != http.StatusAccepted {
		t.Fatalf("push: %v, %v", push, err)
	}
	_ = push.Body.Close()
	for deadline := time.Now().Add(20 * time.Second); ; { // until the delivery has come
		if _, after := get(t, gateway+activity); after != before {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the push has changed nothing")
		}
	}
	for i := range 31 {
		resp, body := get(t, fmt.Sprintf("%s/search/commits?q=gear+%d", gateway, i), "Authorization: Bearer tok-owner")
		want := 200
		if i == 30 {
			want = 429
		}
		if resp.StatusCode != want || want == 429 && resp.Header.Get("Retry-After") == "" {
			t.Errorf("search %d: %d %v %s", i+1, resp.StatusCode, resp.Header, body)
		}
	}
	if _, body := get(t, service+"/_service/violations"); !strings.Contains(body, `"violations":0`) {
		t.Errorf("%s", body)
	}
	if _, body := get(t, admin+"/api/v1/accounts"); !strings.Contains(body, `"egress:shared"`) {
		t.Errorf("%s", body)
	}
}

func TestServeSpendsItsOwnCredentialForItsClients(t *testing.T) {
	seen := make(chan string, 1)
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header.Get("Authorization") }))
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
	gateway, admin := "http://"+s.says(`msg="gateway started" address=(\S+)`), "http://"+s.says(`msg="admin listener started" address=(\S+)`)
	s.drain()
	if resp, _ := get(t, gateway+"/user", "Authorization: Bearer gateway-key"); resp.StatusCode != 200 {
		t.Errorf("client: %d", resp.StatusCode)
	}
	if got := <-seen; got != "Bearer upstream-token" {
		t.Errorf("upstream saw %q", got)
	}
	for _, value := range []string{"Bearer upstream-token", "Bearer other", ""} {
		if resp, body := get(t, gateway+"/user", "Authorization: "+value); resp.StatusCode != 401 {
			t.Errorf("%q: %d %s", value, resp.StatusCode, body)
		}
	}
	for _, page := range []string{"config", "accounts", "requests"} {
		if _, body := get(t, admin+"/api/v1/"+page); strings.Contains(body, "upstream-token") || strings.Contains(body, "gateway-key") {
			t.Errorf("%s shows a secret: %s", page, body)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestAttack61ServeTakesUpAChangedConfiguration(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "one") }))
	defer up.Close()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "two") }))
	defer other.Close()
	path := filepath.Join(t.TempDir(), "weir.yaml")
	file := func(upstream string) string {
		return fmt.Sprintf("listen: \"127.0.0.1:0\"\nadmin: {listen: \"127.0.0.1:0\"}\nupstream: {url: %q}\n", upstream)
	}
	write(t, path, file(up.URL))
	s := start(t, "serve", "--config", path)
	gateway, admin := "http://"+s.says(`msg="gateway started" address=(\S+)`), "http://"+s.says(`msg="admin listener started" address=(\S+)`)
	ask := func(want string) {
		t.Helper()
		answered := make(chan string)
		go func() { _, body := get(t, gateway+"/user"); answered <- body }()
		s.says("msg=request")
		if got := <-answered; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	ask("one")
	write(t, path, file(other.URL))
	s.says("configuration reloaded")
	ask("two")
	write(t, path, "upstream: 7")
	s.says("the old one stays.*want a mapping")
	ask("two")
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.says("the old one stays")
	write(t, path, file(up.URL))
	s.says("configuration reloaded")
	s.drain()
	resp, err := http.Post(admin+"/api/v1/reload", "", nil)
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("%v, %v", resp, err)
	}
	var shown map[string]any
	_, body := get(t, admin+"/api/v1/config")
	if err := json.Unmarshal([]byte(body), &shown); err != nil || shown["upstream"].(map[string]any)["url"] != up.URL {
		t.Errorf("%s", body)
	}
}

func TestServeLetsRequestsInFlightEnd(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-release
		_, _ = io.WriteString(w, "in the end")
	}))
	defer up.Close()
	s := start(t, "serve", "--upstream", up.URL, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	gateway := "http://" + s.says(`msg="gateway started" address=(\S+)`)
	s.drain()
	answered := make(chan string)
	go func() { _, body := get(t, gateway+"/user"); answered <- body }()
	<-arrived
	s.cancel()
	for { // until it answers no new ones
		resp, err := http.Get(gateway + "/_weir/none")
		if err != nil {
			break
		}
		_ = resp.Body.Close()
	}
	close(release)
	if got := <-answered; got != "in the end" {
		t.Errorf("got %q", got)
	}
}

func TestServeWithNobodyBehindIt(t *testing.T) {
	s := start(t, "serve", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	gateway := "http://" + s.says(`msg="gateway started" address=(\S+)`)
	s.drain()
	resp, body := get(t, gateway+"/user")
	if resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, `"message":"Bad Gateway: the upstream refuses connections"`) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

func TestService(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, "limits: {primary: {unauthenticated: 2}}\n")
	s := start(t, "service", "--listen", "127.0.0.1:0", "--config", path)
	service := "http://" + s.says(`address=(\S+)`)
	s.drain()
	for _, want := range []int{200, 200, 403} {
		if resp, body := get(t, service+"/gitignore/templates"); resp.StatusCode != want {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
}

func TestHelpOfEveryCommand(t *testing.T) {
	for _, name := range []string{"demo", "serve", "service", "check", "audit", "explain", "budget", "schema", "version"} {
		var out, problems bytes.Buffer
		if code := run(t.Context(), []string{name, "--help"}, os.LookupEnv, &out, &problems); code != exitOK || !strings.Contains(out.String(), "Usage: weir "+name) {
			t.Errorf("%s: %d %s%s", name, code, out.String(), problems.String())
		}
	}
}
