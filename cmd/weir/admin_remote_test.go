package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
)

// remoteAddresses returns the addresses of this machine that other machines can reach. The list begins with the
// unspecified addresses, so it is never empty.
func remoteAddresses(t *testing.T) []string {
	t.Helper()
	list := []string{":0", "0.0.0.0:0", "[::]:0"}
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			list = append(list, net.JoinHostPort(n.IP.String(), "0"))
		}
	}
	return list
}

// pairOf returns a certificate of the authority with its key. The function change modifies the template of a client
// certificate.
func (a *testCA) pairOf(change func(*x509.Certificate)) *tls.Certificate {
	a.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "ops"}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		a.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// TestAdminListenerRequiresAuthenticationForOtherMachines starts on every address of this machine without a token and
// without CAs.
func TestAdminListenerRequiresAuthenticationForOtherMachines(t *testing.T) {
	for _, address := range remoteAddresses(t) {
		text := fmt.Sprintf("upstream: {url: \"http://127.0.0.1:1\"}\nlisten: \"127.0.0.1:0\"\nadmin: {listen: %q}\n", address)
		if _, err := config.Parse(config.Source{Path: "weir.yaml"}, []byte(text)); err == nil || !strings.Contains(err.Error(), "is not on loopback") {
			t.Errorf("%s: the configuration is accepted: %v", address, err)
		}
		cfg := config.Default() // a name in admin.listen can have another address than at the check
		cfg.Upstream.URL, cfg.Listen, cfg.Admin.Listen = "http://127.0.0.1:1", "127.0.0.1:0", address
		g, err := newGateway(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.listen(); err == nil || !strings.Contains(err.Error(), "is not on loopback: set admin.token, or admin.tls.client_ca") {
			t.Errorf("%s: the listener starts without authentication: %v", address, err)
		}
		g.close()
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
	cfg, err := r.load()
	if err != nil {
		t.Fatal(err)
	}
	if r.gateway, err = newGateway(cfg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	r.gateway.load = r.load
	_, port, err := net.SplitHostPort(serveOnListeners(t, r.gateway)[1].listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
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

func (r *remoteAdmin) load() (*config.Config, error) {
	return config.Load(config.Source{Path: r.path, Getenv: func(string) (string, bool) { return "", false }})
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
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, scheme+"://"+r.address+"/api/v1/config"+v.query, nil)
	if err != nil {
		r.Fatal(err)
	}
	req.Host = v.host
	for _, f := range v.fields {
		name, value, _ := strings.Cut(f, ": ")
		req.Header.Add(name, value)
	}
	resp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	if shown := strings.Contains(string(text), "upstream"); shown != (resp.StatusCode == http.StatusOK) {
		r.Errorf("%s: %s, the configuration is shown: %v", v.name, resp.Status, shown)
	}
	return resp.StatusCode
}

// TestAdminListenerForOtherMachines combines the ways to authenticate with the ways to listen. A reload of a weaker
// configuration changes nothing.
func TestAdminListenerForOtherMachines(t *testing.T) {
	own, foreign := newTestCA(t), newTestCA(t)
	certificate, key := own.issue("weir")
	keys := fmt.Sprintf("certificate: %q, key: %q", certificate, key)
	const token = "Authorization: Bearer sesame"
	operator := own.pairOf(nil)
	withKey := func(c *x509.Certificate, of *tls.Certificate) *tls.Certificate { // the certificate of another key
		return &tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: of.PrivateKey}
	}
	leafAsCA := &testCA{T: t, certificate: operator.Leaf, key: operator.PrivateKey.(*ecdsa.PrivateKey)}
	issuedByLeaf := leafAsCA.pairOf(nil)
	issuedByLeaf.Certificate = append(issuedByLeaf.Certificate, operator.Certificate[0])
	// The columns are the expected status for: a token over HTTP, a token over TLS, a certificate, a token or a certificate.
	for mode, listener := range []string{
		", token: sesame",
		", token: sesame, tls: {" + keys + "}",
		fmt.Sprintf(", tls: {%s, client_ca: %q}", keys, own.file),
		fmt.Sprintf(", token: sesame, tls: {%s, client_ca: %q}", keys, own.file),
	} {
		r := startRemoteAdmin(t, listener)
		for _, reloaded := range []string{"", ", hosts: [evil.test]", ", tls: {" + keys + "}"} {
			if reloaded != "" {
				r.write("127.0.0.1:0", reloaded) // valid without a token, because the address is loopback
				if err := r.reload(); err != nil {
					t.Fatal(err)
				}
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
				{visitor{name: "the token in other fields", fields: []string{"X-Api-Key: sesame", "Proxy-Authorization: Bearer sesame", "X-Auth-Token: sesame"}, plain: mode == 0}, [4]int{401, 401, 401, 401}},
				{visitor{name: "a certificate in fields of proxies", fields: []string{"X-Ssl-Client-Verify: SUCCESS", "X-Forwarded-Client-Cert: Subject=\"CN=ops\"", "Ssl-Client-Subject-Dn: CN=ops"}, plain: mode == 0}, [4]int{401, 401, 401, 401}},
				{visitor{name: "the token, another host", host: "evil.test", fields: []string{token}, plain: mode == 0}, [4]int{403, 403, 403, 403}},
				{visitor{name: "a certificate, another host", host: "evil.test", certificate: operator}, [4]int{0, 403, 403, 403}},
				{visitor{name: "TLS 1.2", version: tls.VersionTLS12, certificate: operator, fields: []string{token}}, [4]int{}},
				{visitor{name: "expired certificate", certificate: own.pairOf(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })}, [4]int{0, 401, 0, 0}},
				{visitor{name: "certificate that is not valid yet", certificate: own.pairOf(func(c *x509.Certificate) {
					c.NotBefore = time.Now().Add(time.Hour)
					c.NotAfter = time.Now().Add(2 * time.Hour)
				})}, [4]int{0, 401, 0, 0}},
				{visitor{name: "certificate without the usage of clients", certificate: own.pairOf(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })}, [4]int{0, 401, 0, 0}},
				{visitor{name: "certificate of another authority", certificate: foreign.pairOf(nil)}, [4]int{0, 401, 0, 0}},
				{visitor{name: "certificate of another authority, and the token", certificate: foreign.pairOf(nil), fields: []string{token}}, [4]int{0, 200, 0, 0}},
				{visitor{name: "certificate issued by a client certificate", certificate: issuedByLeaf}, [4]int{0, 401, 0, 0}},
				{visitor{name: "certificate of the operator without its key", certificate: withKey(operator.Leaf, foreign.pairOf(nil))}, [4]int{0, 401, 0, 0}},
			} {
				if strings.HasPrefix(c.name, "the token") && c.query == "" && c.fields == nil {
					c.fields = []string{token}
				}
				if got := r.send(&c.visitor); got != c.want[mode] {
					t.Errorf("admin {%s}, reload of {%s}: %s: got %d, want %d", listener, reloaded, c.name, got, c.want[mode])
				}
			}
		}
		wrong := &visitor{name: "wrong token", plain: mode == 0, fields: []string{"Authorization: Bearer sesamE"}}
		if got := r.send(wrong); got != http.StatusUnauthorized {
			t.Errorf("admin {%s}: wrong token: got %d, want 401", listener, got)
		}
	}
}
