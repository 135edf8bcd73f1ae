package connect

import (
	"bufio"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/proxy/inbound"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); testservers.NoError(t, err) }
func stopIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.StopIf(t, c, f, a...) }

// testProxy is a proxy on a loopback listener. It serves the host api.test, and needs no key.
type testProxy struct {
	*testing.T
	*Proxy
	server      *httptest.Server
	connections inbound.Connections
	dialed      atomic.Pointer[string]
}

func startProxy(t *testing.T, c Config) *testProxy {
	p := &testProxy{T: t}
	c.Serves, c.Log = func(name string) bool { return name == "api.test" }, slog.New(slog.DiscardHandler)
	if c.Authenticate == nil {
		c.Authenticate = func(*http.Request) (string, func(http.Header), error) { return "builds", nil, nil }
	}
	p.Proxy = New(func() Config { return c })
	p.server = httptest.NewUnstartedServer(p)
	p.server.Listener = p.connections.Listener(p.server.Listener, time.Minute, c.Log)
	p.connections.Observe(p.server.Config)
	p.server.Start()
	t.Cleanup(p.server.Close)
	return p
}

// addressOf returns a lookup that returns one address for all names.
func addressOf(text string) func(context.Context, string) ([]netip.Addr, error) {
	return func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr(text)}, nil
	}
}

// dialTo makes the proxy connect to an address, whatever the target is. All names have one public address.
func (p *testProxy) dialTo(address string) {
	p.lookup = addressOf("8.8.8.8")
	p.dial = func(ctx context.Context, network, target string) (net.Conn, error) {
		p.dialed.Store(&target)
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
}

// connect sends a CONNECT request, and returns the connection with the status of the response.
func (p *testProxy) connect(target, more string) (c net.Conn, buffered *bufio.Reader, status int) {
	p.Helper()
	c = testservers.Must(net.Dial("tcp", p.server.Listener.Addr().String()))
	p.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second)) // real time, because the connection is TCP
	_, _ = fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n%s", target, target, more)
	buffered = bufio.NewReader(c)
	resp, err := http.ReadResponse(buffered, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return c, buffered, 0
	}
	return c, buffered, resp.StatusCode
}

// tunnelTo opens a tunnel to a target.
func (p *testProxy) tunnelTo(target string) (*net.TCPConn, *bufio.Reader) {
	p.Helper()
	c, buffered, status := p.connect(target, "")
	stopIf(p, status != http.StatusOK, "got status %d", status)
	return c.(*net.TCPConn), buffered
}

// startEcho starts a proxy that tunnels to a server that returns all bytes.
func startEcho(t *testing.T) *testProxy {
	p := startProxy(t, Config{TunnelOthers: true})
	p.dialTo(echo(t))
	return p
}

// echo starts a server that returns all bytes after the client has ended its direction.
func echo(t *testing.T) (address string) {
	l := testservers.Must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			text, _ := io.ReadAll(c)
			_, _ = c.Write(text)
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

func TestTunnelCopiesBytesInBothDirections(t *testing.T) {
	p := startEcho(t)
	c, buffered := p.tunnelTo("other.test:443")
	text := clientHello(t, "other.test") + strings.Repeat("any bytes\x00", 100_000)
	go func() {
		_, _ = io.WriteString(c, text)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(buffered)
	failIf(t, err != nil || string(got) != text, "got %d bytes back, %v, want %d", len(got), err, len(text))
	target := p.dialed.Load()
	failIf(t, target == nil || *target != "8.8.8.8:443", "the proxy connected to %v", target)
}

func TestConnectIsRefused(t *testing.T) {
	unknown := func(*http.Request) (string, func(http.Header), error) { return "", nil, errors.New("unknown key") }
	for _, c := range []struct {
		name, target string
		config       Config
		want         int
	}{
		{"without a key", "api.test:443", Config{Authenticate: unknown}, http.StatusProxyAuthRequired},
		{"to another host", "other.test:443", Config{}, http.StatusForbidden},
		{"to a host of repositories, with a scope", "other.test:443", Config{TunnelOthers: true, Scoped: func(client, name string) bool { return client == "builds" && name == "other.test" }}, http.StatusForbidden},
		{"to another port", "api.test:22", Config{TunnelOthers: true}, http.StatusForbidden},
		{"without a port", "api.test", Config{}, http.StatusForbidden},
		{"to a name that cannot be resolved", "other.invalid:443", Config{TunnelOthers: true}, http.StatusBadGateway},
		{"to loopback", "127.0.0.1:443", Config{TunnelOthers: true}, http.StatusForbidden},
		{"to a name of loopback", "localhost:443", Config{TunnelOthers: true}, http.StatusForbidden},
		{"to a mapped address of loopback", "[::ffff:127.0.0.1]:443", Config{TunnelOthers: true}, http.StatusForbidden},
		{"to this host", "0.0.0.0:443", Config{TunnelOthers: true}, http.StatusForbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, got := startProxy(t, c.config).connect(c.target, "")
			failIf(t, got != c.want, "got status %d, want %d", got, c.want)
		})
	}
}

func TestPlainRequestIsRefused(t *testing.T) {
	p := startProxy(t, Config{TunnelOthers: true})
	resp := testservers.Must(http.Get(p.server.URL))
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	failIf(t, resp.StatusCode != http.StatusMethodNotAllowed || !strings.Contains(string(text), "HTTPS_PROXY"), "got status %d: %s", resp.StatusCode, text)
}

// TestTunnelsLeadToPublicAddressesOnly checks the addresses to which a name may lead. A name that resolves to another address
// at each lookup meets the same check, because the proxy connects to the address that it has checked.
func TestTunnelsLeadToPublicAddressesOnly(t *testing.T) {
	for _, text := range strings.Fields(`
		127.0.0.1 127.9.9.9 ::1 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 fe80::1 fe80::1%eth0 fc00::1 fec0::1
		100.64.0.1 0.0.0.0 0.1.2.3 :: 224.0.0.1 ff02::1 255.255.255.255 240.0.0.1 198.18.0.1 192.0.0.8 192.0.2.1 198.51.100.1 203.0.113.1
		192.88.99.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:7f00:1 ::ffff:0:8.8.8.8 64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::1 2002:7f00:1:: 2001:0:1:: ::7f00:1 ::808:808
		100::1 100:0:0:1::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 3fff::1 5f00::1 4000::1 8000::1 f000::1
	`) {
		p := New(nil)
		p.lookup = addressOf(text)
		p.dial = func(_ context.Context, _, address string) (net.Conn, error) {
			t.Errorf("%s: the proxy connects to %s", text, address)
			return nil, io.EOF
		}
		_, err := p.dialOther(t.Context(), Config{}, "other.test")
		failIf(t, !errors.Is(err, errPrivate), "%s: got %v", text, err)
	}
	for _, text := range []string{"140.82.121.6", "8.8.8.8", "2606:50c0:8000::154", "::ffff:8.8.8.8", "2001:4860:4860::8888", "2a00::1"} {
		failIf(t, !isPublic(netip.MustParseAddr(text)), "%s is not public", text)
	}
}

// TestTunnelsNeverLeadToTheAPI resolves names to an address of the API, beside other addresses and after the name server has
// stopped to return it.
func TestTunnelsNeverLeadToTheAPI(t *testing.T) {
	names := map[string][]string{
		"api.example": {"140.82.121.6", "2606:50c0::1"}, "alias.test": {"140.82.121.6"}, "mixed.test": {"8.8.8.8", "140.82.121.6"}, "mapped.test": {"::ffff:140.82.121.6"},
		"six.test": {"2606:50c0::1"}, "literal.test": {"9.9.9.9"}, "other.test": {"8.8.8.8", "8.8.4.4"}, "private.test": {"10.0.0.1", "8.8.8.8"},
	}
	p := New(nil)
	var mu sync.Mutex
	var dialed []string
	p.lookup = func(_ context.Context, name string) ([]netip.Addr, error) {
		var list []netip.Addr
		for _, text := range names[name] {
			list = append(list, netip.MustParseAddr(text))
		}
		if list == nil {
			return nil, errors.New("no such host")
		}
		return list, nil
	}
	p.dial = func(_ context.Context, _, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		dialed = append(dialed, address)
		return nil, io.EOF
	}
	c := Config{APIHosts: []string{"api.example", "9.9.9.9"}}
	check := func() {
		t.Helper()
		for _, name := range []string{"api.example", "alias.test", "mixed.test", "mapped.test", "six.test", "literal.test"} {
			_, err := p.dialOther(t.Context(), c, name)
			failIf(t, !errors.Is(err, errAPI), "%s: got %v", name, err)
		}
	}
	check()
	names["api.example"] = []string{"140.82.121.5"}
	check()
	failIf(t, len(dialed) > 0, "the proxy connected to %v", dialed)
	for name, want := range map[string]string{"other.test": "[8.8.8.8:443 8.8.4.4:443]", "private.test": "[8.8.8.8:443]"} {
		dialed = nil
		_, err := p.dialOther(t.Context(), c, name)
		failIf(t, !errors.Is(err, io.EOF) || fmt.Sprint(dialed) != want, "%s: got %v, connections to %v", name, err, dialed)
	}
	delete(names, "api.example")
	_, err := p.dialOther(t.Context(), c, "other.test")
	failIf(t, err == nil || errors.Is(err, io.EOF), "the API cannot be resolved: got %v", err)
}

// clientHello returns the first message of a TLS handshake for a name.
func clientHello(t testing.TB, name string) string {
	t.Helper()
	return helloOf(t, &tls.Config{ServerName: name, InsecureSkipVerify: true})
}

func helloOf(t testing.TB, config *tls.Config) string {
	t.Helper()
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, config).Handshake()
		_ = client.Close()
	}()
	buffer := make([]byte, 16<<10)
	n, err := server.Read(buffer)
	noError(t, err)
	_ = server.Close()
	return string(buffer[:n])
}

// encryptedHello returns the first message of a TLS handshake with the encrypted name api.test and an outer name.
func encryptedHello(t testing.TB, outer string) string {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	noError(t, err)
	public := key.PublicKey().Bytes()
	contents := append([]byte{1, 0, 0x20, 0, byte(len(public))}, public...) // id, X25519, key
	contents = append(contents, 0, 4, 0, 1, 0, 1, 32, byte(len(outer)))     // HKDF-SHA256 with AES-128-GCM, longest name
	contents = append(append(contents, outer...), 0, 0)                     // no extensions
	config := append([]byte{0xfe, 0x0d, 0, byte(len(contents))}, contents...)
	list := append([]byte{0, byte(len(config))}, config...)
	return helloOf(t, &tls.Config{ServerName: "api.test", EncryptedClientHelloConfigList: list, MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool()})
}

// TestTunnelBeginsWithAHandshakeForItsTarget sends first messages. The upstream gets bytes only after a handshake for the
// name of the CONNECT, in one piece or in several.
func TestTunnelBeginsWithAHandshakeForItsTarget(t *testing.T) {
	for name, c := range map[string]struct {
		first  string
		passes bool
	}{
		"the target":                      {clientHello(t, "other.test"), true},
		"the target in another case":      {clientHello(t, "OTHER.test"), true},
		"the API":                         {clientHello(t, "api.test"), false},
		"a name of the target":            {clientHello(t, "x.other.test"), false},
		"an encrypted name":               {encryptedHello(t, "public.test"), false},
		"an encrypted name at the target": {encryptedHello(t, "other.test"), true},
		"no name":                         {clientHello(t, ""), false},
		"an address":                      {clientHello(t, "8.8.8.8"), false},
		"plain HTTP":                      {"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n", false},
		"HTTP/2":                          {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false},
		"SSH":                             {"SSH-2.0-OpenSSH_9.9\r\n", false},
		"a cut handshake":                 {clientHello(t, "other.test")[:40], false},
		"nothing":                         {"", false},
		"an old handshake":                {"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10" + strings.Repeat("x", 40), false},
		"many small records":              {strings.Repeat("\x16\x03\x01\x00\x01\x01", 30_000), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := startEcho(t)
			conn, buffered := p.tunnelTo("Other.Test:443")
			go func() {
				for part := range slices.Chunk([]byte(c.first), 100+len(c.first)/10) {
					_, _ = conn.Write(part)
				}
				_ = conn.CloseWrite()
			}()
			want := ""
			if c.passes {
				want = c.first
			}
			got, _ := io.ReadAll(buffered)
			failIf(t, string(got) != want, "the upstream got %d bytes of %d", len(got), len(c.first))
		})
	}
}

// TestConnectToAnAddressIsRefused checks the spellings of addresses that resolvers accept.
func TestConnectToAnAddressIsRefused(t *testing.T) {
	p := startEcho(t)
	for _, target := range strings.Fields(`
		140.82.121.6 140.82.121.6. 2354215174 0x8c527906 0X8C527906 0214.0122.0171.06 0x8c.0x52.0x79.0x6 140.5404934 140.82.31238 127.1 0 [2606:50c0::1] [::ffff:140.82.121.6]
		[::ffff:8c52:7906] [fe80::1%25eth0] 1.2.3.4%25x 140.82.121.6%2e other.test.. .other.test other..test -other.test oth%65r.test other.test%00 a@b.test 140.82.121.0x6
	`) {
		_, _, status := p.connect(target+":443", "")
		failIf(t, status != http.StatusForbidden && status != http.StatusBadRequest, "%s: got status %d", target, status)
	}
	if target := p.dialed.Load(); target != nil {
		t.Errorf("the proxy connected to %s", *target)
	}
	for _, target := range []string{"other.test:443", "other.test.:443", "xn--bcher-kva.example:443", "1and1.example:443", "_x.y-z.example:443", "3com:443"} {
		_, _, status := p.connect(target, "")
		failIf(t, status != http.StatusOK, "%s: got status %d", target, status)
	}
}

// FuzzConnectTarget checks with any target that the proxy connects only to port 443 of hosts that it does not serve, and
// only if tunnels are permitted.
func FuzzConnectTarget(f *testing.F) {
	for _, target := range []string{
		"api.test:443", "API.TEST.:443", "other.test:443", "other.test:22", "other.test", "[::1]:443", "[fe80::1%25eth0]:443", "a:b:443", "user@api.test:443", "api.test:0443",
		"api.test:443:443", "", ":443", "\x00:443", "api.test%00:443", "%61pi.test:443",
	} {
		f.Add(target, true)
		f.Add(target, false)
	}
	f.Fuzz(func(t *testing.T, target string, others bool) {
		p := New(func() Config {
			return Config{
				Serves:       func(name string) bool { return name == "api.test" },
				Authenticate: func(*http.Request) (string, func(http.Header), error) { return "", nil, nil },
				TunnelOthers: others, Log: slog.New(slog.DiscardHandler),
			}
		})
		p.lookup = func(ctx context.Context, name string) ([]netip.Addr, error) {
			failIf(t, !others || name == "api.test" || !isName(name), "the proxy resolves %q for %q", name, target)
			return addressOf("8.8.8.8")(ctx, name)
		}
		p.dial = func(_ context.Context, _, address string) (net.Conn, error) {
			failIf(t, address != "8.8.8.8:443", "the proxy connects to %q for %q", address, target)
			return nil, errors.New("no network")
		}
		w := httptest.NewRecorder()
		p.ServeHTTP(w, &http.Request{Method: http.MethodConnect, Host: target, Header: http.Header{}})
		failIf(t, w.Code == http.StatusOK && !strings.HasPrefix(strings.ToLower(target), "api.test"), "%q: got status %d", target, w.Code)
	})
}

// TestConnectionToServedHostIsPassedOn checks that the connection carries the target and the credential of its CONNECT.
func TestConnectionToServedHostIsPassedOn(t *testing.T) {
	p := startProxy(t, Config{Authenticate: func(*http.Request) (string, func(http.Header), error) {
		return "builds", func(h http.Header) { h.Set("Authorization", "Bearer key") }, nil
	}})
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := p.Terminated().Accept()
		if err == nil {
			accepted <- c
		}
	}()
	c, _ := p.tunnelTo("API.test:443")
	served := <-accepted
	tunnel, ok := inbound.TunnelOfConn(served)
	h := http.Header{}
	stopIf(t, !ok || tunnel.Host != "api.test" || tunnel.Authorize == nil, "got tunnel %+v", tunnel)
	tunnel.Authorize(h)
	failIf(t, h.Get("Authorization") != "Bearer key", "got %v", h)
	_, _ = io.WriteString(c, "hello")
	text := make([]byte, 5)
	_, err := io.ReadFull(served, text)
	failIf(t, err != nil || string(text) != "hello", "got %q, %v", text, err)
}

// TestEarlyDataIsRefused checks that no bytes cross from the CONNECT request into the tunnel: a program that sends them
// early may frame the request differently.
func TestEarlyDataIsRefused(t *testing.T) {
	p := startProxy(t, Config{})
	_, _, status := p.connect("api.test:443", "GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
	failIf(t, status != 0, "got status %d, want a closed connection", status)
}

// TestTunnelEndsWithTheGateway checks that the end of the server's requests closes an open tunnel.
func TestTunnelEndsWithTheGateway(t *testing.T) {
	p := startEcho(t)
	ctx, stop := context.WithCancel(t.Context())
	p.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.ServeHTTP(w, r.WithContext(ctx)) })
	_, buffered := p.tunnelTo("other.test:443")
	stop()
	_, err := buffered.ReadByte()
	failIf(t, err == nil, "the tunnel is still open")
}
