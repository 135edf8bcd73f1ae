package main

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/authority"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/connect"
	"github.com/weirgate/weir/proxy/inbound"
)

// listenProxy returns the endpoints of the forward proxy: one for CONNECT requests, and one for the connections in which
// the gateway terminates TLS. There are none if proxy.listen is empty.
func (g *gateway) listenProxy(c *config.Config) ([]endpoint, error) {
	if c.Proxy.Listen == "" {
		return nil, nil
	}
	l, err := listenTCP("proxy.listen", c.Proxy.Listen)
	if err != nil {
		return nil, err
	}
	g.log.Info("forward proxy started", "address", l.Addr().String())
	p := connect.New(func() connect.Config { return g.connectConfig(g.current.Load()) })
	throttled := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if address := g.current.Load().trusted.ClientAddress(r); !g.rateLimiter.Allow(address, time.Now()) {
			inbound.Disconnect(r)
		}
		p.ServeHTTP(w, r)
	})
	return []endpoint{
		{listener: l, handler: throttled, connections: &g.connections},
		{
			listener: p.Terminated(), handler: g, connections: &g.connections, accepted: true,
			tls: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: g.certificateForTunnel},
		},
	}, nil
}

// certificateForTunnel returns a certificate for the host of a CONNECT request.
func (g *gateway) certificateForTunnel(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	tunnel, ok := inbound.TunnelOfConn(hello.Conn)
	if !ok || hello.ServerName != "" && !strings.EqualFold(hello.ServerName, tunnel.Host) {
		return nil, fmt.Errorf("TLS in the tunnel to %q: the client asks for %q", tunnel.Host, hello.ServerName)
	}
	return g.current.Load().authority.Certificate(tunnel.Host)
}

// connectConfig returns the decisions of the forward proxy.
func (g *gateway) connectConfig(c *configured) connect.Config {
	var api []string
	for _, h := range c.hosts {
		if name := strings.ToLower(h.proxy.Upstream.Hostname()); h.proxy.Host == "" && !slices.Contains(api, name) {
			api = append(api, name)
		}
	}
	return connect.Config{
		APIHosts: api,
		Serves: func(name string) bool {
			return slices.ContainsFunc(c.hosts, func(h host) bool { return name != "" && h.serves(name) })
		},
		Scoped: c.scopedTunnel, Authenticate: c.authenticateProxy, TunnelOthers: c.config.Proxy.Others == "tunnel", Log: g.log,
	}
}

// scopedTunnel reports whether a tunnel of a client would lead to repositories, although the client may reach only some of them.
func (c *configured) scopedTunnel(client, name string) bool {
	web := strings.TrimPrefix(strings.ToLower(c.hosts[0].proxy.Upstream.Hostname()), "api.")
	scoped := func(entry config.Client) bool { return entry.Name == client && entry.LimitsNames() }
	return (policy.ServesRepositories(name) || name == web || strings.HasSuffix(name, "."+web)) && slices.ContainsFunc(c.config.Clients, scoped)
}

// authenticateProxy identifies the client of a CONNECT request by the key or the token in Proxy-Authorization. The URL of
// a proxy can hold them only as a password. A client in proxy.allow needs none.
func (c *configured) authenticateProxy(r *http.Request) (client string, authorize func(http.Header), err error) {
	value := r.Header.Get("Proxy-Authorization")
	if value == "" {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		allowed := func(network netip.Prefix) bool { return network.Contains(peer.Addr().Unmap()) }
		if err != nil || !slices.ContainsFunc(c.config.Proxy.Networks(), allowed) {
			return "", nil, errors.New("no Proxy-Authorization, and the address is not in proxy.allow")
		}
		return "", nil, nil
	}
	if scheme, pair, _ := strings.Cut(value, " "); strings.EqualFold(scheme, "basic") {
		decoded, _ := base64.StdEncoding.DecodeString(pair) // an undecodable pair is an unknown key
		_, password, _ := strings.Cut(string(decoded), ":")
		value = "Bearer " + password
	}
	alone := (&http.Request{Header: http.Header{"Authorization": {value}}}).WithContext(r.Context())
	id, err := c.callers.Identify(alone)
	switch {
	case err != nil:
		return "", nil, err
	case id.Client == "":
		return "", nil, errors.New("the proxy needs the key of a client, not a credential of the API")
	}
	return id.Client, func(h http.Header) { h.Set("Authorization", value) }, nil
}

// loadAuthority loads the authority of the forward proxy, and checks that it may sign certificates for all hosts.
func loadAuthority(c *config.Config) (*authority.Authority, error) {
	if c.Proxy.Listen == "" {
		return nil, nil
	}
	a, err := authority.Load(c.Proxy.CA.Certificate, c.Proxy.CA.Key)
	if err != nil {
		return nil, fmt.Errorf("proxy.ca: %w", err)
	}
	for _, name := range c.HostNames() {
		if _, err := a.Certificate(name); err != nil {
			return nil, fmt.Errorf("proxy.ca: %w; create another authority with weir ca init", err)
		}
	}
	return a, nil
}
