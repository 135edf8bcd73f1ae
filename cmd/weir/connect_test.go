package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/authority"
	"github.com/weirgate/weir/internal/config"
)

// forwardProxy is the forward proxy of a gateway with further hosts.
type forwardProxy struct {
	*hostsWorld
	address string
	roots   *x509.CertPool
}

func startForwardProxy(t *testing.T) *forwardProxy {
	t.Helper()
	p := &forwardProxy{hostsWorld: startHosts(t), roots: x509.NewCertPool()}
	next := *p.gateway.current.Load().config
	names := []string{"api.test"}
	next.Upstream.URL = "http://" + names[0] // a name, because the authority signs no addresses
	for _, h := range next.Hosts {
		names = append(names, h.Name)
	}
	certificate, key, err := authority.Create(names, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	next.Proxy.CA.Certificate, next.Proxy.CA.Key = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	for file, text := range map[string][]byte{next.Proxy.CA.Certificate: certificate, next.Proxy.CA.Key: key} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.roots.AppendCertsFromPEM(certificate)
	next.Proxy.Listen = "127.0.0.1:0"
	p.gateway.started.Proxy.Listen = next.Proxy.Listen // as if the process had started with the proxy
	p.gateway.applying.Lock()
	err = p.gateway.apply(&next)
	p.gateway.applying.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	endpoints, err := p.gateway.listenProxy(&next)
	if err != nil {
		t.Fatal(err)
	}
	p.address = endpoints[0].listener.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveAll(ctx, slog.New(slog.DiscardHandler), noDrain, endpoints...) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return p
}

// client returns a client that sends its requests through the proxy with a key.
func (p *forwardProxy) client() *http.Client {
	proxy := &url.URL{Scheme: "http", User: url.UserPassword("any", "weir_key"), Host: p.address}
	transport := &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: p.roots}, ForceAttemptHTTP2: true}
	p.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// tunnel opens a tunnel to a host.
func (p *forwardProxy) tunnel(host string) net.Conn {
	p.Helper()
	c, err := net.Dial("tcp", p.address)
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(5 * time.Second)) // real time, because the connection is TCP
	_, _ = fmt.Fprintf(c, "CONNECT %s:443 HTTP/1.1\r\nHost: %s\r\nProxy-Authorization: Bearer weir_key\r\n\r\n", host, host)
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	if err != nil || resp.StatusCode != http.StatusOK {
		p.Fatalf("CONNECT %s: %v, %v", host, resp, err)
	}
	return c
}

// TestTunnelReplacesTheCredential checks that the key of the proxy identifies the client, and that neither the key nor
// the program's own token is forwarded.
func TestTunnelReplacesTheCredential(t *testing.T) {
	p := startForwardProxy(t)
	for _, request := range []struct{ host, want string }{
		{"raw.test", "/a/b Bearer tok-held"}, {"storage.test", "/a/b"},
	} {
		r, _ := http.NewRequest("GET", "https://"+request.host+"/a/b", nil)
		r.Header.Set("Authorization", "Bearer tok-of-the-program")
		resp, err := p.client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
			t.Errorf("%s: got %s over %s", request.host, resp.Status, resp.Proto)
		}
		p.want(request.host[:len(request.host)-len(".test")], request.want)
	}
}

// TestTunnelIsOnlyForItsTarget checks that a tunnel has the certificate of its target only, and that its requests cannot
// name another host.
func TestTunnelIsOnlyForItsTarget(t *testing.T) {
	p := startForwardProxy(t)
	if err := tls.Client(p.tunnel("storage.test"), &tls.Config{RootCAs: p.roots, ServerName: "raw.test"}).Handshake(); err == nil {
		t.Error("the handshake for another name succeeded")
	}
	anonymous := tls.Client(p.tunnel("storage.test"), &tls.Config{InsecureSkipVerify: true}) // sends no name
	if err := anonymous.Handshake(); err != nil {
		t.Fatal(err)
	}
	if names := anonymous.ConnectionState().PeerCertificates[0].DNSNames; len(names) != 1 || names[0] != "storage.test" {
		t.Errorf("got a certificate for %v", names)
	}
	plain := p.tunnel("storage.test")
	_, _ = io.WriteString(plain, "GET / HTTP/1.1\r\nHost: storage.test\r\n\r\n")
	if text, _ := io.ReadAll(plain); len(text) > 0 && text[0] != 21 && string(text[:12]) != "HTTP/1.0 400" {
		t.Errorf("plain HTTP in the tunnel: got %q", text)
	}
	for _, version := range []int{1, 2} {
		client := p.client()
		client.Transport.(*http.Transport).Protocols = new(http.Protocols)
		client.Transport.(*http.Transport).Protocols.SetHTTP1(version == 1)
		client.Transport.(*http.Transport).Protocols.SetHTTP2(version == 2)
		r, _ := http.NewRequest("GET", "https://storage.test/a", nil)
		r.Host = "raw.test"
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusMisdirectedRequest || resp.ProtoMajor != version {
			t.Errorf("another host over HTTP/%d: got %s", version, resp.Status)
		}
	}
	p.want("raw")
	p.want("storage")
}

// TestReloadWithoutProxyKeepsItsListener checks that the listener, which only a restart closes, keeps its authority.
func TestReloadWithoutProxyKeepsItsListener(t *testing.T) {
	p := startForwardProxy(t)
	p.gateway.started.Proxy = p.gateway.current.Load().config.Proxy
	next := *p.gateway.current.Load().config
	next.Proxy = config.Default().Proxy
	if err := p.gateway.loadAndApply(func() (*config.Config, error) { return &next, nil }); err != nil {
		t.Fatal(err)
	}
	resp, err := p.client().Get("https://storage.test/a")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}

// TestOpenTunnelEndsWithItsHost checks that the requests of an open tunnel do not go to the API when a reload has removed
// their host.
func TestOpenTunnelEndsWithItsHost(t *testing.T) {
	p := startForwardProxy(t)
	client := p.client()
	for i, want := range []int{http.StatusOK, http.StatusMisdirectedRequest} {
		if i == 1 {
			next := *p.gateway.current.Load().config
			next.Hosts = next.Hosts[:len(next.Hosts)-1]
			if err := p.gateway.loadAndApply(func() (*config.Config, error) { return &next, nil }); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := client.Get("https://storage.test/a")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("request %d: got %s, want %d", i, resp.Status, want)
		}
	}
	p.want("storage", "/a")
	p.want("api")
}

func TestProxyNeedsAKey(t *testing.T) {
	p := startForwardProxy(t)
	for _, password := range []string{"", "wrong", "tok-held", "weir_keyx"} {
		client := p.client()
		proxy := &url.URL{Scheme: "http", User: url.UserPassword("any", password), Host: p.address}
		client.Transport.(*http.Transport).Proxy = http.ProxyURL(proxy)
		if resp, err := client.Get("https://storage.test/"); err == nil {
			t.Errorf("password %q: got %s", password, resp.Status)
			_ = resp.Body.Close()
		}
	}
	p.want("storage")
}
