package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/testservers"
)

func TestOperatorAuthenticatesByCertificate(t *testing.T) {
	own, foreign := newPair(t, "authority", nil), newPair(t, "authority", nil)
	dir := t.TempDir()
	caOf, operatorOf, text := map[*tls.Certificate]string{}, map[*tls.Certificate][]string{nil: nil}, map[*tls.Certificate]string{}
	for i, ca := range []*tls.Certificate{own, foreign} {
		served, operator := filepath.Join(dir, fmt.Sprint("served", i)), filepath.Join(dir, fmt.Sprint("operator", i))
		noError(t, errors.Join(os.Mkdir(served, 0o700), os.Mkdir(operator, 0o700)))
		caText, _ := pemOf(t, ca)
		caOf[ca] = filepath.Join(served, "ca.pem")
		write(t, caOf[ca], caText)
		certificate, key := writePair(t, served, newPair(t, "weir", ca))
		text[ca] = fmt.Sprintf("upstream: {url: %q}\nadmin: {tls: {certificate: %q, key: %q, client_ca: %q}}\n", nowhere, certificate, key, caOf[ca])
		certificate, key = writePair(t, operator, newPair(t, "ops", ca))
		operatorOf[ca] = []string{"--certificate", certificate, "--key", key}
	}
	s := serve(t, text[own])
	purge := func(server, client *tls.Certificate) (int, string) {
		return runWeir(append([]string{"cache", "purge", "--tag", "op:x", "--admin", "https://" + s.admin, "--ca", caOf[server]}, operatorOf[client]...)...)
	}
	for _, c := range []struct {
		name           string
		server, client *tls.Certificate
		code           int
		message        string
	}{
		{"certificate of the configured authority", own, own, 0, "0 entries"},
		{"no certificate", own, nil, 1, "requires the admin token"},
		{"certificate of another authority", own, foreign, 1, "did not answer"},
		{"listener with a certificate of another authority", foreign, own, 1, "did not answer"},
	} {
		code, text := purge(c.server, c.client)
		failIf(t, code != c.code || !strings.Contains(text, c.message), "%s: exit code %d, wrote %s", c.name, code, text)
	}
	wantWeir(t, exitUsage, "none.pem", "budget", "--admin", "https://"+s.admin, "--ca", "none.pem")
	s.write(t, text[foreign])
	status := s.find(`msg=audit operator=file .*outcome="([^"]*)"`)
	failIf(t, status != "in force", "the reload %s", status)
	if code, text := purge(foreign, foreign); code != 0 {
		t.Errorf("certificate of the new authority: %d %s", code, text)
	}
	if code, text := purge(foreign, own); code != 1 {
		t.Errorf("certificate of the old authority: %d %s", code, text)
	}
}

func TestDemoRequiresTokenOffLoopback(t *testing.T) {
	wantWeir(t, exitFailure, "is not on loopback: set admin.token", "demo", "--listen", "127.0.0.1:0", "--admin", ":0", "--service", "127.0.0.1:0")
}

func TestReloadCannotDisableAdminToken(t *testing.T) {
	const file = "upstream: {url: \"http://127.0.0.1:1\"}\nadmin: {%s}\n"
	s := serve(t, fmt.Sprintf(file, "token: sesame"))
	page := "http://" + s.admin + "/api/v1/config"
	for _, changed := range []string{"token: file:none", "token:", "hosts: [evil.test]"} {
		s.write(t, fmt.Sprintf(file, changed))
		s.find("msg=audit operator=file")
		resp, body := get(t, page)
		failIf(t, resp.StatusCode != http.StatusUnauthorized, "without a token after %s: got %d %s", changed, resp.StatusCode, body)
	}
	resp, _ := get(t, page, "Authorization: Bearer sesame")
	failIf(t, resp.StatusCode != http.StatusOK, "with the first token: %d", resp.StatusCode)
}

// eachSecret calls visit with every secret of a configuration.
func eachSecret(v reflect.Value, key string, visit func(key string, s credential.Secret)) {
	if s, ok := v.Interface().(credential.Secret); ok {
		visit(key, s)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			eachSecret(v.Field(i), key+"."+v.Type().Field(i).Name, visit)
		}
	case reflect.Slice:
		if v.Len() == 0 && v.Type().Elem().Kind() == reflect.Struct {
			eachSecret(reflect.Zero(v.Type().Elem()), key+"[]", visit)
		}
		for i := range v.Len() {
			eachSecret(v.Index(i), fmt.Sprintf("%s[%d]", key, i), visit)
		}
	}
}

// TestAdminPagesContainNoSecret loads a configuration with every secret, and searches the
// admin pages, the log and the output of a panic.
func TestAdminPagesContainNoSecret(t *testing.T) {
	const canary = "canary-0123456789abcdef0123456789abcdef"
	text := fmt.Sprintf(`
upstream: {url: "http://127.0.0.1:1", proxy: "http://weir:%[1]s-proxy@127.0.0.1:1"}
listen: "127.0.0.1:0"
admin: {listen: "127.0.0.1:0", token: %[1]s-admin, prometheus: {url: "http://127.0.0.1:1", token: %[1]s-prometheus}}
credentials:
  - {name: ci, kind: user, token: %[1]s-user}
  - {name: app, kind: oauth_app, token: "id:%[1]s-app"}
  - {name: bot, kind: installation, app: {id: x, installation: 1, key: %[3]q}}
clients: [{name: builds, key: "sha256:%[2]s", credentials: [ci]}]
cache: {key: %[1]s-cache}
webhooks: {secret: %[1]s-hook}
`, canary, strings.Repeat("0f", 32), canary+"\n"+privateKey().Reveal())
	cfg := parse(t, text)
	secrets := 0
	eachSecret(reflect.ValueOf(*cfg), "", func(key string, s credential.Secret) {
		if s == "" && strings.HasPrefix(key, ".Credentials") {
			return // a credential has either a token or an app key
		}
		secrets++
		failIf(t, !strings.Contains(s.Reveal(), canary), "%s is not set above; add it to the configuration", key)
	})
	failIf(t, secrets < 7, "%d secrets", secrets)
	var log testservers.Output
	pages := openLogged(t, cfg, &log).admin(cfg.Admin)
	shown := fmt.Sprintf("%v %+v %#v %s", cfg, cfg, *cfg, cfg.Masked())
	for _, page := range []string{"/", "/healthz", "/none"} {
		w := sendTo(pages, http.MethodGet, page, "", "Authorization: Bearer "+canary+"-admin")
		shown += fmt.Sprint(w.Header(), w.Body)
	}
	for _, page := range []string{"accounts", "requests", "cache", "config", "credentials", "audit", "trends?range=7d"} {
		w := sendTo(pages, http.MethodGet, "/api/v1/"+page, "", "Authorization: Bearer "+canary+"-admin")
		shown += fmt.Sprint(w.Header(), w.Body)
		if page == "config" && strings.Count(w.Body.String(), `"•••"`) != secrets {
			t.Errorf("%d masks for %d secrets: %s", strings.Count(w.Body.String(), `"•••"`), secrets, w.Body)
		}
	}
	failIf(t, strings.Contains(shown+log.String(), "canary"), "output contains a secret: %s%s", shown, log.String())
}

// remoteAddresses returns the addresses of this machine that other machines can reach. The list begins with the
// unspecified addresses, so it is never empty.
func remoteAddresses(t *testing.T) []string {
	t.Helper()
	list := []string{":0", "0.0.0.0:0", "[::]:0"}
	for _, a := range must(net.InterfaceAddrs())(t) {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			list = append(list, net.JoinHostPort(n.IP.String(), "0"))
		}
	}
	return list
}

// TestAdminListenerRequiresAuthenticationForOtherMachines starts on every address of this machine without a token and
// without CAs.
// TestAdminListsAreNeverNull reads every list of a gateway that has nothing to list.
func TestAdminListsAreNeverNull(t *testing.T) {
	url := "http://" + serve(t, "upstream: {url: \"http://127.0.0.1:1\"}\n").admin
	_, help := get(t, url+"/help")
	paths := regexp.MustCompile(`GET +(/api/\S+)`).FindAllStringSubmatch(help, -1)
	for _, path := range paths {
		if path[1] == "/api/v1/events" || path[1] == "/api/v1/trends" { // a stream, and an endpoint that needs Prometheus
			continue
		}
		if _, body := get(t, url+path[1]); strings.Contains(body, "null") {
			t.Errorf("%s: %s", path[1], body)
		}
	}
	failIf(t, len(paths) < 8, "only %d paths found in:\n%s", len(paths), help)
}

func TestAdminListenerRequiresAuthenticationForOtherMachines(t *testing.T) {
	for _, address := range remoteAddresses(t) {
		text := fmt.Sprintf("upstream: {url: \"http://127.0.0.1:1\"}\nlisten: \"127.0.0.1:0\"\nadmin: {listen: %q}\n", address)
		if _, err := config.Parse(config.Source{Path: "weir.yaml"}, []byte(text)); err == nil || !strings.Contains(err.Error(), "is not on loopback") {
			t.Errorf("%s: the configuration is accepted: %v", address, err)
		}
		// A name in admin.listen can have another address than at the check.
		g := open(t, configure(nowhere, onLoopback, func(c *config.Config) { c.Admin.Listen = address }))
		_, err := g.listen()
		failIf(t, err == nil || !strings.Contains(err.Error(), "is not on loopback: set admin.token, or admin.tls.client_ca"), "%s: the listener starts without authentication: %v", address, err)
	}
}

// remoteAdmin is a gateway whose admin listener other machines can reach.
type remoteAdmin struct {
	*testing.T
	*gateway
	path    string
	address string
}

// startRemoteAdmin starts a gateway whose admin block has these keys besides the address.
func startRemoteAdmin(t *testing.T, keys string) *remoteAdmin {
	t.Helper()
	r := &remoteAdmin{T: t, path: filepath.Join(t.TempDir(), "weir.yaml")}
	r.write(":0", keys)
	r.gateway = open(t, must(load(r.path))(t))
	r.load = func() (*config.Config, error) { return load(r.path) }
	_, admin := serveOnListeners(t, r.gateway)
	_, port, err := net.SplitHostPort(admin)
	noError(t, err)
	addresses := remoteAddresses(t)
	host, _, _ := net.SplitHostPort(addresses[len(addresses)-1])
	if net.ParseIP(host).IsUnspecified() { // a machine with loopback only
		host = "127.0.0.1"
	}
	r.address = net.JoinHostPort(host, port)
	return r
}

func (r *remoteAdmin) write(listen, keys string) {
	write(r.T, r.path, fmt.Sprintf("upstream: {url: \"http://127.0.0.1:1\"}\nlisten: \"127.0.0.1:0\"\nadmin: {listen: %q%s}\n", listen, keys))
}

// visitor is a request to the admin listener from another machine.
type visitor struct {
	name        string
	plain       bool // over HTTP without TLS
	version     uint16
	certificate *tls.Certificate
	host, query string
	fields      []string
}

// send returns the status, or 0 without a response. A response with another status than 200 must not show the
// configuration.
func (r *remoteAdmin) send(v *visitor) int {
	r.Helper()
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MaxVersion: v.version}}
	if v.certificate != nil {
		transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return v.certificate, nil }
	}
	scheme := "https"
	if v.plain {
		scheme = "http"
	}
	req := must(http.NewRequestWithContext(r.Context(), http.MethodGet, scheme+"://"+r.address+"/api/v1/config"+v.query, nil))(r)
	setFields(req, v.fields)
	req.Host = v.host
	resp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	text := must(io.ReadAll(resp.Body))(r)
	shown := strings.Contains(string(text), "upstream")
	failIf(r, shown != (resp.StatusCode == http.StatusOK), "%s: %s, the configuration is shown: %v", v.name, resp.Status, shown)
	return resp.StatusCode
}

// TestAdminListenerForOtherMachines combines the ways to authenticate with the ways to listen. A reload of a weaker
// configuration changes nothing.
func TestAdminListenerForOtherMachines(t *testing.T) {
	own, foreign := newPair(t, "authority", nil), newPair(t, "authority", nil)
	dir := t.TempDir()
	certificate, key := writePair(t, dir, newPair(t, "weir", own))
	ca := filepath.Join(dir, "ca.pem")
	text, _ := pemOf(t, own)
	write(t, ca, text)
	keys := fmt.Sprintf("certificate: %q, key: %q", certificate, key)
	const token = "Authorization: Bearer sesame"
	operator, stranger := newPair(t, "ops", own), newPair(t, "ops", foreign)
	keyless := &tls.Certificate{Certificate: operator.Certificate, PrivateKey: stranger.PrivateKey} // the certificate of another key
	issuedByLeaf := newPair(t, "ops", operator)
	issuedByLeaf.Certificate = append(issuedByLeaf.Certificate, operator.Certificate[0])
	expired := newPair(t, "ops", own, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	early := newPair(t, "ops", own, func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	})
	server := newPair(t, "ops", own, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] })
	otherFields := []string{"X-Api-Key: sesame", "Proxy-Authorization: Bearer sesame", "X-Auth-Token: sesame"}
	proxyFields := []string{"X-Ssl-Client-Verify: SUCCESS", "X-Forwarded-Client-Cert: Subject=\"CN=ops\"", "Ssl-Client-Subject-Dn: CN=ops"}
	// The columns are the expected status for: a token over HTTP, a token over TLS, a certificate, a token or a certificate.
	for mode, listener := range []string{
		", token: sesame",
		", token: sesame, tls: {" + keys + "}",
		fmt.Sprintf(", tls: {%s, client_ca: %q}", keys, ca),
		fmt.Sprintf(", token: sesame, tls: {%s, client_ca: %q}", keys, ca),
	} {
		r := startRemoteAdmin(t, listener)
		for _, reloaded := range []string{"", ", hosts: [evil.test]", ", tls: {" + keys + "}"} {
			if reloaded != "" {
				r.write("127.0.0.1:0", reloaded) // valid without a token, because the address is loopback
				noError(t, r.reload())
			}
			for _, c := range []struct {
				visitor
				want [4]int
			}{
				{visitor{name: "the token"}, [4]int{0, 200, 401, 200}},
				{visitor{name: "the token, plain HTTP", plain: true}, [4]int{200, 400, 400, 400}},
				{visitor{name: "a certificate", certificate: operator}, [4]int{0, 401, 200, 200}},
				{visitor{name: "a certificate and the token", certificate: operator, fields: []string{token}}, [4]int{0, 200, 200, 200}},
				{visitor{name: "no authentication"}, [4]int{0, 401, 401, 401}},
				{visitor{name: "no authentication, plain HTTP", plain: true}, [4]int{401, 400, 400, 400}},
				{visitor{name: "the token in the query", query: "?token=sesame&access_token=sesame", plain: mode == 0}, [4]int{401, 401, 401, 401}},
				{visitor{name: "the token as session", fields: []string{"Cookie: weir-session=sesame; __Host-weir-session=sesame"}, plain: mode == 0}, [4]int{401, 401, 401, 401}},
				{visitor{name: "the token in other fields", fields: otherFields, plain: mode == 0}, [4]int{401, 401, 401, 401}},
				{visitor{name: "a certificate in fields of proxies", fields: proxyFields, plain: mode == 0}, [4]int{401, 401, 401, 401}},
				{visitor{name: "the token, another host", host: "evil.test", fields: []string{token}, plain: mode == 0}, [4]int{403, 403, 403, 403}},
				{visitor{name: "a certificate, another host", host: "evil.test", certificate: operator}, [4]int{0, 403, 403, 403}},
				{visitor{name: "TLS 1.2", version: tls.VersionTLS12, certificate: operator, fields: []string{token}}, [4]int{}},
				{visitor{name: "expired certificate", certificate: expired}, [4]int{0, 401, 0, 0}},
				{visitor{name: "certificate that is not valid yet", certificate: early}, [4]int{0, 401, 0, 0}},
				{visitor{name: "certificate without the usage of clients", certificate: server}, [4]int{0, 401, 0, 0}},
				{visitor{name: "certificate of another authority", certificate: stranger}, [4]int{0, 401, 0, 0}},
				{visitor{name: "certificate of another authority, and the token", certificate: stranger, fields: []string{token}}, [4]int{0, 200, 0, 0}},
				{visitor{name: "certificate issued by a client certificate", certificate: issuedByLeaf}, [4]int{0, 401, 0, 0}},
				{visitor{name: "certificate of the operator without its key", certificate: keyless}, [4]int{0, 401, 0, 0}},
			} {
				if strings.HasPrefix(c.name, "the token") && c.query == "" && c.fields == nil {
					c.fields = []string{token}
				}
				testservers.Equal(t, fmt.Sprintf("admin {%s}, reload of {%s}: %s", listener, reloaded, c.name), r.send(&c.visitor), c.want[mode])
			}
		}
		wrong := &visitor{name: "wrong token", plain: mode == 0, fields: []string{"Authorization: Bearer sesamE"}}
		got := r.send(wrong)
		failIf(t, got != http.StatusUnauthorized, "admin {%s}: wrong token: got %d, want 401", listener, got)
	}
}

// loopbackAdmin is a gateway with an admin listener on loopback that requires no token. All pages in the operator's
// browser can reach this listener.
type loopbackAdmin struct {
	*testing.T
	*gateway
	address string
	reloads atomic.Int32
}

func startLoopbackAdmin(t *testing.T) *loopbackAdmin {
	t.Helper()
	cfg := configure(nowhere, onLoopback, func(c *config.Config) { c.Admin.Hosts = []string{"weir.internal"} })
	o := &loopbackAdmin{T: t, gateway: open(t, cfg)}
	o.load = func() (*config.Config, error) { o.reloads.Add(1); return cfg, nil }
	_, o.address = serveOnListeners(t, o.gateway)
	return o
}

// send sends a request with the lines of its head.
func (o *loopbackAdmin) send(body string, lines ...string) *http.Response {
	o.Helper()
	resp, _ := sendText(o, o.address, strings.Join(lines, "\r\n"), body)
	return resp
}

// TestAdminRefusesCrossSiteRequests sends requests that pages of other sites can cause, and
// requests with other host names.
func TestAdminRefusesCrossSiteRequests(t *testing.T) {
	o := startLoopbackAdmin(t)
	const reload, purge = "POST /api/v1/reload HTTP/1.1", "POST /api/v1/cache/purge HTTP/1.1"
	own := "Host: " + o.address
	for _, c := range []struct {
		name   string
		status int
		lines  []string
	}{
		{"form on a page of another site", 403, []string{reload, own, "Origin: http://evil.test", "Content-Type: application/x-www-form-urlencoded"}},
		{"form with files on a page of another site", 403, []string{purge, own, "Origin: http://evil.test", "Content-Type: multipart/form-data; boundary=x"}},
		{"JSON as text, which needs no preflight", 403, []string{purge, own, "Origin: http://evil.test", "Content-Type: text/plain"}},
		{"JSON as text with Sec-Fetch-Site", 403, []string{purge, own, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Content-Type: text/plain"}},
		{"page of another port", 403, []string{reload, "Host: localhost", "Origin: http://localhost:3000", "Sec-Fetch-Site: same-site"}},
		{"an origin with the same prefix", 403, []string{reload, own, "Origin: http://" + o.address + ".evil.test"}},
		{"a page without origin", 403, []string{reload, own, "Origin: null"}},
		{"an invalid origin", 403, []string{reload, own, "Origin: x"}},
		{"navigation from a page of another site", 403, []string{reload, own, "Origin: http://evil.test", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}},
		{"DNS rebinding", 403, []string{reload, "Host: evil.test", "Origin: http://evil.test", "Sec-Fetch-Site: same-origin"}},
		{"DNS rebinding, with the port", 403, []string{reload, "Host: evil.test:9090"}},
		{"host name that ends in -localhost", 403, []string{reload, "Host: evil-localhost"}},
		{"subdomain of localhost", 403, []string{reload, "Host: evil.localhost"}},
		{"no host, in HTTP/1.0", 403, []string{"POST /api/v1/reload HTTP/1.0"}},
		{"an empty host", 403, []string{reload, "Host:"}},
		{"no host", 400, []string{reload}},
		{"two hosts", 400, []string{reload, own, "Host: evil.test"}},
		{"two hosts, the foreign host first", 400, []string{reload, "Host: evil.test", own}},
		{"a host in the target", 403, []string{"POST http://evil.test/api/v1/reload HTTP/1.1", own}},
		{"a host with user information", 400, []string{reload, "Host: localhost@evil.test"}},
		{"method override in a header field", 405, []string{"GET /api/v1/reload HTTP/1.1", own, "X-HTTP-Method-Override: POST"}},
		{"image on a page of another site", 405, []string{"GET /api/v1/reload?x=1 HTTP/1.1", own, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: image"}},
		{"a preflight", 405, []string{"OPTIONS /api/v1/reload HTTP/1.1", own, "Origin: http://evil.test", "Access-Control-Request-Method: POST"}},
	} {
		resp := o.send(`{"tag":"op:x"}`, c.lines...)
		failIf(t, resp.StatusCode != c.status || o.reloads.Load() > 0 || len(o.trail.Last()) > 0, "%s: %s; %d reloads, %d changes in the audit trail", c.name, resp.Status, o.reloads.Load(), len(o.trail.Last()))
		for field := range resp.Header {
			failIf(t, strings.HasPrefix(field, "Access-Control-"), "%s: %s: %s", c.name, field, resp.Header.Get(field))
		}
	}
	for i, lines := range [][]string{
		{reload, own},
		{reload, "Host: LOCALHOST:1"},
		{reload, "Host: weir.internal", "Origin: http://weir.internal", "Sec-Fetch-Site: same-origin"},
	} {
		resp := o.send("", lines...)
		failIf(t, resp.StatusCode != http.StatusOK || o.reloads.Load() != int32(i+1), "request of the operator %q: %s, %d reloads", lines, resp.Status, o.reloads.Load())
	}
}

// TestAdminPathsHaveOneSpelling checks that the admin listener does not normalize paths.
func TestAdminPathsHaveOneSpelling(t *testing.T) {
	o := startLoopbackAdmin(t)
	for _, target := range []string{
		"/api/v1/reload/", "/api/v1/reload/0", "/api/v1/reload00", "/api/v1/Reload", "//api/v1/reload", "/api//v1/reload", "/./api/v1/reload", "/x/../api/v1/reload",
		"/healthz/../api/v1/reload", "/healthz/..%2fapi/v1/reload", "/api/v1/%72eload", "/api%2fv1%2freload", "/api/v1/reload%2f", "/api/v1/reload%00", "/api/v1/reload%20",
		"/api/v1/reload;x", "/api/v1/reload%3fx", "/api/v1/reload%23", `/api\v1\reload`, "/api/v1/reload.json", "/api/v1/reload/..", "/api/v1/reload/.", "http:api/v1/reload", "x:/api/v1/reload/",
	} {
		resp := o.send("", "POST "+target+" HTTP/1.1", "Host: localhost")
		failIf(t, resp.StatusCode != http.StatusNotFound || o.reloads.Load() > 0, "%s: %s, %d reloads", target, resp.Status, o.reloads.Load())
	}
	resp := o.send("", "POST /api/v1/reload?x=/healthz HTTP/1.1", "Host: localhost")
	failIf(t, resp.StatusCode != http.StatusOK || o.reloads.Load() != 1, "exact path: %s, %d reloads", resp.Status, o.reloads.Load())
}
