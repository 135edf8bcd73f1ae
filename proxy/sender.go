package proxy

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Trusted are the networks of proxies before the gateway (load balancers, terminators of
// TLS) whose X-Forwarded-For and X-Forwarded-Proto are believed. Nobody else's are, and
// those of requests that come from elsewhere are not looked at.
type Trusted []netip.Prefix

// sender is the address from which a request was sent: that of the connection or, where
// a trusted proxy holds it, the last one in X-Forwarded-For that is no trusted proxy's.
// What stands before that anybody may have written. It is the zero address where the
// connection has none.
func (t Trusted) sender(r *http.Request) netip.Addr {
	p, _ := netip.ParseAddrPort(r.RemoteAddr) // a Unix socket has none
	address := p.Addr().Unmap()
	if !t.has(address) {
		return address
	}
	hops := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
	for _, hop := range slices.Backward(hops) {
		before, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break
		}
		if address = before.Unmap().WithZone(""); !t.has(address) {
			break
		}
	}
	return address
}

// secure reports whether the sender came by HTTPS, to the gateway or to a trusted proxy.
func (t Trusted) secure(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	p, _ := netip.ParseAddrPort(r.RemoteAddr)
	said := r.Header["X-Forwarded-Proto"]
	return len(said) == 1 && strings.EqualFold(said[0], "https") && t.has(p.Addr().Unmap())
}

func (t Trusted) has(address netip.Addr) bool {
	return slices.ContainsFunc(t, func(network netip.Prefix) bool { return network.Contains(address) })
}

// subscriber is how much of an IPv6 address tells one client from another: the
// rest is the client's own to choose.
const subscriber = 64

// counted is what an address counts as. Those without one, of Unix sockets for example,
// count as one.
func counted(address netip.Addr) netip.Addr {
	address = address.Unmap()
	if !address.Is6() {
		return address
	}
	network, _ := address.Prefix(subscriber) // an IPv6 address has as many bits
	return network.Addr()
}
