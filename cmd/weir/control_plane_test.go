package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/testservers"
)

// guardedGateway is a gateway that accepts one client, in front of an upstream that counts
// requests.
type guardedGateway struct {
	*gateway
	log  testservers.Output
	seen atomic.Int32
}

// newGuarded starts the gateway. The handler responds to upstream requests.
func newGuarded(t *testing.T, answer http.HandlerFunc) *guardedGateway {
	t.Helper()
	g := &guardedGateway{}
	up := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		g.seen.Add(1)
		answer(w, r)
	})
	g.gateway = openLogged(t, configure(up, trusting, inboundRate(0, 0), func(c *config.Config) {
		c.Callers.PassThrough, c.Webhooks.Secret, c.Admin.Token = false, "hook-secret", "admin-token"
		c.Credentials = []config.Credential{userToken("ci", "octo-bot", "held-token")}
		c.Clients = []config.Client{{Name: "builds", Key: keyHash("gateway-key"), Credentials: []string{"ci"}}}
	}), &g.log)
	return g
}

// TestAuthenticationCannotBeBypassed checks that no header field, method or path spelling
// avoids authentication, at the gateway and at the admin listener.
func TestAuthenticationCannotBeBypassed(t *testing.T) {
	g := newGuarded(t, func(http.ResponseWriter, *http.Request) {})
	pages := g.admin(g.started.Admin)
	for _, f := range [][]string{ // fields that have bypassed other gateways
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
		for _, target := range []string{
			"/user", "/user?/healthz", "/user?path=/_weir/webhooks", "/healthz", "/readyz", "/rate_limit", "/gitignore/templates", "/api/v3/user",
			"/user%23/healthz", "/user%3f/healthz",
		} {
			for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPost} {
				want := http.StatusUnauthorized
				if method == http.MethodOptions && len(f) > 0 && strings.HasPrefix(f[0], "Access-Control") {
					want = http.StatusNoContent // a preflight, which has no credential and reaches no upstream
				}
				w := sendTo(g, method, target, "", f...)
				failIf(t, w.Code != want, "%s %s with %q: %d %s", method, target, f, w.Code, w.Body)
			}
		}
		for _, target := range []string{"/_weir/webhooks", "/_weir%2Fwebhooks", "/_weir/webhooks?x=/healthz"} {
			w := sendTo(g, http.MethodPost, target, "{}", f...)
			failIf(t, w.Code != http.StatusUnauthorized && w.Code != http.StatusNotFound, "%s with %q: %d %s", target, f, w.Code, w.Body)
		}
		for _, target := range []string{
			"/", "/api/v1/config", "/api/v1/accounts?/healthz", "/api/v1/config?path=/healthz", "/api/v1/requests", "/healthz/../api/v1/config",
			"/healthz/api/v1/config", "//healthz", "/api/v1/config%23/healthz",
		} {
			w := sendTo(pages, http.MethodGet, target, "", f...)
			failIf(t, w.Code != http.StatusUnauthorized && w.Code != http.StatusTemporaryRedirect, "page %s with %q: %d %s", target, f, w.Code, w.Body)
		}
	}
	n := g.seen.Load()
	failIf(t, n > 0, "upstream received %d requests, want none", n)
	w := sendTo(g, http.MethodGet, "/user", "", "Authorization: Bearer gateway-key")
	failIf(t, w.Code != http.StatusOK, "the accepted client got %d", w.Code)
}

// TestWebhookBurstPurgesOnlyNamedRepository sends a thousand deliveries, with replays, out of
// order, and with names that are similar to other repositories.
func TestWebhookBurstPurgesOnlyNamedRepository(t *testing.T) {
	g := newGuarded(t, validated("private, max-age=600"))
	send := func(path string) string {
		return sendTo(g, http.MethodGet, path, "", "Authorization: Bearer gateway-key").Header().Get("Cache-Status")
	}
	const widgets, other = "/repos/acme/widgets/stats/participation", "/repos/acme/other/stats/participation"
	send(widgets)
	send(other)
	for i := range 1_000 {
		names := []string{
			"acme/widgets", "http://evil.test/acme/other", "evil.test/acme/other", "acme/other/x", "../acme/other", fmt.Sprint("stranger/r", i), "acme/*", "acme/othe",
		}
		body := fmt.Sprintf(`{"repository": {"full_name": %q, "default_branch": "main"}, "ref": "refs/heads/main", "after": "%040d"}`, names[i%len(names)], 1_000-i)
		if code := deliver(g, "X-Service-", "hook-secret", "push", fmt.Sprint(i/2), body); code != http.StatusAccepted { // each delivery is sent twice
			t.Fatalf("delivery %d: %d", i, code)
		}
	}
	if got := send(other); !strings.HasPrefix(got, "weir; hit") {
		t.Errorf("repository without a delivery: %s, want a hit", got)
	}
	got := send(widgets)
	failIf(t, !strings.HasPrefix(got, "weir; fwd=stale"), "repository with deliveries: %s, want stale", got)
	n := g.seen.Load()
	failIf(t, n != 3, "upstream received %d requests, want 3", n)
}

// TestInvalidReloadChangesNothing reloads invalid and valid configurations under load. Each
// client must get the same result as before.
func TestInvalidReloadChangesNothing(t *testing.T) {
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
`, g.started.Upstream.URL, keyHash(key))
	}
	reload := func(text string) error {
		path := filepath.Join(dir, "weir.yaml")
		write(t, path, text)
		g.load = func() (*config.Config, error) { return load(path) }
		return g.reload()
	}
	stop := make(chan struct{})
	var traffic sync.WaitGroup
	defer traffic.Wait()
	defer close(stop)
	for _, key := range []string{"", "stolen", "held-token", "gateway-key"} {
		traffic.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				w := sendTo(g, http.MethodGet, "/user", "", "Authorization: Bearer "+key)
				if want := map[bool]int{true: http.StatusOK, false: http.StatusUnauthorized}[key == "gateway-key"]; w.Code != want && w.Code != http.StatusTooManyRequests {
					t.Errorf("key %q: got %d %s, want %d", key, w.Code, w.Body, want)
					return
				}
			}
		})
	}
	for name, text := range map[string]string{
		"no YAML":                       "upstream: {",
		"an empty file":                 "",
		"a number instead of a mapping": "upstream: 7",
		"an unknown key":                good("gateway-key") + "auth: off\n",
		"a missing secret file":         strings.Replace(good("gateway-key"), "file:token", "file:none", 1),
		"an unset variable":             strings.Replace(good("gateway-key"), "file:token", "${TOKEN}", 1),
		"an empty secret":               strings.Replace(good("gateway-key"), "file:token", "", 1),
		"no key":                        strings.Replace(good("gateway-key"), keyHash("gateway-key"), "", 1),
		"an unknown credential":         strings.Replace(good("gateway-key"), "[ci]", "[other]", 1),
	} {
		for range 5 {
			err := reload(text)
			failIf(t, err == nil, "%s: reload succeeded", name)
		}
		w := sendTo(g, http.MethodGet, "/user", "", "Authorization: Bearer gateway-key")
		failIf(t, w.Code != http.StatusOK && w.Code != http.StatusTooManyRequests, "after %s: %d %s", name, w.Code, w.Body)
	}
	for range 20 {
		err := reload(good("gateway-key"))
		failIf(t, err != nil, "%v", err)
	}
}

func TestReplacedKeyIsRefusedAfterReload(t *testing.T) {
	g := newGuarded(t, func(http.ResponseWriter, *http.Request) {})
	reloadChanged(t, g.gateway, func(c *config.Config) {
		c.Clients = []config.Client{{Name: "builds", Key: keyHash("new-key"), Credentials: []string{"ci"}}}
		c.Webhooks.Secret = "new-secret"
	})
	for key, want := range map[string]int{"gateway-key": 401, "new-key": 200} {
		w := sendTo(g, http.MethodGet, "/user", "", "Authorization: Bearer "+key)
		failIf(t, w.Code != want, "key %s: got %d, want %d", key, w.Code, want)
	}
	code := deliver(g, "X-Service-", "hook-secret", "push", "1", "{}")
	failIf(t, code != http.StatusUnauthorized, "delivery with the old secret: %d, want 401", code)
}

// TestLogLinesContainNoRequestFields checks that control characters break no log line, and
// that no header field, query or body appears in the log.
func TestLogLinesContainNoRequestFields(t *testing.T) {
	const evil = "\r\nlevel=ERROR msg=forged\x1b[31m\"}{\u2028\u202e"
	g := newGuarded(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Note", "field-of-the-response")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprint(w, `{"message": "body-of-the-response`+evil+`"}`)
	})
	escaped := strings.NewReplacer("\r", "%0d", "\n", "%0a", "\x1b", "%1b", " ", "%20", `"`, "%22").Replace(evil)
	for _, target := range []string{"/x" + escaped, "/repos/acme/" + escaped + "/stats/contributors", "/search/code?q=words-of-the-query" + escaped, "/user?token=words-of-the-query"} {
		for _, method := range []string{http.MethodGet, "FOO"} {
			sendTo(g, method, target, "", "Authorization: Bearer gateway-key", "User-Agent: field-of-the-request"+evil, "X-Note: field-of-the-request", "Cookie: field-of-the-request",
				"X-Request-Id: field-of-the-request"+evil, "Referer: field-of-the-request")
		}
	}
	body := must(json.Marshal(map[string]any{"repository": map[string]string{"full_name": "acme/" + evil}, "organization": map[string]string{"login": evil}}))(t)
	code := deliver(g, "X-Service-", "hook-secret", "push"+evil, "1"+evil, string(body))
	failIf(t, code != http.StatusAccepted, "status of the delivery: %d, want 202", code)
	var lines []string
	testservers.Eventually(t, "nine lines are logged", func(context.Context) bool {
		lines = strings.Split(strings.TrimSuffix(g.log.String(), "\n"), "\n")
		return len(lines) >= 9
	})
	for _, line := range lines {
		failIf(t, !strings.HasPrefix(line, "time=") || strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0, "invalid log line %q", line)
		for _, part := range []string{"of-the-request", "of-the-query", "of-the-response"} {
			failIf(t, strings.Contains(line, part), "%q is in the log line %q", part, line)
		}
	}
	failIf(t, len(lines) != 9, "%d log lines, want 9", len(lines))
}

// TestUpstreamCannotSendTheGatewayToAnotherHost counts the connections to a listener that every response of the upstream
// names in every field with a URL. The requests have held credentials, polls, background requests and writes.
func TestUpstreamCannotSendTheGatewayToAnotherHost(t *testing.T) {
	other := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	var connections atomic.Int32
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := other.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = other.Close(); accepting.Wait() })
	evil := "http://" + other.Addr().String() + "/"
	statuses := []int{200, 300, 301, 302, 303, 305, 307, 308, 201, 202, 421, 503, 407, 401} // a 401 quarantines the credential
	g := newGuarded(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for _, name := range []string{"Location", "Content-Location", "Sourcemap", "Profile"} {
			h.Set(name, evil)
		}
		h.Set("Link", "<"+evil+`>; rel="next preload preconnect prefetch"`)
		h.Set("Refresh", "0; url="+evil)
		h.Set("Alt-Svc", fmt.Sprintf("h2=%q; ma=86400, h3=%[1]q, http%%2F1.1=%[1]q", other.Addr()))
		h.Set("Proxy", evil)
		h.Set("Cache-Control", "max-age=0, stale-while-revalidate=60")
		h.Set("Etag", `"one"`)
		for _, status := range statuses {
			if strings.Contains(r.URL.Path, fmt.Sprint("/r", status)) {
				w.WriteHeader(status)
			}
		}
	})
	for _, status := range statuses {
		name := fmt.Sprint("/r", status)
		for _, path := range []string{name, "/users" + name, "/repos/acme" + name + "/stats/participation", "/repos/acme" + name + "/subscription"} {
			for _, method := range []string{http.MethodGet, http.MethodGet, http.MethodPost, http.MethodPut} {
				sendTo(g, method, path, "{}", "Authorization: Bearer gateway-key", "Prefer: wait=1")
			}
		}
	}
	if n := g.seen.Load(); n < int32(3*len(statuses)) {
		t.Errorf("the upstream received only %d requests", n)
	}
	n := connections.Load()
	failIf(t, n > 0, "%d connections to a host that the upstream named", n)
}

// net/http would answer OPTIONS * itself.
func TestOptionsOfTheServerGetsTheChecksOfOtherRequests(t *testing.T) {
	clients, admin := serveOnListeners(t, open(t, configure(nowhere, onLoopback, inboundRate(1, 2), func(c *config.Config) {
		c.Admin.Token, c.Callers.PassThrough = "t0ken", false
	})))
	// The client can read the response to an invalid request before the connection ends.
	if resp, _ := sendText(t, clients, "GET /a HTTP/1.1\r\nHost: g\r\nHost: evil", ""); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("two hosts: got %d, want 400", resp.StatusCode)
	}
	for address, want := range map[string][]int{clients: {401, 401, 429}, admin: {401, 401, 401}} {
		for n, status := range want {
			resp, _ := sendText(t, address, "OPTIONS * HTTP/1.1\r\nHost: localhost", "")
			failIf(t, resp.StatusCode != status, "request %d: got %d, want %d", n, resp.StatusCode, status)
		}
	}
}
