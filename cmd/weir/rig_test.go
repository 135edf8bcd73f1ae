package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/telemetry"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

func noError(t testing.TB, err error) { t.Helper(); testservers.NoError(t, err) }

// must returns the value of a step of the setup, or ends the test: must(os.ReadFile(path))(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		noError(t, err)
		return v
	}
}

// noEnv looks up variables in an empty environment.
func noEnv(string) (string, bool) { return "", false }

// runWeir runs a command without environment variables, and returns its exit code and its output.
func runWeir(args ...string) (code int, text string) {
	var out testservers.Output
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a command that should fail may serve instead
	defer cancel()
	code = run(ctx, args, noEnv, &out, &out)
	return code, out.String()
}

// wantWeir checks the exit code of a command, and that its output contains a text.
func wantWeir(t *testing.T, code int, text string, args ...string) {
	t.Helper()
	gotCode, got := runWeir(args...)
	failIf(t, gotCode != code || !strings.Contains(got, text), "weir %q: exit code %d, wrote %q; want %d and %q", args, gotCode, got, code, text)
}

// command is a weir command that runs in this process until the test ends.
type command struct {
	*testing.T
	output testservers.Output // standard output and standard error
	cancel context.CancelFunc
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
		got := <-code
		failIf(t, got != exitOK, "weir %s: exit code %d", args[0], got)
	})
	return c
}

// find waits until the command writes text that matches a pattern, and returns the last group of the match.
func (c *command) find(pattern string) (group string) {
	c.Helper()
	return c.output.Find(c, pattern)
}

// served is the command weir serve with its configuration file and its addresses.
type served struct {
	*command
	path           string
	gateway, admin string // HOST:PORT
}

// serve starts weir serve with a configuration file, to which it adds listeners on loopback.
func serve(t *testing.T, text string) *served {
	t.Helper()
	s := &served{path: filepath.Join(t.TempDir(), "weir.yaml")}
	s.write(t, text)
	s.command = start(t, "serve", "--config", s.path, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	s.gateway, s.admin = s.find(`msg="gateway started" address=(\S+)`), s.find(`msg="admin listener started" address=(\S+)`)
	return s
}

// write replaces the configuration file.
func (s *served) write(t *testing.T, text string) { write(t, s.path, text) }

// reload calls the admin API, and returns the status.
func (s *served) reload() int {
	s.Helper()
	resp := must(http.Post("http://"+s.admin+"/api/v1/reload", "application/json", nil))(s)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// get sends a GET request with header fields in the form "name: value".
func get(t testing.TB, url string, fields ...string) (*http.Response, string) {
	t.Helper()
	return getWith(t, http.DefaultClient, url, fields...)
}

func getWith(t testing.TB, client *http.Client, url string, fields ...string) (*http.Response, string) {
	t.Helper()
	req := must(http.NewRequest(http.MethodGet, url, nil))(t)
	setFields(req, fields)
	resp := must(client.Do(req))(t)
	defer func() { _ = resp.Body.Close() }()
	return resp, string(must(io.ReadAll(resp.Body))(t))
}

// setFields sets header fields in the form "name: value".
func setFields(r *http.Request, fields []string) {
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		if r.Header.Set(name, value); name == "Host" {
			r.Host = value
		}
	}
}

// newRequest returns a request for sendTo with the target as the client sent it.
func newRequest(method, target, body string, fields ...string) *http.Request {
	r := httptest.NewRequest(method, "/", strings.NewReader(body))
	r.RequestURI, r.Host = target, "localhost"
	r.URL.Path, r.URL.RawQuery, _ = strings.Cut(target, "?")
	if path, err := r.URL.Parse(target); err == nil {
		r.URL = path
	}
	if body == "" {
		r.Body = http.NoBody
	}
	setFields(r, fields)
	return r
}

// sendTo sends a request with header fields in the form "name: value" to a handler.
func sendTo(h http.Handler, method, target, body string, fields ...string) *httptest.ResponseRecorder {
	return serveRequest(h, newRequest(method, target, body, fields...))
}

// serveRequest serves a request, and returns the response.
func serveRequest(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// wantStatuses sends the same GET request several times.
func wantStatuses(t *testing.T, h http.Handler, target string, want ...int) {
	t.Helper()
	for i, status := range want {
		w := sendTo(h, http.MethodGet, target, "")
		failIf(t, w.Code != status, "%s, request %d: got %d, want %d: %s", target, i+1, w.Code, status, w.Body)
	}
}

// write replaces a file atomically.
func write(t testing.TB, path, text string) { t.Helper(); testservers.WriteFile(t, path, text) }

// serveAPI serves an upstream until the test ends, and returns its URL.
func serveAPI(t testing.TB, answer http.HandlerFunc) (url string) {
	t.Helper()
	up := httptest.NewServer(answer)
	t.Cleanup(up.Close)
	return up.URL
}

// nowhere is the URL of an upstream that refuses connections.
const nowhere = "http://127.0.0.1:9"

// configure changes the default configuration.
func configure(upstream string, changes ...func(*config.Config)) *config.Config {
	cfg := config.Default()
	cfg.Upstream.URL = cmp.Or(upstream, nowhere)
	for _, change := range changes {
		change(cfg)
	}
	return cfg
}

// trusting permits the first requests of an account at full speed.
func trusting(c *config.Config) { c.Limits.ColdStart = "trust" }

// onLoopback opens listeners on unused ports.
func onLoopback(c *config.Config) { c.Listen, c.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0" }

// inbound returns a change of the rate and the burst of an address.
func inboundRate(rate, burst int) func(*config.Config) {
	return func(c *config.Config) { c.Limits.Inbound.Rate, c.Limits.Inbound.Burst = rate, burst }
}

// parse parses a configuration without environment variables.
func parse(t testing.TB, text string) *config.Config {
	t.Helper()
	return must(config.Parse(config.Source{Path: "weir.yaml", Getenv: noEnv}, []byte(text)))(t)
}

// load loads a configuration file without environment variables.
func load(path string) (*config.Config, error) {
	return config.Load(config.Source{Path: path, Getenv: noEnv})
}

// keyHash returns the hash of a client key in the form of the configuration.
func keyHash(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }

// clientOf returns a client that has a key and spends credentials.
func clientOf(name, key string, credentials ...string) config.Client {
	return config.Client{Name: name, Key: keyHash(key), Credentials: credentials, Share: 1, Limit: 0.9, Priority: "normal"}
}

// userToken returns a held credential of a user.
func userToken(name, account string, token credential.Secret) config.Credential {
	return config.Credential{Name: name, Kind: policy.User, Account: account, Token: token}
}

// open starts a gateway that logs nothing until the test ends.
func open(t testing.TB, cfg *config.Config) *gateway {
	t.Helper()
	return openLogged(t, cfg, io.Discard)
}

// openLogged starts a gateway that logs to a writer until the test ends.
func openLogged(t testing.TB, cfg *config.Config, log io.Writer) *gateway {
	t.Helper()
	return openVerbose(t, cfg, log, slog.LevelInfo)
}

// openVerbose starts a gateway that logs the lines of a level and above.
func openVerbose(t testing.TB, cfg *config.Config, log io.Writer, level slog.Level) *gateway {
	t.Helper()
	g := must(newGateway(cfg, log, level))(t)
	t.Cleanup(func() { noError(t, g.close()) })
	return g
}

// jsonLog is a writer of a log whose format is JSON. It is called with each line.
type jsonLog func(line map[string]any)

// Write implements [io.Writer].
func (l jsonLog) Write(p []byte) (int, error) {
	for text := range bytes.Lines(p) {
		var line map[string]any
		if err := json.Unmarshal(text, &line); err != nil {
			return 0, err
		}
		l(line)
	}
	return len(p), nil
}

// inJSON selects the format that jsonLog reads.
func inJSON(c *config.Config) { c.Telemetry.LogFormat = telemetry.LogFormatJSON }

// recent returns the recent requests, newest first.
func (g *gateway) recent() []history.Request {
	g.observer.Flush()
	return g.history.Recent()
}

// connectTo connects a gateway with an upstream in memory.
func connectTo(t testing.TB, g *gateway, answer http.Handler) {
	t.Helper()
	g.transport.DialContext = testservers.ServePipe(t, "service.test:80", &http.Server{Handler: answer}).Dial
}

// pipeClient returns a client whose connections lead to a listener in memory.
func pipeClient(t testing.TB, l *testservers.PipeListener) *http.Client {
	t.Helper()
	transport := &http.Transport{DialContext: l.Dial}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// reloadWith reloads a configuration that is not in a file.
func reloadWith(g *gateway, c *config.Config) error {
	load := g.load
	defer func() { g.load = load }()
	g.load = func() (*config.Config, error) { return c, nil }
	return g.reload()
}

// reloadChanged reloads the current configuration with changes.
func reloadChanged(t testing.TB, g *gateway, changes ...func(*config.Config)) {
	t.Helper()
	next := *g.current.Load().config
	for _, change := range changes {
		change(&next)
	}
	noError(t, reloadWith(g, &next))
}

// serveOnListeners serves the listeners of a gateway until the test ends, and returns the addresses of clients and admin.
func serveOnListeners(t *testing.T, g *gateway) (clients, admin string) {
	t.Helper()
	endpoints := must(g.listen())(t)
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = serveAll(ctx, slog.New(slog.DiscardHandler), noDrain, endpoints...) })
	t.Cleanup(func() { stop(); serving.Wait() })
	return endpoints[0].listener.Addr().String(), endpoints[len(endpoints)-1].listener.Addr().String()
}

// adminAPI decodes a response of the admin API.
func adminAPI[T any](t testing.TB, g *gateway, path string) (v T) {
	t.Helper()
	w := sendTo(g.admin(g.started.Admin), http.MethodGet, path, "")
	noError(t, json.Unmarshal(w.Body.Bytes(), &v))
	return v
}

// metrics returns the metrics in the Prometheus format.
func (g *gateway) metrics() string {
	g.observer.Flush()
	return sendTo(g.telemetry, http.MethodGet, "/metrics", "").Body.String()
}

// dial opens a TCP connection that ends with the test, or after a minute of real time.
func dial(t testing.TB, address string) net.Conn {
	t.Helper()
	c := must(net.Dial("tcp", address))(t)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// sendText writes a request with the field "Connection: close" to a new connection, and returns the response with its body.
func sendText(t testing.TB, address, head, body string) (*http.Response, string) {
	t.Helper()
	c := dial(t, address)
	defer func() { _ = c.Close() }()
	_, _ = fmt.Fprintf(c, "%s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", head, len(body), body)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	stopIf(t, err != nil, "%q: %v", head, err)
	text, _ := io.ReadAll(resp.Body) // until the connection ends
	return resp, string(text)
}

// signature returns the signature of a delivery.
func signature(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return "X-Hub-Signature-256: sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// deliver sends a signed webhook delivery and returns the status. prefix is that of the dialect's header fields.
func deliver(g http.Handler, prefix, secret, event, id, body string, fields ...string) int {
	fields = append(fields, prefix+"Event: "+event, prefix+"Delivery: "+id, signature(secret, body))
	return sendTo(g, http.MethodPost, "/_weir/webhooks", body, fields...).Code
}
