package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
)

// servedName is the name of the gateway in certificates.
const servedName = "weir.example.com"

// newPair creates a certificate and its key. The certificate is valid for a name and for 127.0.0.1, and signed by another
// pair, or by itself. A certificate that signs itself is an authority.
func newPair(t testing.TB, name string, by *tls.Certificate, changes ...func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if by == nil {
		by = &tls.Certificate{PrivateKey: key, Leaf: template}
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageDigitalSignature|x509.KeyUsageCertSign
	}
	for _, change := range changes {
		change(template)
	}
	der := must(x509.CreateCertificate(rand.Reader, template, by.Leaf, key.Public(), by.PrivateKey))(t)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: must(x509.ParseCertificate(der))(t)}
}

// pemOf returns a certificate and its key in PEM.
func pemOf(t testing.TB, pair *tls.Certificate) (certificate, key string) {
	t.Helper()
	private := must(x509.MarshalPKCS8PrivateKey(pair.PrivateKey))(t)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

// writePair writes a certificate and its key into a directory, and returns the files.
func writePair(t testing.TB, dir string, pair *tls.Certificate) (certificate, key string) {
	t.Helper()
	certificate, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	certificateText, keyText := pemOf(t, pair)
	write(t, certificate, certificateText)
	write(t, key, keyText)
	return certificate, key
}

// poolOf returns a pool that trusts a certificate.
func poolOf(pair *tls.Certificate) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(pair.Leaf)
	return roots
}

// TestReloadReplacesCertificate checks that links use https, and that a reload loads changed files. Invalid files must
// keep the old certificate.
func TestReloadReplacesCertificate(t *testing.T) {
	up := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", `<http://`+r.Host+`/user/repos?page=2>; rel="next"`)
	})
	dir, first, renewed := t.TempDir(), newPair(t, servedName, nil), newPair(t, servedName, nil)
	certificate, key := writePair(t, dir, first)
	s := serve(t, fmt.Sprintf("upstream: {url: %q}\ntls: {certificates: [{certificate: %q, key: %q}]}\n", up, certificate, key))
	send := func(served *tls.Certificate) *http.Response {
		t.Helper()
		transport := &http.Transport{ForceAttemptHTTP2: true, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: poolOf(served)}}
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.gateway)
		}
		resp, _ := getWith(t, &http.Client{Timeout: 30 * time.Second, Transport: transport}, "https://"+servedName+"/user/repos")
		return resp
	}
	resp := send(first)
	failIf(t, resp.ProtoMajor != 2 || resp.Header.Get("Link") != "<https://"+servedName+`/user/repos?page=2>; rel="next"`, "want HTTP/2 and a link with https, got %s %v", resp.Proto, resp.Header)
	writePair(t, dir, renewed)
	if status := s.reload(); status >= 300 {
		t.Errorf("reload of a new certificate: %d", status)
	}
	send(renewed)
	write(t, key, "no key")
	status := s.reload()
	failIf(t, status < 400, "reload of an invalid key: %d", status)
	send(renewed)
}

// mutualTLS is a gateway that authenticates clients and operators by certificate. Its upstream
// echoes the credential of each request.
type mutualTLS struct {
	*testing.T
	*gateway
	dir               string
	own               *tls.Certificate // authority
	clients, operator string           // addresses
	builds            *tls.Certificate
}

// oneClient configures one client by the subject of its certificate.
const oneClient = `clients: [{name: builds, certificate: "subject:CN=builds", credentials: [ci]}]`

// caFiles returns the files of tls.client_ca and admin.tls.client_ca.
func caFiles() []string { return []string{"ca.pem", "operators.pem"} }

// startMutualTLS starts the gateway and an upstream.
func startMutualTLS(t *testing.T) *mutualTLS {
	t.Helper()
	up := serveAPI(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("Authorization")) })
	v := &mutualTLS{T: t, dir: t.TempDir(), own: newPair(t, "authority", nil)}
	for name, dir := range map[string]string{servedName: "own", "*.internal.example.com": "wild"} {
		noError(t, os.Mkdir(filepath.Join(v.dir, dir), 0o700))
		writePair(t, filepath.Join(v.dir, dir), newPair(t, name, nil))
	}
	v.trust(v.own)
	v.builds = newPair(t, "builds", v.own)
	v.write(oneClient, up)
	v.gateway = open(t, must(v.load())(t))
	v.gateway.load = v.load
	v.clients, v.operator = serveOnListeners(t, v.gateway)
	return v
}

// trust writes the certificate of an authority into the CA files. The next reload applies it.
func (v *mutualTLS) trust(a *tls.Certificate) {
	v.Helper()
	text, _ := pemOf(v, a)
	for _, file := range caFiles() {
		write(v.T, filepath.Join(v.dir, file), text)
	}
}

// write writes the configuration.
func (v *mutualTLS) write(clients, upstream string) {
	v.Helper()
	write(v.T, filepath.Join(v.dir, "weir.yaml"), fmt.Sprintf(`listen: "127.0.0.1:0"
admin: {listen: "127.0.0.1:0", tls: {certificate: own/tls.crt, key: own/tls.key, client_ca: operators.pem}}
upstream: {url: %q}
limits: {cold_start: trust}
tls: {certificates: [{certificate: own/tls.crt, key: own/tls.key}, {certificate: wild/tls.crt, key: wild/tls.key}], client_ca: ca.pem}
callers: {pass_through: false}
credentials: [{name: ci, kind: user, token: held}]
%s
`, upstream, clients))
}

// load loads the configuration.
func (v *mutualTLS) load() (*config.Config, error) { return load(filepath.Join(v.dir, "weir.yaml")) }

// visit describes the connection of a client.
type visit struct {
	tls     tls.Config // TLS settings of the client
	host    string
	records int // bytes in each record of the ClientHello; 0 sends one record
}

// withCertificate returns a visit with a client certificate, or without a certificate if c is nil.
func withCertificate(c *tls.Certificate) *visit {
	v := &visit{host: servedName}
	v.tls.ServerName, v.tls.InsecureSkipVerify = servedName, true
	if c != nil {
		v.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, nil }
	}
	return v
}

// send sends one request on a new connection. It returns the response, and whether the TLS session was resumed.
func (v *mutualTLS) send(one *visit) (response string, resumed bool) {
	v.Helper()
	raw := dial(v, v.clients)
	defer func() { _ = raw.Close() }()
	conn := tls.Client(&splitHello{Conn: raw, bytes: one.records}, &one.tls)
	if _, err := fmt.Fprintf(conn, "GET /user HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", one.host); err != nil {
		return "no connection", false
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "no connection", false
	}
	body := must(io.ReadAll(resp.Body))(v)
	if resumed = conn.ConnectionState().DidResume; resp.StatusCode != http.StatusOK {
		return resp.Status, resumed
	}
	return string(body), resumed
}

// wantClients checks the responses to the known client, to a client without a certificate, and to one of another authority.
func (v *mutualTLS) wantClients(name string, forged *tls.Certificate, change func(one *visit) (accepted bool)) {
	v.Helper()
	for client, w := range map[string]struct {
		certificate *tls.Certificate
		want        string
	}{
		"known client": {v.builds, "Bearer held"}, "client without a certificate": {nil, "401 Unauthorized"},
		"client of another authority": {forged, "no connection"},
	} {
		one := withCertificate(w.certificate)
		if !change(one) {
			w.want = "no connection"
		}
		got, _ := v.send(one)
		failIf(v, got != w.want, "%s: %s: %s, want %s", name, client, got, w.want)
	}
}

// splitHello splits the ClientHello into records of a few bytes, each in its own packet.
type splitHello struct {
	net.Conn
	bytes int
	done  bool
}

func (c *splitHello) Write(p []byte) (int, error) {
	if c.done || c.bytes == 0 {
		return c.Conn.Write(p)
	}
	c.done = true
	const head = 5 // type, version and length (RFC 8446, section 5.1)
	for rest := p[head:]; len(rest) > 0; {
		part := rest[:min(c.bytes, len(rest))]
		rest = rest[len(part):]
		if _, err := c.Conn.Write(append([]byte{p[0], p[1], p[2], 0, byte(len(part))}, part...)); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// TestEveryServerNameRequiresClientCertificate combines server names, Host fields and split ClientHello messages. No
// combination may avoid the client certificate.
func TestEveryServerNameRequiresClientCertificate(t *testing.T) {
	v := startMutualTLS(t)
	forged := newPair(t, "builds", newPair(t, "authority", nil))
	for _, c := range []struct {
		name, server, host string
		accepted           bool
	}{
		{"the name", servedName, servedName, true},
		{"the name in capitals", "WEIR.Example.COM", servedName, true},
		{"a name under a wildcard", "a.internal.example.com", "a.internal.example.com", true},
		{"configured name, another configured name as host", servedName, "a.internal.example.com", true},
		{"configured name, foreign host", servedName, "evil.test", true},
		{"no name", "", servedName, true},
		{"no name, and no host", "", "", true},
		{"the wildcard itself", "*.internal.example.com", servedName, false},
		{"name two levels below the wildcard", "a.b.internal.example.com", servedName, false},
		{"parent domain of the wildcard", "internal.example.com", servedName, false},
		{"an unknown name", "other.example.com", servedName, false},
		{"a name with a suffix", servedName + ".evil.test", servedName, false},
	} {
		for _, records := range []int{0, 1, 7, 100} {
			v.wantClients(fmt.Sprintf("%s, in records of %d", c.name, records), forged, func(one *visit) bool {
				one.tls.ServerName, one.host, one.records = c.server, c.host, records
				return c.accepted
			})
		}
	}
}

// TestResumedSessionFollowsReload checks that a TLS session from before a reload gives no
// access that the new configuration denies.
func TestResumedSessionFollowsReload(t *testing.T) {
	other := fmt.Sprintf("sha256:%064d", 1)
	for _, c := range []struct {
		name, clients string
		newCA         bool // another authority
		want          string
	}{
		{"unchanged configuration", oneClient, false, "Bearer held"},
		{"another authority", oneClient, true, "no connection"},
		{"another client", strings.ReplaceAll(oneClient, "CN=builds", "CN=deploys"), false, "401 Unauthorized"},
		{"no client with a certificate", fmt.Sprintf(`clients: [{name: builds, key: %q, credentials: [ci]}]`, other), false, "401 Unauthorized"},
		{"only fingerprints, and another authority", fmt.Sprintf(`clients: [{name: builds, certificate: %q, credentials: [ci]}]`, other), true, "no connection"},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(c.name+", "+tls.VersionName(version), func(t *testing.T) {
				v := startMutualTLS(t)
				one := withCertificate(v.builds)
				one.tls.MaxVersion, one.tls.ClientSessionCache = version, tls.NewLRUClientSessionCache(8)
				for _, want := range []bool{false, true} {
					got, resumed := v.send(one)
					stopIf(t, got != "Bearer held" || resumed != want, "before the reload: %s, resumed: %t", got, resumed)
				}
				v.write(c.clients, v.started.Upstream.URL)
				if c.newCA {
					v.trust(newPair(t, "authority", nil))
				}
				noError(t, v.reload())
				got, resumed := v.send(one)
				failIf(t, got != c.want, "%s, resumed: %t; want %s", got, resumed, c.want)
			})
		}
	}
}

// TestUnreadableCAFileIsRejected checks that the start fails without the CA files, and that a
// reload keeps the previous authorities.
func TestUnreadableCAFileIsRejected(t *testing.T) {
	v := startMutualTLS(t)
	forged := newPair(t, "builds", newPair(t, "authority", nil))
	good, key := pemOf(t, v.own)
	for name, corrupt := range map[string]func(path string){
		"missing":      func(string) {},
		"empty":        func(path string) { write(t, path, "") },
		"truncated":    func(path string) { write(t, path, good[:len(good)/2]) },
		"a key":        func(path string) { write(t, path, key) },
		"a folder":     func(path string) { _ = os.Mkdir(path, 0o700) },
		"a dead link":  func(path string) { _ = os.Symlink("nowhere", path) },
		"no PEM":       func(path string) { write(t, path, "authorities") },
		"another form": func(path string) { write(t, path, strings.ReplaceAll(good, "CERTIFICATE", "X509 CRL")) },
	} {
		for _, file := range caFiles() {
			name, path := file+": "+name, filepath.Join(v.dir, file)
			read := must(v.load())(t) // valid configuration
			noError(t, os.RemoveAll(path))
			corrupt(path)
			for step, do := range map[string]func() error{
				"a load":                             func() error { _, err := v.load(); return err },
				"a reload":                           v.reload,
				"a reload with an old configuration": func() error { return reloadWith(v.gateway, read) },
				"the start with an old configuration": func() error {
					g, err := newGateway(read, io.Discard, slog.LevelInfo)
					if err == nil {
						noError(t, g.close())
					}
					return err
				},
			} {
				failIf(t, do() == nil, "%s: %s succeeded", name, step)
			}
			v.wantClients(name, forged, func(*visit) bool { return true })
			noError(t, os.RemoveAll(path))
			write(t, path, good)
		}
	}
}

// TestOpenConnectionFollowsReload checks that a reload revokes the access of a client and of an operator on an open
// connection.
func TestOpenConnectionFollowsReload(t *testing.T) {
	v := startMutualTLS(t)
	byName := strings.ReplaceAll(oneClient, "subject:CN=builds", "dns:builds")
	v.write(byName, v.started.Upstream.URL)
	noError(t, v.reload())
	reused := false
	visitor := func(address string, pair *tls.Certificate) func() int {
		settings := &tls.Config{InsecureSkipVerify: true, ServerName: servedName, Certificates: []tls.Certificate{*pair}}
		transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: settings}
		t.Cleanup(transport.CloseIdleConnections)
		trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}
		return func() int {
			t.Helper()
			r := must(http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, "https://"+address+"/api/v1/config", nil))(t)
			resp := must((&http.Client{Transport: transport}).Do(r))(t)
			_, _ = io.Copy(io.Discard, resp.Body) // keeps the connection
			_ = resp.Body.Close()
			return resp.StatusCode
		}
	}
	client, operator := visitor(v.clients, v.builds), visitor(v.operator, newPair(t, "ops", v.own))
	if got := []int{client(), operator()}; got[0] != 200 || got[1] != 200 {
		t.Fatalf("before the reload: %d, want 200", got)
	}
	v.write(strings.ReplaceAll(byName, "dns:builds", "dns:deploys"), v.started.Upstream.URL)
	noError(t, v.reload())
	if got := client(); got != http.StatusUnauthorized || !reused {
		t.Errorf("removed client on its open connection (reused: %t): %d, want 401", reused, got)
	}
	v.trust(newPair(t, "authority", nil))
	noError(t, v.reload())
	got := operator()
	failIf(t, got != http.StatusUnauthorized || !reused, "operator of the old authority on its open connection (reused: %t): %d, want 401", reused, got)
}
