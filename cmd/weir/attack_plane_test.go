package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
)

// guardedGateway is a gateway for its own client only, in front of an API that counts.
type guardedGateway struct {
	*gateway
	log  bytes.Buffer
	mu   sync.Mutex // guards log
	seen atomic.Int32
}

func (g *guardedGateway) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.log.Write(p)
}

// sum is how the configuration writes the key of a client.
func sum(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }

func newGuarded(t *testing.T, answer http.HandlerFunc) *guardedGateway {
	t.Helper()
	g := &guardedGateway{}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.seen.Add(1)
		answer(w, r)
	}))
	t.Cleanup(up.Close)
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Limits.ColdStart, cfg.Limits.Inbound.Rate, cfg.Callers.PassThrough = up.URL, "trust", 0, false
	cfg.Webhooks.Secret, cfg.Admin.Token = "hook-secret", "admin-token"
	cfg.Credentials = []config.Credential{{Name: "ci", Kind: "user", Account: "octo-bot", Token: "held-token"}}
	cfg.Clients = []config.Client{{Name: "builds", Key: sum("gateway-key"), Credentials: []string{"ci"}}}
	var err error
	if g.gateway, err = newGateway(cfg, slog.New(slog.NewTextHandler(g, nil))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	return g
}

// send sends a request to a handler; fields are "Name: value".
func send(h http.Handler, method, target, body string, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/", strings.NewReader(body))
	r.RequestURI, r.Host = target, "localhost"
	r.URL.Path, r.URL.RawQuery, _ = strings.Cut(target, "?")
	if path, err := r.URL.Parse(target); err == nil {
		r.URL = path
	}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestAttack58NothingIsSkipped: who shows no credential is let in by no field, no method,
// and no spelling of a path; neither to the API nor to the operator's pages.
func TestAttack58NothingIsSkipped(t *testing.T) {
	g := newGuarded(t, func(http.ResponseWriter, *http.Request) {})
	pages := g.admin(g.started.Admin)
	for _, f := range [][]string{ // by which others were passed by
		nil,
		{"User-Agent: kube-probe/1.30"},
		{"User-Agent: GoogleHC/1.0"},
		{"User-Agent: ELB-HealthChecker/2.0"},
		{"X-Forwarded-Uri: /healthz", "X-Original-Uri: /healthz", "X-Original-Url: /healthz", "X-Rewrite-Url: /healthz"},
		{"X-Forwarded-Method: OPTIONS", "X-Http-Method-Override: OPTIONS"},
		{"X-Forwarded-Host: 127.0.0.1", "X-Forwarded-For: 127.0.0.1", "X-Real-Ip: 127.0.0.1"},
		{"X-Forwarded-User: admin", "X-Remote-User: admin", "Remote-User: admin", "X-Auth-Request-Email: a@b.test"},
		{"Access-Control-Request-Method: GET", "Origin: http://evil.test"},
		{"Connection: upgrade", "Upgrade: websocket"},
	} {
		for _, target := range []string{"/user", "/user?/healthz", "/user?path=/_weir/webhooks", "/healthz", "/readyz", "/rate_limit", "/gitignore/templates", "/api/v3/user", "/user%23/healthz", "/user%3f/healthz"} {
			for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPost} {
				if w := send(g, method, target, "", f...); w.Code != http.StatusUnauthorized {
					t.Errorf("%s %s with %q: %d %s", method, target, f, w.Code, w.Body)
				}
			}
		}
		for _, target := range []string{"/_weir/webhooks", "/_weir%2Fwebhooks", "/_weir/webhooks?x=/healthz"} {
			if w := send(g, http.MethodPost, target, "{}", f...); w.Code != http.StatusUnauthorized && w.Code != http.StatusNotFound {
				t.Errorf("%s with %q: %d %s", target, f, w.Code, w.Body)
			}
		}
		for _, target := range []string{"/", "/api/v1/config", "/api/v1/accounts?/healthz", "/api/v1/config?path=/healthz", "/api/v1/requests", "/healthz/../api/v1/config", "/healthz/api/v1/config", "//healthz", "/api/v1/config%23/healthz"} {
			if w := send(pages, http.MethodGet, target, "", f...); w.Code != http.StatusUnauthorized && w.Code != http.StatusTemporaryRedirect {
				t.Errorf("page %s with %q: %d %s", target, f, w.Code, w.Body)
			}
		}
	}
	if n := g.seen.Load(); n > 0 {
		t.Errorf("the API has seen %d requests", n)
	}
	if w := send(g, http.MethodGet, "/user", "", "Authorization: Bearer gateway-key"); w.Code != http.StatusOK {
		t.Errorf("the client itself: %d", w.Code)
	}
}

// signedDelivery delivers an event about a repository.
func signedDelivery(g http.Handler, event, id, body string) int {
	mac := hmac.New(sha256.New, []byte("hook-secret"))
	mac.Write([]byte(body))
	return send(g, http.MethodPost, "/_weir/webhooks", body, "X-Service-Event: "+event, "X-Service-Delivery: "+id,
		"X-Hub-Signature-256: sha256="+hex.EncodeToString(mac.Sum(nil))).Code
}

// TestAttack60ABurstPurgesWhatItIsAbout, of our upstream, and nothing else: ten thousand
// deliveries, replayed and out of order, about repositories and things that are none.
func TestAttack60ABurstPurgesWhatItIsAbout(t *testing.T) {
	g := newGuarded(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=600")
		w.Header().Set("Etag", `"one"`)
		_, _ = fmt.Fprint(w, "{}")
	})
	ask := func(path string) string {
		return send(g, http.MethodGet, path, "", "Authorization: Bearer gateway-key").Header().Get("Cache-Status")
	}
	const widgets, other = "/repos/acme/widgets/stats/participation", "/repos/acme/other/stats/participation"
	ask(widgets)
	ask(other)
	for i := range 1_000 {
		names := []string{"acme/widgets", "http://evil.test/acme/other", "evil.test/acme/other", "acme/other/x", "../acme/other", fmt.Sprint("stranger/r", i), "acme/*", "acme/othe"}
		body := fmt.Sprintf(`{"repository": {"full_name": %q, "default_branch": "main"}, "ref": "refs/heads/main", "after": "%040d"}`, names[i%len(names)], 1_000-i)
		if code := signedDelivery(g, "push", fmt.Sprint(i/2), body); code != http.StatusAccepted { // each comes twice
			t.Fatalf("delivery %d: %d", i, code)
		}
	}
	if got := ask(other); !strings.HasPrefix(got, "weir; hit") {
		t.Errorf("what no delivery was about: %s", got)
	}
	if got := ask(widgets); !strings.HasPrefix(got, "weir; fwd=stale") {
		t.Errorf("what they were about: %s", got)
	}
	if n := g.seen.Load(); n != 3 {
		t.Errorf("the API has seen %d requests: a delivery asks nothing itself", n)
	}
}

// TestAttack61ABadReloadChangesNothing, under load, in whatever way it is bad; a good one
// lets in whom it names, and nobody else for a moment.
func TestAttack61ABadReloadChangesNothing(t *testing.T) {
	g := newGuarded(t, func(http.ResponseWriter, *http.Request) {})
	dir := t.TempDir()
	secret := filepath.Join(dir, "token")
	write(t, secret, "held-token")
	good := func(key string) string {
		return fmt.Sprintf(`
upstream: {url: %q}
callers: {pass_through: false}
limits: {inbound: {rate: 0}, cold_start: trust}
credentials: [{name: ci, kind: user, account: octo-bot, token: "file:token"}]
clients: [{name: builds, key: %q, credentials: [ci]}]
`, g.started.Upstream.URL, sum(key))
	}
	reload := func(text string) error {
		path := filepath.Join(dir, "weir.yaml")
		write(t, path, text)
		cfg, err := config.Load(config.Source{Path: path, Getenv: func(string) (string, bool) { return "", false }})
		return g.update(cfg, err)
	}
	stop := make(chan struct{})
	var load sync.WaitGroup
	defer load.Wait()
	defer close(stop)
	for _, key := range []string{"", "stolen", "held-token", "gateway-key"} {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				w := send(g, http.MethodGet, "/user", "", "Authorization: Bearer "+key)
				if want := map[bool]int{true: http.StatusOK, false: http.StatusUnauthorized}[key == "gateway-key"]; w.Code != want && w.Code != http.StatusTooManyRequests {
					t.Errorf("%q: %d %s", key, w.Code, w.Body)
					return
				}
			}
		})
	}
	for name, text := range map[string]string{
		"no YAML":                    "upstream: {",
		"nothing":                    "",
		"another shape":              "upstream: 7",
		"an unknown key":             good("gateway-key") + "auth: off\n",
		"a secret that is not there": strings.Replace(good("gateway-key"), "file:token", "file:none", 1),
		"a variable that is not set": strings.Replace(good("gateway-key"), "file:token", "${TOKEN}", 1),
		"an empty secret":            strings.Replace(good("gateway-key"), "file:token", "", 1),
		"no key":                     strings.Replace(good("gateway-key"), sum("gateway-key"), "", 1),
		"a credential that is none":  strings.Replace(good("gateway-key"), "[ci]", "[other]", 1),
	} {
		for range 5 {
			if err := reload(text); err == nil {
				t.Errorf("%s is taken", name)
			}
		}
		if w := send(g, http.MethodGet, "/user", "", "Authorization: Bearer gateway-key"); w.Code != http.StatusOK && w.Code != http.StatusTooManyRequests {
			t.Errorf("after %s: %d %s", name, w.Code, w.Body)
		}
	}
	for range 20 {
		if err := reload(good("gateway-key")); err != nil {
			t.Error(err)
		}
	}
}

// TestAttack61AKeyThatIsReplacedIsGone with the reload that replaces it.
func TestAttack61AKeyThatIsReplacedIsGone(t *testing.T) {
	g := newGuarded(t, func(http.ResponseWriter, *http.Request) {})
	changed := *g.started
	changed.Clients = []config.Client{{Name: "builds", Key: sum("new-key"), Credentials: []string{"ci"}}}
	changed.Webhooks.Secret = credential.Secret("new-secret")
	if err := g.update(&changed, nil); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int{"gateway-key": 401, "new-key": 200} {
		if w := send(g, http.MethodGet, "/user", "", "Authorization: Bearer "+key); w.Code != want {
			t.Errorf("%s: %d", key, w.Code)
		}
	}
	if code := signedDelivery(g, "push", "1", "{}"); code != http.StatusUnauthorized {
		t.Errorf("a delivery that is signed with the old secret: %d", code)
	}
}

// TestAttack63NothingBreaksALineOfTheLog, nor is in it that was not asked for: no field of
// a request, no query, whatever client, deliverer and API write.
func TestAttack63NothingBreaksALineOfTheLog(t *testing.T) {
	const evil = "\r\nlevel=ERROR msg=forged\x1b[31m\"}{\u2028\u202e"
	g := newGuarded(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Note", "field-of-the-answer")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprint(w, `{"message": "body-of-the-answer`+evil+`"}`)
	})
	escaped := strings.NewReplacer("\r", "%0d", "\n", "%0a", "\x1b", "%1b", " ", "%20", `"`, "%22").Replace(evil)
	for _, target := range []string{"/x" + escaped, "/repos/acme/" + escaped + "/stats/contributors", "/search/code?q=words-of-the-query" + escaped, "/user?token=words-of-the-query"} {
		for _, method := range []string{http.MethodGet, "FOO"} {
			send(g, method, target, "", "Authorization: Bearer gateway-key", "User-Agent: field-of-the-request"+evil, "X-Note: field-of-the-request", "Cookie: field-of-the-request",
				"X-Request-Id: field-of-the-request"+evil, "Referer: field-of-the-request")
		}
	}
	body, err := json.Marshal(map[string]any{"repository": map[string]string{"full_name": "acme/" + evil}, "organization": map[string]string{"login": evil}})
	if err != nil {
		t.Fatal(err)
	}
	if code := signedDelivery(g, "push"+evil, "1"+evil, string(body)); code != http.StatusAccepted {
		t.Errorf("the delivery: %d", code)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	lines := strings.Split(strings.TrimSuffix(g.log.String(), "\n"), "\n")
	for _, line := range lines {
		if !strings.HasPrefix(line, "time=") || strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
			t.Errorf("%q", line)
		}
		for _, part := range []string{"of-the-request", "of-the-query", "of-the-answer"} {
			if strings.Contains(line, part) {
				t.Errorf("%s is in %q", part, line)
			}
		}
	}
	if len(lines) != 9 {
		t.Errorf("%d lines", len(lines))
	}
}
