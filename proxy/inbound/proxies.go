package inbound

import (
	"net/http"
	"net/netip"
	"slices"

	"github.com/weirgate/weir/policy"
)

// TrustedProxies are the networks of load balancers and TLS terminators in front of the gateway. Forwarded and the
// X-Forwarded fields are used only from these networks.
type TrustedProxies []netip.Prefix

// ClientAddress returns the address of the client that sent a request. For a connection from a trusted proxy,
// ClientAddress returns the last address in X-Forwarded-For or, without it, in Forwarded that is not a trusted proxy. Earlier
// addresses can be forged. The result is the zero address for Unix sockets.
func (t TrustedProxies) ClientAddress(r *http.Request) netip.Addr {
	remote, _ := netip.ParseAddrPort(r.RemoteAddr)
	address := remote.Addr().Unmap()
	if !t.contain(address) {
		return address
	}
	hops := slices.Collect(policy.Members(r.Header["X-Forwarded-For"]))
	if len(hops) == 0 {
		hops = sendersOf(parseForwarded(r.Header["Forwarded"]))
	}
	for _, hop := range slices.Backward(hops) {
		previous, err := parseNode(hop)
		if err != nil {
			break
		}
		if address = previous; !t.contain(address) {
			break
		}
	}
	return address
}

// SentBy reports whether a trusted proxy sent a request.
func (t TrustedProxies) SentBy(r *http.Request) bool {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	return t.contain(peer.Addr().Unmap())
}

func (t TrustedProxies) contain(address netip.Addr) bool {
	return slices.ContainsFunc(t, func(network netip.Prefix) bool { return network.Contains(address) })
}

// ClientOf returns the address by which connections and requests are counted. An IPv6 address counts as its /64
// network, because one subscriber can use all addresses of a /64 network. All connections without an address, such as
// Unix sockets, count as one client.
func ClientOf(address netip.Addr) netip.Addr {
	address = address.Unmap()
	if !address.Is6() {
		return address
	}
	network, _ := address.Prefix(64) // the only error is an invalid prefix length
	return network.Addr()
}
