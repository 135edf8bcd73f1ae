// Package connect is the forward proxy: the listener for programs that send all their requests to one proxy.
//
// A program opens a connection to HOST:443 with CONNECT (RFC 9110 section 9.3.6). If the gateway serves the host, the
// connection goes to the listener of [Proxy.Terminated], whose server ends TLS with a certificate for the host. Its
// requests then take the journey of every request (package proxy). A connection to another host is refused, or is an
// opaque tunnel.
//
// Invariants:
//   - The certificate and the requests of a terminated connection are for the host of its CONNECT.
//   - An opaque tunnel leads to port 443 of a public address. The name is resolved once, and the connection goes to the
//     addresses that were checked.
//   - An opaque tunnel never leads to an address of the API, and begins with a TLS handshake for the host of its CONNECT. A
//     program cannot reach the API past the limits.
//   - The credential of the proxy is never sent to another host.
package connect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/weirgate/weir/proxy/inbound"
)

// Config decides about connections.
type Config struct {
	// Serves reports whether the gateway serves a host itself.
	Serves func(host string) bool
	// Authenticate returns the name of the client that sent a CONNECT request, and the function that sets its credential on
	// the requests in the tunnel. The function is nil if the client needs no key. An error refuses the client with 407.
	Authenticate func(*http.Request) (client string, authorize func(http.Header), err error)
	// Scoped reports whether a client may reach only some repositories of a host that is not served. Its tunnels are refused. Nil refuses
	// none.
	Scoped func(client, name string) bool
	// TunnelOthers permits opaque tunnels to hosts that the gateway does not serve.
	TunnelOthers bool
	// APIHosts are the host names and addresses of the upstreams with limits, in lower case. Opaque tunnels do not lead there.
	APIHosts []string
	Log      *slog.Logger
}

// Proxy is the handler for CONNECT requests.
type Proxy struct {
	config     func() Config // of each request
	terminated *listener
	api        apiAddresses
	lookup     func(ctx context.Context, name string) ([]netip.Addr, error)
	dial       func(ctx context.Context, network, address string) (net.Conn, error)
}

// New returns a proxy. config is called for each request.
func New(config func() Config) *Proxy {
	lookup := func(ctx context.Context, name string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	}
	return &Proxy{
		config: config, lookup: lookup, dial: new(net.Dialer).DialContext,
		terminated: &listener{connections: make(chan net.Conn), closed: make(chan struct{})},
	}
}

// Terminated returns the listener of the connections to hosts that the gateway serves. They begin with a TLS handshake.
func (p *Proxy) Terminated() net.Listener { return p.terminated }

const (
	established = "HTTP/1.1 200 Connection established\r\n\r\n"
	// maxIdle ends an opaque tunnel after a time without bytes in either direction.
	maxIdle = 5 * time.Minute
)

// ServeHTTP opens a tunnel. It returns at the end of an opaque tunnel.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := p.config()
	client, authorize, err := c.Authenticate(r)
	name, port := split(r.Host)
	served := c.Serves(name)
	switch {
	case err != nil:
		w.Header().Set("Proxy-Authenticate", `Basic realm="weir"`)
		c.refuse(w, r, http.StatusProxyAuthRequired, "send the key of a client as the password in the URL of the proxy: http://weir:KEY@HOST:PORT", err)
		return
	case r.Method != http.MethodConnect:
		c.refuse(w, r, http.StatusMethodNotAllowed, "this proxy accepts only CONNECT; set HTTPS_PROXY instead of HTTP_PROXY, and use https URLs", nil)
		return
	case port != "443":
		c.refuse(w, r, http.StatusForbidden, "this proxy connects only to port 443", nil)
		return
	case !served && !c.TunnelOthers:
		c.refuse(w, r, http.StatusForbidden, "this proxy serves only the API and its hosts; add the host to hosts, set proxy.others to tunnel, or add the host to NO_PROXY", nil)
		return
	case served:
		p.terminate(w, r, c, inbound.Tunnel{Host: name, Authorize: authorize})
		return
	case c.Scoped != nil && c.Scoped(client, name):
		c.refuse(w, r, http.StatusForbidden, "this client may reach only some repositories, and the requests in a tunnel to this host cannot be checked; add the host to hosts", nil)
		return
	case !isName(name):
		c.refuse(w, r, http.StatusForbidden, "this proxy connects only to host names, not to addresses; use the name of the host, or add the address to NO_PROXY", nil)
		return
	}
	upstream, err := p.dialOther(r.Context(), c, name)
	switch {
	case errors.Is(err, errAPI):
		c.refuse(w, r, http.StatusForbidden, "the host is the API under another name, or shares its address; use the name that this proxy serves, or add the host to NO_PROXY", err)
		return
	case errors.Is(err, errPrivate):
		c.refuse(w, r, http.StatusForbidden, "this proxy connects only to public addresses; add the host to NO_PROXY", err)
		return
	case err != nil:
		c.refuse(w, r, http.StatusBadGateway, "connecting to "+name+" failed", err)
		return
	}
	defer func() { _ = upstream.Close() }()
	start := time.Now()
	sent, received, err := p.copy(w, r, upstream, inbound.Tunnel{Host: name, Opaque: true})
	if errors.Is(err, errHandshake) {
		c.Log.Warn("forward proxy closed a tunnel before its first byte", "client", client, "address", r.RemoteAddr, "target", name, "error", err)
		return
	}
	c.Log.Info("tunnel closed", "client", client, "address", r.RemoteAddr, "target", name, "sent", sent, "received", received,
		"duration", time.Since(start), "error", err)
}

// refuse writes a refusal, and logs it.
func (c *Config) refuse(w http.ResponseWriter, r *http.Request, status int, message string, cause error) {
	reason := errors.New(message)
	if cause != nil {
		reason = cause
	}
	c.Log.Warn("forward proxy refused a request", "method", r.Method, "target", r.Host, "address", r.RemoteAddr, "status", status, "error", reason)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, message+"\n") // an error means that the client has disconnected
}

// terminate passes the connection to the server for TLS.
func (p *Proxy) terminate(w http.ResponseWriter, r *http.Request, c Config, t inbound.Tunnel) {
	client, err := inbound.Hijack(w, t)
	if err == nil {
		_, err = io.WriteString(client, established)
	}
	if err == nil {
		err = p.terminated.pass(r.Context(), client)
	}
	if err != nil {
		c.Log.Debug("tunnel not opened", "target", t.Host, "address", r.RemoteAddr, "error", err)
		if client != nil {
			_ = client.Close()
		}
	}
}

// copy copies bytes between the client and the upstream until both directions have ended, no byte arrives for maxIdle, or
// the gateway stops.
func (p *Proxy) copy(w http.ResponseWriter, r *http.Request, upstream net.Conn, t inbound.Tunnel) (sent, received int64, err error) {
	client, err := inbound.Hijack(w, t)
	if err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	idle := time.AfterFunc(maxIdle, func() { cancel(fmt.Errorf("no byte for %v", maxIdle)) })
	defer idle.Stop()
	stop := context.AfterFunc(ctx, func() {
		_ = client.Close()
		_ = upstream.Close()
	})
	defer stop()
	defer func() { _ = client.Close() }()
	if _, err := io.WriteString(client, established); err != nil {
		return 0, 0, err
	}
	hello, err := readHello(ctx, client, t.Host)
	if err != nil {
		return 0, 0, err
	}
	oneWay := func(to net.Conn, from io.Reader, n *int64) {
		var err error
		if *n, err = io.Copy(to, &watched{from, idle}); err == nil {
			err = closeWrite(to)
		}
		if err != nil {
			cancel(err) // the other direction would wait for an answer that cannot arrive
		}
	}
	var directions sync.WaitGroup
	directions.Go(func() { oneWay(upstream, io.MultiReader(bytes.NewReader(hello), client), &sent) })
	directions.Go(func() { oneWay(client, upstream, &received) })
	directions.Wait()
	return sent, received, context.Cause(ctx)
}

// watched restarts a timer with each read.
type watched struct {
	io.Reader
	idle *time.Timer
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	w.idle.Reset(maxIdle)
	return n, err
}

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// split returns the name of a target in lower case, and its port.
func split(target string) (name, port string) {
	u := url.URL{Host: target}
	return strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), u.Port()
}

// listener passes connections from the proxy to a server.
type listener struct {
	connections chan net.Conn
	once        sync.Once
	closed      chan struct{}
}

// pass waits until the server accepts the connection.
func (l *listener) pass(ctx context.Context, c net.Conn) error {
	select {
	case l.connections <- c:
		return nil
	case <-l.closed:
		return net.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.connections:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr returns no network address, because the connections come from the listener of the proxy.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "connect", Net: "unix"} }
