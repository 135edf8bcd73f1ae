//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/md5"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
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

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/service"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/policy"
)

// secretWord is part of every secret of the scenario.
const secretWord = "quokka"

// secretForms returns the forms in which output could contain a secret, in lower case. The forms are plain text,
// hexadecimal, base64 at each alignment, printed bytes, and a line of each private key.
func secretForms(keys ...string) (forms [][]byte) {
	add := func(text string) { forms = append(forms, []byte(strings.ToLower(text))) }
	add(secretWord)
	add(hex.EncodeToString([]byte(secretWord)))
	add(strings.Trim(fmt.Sprintf("%d", []byte(secretWord)), "[]"))
	for shift := range 3 {
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("-", shift) + secretWord + strings.Repeat("-", 3)))
		add(text[(shift*8+5)/6 : (shift+len(secretWord))*8/6])
	}
	for _, key := range keys {
		lines := strings.Split(strings.TrimSpace(key), "\n")
		add(lines[len(lines)/2])
	}
	return forms
}

// hashForms returns the forms of the unkeyed hashes of secrets, in lower case. With such a hash, a reader could test
// guesses.
func hashForms(secrets ...string) (forms [][]byte) {
	for _, secret := range secrets {
		for _, text := range []string{secret, "Bearer " + secret, "token " + secret, "Basic " + base64.StdEncoding.EncodeToString([]byte(secret))} {
			for _, sum := range [][]byte{sum(sha256.New(), text), sum(sha1.New(), text), sum(md5.New(), text)} {
				for _, form := range []string{hex.EncodeToString(sum[:8]), base64.RawStdEncoding.EncodeToString(sum[:9]), base64.RawURLEncoding.EncodeToString(sum[:9])} {
					forms = append(forms, []byte(strings.ToLower(form)))
				}
			}
		}
	}
	return forms
}

func sum(h hash.Hash, text string) []byte {
	_, _ = io.WriteString(h, text) // never fails (hash.Hash)
	return h.Sum(nil)
}

// findSecret returns a secret in the text with its surroundings, or nil.
func findSecret(text []byte, forms [][]byte) []byte {
	text = bytes.ToLower(text)
	for _, form := range forms {
		if at := bytes.Index(text, form); at >= 0 {
			return text[max(0, at-200):min(len(text), at+len(form)+100)]
		}
	}
	return nil
}

// secretive is a gateway with every kind of secret, in front of the reference service. The
// outputs record everything that clients, operators, exporters and Redis can see.
type secretive struct {
	*fleet
	weir       *process
	url, admin string
	client     *http.Client
	config     string   // path of the configuration file
	keys       []string // private keys
	clients    []string // Authorization values of clients

	mu       sync.Mutex
	received map[string]bool // Authorization values that the upstream has received

	exports, responses, adminPages, commands, redisCommands, redisContent testservers.Output // the process has the log
}

// upstream returns a handler that issues installation tokens and has paths with faults. It also translates the secret
// tokens to the tokens of the reference service.
func (s *secretive) upstream() http.Handler {
	dialect, err := policy.LoadDialect("service")
	must(s, err)
	limits := policy.DefaultLimits()
	limits.Points.REST, limits.Content = 100000, nil
	inner, err := service.New(service.Config{Limits: limits, Seed: 1, Dialect: dialect, StatisticsDelay: time.Millisecond})
	must(s, err)
	s.Cleanup(inner.Close)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.Header.Get("Authorization")
		s.mu.Lock()
		s.received[token] = true
		s.mu.Unlock()
		switch r.URL.Path {
		case "/app/installations/42/access_tokens":
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"token":"quokka-app","expires_at":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
			return
		case "/faults/broken":
			panic(http.ErrAbortHandler)
		case "/faults/truncated":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "short")
			panic(http.ErrAbortHandler)
		case "/faults/slow":
			<-r.Context().Done()
			return
		case "/faults/denied":
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

// startSecretive starts Redis, the upstream, the token issuer and the gateway.
func startSecretive(t *testing.T) *secretive {
	t.Helper()
	s := &secretive{fleet: emptyFleet(t), received: map[string]bool{}}
	oneRedis(s.fleet)
	client := redis.NewClient(&redis.Options{Addr: s.address})
	defer func() { _ = client.Close() }()
	s.eventually("Redis has a user for the gateway", func(ctx context.Context) bool {
		return client.Do(ctx, "acl", "setuser", "gateway", "on", ">quokka-redis", "~*", "&*", "+@all").Err() == nil
	})
	s.monitorRedis()
	issuer, sign := startIssuer(t)
	bearer := func(subject string, lifetime time.Duration) string {
		return "Bearer " + sign(map[string]any{"sub": subject, "exp": time.Now().Add(lifetime).Unix()})
	}
	appKey := newAppKey(t)
	roots := certify(t, s.dir)
	s.keys = []string{appKey, readFile(t, filepath.Join(s.dir, "tls.key"))}
	var clients strings.Builder
	for name, credentials := range map[string]string{"builds": "ci, spare", "deploys": "bot", "pages": "app"} {
		_, _ = fmt.Fprintf(&clients, "  - {name: %s, key: \"sha256:%x\", credentials: [%s]}\n", name, sha256.Sum256([]byte("quokka-key-"+name)), credentials)
		s.clients = append(s.clients, "Bearer quokka-key-"+name)
	}
	s.clients = append(s.clients, bearer("job-quokka", time.Hour), bearer("job-quokka-late", -time.Hour), "Bearer quokka-key-unknown")
	s.config = s.file("weir.yaml", fmt.Sprintf(`listen: "127.0.0.1:0"
admin: {listen: "127.0.0.1:0", token: quokka-admin}
upstream: {url: %q, timeout: 1s}
store: {url: "redis://gateway:quokka-redis@%s"}
credentials:
  - {name: ci, kind: user, account: octo-bot, token: quokka-owner}
  - {name: spare, kind: user, account: octo-spare, token: quokka-unknown}
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
`, serveHTTP(t, s.upstream()), s.address, s.file("app.pem", appKey), issuer, clients.String(), strings.Repeat(secretWord, 6)))
	s.startGateway(roots)
	return s
}

// newAppKey returns the private key of an app in PEM.
func newAppKey(t *testing.T) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

// startIssuer starts an OpenID Connect issuer, and returns a function that signs tokens with the claims and the audience
// weir.
func startIssuer(t *testing.T) (url string, sign func(claims map[string]any) string) {
	t.Helper()
	mux := http.NewServeMux()
	url = serveHTTP(t, mux)
	return url, issueAt(t, mux, url)
}

// issueAt serves the metadata of an issuer with a URL, and returns the function that signs tokens.
func issueAt(t *testing.T, mux *http.ServeMux, url string) (sign func(claims map[string]any) string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"issuer": url, "jwks_uri": url + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "a"}}})
	})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "a"))
	must(t, err)
	return func(claims map[string]any) string {
		token, err := jwt.Signed(signer).Claims(map[string]any{"iss": url, "aud": "weir"}).Claims(claims).Serialize()
		must(t, err)
		return token
	}
}

// monitorRedis records every command that Redis receives.
func (s *secretive) monitorRedis() {
	c, err := net.Dial("tcp", s.address)
	must(s, err)
	if _, err := io.WriteString(c, "MONITOR\r\n"); err != nil {
		s.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(&s.redisCommands, c) })
	s.Cleanup(func() {
		_ = c.Close()
		reading.Wait()
	})
}

// startGateway starts the gateway and waits until it forwards requests.
func (s *secretive) startGateway(roots *x509.CertPool) {
	c := exec.Command(program, "serve", "--config", s.config)
	c.Stdout = &s.exports
	c.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=console", "OTEL_METRICS_EXPORTER=console", "OTEL_LOGS_EXPORTER=console",
		"OTEL_METRIC_EXPORT_INTERVAL=1000", "OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_BLRP_SCHEDULE_DELAY=100")
	r := &replica{process: startCommand(s.T, c)}
	r.awaitStart()
	s.weir, s.url, s.admin = r.process, "https://"+r.address, "http://"+r.admin
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots}}
	s.Cleanup(transport.CloseIdleConnections)
	s.client = &http.Client{Timeout: 30 * time.Second, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	s.eventually("the gateway forwards requests", func(context.Context) bool {
		return s.request("Bearer quokka-owner", http.MethodGet, "/first", "") != http.StatusTooManyRequests
	})
}

// request sends a request, records the response, and returns the status. The status is 0 without
// a response.
func (s *secretive) request(authorization, method, target, body string) (status int) {
	req := newRequest(s.Context(), method, s.url+target, body)
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	resp, text, _ := do(s.client, req)
	if resp == nil {
		return 0
	}
	_, _ = fmt.Fprintln(&s.responses, resp.Status, resp.Header, text)
	return resp.StatusCode
}

// callOperations calls every operation of the catalogue as callers with their own token, as
// clients, and without a token.
func (s *secretive) callOperations() {
	named := strings.NewReplacer("{owner}", "acme", "{repo}", "widgets", "{org}", "acme", "{username}", "acme-member", "{name}", "Go",
		"{key}", "contributor_covenant", "{branch}", "main", "{kind}", "users", "{code}", "abc", "{role_id}", "1", "{configuration_id}", "1",
		"{invitation_id}", "1", "{team_slug}", "builders", "{head}", strings.Repeat("a", 40), "{tag_sha}", strings.Repeat("b", 40))
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("id:quokka-oauth"))
	callers := append([]string{"token quokka-member", "token quokka-fine-grained", basic, "token quokka-unknown", ""}, s.clients...)
	for i, op := range policy.Embedded().Operations() {
		target := named.Replace(op.Path)
		if slices.ContainsFunc(op.Query, func(p policy.Parameter) bool { return p.Required }) {
			target += "?q=gear"
		}
		for j := range 4 {
			s.request(callers[(i+2*j)%len(callers)], op.Method, target, `{"subscribed":true,"query":"{ viewer { login } }"}`)
		}
	}
}

// misuse sends tokens in unusual places, and requests that fail upstream.
func (s *secretive) misuse() {
	const token = "ghp_16C7e42F292c6912E7710quokka47Ae178B4a"
	for _, authorization := range append([]string{"Bearer quokka-owner", "quokka", "Basic quokka", "Bearer quokka quokka"}, s.clients...) {
		for _, path := range []string{"broken", "truncated", "denied", token, "up?access_token=quokka", "%2f" + token} {
			s.request(authorization, http.MethodGet, "/faults/"+path, "")
		}
	}
	s.request("Bearer quokka-owner", http.MethodGet, "/faults/slow", "")
	s.request("Bearer quokka-owner", http.MethodPost, "/graphql", `{"query":"{ quokka"}`)
	s.request("Bearer quokka-owner", http.MethodPost, "/graphql", `{"query":"query($t: String) { viewer { login } }","variables":{"t":"`+token+`"}}`)
	for _, method := range []string{http.MethodPut, http.MethodPatch, http.MethodPost, http.MethodDelete} { // a write purges responses
		for _, target := range []string{"/repos/acme/widgets/subscription?access_token=quokka-member", "/made/up?access_token=" + token, "/repos/acme/widgets/made-up?client_secret=quokka-oauth", "/made/up/" + token} {
			s.request("Bearer quokka-member", method, target, `{"subscribed":true,"token":"`+token+`"}`)
		}
	}
	body := `{"repository":{"full_name":"acme/widgets"},"hook":{"config":{"secret":"quokka-hook"}},"token":"` + token + `"}`
	resp, _ := sendWith(s.T, s.client, http.MethodPost, s.url+"/_weir/webhooks", body,
		"X-Service-Event: push", "X-Service-Delivery: 1", signature("quokka-hook", body))
	failIf(s, resp.StatusCode != http.StatusAccepted, "delivery: %s", resp.Status)
}

// signature returns the field with the signature of a webhook delivery.
func signature(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(mac, body) // never fails (hash.Hash)
	return fmt.Sprintf("X-Hub-Signature-256: sha256=%x", mac.Sum(nil))
}

// watchEvents records the event stream of the admin listener until each kind of event has
// arrived.
func (s *secretive) watchEvents(token string) {
	resp, err := http.DefaultClient.Do(newRequest(s.Context(), http.MethodGet, s.admin+"/api/v1/events", "", "Authorization: Bearer "+token))
	must(s, err)
	defer func() { _ = resp.Body.Close() }()
	_, _ = fmt.Fprintln(&s.adminPages, resp.Header)
	s.request("Bearer quokka-owner", http.MethodGet, "/faults/denied", "")
	missing := map[string]bool{"accounts": true, "operations": true, "state": true, "series": true, "request": true}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for len(missing) > 0 && lines.Scan() {
		_, _ = fmt.Fprintln(&s.adminPages, lines.Text())
		delete(missing, strings.TrimPrefix(lines.Text(), "event: "))
	}
	failIf(s, resp.StatusCode == http.StatusOK && len(missing) > 0, "missing events: %v", missing)
}

// operate opens every admin page, runs commands, and reloads invalid configurations.
func (s *secretive) operate() {
	_, index := get(s.T, s.admin+"/", "Authorization: Bearer quokka-admin")
	pages := regexp.MustCompile(`GET +(/\S*)`).FindAllStringSubmatch(index, -1)
	stopIf(s, len(pages) < 7, "index of the admin listener: %q", index)
	for _, page := range pages {
		for _, token := range []string{"quokka-admin", "quokka-wrong"} {
			if page[1] == "/api/v1/events" {
				s.watchEvents(token)
				continue
			}
			resp, body := get(s.T, s.admin+page[1], "Authorization: Bearer "+token)
			_, _ = fmt.Fprintln(&s.adminPages, resp.Header, body)
		}
	}
	flags := []string{"--admin", s.admin, "--token", "quokka-admin"}
	for _, args := range [][]string{
		{"check", s.config}, {"audit", s.config}, {"explain", "GET", "/user"}, {"schema"}, {"version"}, {"--help"},
		append([]string{"budget"}, flags...), append([]string{"cache", "purge", "--tag", "op:gitignore/list-templates"}, flags...),
	} {
		text, _ := command(s.T, args...)
		_, _ = fmt.Fprintln(&s.commands, text)
	}
	valid := readFile(s.T, s.config)
	for _, invalid := range []string{
		"\nwebhooks: {secret: [quokka]}\n", "\nlisten: {address: quokka}\n", "\n- quokka", "\nheaders: {ratelimit: \"${NOT_SET}\"}\n",
	} {
		write(s.T, s.config, valid+invalid)
		text, _ := command(s.T, "check", s.config)
		_, _ = fmt.Fprintln(&s.commands, text)
		resp, body := send(s.T, http.MethodPost, s.admin+"/api/v1/reload", "", "Authorization: Bearer quokka-admin")
		_, _ = fmt.Fprintln(&s.adminPages, resp.Status, body)
	}
}

// dumpRedis records every key with its value. Every key begins with weir: and expires.
func (s *secretive) dumpRedis() {
	ctx := s.Context()
	c := redis.NewClient(&redis.Options{Addr: s.address})
	defer func() { _ = c.Close() }()
	for _, key := range c.Keys(ctx, "*").Val() {
		never := c.PTTL(ctx, key).Val() == -1
		failIf(s, never || !strings.HasPrefix(key, "weir:"), "key %q; it never expires: %v", key, never)
	}
	_, _ = io.WriteString(&s.redisContent, testservers.DumpRedis(s, c))
}

// TestNoOutputContainsASecret runs a gateway with every kind of secret through valid, invalid
// and failing requests. No secret may appear in its log, exports, responses, admin pages,
// command output, Redis, or in the stack dump of a killed process.
func TestNoOutputContainsASecret(t *testing.T) {
	t.Parallel()
	s := startSecretive(t)
	s.callOperations()
	s.misuse()
	s.operate()
	s.dumpRedis()
	s.weir.signal(syscall.SIGQUIT)
	_ = s.weir.exited()
	failIf(t, !strings.Contains(s.weir.output.String(), "goroutine 1"), "the killed process wrote no stacks")
	s.wantNoHashInRedis()
	for _, token := range []string{"Bearer quokka-owner", "Bearer quokka-app", "token quokka-member", "Basic " + base64.StdEncoding.EncodeToString([]byte("id:quokka-oauth"))} {
		failIf(t, !s.received[token], "the upstream has not received %q", token)
	}
	forms := secretForms(s.keys...)
	for name, o := range map[string]*testservers.Output{
		"log": &s.weir.output, "exports": &s.exports, "responses": &s.responses, "admin pages": &s.adminPages, "commands": &s.commands,
		"Redis commands": &s.redisCommands, "Redis content": &s.redisContent,
	} {
		text := []byte(o.String())
		failIf(t, len(text) < 100, "%s: only %d bytes were recorded", name, len(text))
		found := findSecret(text, forms)
		failIf(t, found != nil, "%s contains a secret: …%q…", name, found)
	}
}

// wantNoHashInRedis checks that neither commands nor values have an unkeyed hash of a secret. Hashes of
// credentials are keyed.
func (s *secretive) wantNoHashInRedis() {
	secrets := []string{strings.Repeat(secretWord, 6)}
	for _, name := range []string{"owner", "unknown", "member", "fine-grained", "oauth", "app", "hook", "admin", "redis", "key-builds", "key-deploys", "key-pages", "key-unknown"} {
		secrets = append(secrets, secretWord+"-"+name)
	}
	secrets = append(secrets, "id:quokka-oauth", "ghp_16C7e42F292c6912E7710quokka47Ae178B4a")
	for _, authorization := range s.clients {
		secrets = append(secrets, strings.TrimPrefix(authorization, "Bearer "))
	}
	forms := hashForms(secrets...)
	for name, text := range map[string]string{"commands": s.redisCommands.String(), "content": s.redisContent.String()} {
		found := findSecret([]byte(text), forms)
		failIf(s, found != nil, "Redis %s contain a hash of a secret: …%q…", name, found)
	}
	for _, secret := range secrets {
		if raw := sum(sha256.New(), secret); strings.Contains(s.redisContent.String(), string(raw[:8])) {
			s.Errorf("Redis contains the SHA-256 of %s", secret)
		}
	}
}

// TestFindSecret checks that each form of a secret is found.
func TestFindSecret(t *testing.T) {
	forms := secretForms("BEGIN\nlineOfTheKey\nEND")
	for _, text := range []string{"a quokka sings", "Quokka", "71756f6b6b61", base64.StdEncoding.EncodeToString([]byte("id:quokka-oauth")),
		base64.StdEncoding.EncodeToString([]byte("x:quokka")), base64.StdEncoding.EncodeToString([]byte("xy:quokka!")), "[1 113 117 111 107 107 97]", "lineOfTheKey"} {
		failIf(t, findSecret([]byte(text), forms) == nil, "%q is not found", text)
	}
	for _, text := range []string{fmt.Sprintf("%x", sha256.Sum256([]byte("Bearer quokka-owner"))), base64.StdEncoding.EncodeToString(sum(sha256.New(), "quokka-owner"))} {
		failIf(t, findSecret([]byte(text), hashForms("quokka-owner")) == nil, "the hash %q is not found", text)
	}
	found := findSecret([]byte("a text without secrets"), forms)
	failIf(t, found != nil, "found %q in a text without secrets", found)
}
