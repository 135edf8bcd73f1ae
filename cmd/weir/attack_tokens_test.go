package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// secretWord is in every secret of the test, so that none is forgotten.
const secretWord = "quokka"

// leaks are the forms in which a secret could be shown, in lower case: as it is, in
// hexadecimal, in base64 at each of its three alignments, as bytes that Go prints, and the
// keys' own lines.
type leaks [][]byte

func leaksOf(keys ...string) leaks {
	forms := []string{secretWord, hex.EncodeToString([]byte(secretWord)), strings.Trim(fmt.Sprintf("%d", []byte(secretWord)), "[]")}
	for shift := range 3 {
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("-", shift) + secretWord + strings.Repeat("-", 3)))
		forms = append(forms, text[(shift*8+5)/6:(shift+len(secretWord))*8/6])
	}
	for _, key := range keys {
		lines := strings.Split(strings.TrimSpace(key), "\n")
		forms = append(forms, lines[len(lines)/2])
	}
	var all leaks
	for _, form := range forms {
		all = append(all, []byte(strings.ToLower(form)))
	}
	return all
}

// find is where a text has one of them, with what stands around it; nil where it has none.
// A regular expression would search for minutes.
func (l leaks) find(text []byte) []byte {
	text = bytes.ToLower(text)
	for _, form := range l {
		if at := bytes.Index(text, form); at >= 0 {
			return text[max(0, at-200):min(len(text), at+len(form)+100)]
		}
	}
	return nil
}

// shown is what was shown, by where. It is safe for concurrent use.
type shown struct {
	mu    sync.Mutex
	where map[string]*bytes.Buffer
}

func (s *shown) to(where string) io.Writer {
	return writer(func(p []byte) (int, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.where[where] == nil {
			s.where[where] = &bytes.Buffer{}
		}
		return s.where[where].Write(p)
	})
}

// text is what was shown there.
func (s *shown) text(where string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.where[where]; b != nil {
		return b.String()
	}
	return ""
}

// find fails the test for each secret, and for each place that has shown nothing.
func (s *shown) find(t *testing.T, secrets leaks, places ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, place := range places {
		text := s.where[place]
		if text == nil || text.Len() < 100 {
			t.Errorf("%s has shown nothing", place)
			continue
		}
		t.Logf("%s: %d bytes", place, text.Len())
		if around := secrets.find(text.Bytes()); around != nil {
			t.Errorf("%s shows a secret: …%q…", place, around)
		}
	}
}

// secretive is a gateway that has every secret there is, a real process on a real Redis,
// before the reference service.
type secretive struct {
	*fleet
	shown      *shown
	url, admin string
	client     *client
	config     string // its file
	process    *exec.Cmd
	key, tls   string // of an app, of a certificate
	redis      *redis.Client
	clients    []string // what clients show

	mu   sync.Mutex
	seen map[string]bool // by the upstream
}

// upstream is the reference service, which knows the tokens by their other names; it
// gives an app its tokens, and has places where it behaves badly.
func (s *secretive) upstream() http.Handler {
	dialect, err := policy.LoadDialect("service")
	if err != nil {
		s.Fatal(err)
	}
	limits := policy.DefaultLimits()
	limits.Points.REST, limits.Content = 100000, nil
	inner := service.New(service.Config{Limits: limits, Seed: 1, Dialect: dialect, StatisticsDelay: time.Millisecond})
	s.Cleanup(inner.Close)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.Header.Get("Authorization")
		s.mu.Lock()
		s.seen[token] = true
		s.mu.Unlock()
		switch r.URL.Path {
		case "/app/installations/42/access_tokens":
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"token":"quokka-app","expires_at":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
			return
		case "/made/up/broken":
			panic(http.ErrAbortHandler)
		case "/made/up/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "short")
			panic(http.ErrAbortHandler)
		case "/made/up/slow":
			<-r.Context().Done()
			return
		case "/made/up/denied":
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if name, password, basic := r.BasicAuth(); basic {
			r.SetBasicAuth(name, strings.ReplaceAll(password, secretWord, "tok"))
		} else if token != "" {
			r.Header.Set("Authorization", strings.ReplaceAll(token, secretWord, "tok"))
		}
		inner.ServeHTTP(w, r)
	})
}

// newSecretive starts one.
func newSecretive(t *testing.T) *secretive {
	s := &secretive{fleet: emptyFleet(t), shown: &shown{where: map[string]*bytes.Buffer{}}, seen: map[string]bool{}}
	oneRedis(s.fleet)
	s.redis = redis.NewClient(&redis.Options{Addr: s.address})
	t.Cleanup(func() { _ = s.redis.Close() })
	if err := s.redis.Do(t.Context(), "acl", "setuser", "gateway", "on", ">quokka-redis", "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	s.monitor()
	up := httptest.NewServer(s.upstream())
	t.Cleanup(up.Close)
	issuer, bearer := tokenIssuer(t)
	s.key = privateKey(t).Reveal()
	roots := selfSigned(t, s.dir, served, 1)
	pair, err := os.ReadFile(filepath.Join(s.dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	s.tls = string(pair)
	held := []string{"builds", "deploys", "pages"}
	var clients strings.Builder
	for i, credential := range []string{"ci, spare", "bot", "app"} {
		_, _ = fmt.Fprintf(&clients, "  - {name: %s, key: %q, credentials: [%s]}\n", held[i], fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("quokka-key-"+held[i]))), credential)
		s.clients = append(s.clients, "Bearer quokka-key-"+held[i])
	}
	s.clients = append(s.clients, bearer("job-quokka", time.Hour), bearer("job-quokka-late", -time.Hour), "Bearer quokka-key-of-nobody")
	s.config = s.file("weir.yaml", fmt.Sprintf(`listen: "127.0.0.1:0"
admin: {listen: "127.0.0.1:0", token: quokka-admin}
upstream: {url: %q, timeout: 1s}
store: {url: "redis://gateway:quokka-redis@%s"}
credentials:
  - {name: ci, kind: user, account: octo-bot, token: quokka-owner}
  - {name: spare, kind: user, account: octo-spare, token: quokka-of-nobody}
  - {name: app, kind: oauth_app, token: "id:quokka-oauth"}
  - {name: bot, kind: installation, app: {id: "7", installation: 42, key: "file:%s"}}
issuers: [{name: actions, url: %q, audiences: [weir]}]
clients:
%s  - {name: jobs, jwt: {issuer: actions, claims: {sub: "job-*"}}, credentials: [ci]}
cache: {key: %s}
webhooks: {secret: quokka-hook}
limits: {cold_start: trust, wait: 50ms, inbound: {rate: 0}, points: {rest: 100000}, content: [{max: 10000, window: 1m}], search: {authenticated: 10000, code: 10000}}
statistics: {poll: {first: 20ms}}
tls: {certificates: [{certificate: tls.crt, key: tls.key}]}
`, up.URL, s.address, s.file("app.pem", s.key), issuer, clients.String(), strings.Repeat("quokka", 6)))
	s.serve(roots)
	return s
}

// monitor has Redis tell everything that it is told.
func (s *secretive) monitor() {
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := io.WriteString(c, "MONITOR\r\n"); err != nil {
		s.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(s.shown.to("Redis, what it was told"), c) })
	s.Cleanup(func() {
		_ = c.Close()
		reading.Wait()
	})
}

// serve starts the gateway, and waits until it answers.
func (s *secretive) serve(roots *x509.CertPool) {
	s.process = exec.Command(s.weir, "serve", "--config", s.config)
	s.process.Stdout, s.process.Stderr = s.shown.to("spans, metrics, logs as they are exported"), s.shown.to("the log")
	s.process.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=console", "OTEL_METRICS_EXPORTER=console", "OTEL_LOGS_EXPORTER=console",
		"OTEL_METRIC_EXPORT_INTERVAL=1000", "OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_BLRP_SCHEDULE_DELAY=100")
	if err := s.process.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = s.process.Process.Kill()
		_ = s.process.Wait()
		if log := s.shown.text("the log"); s.Failed() {
			s.Log(log[:min(len(log), 2000)])
		}
	})
	said := func(pattern string) (address string) {
		testservers.Eventually(s, "the gateway says "+pattern, func(context.Context) bool {
			m := regexp.MustCompile(pattern).FindStringSubmatch(s.shown.text("the log"))
			if m != nil {
				address = m[1]
			}
			return m != nil
		})
		return address
	}
	s.url, s.admin = "https://"+served, "http://"+said(`msg="admin listener started" address=(\S+)`)
	s.client = &client{http: *httpsClient(roots, said(`msg="gateway started" address=(\S+)`)), base: s.url}
	s.client.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s.client.http.Transport.(*http.Transport).DisableKeepAlives = false
	testservers.Eventually(s, "an empty Redis is trusted", func(context.Context) bool {
		return s.asks("Bearer quokka-owner", http.MethodGet, "/made/up/first", "") != http.StatusTooManyRequests
	})
}

// asks sends a request with a field for the credential, shows what it gets, and returns
// the status; 0 when it was cut off.
func (s *secretive) asks(authorization, method, target, body string) (status int) {
	req, err := http.NewRequestWithContext(s.Context(), method, s.url+target, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	resp, err := s.client.http.Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	_, _ = fmt.Fprintln(s.shown.to("answers"), resp.Status, resp.Header, string(text))
	return resp.StatusCode
}

// everyOperation calls each with each of its inputs, as callers that bring their own
// token, and as clients of the gateway.
func (s *secretive) everyOperation() {
	named := strings.NewReplacer("{owner}", "acme", "{repo}", "widgets", "{org}", "acme", "{username}", "acme-member", "{name}", "Go",
		"{key}", "contributor_covenant", "{branch}", "main", "{kind}", "users", "{code}", "abc", "{role_id}", "1", "{configuration_id}", "1",
		"{invitation_id}", "1", "{team_slug}", "builders", "{head}", strings.Repeat("a", 40), "{tag_sha}", strings.Repeat("b", 40))
	for i, op := range operations() {
		v := calls[op.ID]
		for j, call := range slices.Concat(v.valid, v.invalid, v.unauthorized, unauthorized(op)) {
			method, target, as := cmp.Or(call.method, op.Method), named.Replace(cmp.Or(call.target, op.Path)), ""
			switch token := strings.Replace(call.as, "tok", secretWord, 1); {
			case strings.Contains(token, ":"):
				as = "Basic " + base64.StdEncoding.EncodeToString([]byte(token))
			case token != "":
				as = "token " + token
			}
			s.asks(as, method, target, named.Replace(call.body))
			s.asks(s.clients[(i+j)%len(s.clients)], method, target, named.Replace(call.body))
		}
	}
}

// misuse has tokens where they do not belong, and an upstream that behaves badly.
func (s *secretive) misuse() {
	for _, as := range append([]string{"Bearer quokka-owner", "quokka", "Basic quokka", "Bearer quokka quokka"}, s.clients...) {
		for _, path := range []string{"broken", "cut", "denied", "ghp_16C7e42F292c6912E7710quokka47Ae178B4a", "up?access_token=quokka", "%2fghp_16C7e42F292c6912E7710quokka47Ae178B4a"} {
			s.asks(as, http.MethodGet, "/made/up/"+path, "")
		}
	}
	s.asks("Bearer quokka-owner", http.MethodGet, "/made/up/slow", "")
	s.asks("Bearer quokka-owner", http.MethodPost, "/graphql", `{"query":"{ quokka"}`)
}

// watch is told what happens, until it has been told of every kind of event.
func (s *secretive) watch(to io.Writer, token string) {
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.admin+"/api/v1/events", nil)
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = fmt.Fprintln(to, resp.Header)
	s.asks("Bearer quokka-owner", http.MethodGet, "/made/up/denied", "")
	missing := map[string]bool{"accounts": true, "operations": true, "state": true, "series": true, "request": true}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEvent)
	for len(missing) > 0 && lines.Scan() {
		_, _ = fmt.Fprintln(to, lines.Text())
		delete(missing, strings.TrimPrefix(lines.Text(), "event: "))
	}
	if resp.StatusCode == http.StatusOK && len(missing) > 0 {
		s.Errorf("never told of %v", missing)
	}
}

// operate does what operators do, right and wrong.
func (s *secretive) operate() {
	to := s.shown.to("admin pages")
	_, index := get(s.T, s.admin+"/", "Authorization: Bearer quokka-admin")
	pages := regexp.MustCompile(`GET +(/\S*)`).FindAllStringSubmatch(index, -1)
	if len(pages) < 7 {
		s.Fatalf("%q", index)
	}
	for _, page := range pages {
		for _, token := range []string{"quokka-admin", "quokka-wrong"} {
			if page[1] == "/api/v1/events" {
				s.watch(to, token)
				continue
			}
			resp, body := get(s.T, s.admin+page[1], "Authorization: Bearer "+token)
			_, _ = fmt.Fprintln(to, resp.Header, body)
		}
	}
	said := s.shown.to("commands")
	nothing := func(string) (string, bool) { return "", false }
	flags := []string{"--admin", s.admin, "--token", "quokka-admin"}
	for _, args := range [][]string{
		{"check", s.config}, {"audit", s.config}, {"explain", "GET", "/user"}, {"schema"}, {"version"}, {"--help"},
		append([]string{"budget"}, flags...), append([]string{"cache", "purge", "--tag", "op:gitignore/list-templates"}, flags...),
	} {
		run(s.Context(), args, nothing, said, said)
	}
	good, err := os.ReadFile(s.config)
	if err != nil {
		s.Fatal(err)
	}
	for _, bad := range []string{
		"\nwebhooks: {secret: [quokka]}\n", "\nlisten: {address: quokka}\n", "\n- quokka", "\nheaders: {ratelimit: \"${NOT_SET}\"}\n",
	} {
		s.file("weir.yaml", string(good)+bad)
		run(s.Context(), []string{"check", s.config}, nothing, said, said)
		post, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.admin+"/api/v1/reload", nil)
		if err != nil {
			s.Fatal(err)
		}
		post.Header.Set("Authorization", "Bearer quokka-admin")
		resp, err := http.DefaultClient.Do(post)
		if err != nil {
			s.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		_, _ = fmt.Fprintln(to, resp.Status, string(text))
	}
	s.file("weir.yaml", string(good))
}

// kept shows every key of Redis with its value.
func (s *secretive) kept() {
	o := &onRedis{T: s.T, redis: s.redis}
	_, _ = io.WriteString(s.shown.to("Redis, what it keeps"), o.dump())
}

// dumped ends the gateway so that it prints where each goroutine is.
func (s *secretive) dumped() {
	_ = s.process.Process.Signal(syscall.SIGQUIT)
	_ = s.process.Wait()
	if !strings.Contains(s.shown.text("the log"), "goroutine 1") {
		s.Error("the process has printed no stacks")
	}
}

// TestAttack53NothingShowsASecret: a gateway that has every secret there is, of the
// configuration, of callers and of clients, makes every call there is, well and badly, and
// shows none of them: in a line of its log, a span, a metric, a page of the operator's, an
// answer, a command's output, a key, value or command of Redis, and in what it prints when it is
// killed.
func TestAttack53NothingShowsASecret(t *testing.T) {
	s := newSecretive(t)
	s.everyOperation()
	s.misuse()
	s.operate()
	s.kept()
	s.dumped()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, token := range []string{"Bearer quokka-owner", "Bearer quokka-app", "token quokka-member", "Basic " + base64.StdEncoding.EncodeToString([]byte("id:quokka-oauth"))} {
		if !s.seen[token] {
			t.Errorf("the upstream has not seen %q", token)
		}
	}
	s.shown.find(t, leaksOf(s.key, s.tls), "the log", "spans, metrics, logs as they are exported", "answers", "admin pages", "commands", "Redis, what it was told", "Redis, what it keeps")
}

// TestLeaksAreFound: each form of a secret.
func TestLeaksAreFound(t *testing.T) {
	secrets := leaksOf("BEGIN\nlineOfTheKey\nEND")
	for _, text := range []string{"a quokka sings", "Quokka", "71756f6b6b61", base64.StdEncoding.EncodeToString([]byte("id:quokka-oauth")),
		base64.StdEncoding.EncodeToString([]byte("x:quokka")), base64.StdEncoding.EncodeToString([]byte("xy:quokka!")), "[1 113 117 111 107 107 97]", "lineOfTheKey"} {
		if secrets.find([]byte(text)) == nil {
			t.Errorf("%q is not found", text)
		}
	}
	if secrets.find([]byte("nothing of it")) != nil {
		t.Error("nothing is found")
	}
}
