package connect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/proxy/inbound"
)

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

// dialTo makes the proxy connect to an address, whatever the target is.
func (p *testProxy) dialTo(address string) {
	p.dial = func(ctx context.Context, network, target string) (net.Conn, error) {
		p.dialed.Store(&target)
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
}

// connect sends a CONNECT request, and returns the connection with the status of the response.
func (p *testProxy) connect(target, more string) (c net.Conn, buffered *bufio.Reader, status int) {
	p.Helper()
	c, err := net.Dial("tcp", p.server.Listener.Addr().String())
	if err != nil {
		p.Fatal(err)
	}
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

// echo starts a server that returns all bytes after the client has ended its direction.
func echo(t *testing.T) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
	p := startProxy(t, Config{TunnelOthers: true})
	p.dialTo(echo(t))
	c, buffered, status := p.connect("other.test:443", "")
	if status != http.StatusOK {
		t.Fatalf("got status %d", status)
	}
	text := strings.Repeat("any bytes\x00", 100_000)
	go func() {
		_, _ = io.WriteString(c, text)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	if got, err := io.ReadAll(buffered); err != nil || string(got) != text {
		t.Errorf("got %d bytes back, %v, want %d", len(got), err, len(text))
	}
	if target := p.dialed.Load(); target == nil || *target != "other.test:443" {
		t.Errorf("the proxy connected to %v", target)
	}
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
		{"to another port", "api.test:22", Config{TunnelOthers: true}, http.StatusForbidden},
		{"without a port", "api.test", Config{}, http.StatusForbidden},
		{"to a name that cannot be resolved", "other.invalid:443", Config{TunnelOthers: true}, http.StatusBadGateway},
		{"to loopback", "127.0.0.1:443", Config{TunnelOthers: true}, http.StatusForbidden},
		{"to a name of loopback", "localhost:443", Config{TunnelOthers: true}, http.StatusForbidden},
		{"to a mapped address of loopback", "[::ffff:127.0.0.1]:443", Config{TunnelOthers: true}, http.StatusForbidden},
		{"to this host", "0.0.0.0:443", Config{TunnelOthers: true}, http.StatusForbidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, _, got := startProxy(t, c.config).connect(c.target, ""); got != c.want {
				t.Errorf("got status %d, want %d", got, c.want)
			}
		})
	}
}

func TestPlainRequestIsRefused(t *testing.T) {
	p := startProxy(t, Config{TunnelOthers: true})
	resp, err := http.Get(p.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusMethodNotAllowed || !strings.Contains(string(text), "HTTPS_PROXY") {
		t.Errorf("got status %d: %s", resp.StatusCode, text)
	}
}

// TestDialerRefusesPrivateAddresses checks the addresses after the resolution of names. A name that resolves to another
// address at each lookup meets the same check, because the dialer checks the address that it connects to.
func TestDialerRefusesPrivateAddresses(t *testing.T) {
	for _, address := range []string{
		"127.0.0.1", "127.9.9.9", "::1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "fe80::1", "fe80::1%eth0", "fc00::1", "fec0::1",
		"100.64.0.1", "0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "192.0.0.8",
		"::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:1::", "::7f00:1",
	} {
		if err := refusePrivate("tcp", net.JoinHostPort(address, "443"), nil); !errors.Is(err, errPrivate) {
			t.Errorf("%s: got %v", address, err)
		}
	}
	for _, address := range []string{"140.82.121.6", "8.8.8.8", "2606:50c0:8000::154", "::ffff:8.8.8.8"} {
		if err := refusePrivate("tcp", net.JoinHostPort(address, "443"), nil); err != nil {
			t.Errorf("%s: %v", address, err)
		}
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
		p.dial = func(_ context.Context, _, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			name := strings.TrimSuffix(strings.ToLower(host), ".")
			if !others || err == nil && (port != "443" || name == "api.test") {
				t.Errorf("the proxy connects to %q for %q", address, target)
			}
			return nil, errors.New("no network")
		}
		w := httptest.NewRecorder()
		p.ServeHTTP(w, &http.Request{Method: http.MethodConnect, Host: target, Header: http.Header{}})
		if w.Code == http.StatusOK && !strings.HasPrefix(strings.ToLower(target), "api.test") {
			t.Errorf("%q: got status %d", target, w.Code)
		}
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
	c, _, status := p.connect("API.test:443", "")
	if status != http.StatusOK {
		t.Fatalf("got status %d", status)
	}
	served := <-accepted
	tunnel, ok := inbound.TunnelOfConn(served)
	h := http.Header{}
	if !ok || tunnel.Host != "api.test" || tunnel.Authorize == nil {
		t.Fatalf("got tunnel %+v", tunnel)
	}
	if tunnel.Authorize(h); h.Get("Authorization") != "Bearer key" {
		t.Errorf("got %v", h)
	}
	_, _ = io.WriteString(c, "hello")
	text := make([]byte, 5)
	if _, err := io.ReadFull(served, text); err != nil || string(text) != "hello" {
		t.Errorf("got %q, %v", text, err)
	}
}

// TestEarlyDataIsRefused checks that no bytes cross from the CONNECT request into the tunnel: a program that sends them
// early may frame the request differently.
func TestEarlyDataIsRefused(t *testing.T) {
	p := startProxy(t, Config{})
	if _, _, status := p.connect("api.test:443", "GET / HTTP/1.1\r\nHost: api.test\r\n\r\n"); status != 0 {
		t.Errorf("got status %d, want a closed connection", status)
	}
}

// TestTunnelEndsWithTheGateway checks that the end of the server's requests closes an open tunnel.
func TestTunnelEndsWithTheGateway(t *testing.T) {
	p := startProxy(t, Config{TunnelOthers: true})
	p.dialTo(echo(t))
	ctx, stop := context.WithCancel(t.Context())
	p.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.ServeHTTP(w, r.WithContext(ctx)) })
	_, buffered, status := p.connect("other.test:443", "")
	if status != http.StatusOK {
		t.Fatalf("got status %d", status)
	}
	stop()
	if _, err := buffered.ReadByte(); err == nil {
		t.Error("the tunnel is still open")
	}
}
