package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
)

// mutualTLS is a gateway that authenticates clients and operators by certificate. Its upstream
// echoes the credential of each request.
type mutualTLS struct {
	*testing.T
	*gateway
	dir               string
	own               *testCA
	clients, operator string // addresses
	builds            tls.Certificate
}

// oneClient configures one client by the subject of its certificate.
const oneClient = `clients: [{name: builds, certificate: "subject:CN=builds", credentials: [ci]}]`

// caFiles returns the files of tls.client_ca and admin.tls.client_ca.
func caFiles() []string { return []string{"ca.pem", "operators.pem"} }

// startMutualTLS starts the gateway and an upstream.
func startMutualTLS(t *testing.T) *mutualTLS {
	t.Helper()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
	}))
	t.Cleanup(up.Close)
	v := &mutualTLS{T: t, dir: t.TempDir(), own: newTestCA(t)}
	for name, dir := range map[string]string{served: "own", "*.internal.example.com": "wild"} {
		if err := os.Mkdir(filepath.Join(v.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		selfSigned(t, filepath.Join(v.dir, dir), name, 1)
	}
	v.trust(v.own)
	v.builds = v.own.client("builds")
	v.write(oneClient, up.URL)
	cfg, err := v.load()
	if err != nil {
		t.Fatal(err)
	}
	if v.gateway, err = newGateway(cfg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	v.gateway.load = v.load
	t.Cleanup(v.close)
	endpoints := serveOnListeners(t, v.gateway)
	v.clients, v.operator = endpoints[0].listener.Addr().String(), endpoints[1].listener.Addr().String()
	return v
}

// trust writes the certificate of an authority into the CA files. The next reload applies it.
func (v *mutualTLS) trust(a *testCA) {
	v.Helper()
	text, err := os.ReadFile(a.file)
	if err != nil {
		v.Fatal(err)
	}
	for _, file := range caFiles() {
		write(v.T, filepath.Join(v.dir, file), string(text))
	}
}

// client issues a client certificate.
func (a *testCA) client(name string) tls.Certificate {
	a.Helper()
	certificate, key := a.issue(name)
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		a.Fatal(err)
	}
	return pair
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
func (v *mutualTLS) load() (*config.Config, error) {
	return config.Load(config.Source{Path: filepath.Join(v.dir, "weir.yaml"), Getenv: func(string) (string, bool) { return "", false }})
}

// visit describes the connection of a client.
type visit struct {
	tls     tls.Config // TLS settings of the client
	host    string
	records int // bytes in each record of the ClientHello; 0 sends one record
}

// withCertificate returns a visit with a client certificate, or without a certificate if c is nil.
func withCertificate(c *tls.Certificate) *visit {
	v := &visit{host: served}
	v.tls.ServerName, v.tls.InsecureSkipVerify = served, true
	if c != nil {
		v.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, nil }
	}
	return v
}

// send sends one request on a new connection. It returns the response, and whether the TLS session was resumed.
func (v *mutualTLS) send(one *visit) (response string, resumed bool) {
	v.Helper()
	raw, err := net.Dial("tcp", v.clients)
	if err != nil {
		v.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(time.Now().Add(time.Minute)) // real time, because the connection is TCP
	conn := tls.Client(&splitHello{Conn: raw, bytes: one.records}, &one.tls)
	if _, err := fmt.Fprintf(conn, "GET /user HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", one.host); err != nil {
		return "no connection", false
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "no connection", false
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		v.Fatal(err)
	}
	if resumed = conn.ConnectionState().DidResume; resp.StatusCode != http.StatusOK {
		return resp.Status, resumed
	}
	return string(body), resumed
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
	v, foreign := startMutualTLS(t), newTestCA(t)
	forged := foreign.client("builds")
	for _, c := range []struct {
		name, server, host string
		accepted           bool
	}{
		{"the name", served, served, true},
		{"the name in capitals", "WEIR.Example.COM", served, true},
		{"a name under a wildcard", "a.internal.example.com", "a.internal.example.com", true},
		{"configured name, another configured name as host", served, "a.internal.example.com", true},
		{"configured name, foreign host", served, "evil.test", true},
		{"no name", "", served, true},
		{"no name, and no host", "", "", true},
		{"the wildcard itself", "*.internal.example.com", served, false},
		{"name two levels below the wildcard", "a.b.internal.example.com", served, false},
		{"parent domain of the wildcard", "internal.example.com", served, false},
		{"an unknown name", "other.example.com", served, false},
		{"a name with a suffix", served + ".evil.test", served, false},
	} {
		for _, records := range []int{0, 1, 7, 100} {
			for client, w := range map[string]struct {
				certificate *tls.Certificate
				want        string
			}{"with its certificate": {&v.builds, "Bearer held"}, "without a certificate": {nil, "401 Unauthorized"}, "with a certificate of another authority": {&forged, "no connection"}} {
				one := withCertificate(w.certificate)
				one.tls.ServerName, one.host, one.records = c.server, c.host, records
				if !c.accepted {
					w.want = "no connection"
				}
				if got, _ := v.send(one); got != w.want {
					t.Errorf("%s, %s, in records of %d: %s, want %s", c.name, client, records, got, w.want)
				}
			}
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
				one := withCertificate(&v.builds)
				one.tls.MaxVersion, one.tls.ClientSessionCache = version, tls.NewLRUClientSessionCache(8)
				for _, want := range []bool{false, true} {
					if got, resumed := v.send(one); got != "Bearer held" || resumed != want {
						t.Fatalf("before the reload: %s, resumed: %t", got, resumed)
					}
				}
				v.write(c.clients, v.started.Upstream.URL)
				if c.newCA {
					v.trust(newTestCA(t))
				}
				if err := v.reload(); err != nil {
					t.Fatal(err)
				}
				if got, resumed := v.send(one); got != c.want {
					t.Errorf("%s, resumed: %t; want %s", got, resumed, c.want)
				}
			})
		}
	}
}

// TestUnreadableCAFileIsRejected checks that the start fails without the CA files, and that a
// reload keeps the previous authorities.
func TestUnreadableCAFileIsRejected(t *testing.T) {
	v, foreign := startMutualTLS(t), newTestCA(t)
	forged := foreign.client("builds")
	good, err := os.ReadFile(v.own.file)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(v.dir, "own", "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	for name, corrupt := range map[string]func(path string){
		"missing":      func(string) {},
		"empty":        func(path string) { write(t, path, "") },
		"truncated":    func(path string) { write(t, path, string(good[:len(good)/2])) },
		"a key":        func(path string) { write(t, path, string(key)) },
		"a folder":     func(path string) { _ = os.Mkdir(path, 0o700) },
		"a dead link":  func(path string) { _ = os.Symlink("nowhere", path) },
		"no PEM":       func(path string) { write(t, path, "authorities") },
		"another form": func(path string) { write(t, path, strings.ReplaceAll(string(good), "CERTIFICATE", "X509 CRL")) },
	} {
		for _, file := range caFiles() {
			name, path := file+": "+name, filepath.Join(v.dir, file)
			read, err := v.load() // valid configuration
			if err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			corrupt(path)
			if _, err := v.load(); err == nil {
				t.Errorf("%s: the configuration was accepted", name)
			}
			if g, err := newGateway(read, slog.New(slog.DiscardHandler)); err == nil {
				g.close()
				t.Errorf("%s: the start succeeded with an old configuration", name)
			}
			if err := v.reload(); err == nil {
				t.Errorf("%s: a reload succeeded", name)
			}
			if err := reloadWith(v.gateway, read); err == nil {
				t.Errorf("%s: a reload succeeded with an old configuration", name)
			}
			for client, c := range map[string]struct {
				certificate *tls.Certificate
				want        string
			}{"known client": {&v.builds, "Bearer held"}, "client without a certificate": {nil, "401 Unauthorized"}, "client of another authority": {&forged, "no connection"}} {
				if got, _ := v.send(withCertificate(c.certificate)); got != c.want {
					t.Errorf("%s: %s: %s, want %s", name, client, got, c.want)
				}
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, string(good))
		}
	}
}

// TestOpenOperatorConnectionFollowsReload checks that a reload revokes access on an open
// connection.
func TestOpenOperatorConnectionFollowsReload(t *testing.T) {
	v := startMutualTLS(t)
	ops := v.own.client("ops")
	conn, err := tls.Dial("tcp", v.operator, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{ops}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	send := func() int {
		t.Helper()
		_, _ = io.WriteString(conn, "GET /api/v1/config HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	if got := send(); got != http.StatusOK {
		t.Fatalf("before the reload: %d, want 200", got)
	}
	v.trust(newTestCA(t))
	if err := v.reload(); err != nil {
		t.Fatal(err)
	}
	if got := send(); got != http.StatusUnauthorized {
		t.Errorf("after the reload: %d, want 401", got)
	}
}
