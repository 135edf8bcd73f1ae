//go:build e2e

package e2e

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// recipe runs a program through weir with the configuration of a page of docs/recipes.
type recipe struct {
	*testing.T
	page     string            // text
	client   string            // name of the first client in the configuration
	key      string            // of the client, if it has one
	keys     map[string]string // of all clients, by the variables with their hashes
	service  *service.Service
	upstream http.Handler // the API, with the host for files
	address  string       // of the upstream
	weir     *replica
	url      string // of the gateway
	dir      string // of the programs
	env      []string
	weirEnv  []string     // of the gateway
	http     *http.Client // trusts the certificates of weir, and uses its forward proxy

	requests atomic.Int64 // requests that reached the upstream
	spent    atomic.Int64 // requests that the upstream has charged
}

// tenantHost is a name of the upstream, beside 127.0.0.1.
const tenantHost = "api.octo.ghe.com"

// startRecipe starts a gateway over HTTPS, in front of an upstream with all operations of the API. The first block of the
// page that is marked yaml is the configuration, in which pairs of old and new text and the addresses of the hosts are
// replaced. It and the programs may use variables in env. The upstream accepts the token tok-owner. Programs get the key of the first client
// as WEIR_KEY.
func startRecipe(t *testing.T, page string, env []string, replace ...string) *recipe {
	t.Helper()
	r := &recipe{T: t, page: readFile(t, "../docs/recipes/"+page), dir: t.TempDir(), keys: map[string]string{}}
	r.upstream = http.HandlerFunc(r.serveAPI)
	r.useAPI(service.Config{})
	roots, certificates := certify(t, r.dir, tenantHost), filepath.Join(r.dir, "ca.pem")
	pair, err := tls.LoadX509KeyPair(filepath.Join(r.dir, "tls.crt"), filepath.Join(r.dir, "tls.key"))
	must(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	r.address = server.Listener.Addr().String()

	config := strings.NewReplacer(replace...).Replace(r.block("yaml"))
	r.client = r.at(parseYAML(t, config), "clients", 0, "name").(string)
	env = append(env, "SSL_CERT_FILE="+certificates, "BOT_TOKEN=tok-owner")
	for _, m := range regexp.MustCompile(`\$\{(\w+_KEY_SHA256)\}`).FindAllStringSubmatch(config, -1) {
		key, hash := newKey(t, r.client)
		r.key, r.keys[m[1]] = cmp.Or(r.key, key), key
		env = append(env, m[1]+"="+hash)
	}
	file, proxy, proxied := filepath.Join(r.dir, "weir.yaml"), testservers.FreeAddress(t), strings.Contains(config, "proxy:\n")
	if !strings.Contains(config, "\ntls:") {
		config += "tls: {certificates: [{certificate: tls.crt, key: tls.key}]}\n"
	}
	if proxied && !strings.Contains(config, "hosts:\n") {
		config += "hosts:\n"
	}
	if proxied {
		config = strings.Replace(config, "hosts:\n", "hosts:\n  - {name: api.github.com, url: \""+server.URL+"\", kind: api}\n", 1)
	}
	write(t, file, strings.NewReplacer(
		"https://api.github.com", server.URL, "https://ghes.example.com", server.URL,
		"name: uploads.github.com,", `name: uploads.github.com, url: "`+server.URL+`",`,
		"name: raw.githubusercontent.com,", `name: raw.githubusercontent.com, url: "`+server.URL+`/files",`,
		":3128", proxy, "/etc/weir/", "").Replace(config))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	r.http = &http.Client{Transport: transport}
	r.env = slices.Concat(os.Environ(), env, []string{"HOME=" + r.dir, "WEIR_KEY=" + r.key, "NODE_EXTRA_CA_CERTS=" + certificates})
	if proxied {
		text, code := commandWith(t, env, "ca", "init", "--config", file, "--out", r.dir)
		stopIf(t, code != 0, "weir ca init: exit %d\n%s", code, text)
		authority := readFile(t, filepath.Join(r.dir, "weir-ca.crt"))
		write(t, certificates, readFile(t, certificates)+authority)
		roots.AppendCertsFromPEM([]byte(authority))
		u := &url.URL{Scheme: "http", Host: proxy, User: url.UserPassword("weir", r.key)}
		transport.Proxy = http.ProxyURL(u)
		r.env = append(r.env, "HTTPS_PROXY="+u.String())
	}
	r.weirEnv = env
	r.weir = serve(t, file, env...)
	r.url = "https://" + r.weir.address
	return r
}

// useAPI replaces the upstream.
func (r *recipe) useAPI(config service.Config) {
	r.Helper()
	var err error
	config.Limits, config.Seed, config.Quirks.ETagsPerToken = policy.DefaultLimits(), 1, true
	r.service, err = service.New(config)
	must(r, err)
	r.Cleanup(r.service.Close)
	for i := range 10 { // more repositories of acme
		r.asMember(http.MethodPost, "/orgs/acme/repos", fmt.Sprintf(`{"name":"spare-%d"}`, i))
	}
}

// serve counts a request, and calls the upstream. It also mints tokens of installations, which cost nothing.
func (r *recipe) serve(w http.ResponseWriter, req *http.Request) {
	if strings.HasPrefix(req.URL.Path, "/app/installations/") {
		reply(w, http.StatusCreated, map[string]string{"token": "tok-app", "expires_at": "2100-01-01T00:00:00Z"})
		return
	}
	r.requests.Add(1)
	r.spent.Add(1)
	if req.Header.Get("Authorization") != "" {
		w = refundWriter{w, &r.spent}
	}
	r.upstream.ServeHTTP(w, req)
}

// refundWriter subtracts a request whose response is 304.
type refundWriter struct {
	http.ResponseWriter
	spent *atomic.Int64
}

func (w refundWriter) WriteHeader(status int) {
	if status == http.StatusNotModified {
		w.spent.Add(-1)
	}
	w.ResponseWriter.WriteHeader(status)
}

// serveAPI responds as the API and its host for files.
func (r *recipe) serveAPI(w http.ResponseWriter, req *http.Request) {
	switch path := req.URL.Path; {
	case strings.HasPrefix(path, "/files/"):
		failIf(r, req.Header.Get("Authorization") != "Bearer tok-owner", "%s has the Authorization %q", path, req.Header.Get("Authorization"))
		w.Header().Set("Cache-Control", "max-age=300")
		_, _ = io.WriteString(w, "text\n") // the program reports an incomplete file
	default:
		r.service.ServeHTTP(w, req)
	}
}

// block returns the first block of the page that is marked with a language.
func (r *recipe) block(language string) string {
	r.Helper()
	m := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```").FindStringSubmatch(r.page)
	stopIf(r, m == nil, "the page has no block that is marked %s", language)
	return m[1]
}

// settings returns the settings of the program in the first block of the page that is marked yml, with the address of
// the gateway.
func (r *recipe) settings() any {
	r.Helper()
	return parseYAML(r.T, strings.ReplaceAll(r.block("yml"), "https://weir.example.com", r.url))
}

func parseYAML(t *testing.T, text string) (settings any) {
	t.Helper()
	must(t, yaml.Unmarshal([]byte(text), &settings))
	return settings
}

// at returns a value in settings. Keys are names and indexes.
func (r *recipe) at(settings any, keys ...any) any {
	r.Helper()
	for _, key := range keys {
		switch s := settings.(type) {
		case map[string]any:
			settings = s[key.(string)]
		case []any:
			settings = s[key.(int)]
		default:
			r.Fatalf("the settings have no %v of %v", key, keys)
		}
	}
	return settings
}

// run runs a program that must succeed. It returns the program's standard output, and the quota that it spent.
func (r *recipe) run(name string, args ...string) (text string, spent int) {
	r.Helper()
	before := r.spent.Load()
	var problems testservers.Output
	c := r.command(&problems, name, args...)
	out, err := c.Output()
	stopIf(r, err != nil, "%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, problems.String())
	return string(out), int(r.spent.Load() - before)
}

// wantRun runs a program, and compares its standard output with a pattern and the quota that it spent.
func (r *recipe) wantRun(pattern string, spent int, name string, args ...string) {
	r.Helper()
	text, n := r.run(name, args...)
	wantMatch(r, name, text, pattern)
	want(r, "requests that "+name+" spent", n, spent)
}

// start starts a program, and returns its standard input and the lines of its standard output. The program is killed at
// the end of the test.
func (r *recipe) start(name string, args ...string) (io.Writer, *bufio.Scanner) {
	r.Helper()
	var problems testservers.Output
	c := r.command(&problems, name, args...)
	in, err := c.StdinPipe()
	must(r, err)
	out, err := c.StdoutPipe()
	must(r, err)
	must(r, c.Start())
	r.Cleanup(func() {
		_ = c.Wait() // reports the kill
		if r.Failed() {
			r.Logf("%s wrote:\n%s", name, problems.String())
		}
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 8<<20)
	return in, lines
}

// command returns a command that writes its standard error to problems.
func (r *recipe) command(problems *testservers.Output, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(r.Context(), name, args...)
	c.Dir, c.Env, c.Stderr = r.dir, r.env, problems
	return c
}

// expire makes all stored responses stale.
func (r *recipe) expire() {
	r.Helper()
	text, code := command(r.T, "cache", "purge", "--admin", r.weir.admin, "--tag", "account:octo-bot")
	stopIf(r, code != 0, "weir cache purge: exit %d\n%s", code, text)
}

// asMember sends a request of another account to the upstream, without weir.
func (r *recipe) asMember(method, target, body string) *httptest.ResponseRecorder {
	req := httptest.NewRequestWithContext(r.Context(), method, target, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer tok-member")
	w := httptest.NewRecorder()
	r.service.ServeHTTP(w, req)
	return w
}

// spentLine matches the consumed quota of a client for an operation in the metrics.
var spentLine = regexp.MustCompile(`(?m)^weir_spent_total\{.*weir_client="([^"]*)",weir_operation="([^"]*)".*\} (\d+)$`)

// checkSpending checks that the metrics attribute to the client all quota that the upstream has charged, and that no limit
// was exceeded. It returns the quota that the client has consumed, by operation.
func (r *recipe) checkSpending() (spent map[string]int) {
	r.Helper()
	testservers.Eventually(r, "the metrics attribute the spent quota to "+r.client, func(context.Context) bool {
		_, text := get(r.T, "http://"+r.weir.admin+"/metrics")
		spent = map[string]int{}
		sum := 0
		for _, m := range spentLine.FindAllStringSubmatch(text, -1) {
			if m[1] != r.client {
				continue
			}
			n, _ := strconv.Atoi(m[3]) // the pattern matches digits only
			spent[m[2]] += n
			sum += n
		}
		// Weir also charges a request whose client has left, although the upstream may not have received it.
		left := strings.Count(r.weir.output.String(), " status=499 ")
		counted := int(r.spent.Load())
		return counted <= sum && sum <= counted+left
	})
	v := r.service.Violations()
	failIf(r, v.Violations+v.SentWhileLimited > 0, "violations: %+v", v)
	return spent
}

// checkRepetition runs a program twice. The first run must consume quota for three or more operations, and the second run
// only for the operations in again.
func (r *recipe) checkRepetition(run func(), again ...string) {
	r.Helper()
	run()
	first := r.checkSpending()
	run()
	second := r.checkSpending()
	r.Logf("%s spent %v, then %v", r.client, first, second)
	failIf(r, len(first) < 3, "the first run spent %v, want at least 3 operations", first)
	for operation, n := range second {
		failIf(r, n > first[operation] && !slices.Contains(again, operation), "the second run spent %d requests for %s", n-first[operation], operation)
	}
}

// wantLogged checks that weir has logged a request: its method, route, operation and status.
func (r *recipe) wantLogged(line string) {
	r.Helper()
	testservers.Eventually(r, "weir logs "+line, func(context.Context) bool { return strings.Contains(transcript(r.weir.process), line+"\n") })
}
