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

// vouched is a gateway to which clients and the operator come by certificate, as users
// run it. Who is let in is told what it pays with.
type vouched struct {
	*testing.T
	*gateway
	dir               string
	own               *authority
	clients, operator string // addresses
	builds            tls.Certificate
}

// oneClient is the part of the configuration that says who is known by what.
const oneClient = `clients: [{name: builds, certificate: "subject:CN=builds", credentials: [ci]}]`

// authorityFiles are those of tls.client_ca and admin.tls.client_ca.
func authorityFiles() []string { return []string{"ca.pem", "operators.pem"} }

func newVouched(t *testing.T) *vouched {
	t.Helper()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
	}))
	t.Cleanup(up.Close)
	v := &vouched{T: t, dir: t.TempDir(), own: newAuthority(t)}
	for name, dir := range map[string]string{served: "own", "*.internal.example.com": "wild"} {
		if err := os.Mkdir(filepath.Join(v.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		selfSigned(t, filepath.Join(v.dir, dir), name, 1)
	}
	v.vouch(v.own)
	v.builds = v.own.client("builds")
	v.write(oneClient, up.URL)
	cfg, err := v.load()
	if err != nil {
		t.Fatal(err)
	}
	if v.gateway, err = newGateway(cfg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.close)
	endpoints := onListeners(t, v.gateway)
	v.clients, v.operator = endpoints[0].listener.Addr().String(), endpoints[1].listener.Addr().String()
	return v
}

// vouch makes an authority the one that is configured, from the next reload on.
func (v *vouched) vouch(a *authority) {
	v.Helper()
	text, err := os.ReadFile(a.file)
	if err != nil {
		v.Fatal(err)
	}
	for _, file := range authorityFiles() {
		write(v.T, filepath.Join(v.dir, file), string(text))
	}
}

// client is a certificate by which a client or an operator comes.
func (a *authority) client(name string) tls.Certificate {
	a.Helper()
	certificate, key := a.issue(name)
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		a.Fatal(err)
	}
	return pair
}

// write writes the configuration.
func (v *vouched) write(clients, upstream string) {
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

func (v *vouched) load() (*config.Config, error) {
	return config.Load(config.Source{Path: filepath.Join(v.dir, "weir.yaml"), Getenv: func(string) (string, bool) { return "", false }})
}

// reload takes up what is written.
func (v *vouched) reload() error { return v.update(v.load()) }

// visit is how a client comes.
type visit struct {
	tls     tls.Config // what it says and shows
	host    string
	records int // bytes in a record of its ClientHello; 0 for all
}

// by is a visit with a certificate; nil for none.
func by(c *tls.Certificate) *visit {
	v := &visit{host: served}
	v.tls.ServerName, v.tls.InsecureSkipVerify = served, true
	if c != nil {
		v.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, nil }
	}
	return v
}

// ask asks once on a connection of its own, and returns what it is told, and whether
// the session was resumed.
func (v *vouched) ask(one *visit) (told string, resumed bool) {
	v.Helper()
	raw, err := net.Dial("tcp", v.clients)
	if err != nil {
		v.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(time.Now().Add(time.Minute)) // it is TCP
	conn := tls.Client(&cut{Conn: raw, bytes: one.records}, &one.tls)
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

// cut sends the first record, a ClientHello, as many: each of so many bytes, in a
// packet of its own.
type cut struct {
	net.Conn
	bytes int
	done  bool
}

func (c *cut) Write(p []byte) (int, error) {
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

// TestAttack50NoNameIsWithoutCertificates: whatever name a client asks for, in whatever
// pieces, and whatever it names afterwards, it must show its certificate.
func TestAttack50NoNameIsWithoutCertificates(t *testing.T) {
	v, foreign := newVouched(t), newAuthority(t)
	forged := foreign.client("builds")
	for _, c := range []struct {
		name, server, host string
		answered           bool
	}{
		{"the name", served, served, true},
		{"in capitals", "WEIR.Example.COM", served, true},
		{"a name under a wildcard", "a.internal.example.com", "a.internal.example.com", true},
		{"one name, and another as host", served, "a.internal.example.com", true},
		{"one name, and a foreign one as host", served, "evil.test", true},
		{"no name", "", served, true},
		{"no name, and no host", "", "", true},
		{"the wildcard itself", "*.internal.example.com", served, false},
		{"a name two below the wildcard", "a.b.internal.example.com", served, false},
		{"the name above the wildcard", "internal.example.com", served, false},
		{"a name of nobody", "other.example.com", served, false},
		{"a name that goes on", served + ".evil.test", served, false},
	} {
		for _, records := range []int{0, 1, 7, 100} {
			for who, w := range map[string]struct {
				shows *tls.Certificate
				want  string
			}{"with its certificate": {&v.builds, "Bearer held"}, "with none": {nil, "401 Unauthorized"}, "with one that another has signed": {&forged, "no connection"}} {
				one := by(w.shows)
				one.tls.ServerName, one.host, one.records = c.server, c.host, records
				if !c.answered {
					w.want = "no connection"
				}
				if got, _ := v.ask(one); got != w.want {
					t.Errorf("%s, %s, in records of %d: %s, want %s", c.name, who, records, got, w.want)
				}
			}
		}
	}
}

// TestAttack50ASessionIsNoBetterThanTheConfiguration: who was let in before a reload
// does not come back by the session of that time.
func TestAttack50ASessionIsNoBetterThanTheConfiguration(t *testing.T) {
	other := fmt.Sprintf("sha256:%064d", 1)
	for _, c := range []struct {
		name, clients string
		vouches       bool // another authority
		want          string
	}{
		{"nothing has changed", oneClient, false, "Bearer held"},
		{"another authority", oneClient, true, "no connection"},
		{"another client", strings.ReplaceAll(oneClient, "CN=builds", "CN=deploys"), false, "401 Unauthorized"},
		{"no client by certificate", fmt.Sprintf(`clients: [{name: builds, key: %q, credentials: [ci]}]`, other), false, "401 Unauthorized"},
		{"fingerprints alone, and another authority", fmt.Sprintf(`clients: [{name: builds, certificate: %q, credentials: [ci]}]`, other), true, "no connection"},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(c.name+", "+tls.VersionName(version), func(t *testing.T) {
				v := newVouched(t)
				one := by(&v.builds)
				one.tls.MaxVersion, one.tls.ClientSessionCache = version, tls.NewLRUClientSessionCache(8)
				for _, want := range []bool{false, true} {
					if got, resumed := v.ask(one); got != "Bearer held" || resumed != want {
						t.Fatalf("before: %s, resumed: %t", got, resumed)
					}
				}
				v.write(c.clients, v.started.Upstream.URL)
				if c.vouches {
					v.vouch(newAuthority(t))
				}
				if err := v.reload(); err != nil {
					t.Fatal(err)
				}
				if got, resumed := v.ask(one); got != c.want {
					t.Errorf("%s, resumed: %t; want %s", got, resumed, c.want)
				}
			})
		}
	}
}

// TestAttack50AuthoritiesThatCannotBeReadOpenNothing: at the start there is no gateway
// without them; a reload leaves those that there are.
func TestAttack50AuthoritiesThatCannotBeReadOpenNothing(t *testing.T) {
	v, foreign := newVouched(t), newAuthority(t)
	forged := foreign.client("builds")
	good, err := os.ReadFile(v.own.file)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(v.dir, "own", "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(path string){
		"missing":      func(string) {},
		"empty":        func(path string) { write(t, path, "") },
		"cut off":      func(path string) { write(t, path, string(good[:len(good)/2])) },
		"a key":        func(path string) { write(t, path, string(key)) },
		"a folder":     func(path string) { _ = os.Mkdir(path, 0o700) },
		"a dead link":  func(path string) { _ = os.Symlink("nowhere", path) },
		"no PEM":       func(path string) { write(t, path, "authorities") },
		"another form": func(path string) { write(t, path, strings.ReplaceAll(string(good), "CERTIFICATE", "X509 CRL")) },
	} {
		for _, file := range authorityFiles() {
			name, path := file+": "+name, filepath.Join(v.dir, file)
			read, err := v.load() // before it is spoilt
			if err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			spoil(path)
			if _, err := v.load(); err == nil {
				t.Errorf("%s: the configuration is valid", name)
			}
			if g, err := newGateway(read, slog.New(slog.DiscardHandler)); err == nil {
				g.close()
				t.Errorf("%s: a gateway starts that has read it too late", name)
			}
			if err := v.reload(); err == nil {
				t.Errorf("%s: a reload takes it", name)
			}
			if err := v.update(read, nil); err == nil {
				t.Errorf("%s: a reload takes it that has read it too late", name)
			}
			for who, c := range map[string]struct {
				shows *tls.Certificate
				want  string
			}{"who is known": {&v.builds, "Bearer held"}, "who shows none": {nil, "401 Unauthorized"}, "a stranger": {&forged, "no connection"}} {
				if got, _ := v.ask(by(c.shows)); got != c.want {
					t.Errorf("%s: %s: %s, want %s", name, who, got, c.want)
				}
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, string(good))
		}
	}
}

// TestAttack50AnOperatorsConnectionIsNoBetterThanTheConfiguration: a reload takes out
// whom it no longer lets in, on the connection that is open.
func TestAttack50AnOperatorsConnectionIsNoBetterThanTheConfiguration(t *testing.T) {
	v := newVouched(t)
	ops := v.own.client("ops")
	conn, err := tls.Dial("tcp", v.operator, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{ops}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	ask := func() int {
		t.Helper()
		_, _ = io.WriteString(conn, "GET /api/v1/config HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	if got := ask(); got != http.StatusOK {
		t.Fatalf("before: %d", got)
	}
	v.vouch(newAuthority(t))
	if err := v.reload(); err != nil {
		t.Fatal(err)
	}
	if got := ask(); got != http.StatusUnauthorized {
		t.Errorf("after: %d", got)
	}
}
