//go:build e2e

package e2e

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/service/wholeapi"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// cookbook runs a program through weir with the configuration that a page of docs/recipes shows.
type cookbook struct {
	*testing.T
	api      *wholeapi.Service
	graphql  *service.Service
	upstream *httptest.Server
	dir      string
	ca       string // file of the authority whose certificates programs trust
	weir     *process
	address  string // of the listener for clients
	admin    string
	proxy    string   // address of the forward proxy
	key      string   // of the first client
	env      []string // of programs
}

// newCookbook starts an upstream with all operations of the API. It accepts the token tok-owner, and mints tokens for
// installations.
func newCookbook(t *testing.T) *cookbook {
	t.Helper()
	api, err := wholeapi.New(wholeapi.Config{Limits: policy.DefaultLimits(), ETagsPerToken: true})
	if err != nil {
		t.Fatal(err)
	}
	b := &cookbook{T: t, api: api, graphql: newGitHub(t), dir: t.TempDir(), proxy: freeAddress(t)}
	b.upstream = httptest.NewServer(http.HandlerFunc(b.serve))
	t.Cleanup(b.upstream.Close)
	ca, err := testservers.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	b.ca = filepath.Join(b.dir, "ca.pem")
	if err := ca.Write(b.ca); err != nil {
		t.Fatal(err)
	}
	if err := ca.Issue(b.dir); err != nil {
		t.Fatal(err)
	}
	return b
}

// serve responds as the API and its hosts for uploads and files.
func (b *cookbook) serve(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case path == "/graphql", path == "/": // the other service has only these
		b.graphql.ServeHTTP(w, r)
	case strings.HasPrefix(path, "/app/installations/"):
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"token":"tok-app","expires_at":"2100-01-01T00:00:00Z"}`)) // weir reports an incomplete response
	case strings.HasPrefix(path, "/files/"):
		if r.Header.Get("Authorization") != "Bearer tok-owner" {
			b.Errorf("%s has the Authorization %q", path, r.Header.Get("Authorization"))
		}
		w.Header().Set("Cache-Control", "max-age=300")
		_, _ = w.Write([]byte("text\n")) // the program reports an incomplete file
	default:
		b.api.ServeHTTP(w, r)
	}
}

// start starts weir with the first configuration of a page, and the upstream instead of the hosts of the API. The
// environment of the test has the variables that the configuration names. replaced are further pairs of old and new text.
func (b *cookbook) start(page string, replaced ...string) {
	b.Helper()
	block := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindStringSubmatch(readFile(b.T, "../docs/recipes/"+page))
	if block == nil {
		b.Fatalf("docs/recipes/%s has no configuration", page)
	}
	config := block[1]
	for _, m := range regexp.MustCompile(`\$\{(\w+_KEY_SHA256)\}`).FindAllStringSubmatch(config, -1) {
		text, _ := command(b.T, "key", "new", "program")
		b.key = cmp.Or(b.key, regexp.MustCompile(`weir_\S+`).FindString(text))
		b.Setenv(m[1], regexp.MustCompile(`sha256:([0-9a-f]{64})`).FindStringSubmatch(text)[1])
	}
	if !strings.Contains(config, "hosts:\n") {
		config = "hosts:\n" + config
	}
	config = strings.NewReplacer(append(replaced,
		`"https://api.github.com"`, `"`+b.upstream.URL+`"`,
		"name: uploads.github.com,", `name: uploads.github.com, url: "`+b.upstream.URL+`",`,
		"name: raw.githubusercontent.com,", `name: raw.githubusercontent.com, url: "`+b.upstream.URL+`/files",`,
		"hosts:\n", "hosts:\n  - {name: api.github.com, url: \""+b.upstream.URL+"\", kind: api}\n",
		`":3128"`, `"`+b.proxy+`"`, "/etc/weir/", "")...).Replace(config)
	file := filepath.Join(b.dir, "weir.yaml")
	b.Setenv("CI_TOKEN", "tok-owner")
	write(b.T, file, config)
	if strings.Contains(config, "proxy:") {
		if text, code := command(b.T, "ca", "init", "--config", file, "--out", b.dir); code != 0 {
			b.Fatalf("weir ca init: exit %d\n%s", code, text)
		}
		b.ca = filepath.Join(b.dir, "weir-ca.crt")
		b.env = append(b.env, "HTTPS_PROXY=http://weir:"+b.key+"@"+b.proxy)
	}
	b.env = append(b.env, "SSL_CERT_FILE="+b.ca, "NODE_EXTRA_CA_CERTS="+b.ca)
	b.weir = startWith(b.T, []string{"SSL_CERT_FILE=" + filepath.Join(b.dir, "ca.pem")}, "serve", "--config", file, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	b.address = b.weir.find(`msg="gateway started" address=(\S+)`)
	b.admin = b.weir.find(`msg="admin listener started" address=(\S+)`)
}

// run runs a program and returns its output.
func (b *cookbook) run(env []string, name string, args ...string) string {
	b.Helper()
	c := exec.CommandContext(b.Context(), name, args...)
	c.Dir, c.Env = b.dir, append(append(os.Environ(), b.env...), env...)
	text, err := c.CombinedOutput()
	if err != nil {
		b.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, text)
	}
	return string(text)
}

// startProgram starts a program, and returns its standard input and the lines of its standard output. The program is
// killed at the end of the test.
func (b *cookbook) startProgram(env []string, name string, args ...string) (io.Writer, *bufio.Scanner) {
	b.Helper()
	var log output
	c := exec.CommandContext(b.Context(), name, args...)
	c.Env, c.Stderr = append(append(os.Environ(), b.env...), env...), &log
	in, err := c.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = c.Wait() // reports the kill
		if b.Failed() {
			b.Logf("%s wrote:\n%s", name, log.String())
		}
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 8<<20)
	return in, lines
}

// installed returns the path of a program that make e2e has installed.
func installed(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../bin/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// spentLine matches the consumed quota of a client for an operation in the metrics.
var spentLine = regexp.MustCompile(`(?m)^weir_spent_total\{.*weir_client="([^"]*)",weir_operation="([^"]*)".*\} (\d+)$`)

// spent returns the quota that the client has consumed, by operation. Each other client is an error.
func (b *cookbook) spent(client string) map[string]int {
	b.Helper()
	_, text := get(b.T, "http://"+b.admin+"/metrics")
	spent := map[string]int{}
	for _, m := range spentLine.FindAllStringSubmatch(text, -1) {
		if m[1] != client {
			b.Errorf("client %q has requests of the operation %s", m[1], m[2])
		}
		n, err := strconv.Atoi(m[3])
		if err != nil {
			b.Fatal(err)
		}
		spent[m[2]] += n
	}
	return spent
}

// checkSpending runs a program twice. It checks that the first run is attributed to the client, and that the second run
// consumes quota only for the operations in again.
func (b *cookbook) checkSpending(client string, run func(), again ...string) {
	b.Helper()
	run()
	first := b.spent(client)
	run()
	second := b.spent(client)
	b.Logf("%s spent %v, then %v", client, first, second)
	if len(first) < 3 {
		b.Errorf("the first run spent %v, want at least 3 operations", first)
	}
	for operation, n := range second {
		if n > first[operation] && !slices.Contains(again, operation) {
			b.Errorf("the second run spent %d requests for %s", n-first[operation], operation)
		}
	}
}

// checkLimits checks that the upstream has seen no violation of its limits.
func (b *cookbook) checkLimits() {
	b.Helper()
	if v := b.api.Violations(); v.Violations > 0 || v.SentWhileLimited > 0 {
		b.Errorf("violations: %+v", v)
	}
}

// wantLogged checks that weir has logged a request: its method, route, operation and status.
func (b *cookbook) wantLogged(line string) {
	b.Helper()
	testservers.Eventually(b, "weir logs "+line, func(context.Context) bool { return strings.Contains(transcript(b.weir), line+"\n") })
}

// certificate returns the configuration of a server with a certificate that weir trusts.
func (b *cookbook) certificate() *tls.Config {
	b.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(b.dir, "tls.crt"), filepath.Join(b.dir, "tls.key"))
	if err != nil {
		b.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}}
}
