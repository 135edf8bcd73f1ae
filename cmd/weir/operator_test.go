package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
)

// testCA is a certificate authority.
type testCA struct {
	*testing.T
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	file        string
}

func newTestCA(t *testing.T) *testCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &testCA{T: t, key: key}
	a.certificate = &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, Subject: pkix.Name{CommonName: "testCA"}}
	a.file, _ = a.issue("authority")
	return a
}

// issue writes a certificate that is also valid for 127.0.0.1, and its key, to files.
func (a *testCA) issue(name string) (certificate, key string) {
	a.Helper()
	template := a.certificate
	signed := a.key
	if name != "authority" {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			a.Fatal(err)
		}
		signed = own
		template = &x509.Certificate{
			SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, signed.Public(), a.key)
	if err != nil {
		a.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(signed)
	if err != nil {
		a.Fatal(err)
	}
	dir := a.TempDir()
	certificate, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	write(a.T, certificate, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(a.T, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	return certificate, key
}

// runWeir runs a command, and returns its exit code and its output.
func runWeir(args ...string) (code int, text string) {
	var out bytes.Buffer
	code = run(context.Background(), args, func(string) (string, bool) { return "", false }, &out, &out)
	return code, out.String()
}

func TestOperatorAuthenticatesByCertificate(t *testing.T) {
	own, foreign := newTestCA(t), newTestCA(t)
	server, serverKey := own.issue("weir")
	path := filepath.Join(t.TempDir(), "weir.yaml")
	file := func(server, serverKey string, own *testCA) string {
		return fmt.Sprintf("upstream: {url: \"http://127.0.0.1:1\"}\nlisten: \"127.0.0.1:0\"\nadmin: {listen: \"127.0.0.1:0\", tls: {certificate: %q, key: %q, client_ca: %q}}\n", server, serverKey, own.file)
	}
	write(t, path, file(server, serverKey, own))
	s := start(t, "serve", "--config", path)
	base := "https://" + s.find(`msg="admin listener started" address=(\S+)`)
	purge := func(server, client *testCA) (int, string) {
		args := []string{"cache", "purge", "--tag", "op:x", "--admin", base, "--ca", server.file}
		if client != nil {
			certificate, key := client.issue("ops")
			args = append(args, "--certificate", certificate, "--key", key)
		}
		return runWeir(args...)
	}
	for _, c := range []struct {
		name           string
		server, client *testCA
		code           int
		message        string
	}{
		{"certificate of the configured authority", own, own, 0, "0 entries"},
		{"no certificate", own, nil, 1, "requires the admin token"},
		{"certificate of another authority", own, foreign, 1, "did not answer"},
		{"listener with a certificate of another authority", foreign, own, 1, "did not answer"},
	} {
		if code, text := purge(c.server, c.client); code != c.code || !strings.Contains(text, c.message) {
			t.Errorf("%s: exit code %d, wrote %s", c.name, code, text)
		}
	}
	if code, text := runWeir("budget", "--admin", base, "--ca", "none.pem"); code != exitUsage || !strings.Contains(text, "none.pem") {
		t.Errorf("missing CA file: exit code %d, wrote %s", code, text)
	}
	server, serverKey = foreign.issue("weir")
	write(t, path, file(server, serverKey, foreign))
	for deadline := time.Now().Add(20 * time.Second); ; { // until the reload has been applied
		if code, _ := purge(foreign, foreign); code == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the new certificates are not used")
		}
	}
	if code, text := purge(foreign, own); code != 1 {
		t.Errorf("certificate of the old authority: %d %s", code, text)
	}
}

func TestDemoRequiresTokenOffLoopback(t *testing.T) {
	code, text := runWeir("demo", "--listen", "127.0.0.1:0", "--admin", ":0", "--service", "127.0.0.1:0")
	if code != exitFailure || !strings.Contains(text, "is not on loopback: set admin.token") {
		t.Errorf("exit code %d, wrote %s", code, text)
	}
}

func TestReloadCannotDisableAdminToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	const file = "upstream: {url: \"http://127.0.0.1:1\"}\nlisten: \"127.0.0.1:0\"\nadmin: {listen: \"127.0.0.1:0\", %s}\n"
	write(t, path, fmt.Sprintf(file, "token: sesame"))
	s := start(t, "serve", "--config", path)
	base := "http://" + s.find(`msg="admin listener started" address=(\S+)`)
	for _, changed := range []string{"token: file:none", "token:", "hosts: [evil.test]"} {
		write(t, path, fmt.Sprintf(file, changed))
		s.find("msg=audit operator=file")
		if resp, body := get(t, base+"/api/v1/config"); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("without a token after %s: got %d %s", changed, resp.StatusCode, body)
		}
	}
	if resp, _ := get(t, base+"/api/v1/config", "Authorization: Bearer sesame"); resp.StatusCode != http.StatusOK {
		t.Errorf("with the first token: %d", resp.StatusCode)
	}
}

// TestEveryReloadIsInAuditTrail checks reloads by file change, signal and request.
func TestEveryReloadIsInAuditTrail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	const file = "upstream: {url: \"http://127.0.0.1:1\"}\nlisten: \"127.0.0.1:0\"\nadmin: {listen: \"127.0.0.1:0\"}\n"
	write(t, path, file)
	s := start(t, "serve", "--config", path)
	base := "http://" + s.find(`msg="admin listener started" address=(\S+)`)
	write(t, path, file+"limits: {wait: 11s}\n")
	s.find(`msg=audit operator=file address="" action=reload target=\S+weir.yaml outcome="in force"`)
	write(t, path, "nonsense: 1")
	s.find(`msg=audit operator=file .*outcome="failed: .*nonsense`)
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.find("msg=audit operator=signal")
	reloaded := make(chan int)
	go func() {
		resp, err := http.Post(base+"/api/v1/reload", "", nil)
		if err != nil {
			reloaded <- 0
			return
		}
		_ = resp.Body.Close()
		reloaded <- resp.StatusCode
	}()
	s.find(`msg=audit operator=loopback address=127.0.0.1:\d+ action=reload target=configuration outcome="failed: `)
	if got := <-reloaded; got != http.StatusUnprocessableEntity {
		t.Errorf("status %d", got)
	}
	if _, body := get(t, base+"/api/v1/audit"); strings.Count(body, `"action": "reload"`) != 4 {
		t.Errorf("want four reloads in the audit trail, got %s", body)
	}
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
upstream: {url: "http://127.0.0.1:1"}
listen: "127.0.0.1:0"
admin: {listen: "127.0.0.1:0", token: %[1]s-admin, prometheus: {url: "http://127.0.0.1:1", token: %[1]s-prometheus}}
credentials:
  - {name: ci, kind: user, token: %[1]s-user}
  - {name: app, kind: oauth_app, token: "id:%[1]s-app"}
  - {name: bot, kind: installation, app: {id: x, installation: 1, key: %[3]q}}
clients: [{name: builds, key: "sha256:%[2]s", credentials: [ci]}]
cache: {key: %[1]s-cache}
webhooks: {secret: %[1]s-hook}
`, canary, strings.Repeat("0f", 32), canary+"\n"+privateKey(t).Reveal())
	cfg, err := config.Parse(config.Source{Path: "weir.yaml"}, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	secrets := 0
	eachSecret(reflect.ValueOf(*cfg), "", func(key string, s credential.Secret) {
		if s == "" && strings.HasPrefix(key, ".Credentials") {
			return // a credential has either a token or an app key
		}
		secrets++
		if !strings.Contains(s.Reveal(), canary) {
			t.Errorf("%s is not set above; add it to the configuration", key)
		}
	})
	if secrets < 7 {
		t.Errorf("%d secrets", secrets)
	}
	var log bytes.Buffer
	g, err := newGateway(cfg, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	o, err := g.listenAdmin(cfg.Admin)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.listener.Close() }()
	server := &http.Server{Handler: o.handler, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(o.listener) }()
	base := "http://" + o.listener.Addr().String()
	shown := fmt.Sprintf("%v %+v %#v %s", cfg, cfg, *cfg, cfg.Masked())
	for _, page := range []string{"/", "/api/v1/accounts", "/api/v1/requests", "/api/v1/cache", "/api/v1/config", "/api/v1/credentials", "/api/v1/audit", "/api/v1/trends?range=7d", "/healthz", "/none"} {
		resp, body := get(t, base+page, "Authorization: Bearer "+canary+"-admin")
		shown += fmt.Sprint(resp.Header) + body
		if page == "/api/v1/config" && strings.Count(body, `"•••"`) != secrets {
			t.Errorf("%d masks for %d secrets: %s", strings.Count(body, `"•••"`), secrets, body)
		}
	}
	if strings.Contains(shown+log.String(), "canary") {
		t.Errorf("output contains a secret: %s%s", shown, log.String())
	}
}

func TestAdminListenerCutsOffSlowRequests(t *testing.T) {
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Listen, cfg.Admin.Listen = "http://127.0.0.1:1", "127.0.0.1:0", "127.0.0.1:0"
	g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	endpoints, err := g.listen()
	if err != nil {
		t.Fatal(err)
	}
	o := endpoints[len(endpoints)-1]
	if o.timeout != adminIOTimeout {
		t.Errorf("got timeout %v, want %v", o.timeout, adminIOTimeout)
	}
	o.timeout = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveAll(ctx, slog.New(slog.DiscardHandler), noDrain, o) }()
	conn, err := net.Dial("tcp", o.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "POST /api/v1/cache/purge HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	if _, err := io.ReadAll(conn); err != nil { // until the server closes the connection
		t.Error(err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	_ = endpoints[0].listener.Close()
}
