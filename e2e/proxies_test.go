//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/wfe"

	"github.com/weirgate/weir/internal/testservers"
)

// nginxConfig serves the gateway below a path prefix of the public name.
const nginxConfig = `daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {}
http {
  access_log off;
  client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; uwsgi_temp_path temp; scgi_temp_path temp;
  server {
    listen %[1]s ssl;
    ssl_certificate tls.crt;
    ssl_certificate_key tls.key;
    location /egress/ {
      proxy_pass %[2]s/;
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_set_header X-Forwarded-Host $http_host;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Prefix /egress;
    }
  }
}
`

// TestPagesBehindNginx reads 64 watchers in five pages through the public name of an nginx that removes a path prefix. A link
// without the prefix or to another host would fail.
func TestPagesBehindNginx(t *testing.T) {
	t.Parallel()
	nginx, err := exec.LookPath("/usr/sbin/nginx")
	stopIf(t, err != nil, "nginx is missing: apt-get install nginx-light")
	dir := t.TempDir()
	certify(t, dir)
	weir := serveText(t, fmt.Sprintf("upstream: {url: %q, dialect: github}\ncallers: {trusted_proxies: [127.0.0.1]}\n", serveHTTP(t, newGitHub(t))))
	address := testservers.FreeAddress(t)
	write(t, filepath.Join(dir, "nginx.conf"), fmt.Sprintf(nginxConfig, address, weir.url))
	front := exec.CommandContext(t.Context(), nginx, "-p", dir, "-c", "nginx.conf")
	front.Stderr = &weir.output
	must(t, front.Start())
	t.Cleanup(func() { _ = front.Process.Kill(); _ = front.Wait() })
	public := "https://" + strings.Replace(address, "127.0.0.1", "localhost", 1)
	run := func(want string, env []string, name string, args ...string) {
		t.Helper()
		c := exec.CommandContext(t.Context(), name, args...)
		ca := filepath.Join(dir, "ca.pem")
		c.Env = append(append(os.Environ(), "HOME="+dir, "GH_CONFIG_DIR="+dir, "SSL_CERT_FILE="+ca, "NODE_EXTRA_CA_CERTS="+ca, "CURL_CA_BUNDLE="+ca), env...)
		text, err := c.CombinedOutput()
		got := strings.TrimSpace(string(text))
		failIf(t, err != nil || got != want, "%s: %v, got %q, want %q", name, err, got, want)
	}
	testservers.Eventually(t, "nginx serves the gateway", func(ctx context.Context) bool {
		return exec.CommandContext(ctx, "curl", "-sf", "--cacert", filepath.Join(dir, "ca.pem"), "-o", os.DevNull, public+"/egress/rate_limit").Run() == nil
	})
	run("64 watchers", []string{"BASE_URL=" + public + "/egress"}, "node", installed(t, "pages.mjs"))
	run("64", []string{"GH_HOST=" + strings.TrimPrefix(public, "https://"), "GH_ENTERPRISE_TOKEN=tok-owner"}, "sh", "-c",
		"gh api --paginate '"+public+"/egress/repos/acme/widgets/subscribers?per_page=13' --jq '.[].login' | wc -l")
}

// TestEgressNeedsAProxy reaches the API, the issuer of the client's token and the ACME server only through a proxy with
// credentials, which also the request for an installation token uses. The names have no addresses outside of the proxy.
func TestEgressNeedsAProxy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secure, plain := testservers.FreeAddress(t), testservers.FreeAddress(t)
	ca := testservers.NewACME(t, testservers.NewBalancer(t, plain).Port(), testservers.NewBalancer(t, secure).Port())
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/app/installations/42/access_tokens" {
			reply(w, http.StatusCreated, map[string]string{"token": "ghs_minted", "expires_at": "2099-01-01T00:00:00Z"})
			return
		}
		reply(w, http.StatusOK, map[string]string{"credential": r.Header.Get("Authorization")})
	}))
	t.Cleanup(api.Close)
	mux := http.NewServeMux()
	sign := issueAt(t, mux, "https://example.com:8443")
	issuer := httptest.NewTLSServer(mux)
	t.Cleanup(issuer.Close)
	servers := map[string]string{"example.com:443": api.URL, "example.com:8443": issuer.URL, "example.com:14000": ca.URL}
	proxy := testservers.NewEgressProxy(t, "weir:s3cret-egress", func(target string) string {
		return strings.SplitN(servers[target], "/", 4)[2]
	})
	config := write(t, filepath.Join(dir, "weir.yaml"), fmt.Sprintf(`
upstream: {url: "https://example.com", dialect: github, proxy: "file:%s"}
issuers: [{name: jobs, url: "https://example.com:8443", audiences: [weir]}]
credentials: [{name: bot, kind: installation, app: {id: "7", installation: 42, key: "file:%s"}}]
clients: [{name: jobs, jwt: {issuer: jobs, claims: {sub: job}}, credentials: [bot]}]
tls: {domains: [%s], ca: "https://example.com:14000%s", http: %q}
`, write(t, filepath.Join(dir, "proxy"), strings.Replace(proxy.URL, "://", "://weir:s3cret-egress@", 1)), write(t, filepath.Join(dir, "app.pem"), newAppKey(t)), domain, wfe.DirectoryPath, plain))
	weir := startWith(t, []string{"SSL_CERT_FILE=" + ca.File}, "serve", "--config", config, "--listen", secure, "--admin", anyPort)
	client := httpsClient(ca.Roots, secure)
	token := sign(map[string]any{"sub": "job", "exp": time.Now().Add(time.Hour).Unix()})
	testservers.Eventually(t, "the gateway has a certificate", func(ctx context.Context) bool {
		resp, text, err := do(client, newRequest(ctx, http.MethodGet, "https://"+domain+"/user", "", "Authorization: Bearer "+token))
		if err == nil && (resp.StatusCode != http.StatusOK || !strings.Contains(text, "ghs_minted")) {
			t.Errorf("got %s %s", resp.Status, text)
		}
		return err == nil
	})
	seen := strings.Join(proxy.Take(), "\n")
	for target := range servers {
		failIf(t, !strings.Contains(seen, "CONNECT "+target), "%s was not reached through the proxy, which got\n%s", target, seen)
	}
	failIf(t, strings.Contains(weir.output.String(), "s3cret-egress"), "the log contains the password of the proxy")
}
