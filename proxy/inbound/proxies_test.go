package inbound

import (
	"crypto/tls"
	"net/http"
	"net/netip"
	"testing"
)

func trustedProxies(networks ...string) TrustedProxies {
	var t TrustedProxies
	for _, n := range networks {
		t = append(t, netip.MustParsePrefix(n))
	}
	return t
}

// TestClientAddressUsesTrustedProxiesOnly covers attack 14 of docs/attacks.md.
func TestClientAddressUsesTrustedProxiesOnly(t *testing.T) {
	proxies := trustedProxies("10.0.0.0/8", "2001:db8::1/128")
	for _, c := range []struct {
		name, remote string
		forwarded    []string
		want         string
	}{
		{"client without the field", "192.0.2.1:1", nil, "192.0.2.1"},
		{"client that forges the field", "192.0.2.1:1", []string{"203.0.113.1"}, "192.0.2.1"},
		{"proxy without the field", "10.0.0.1:1", nil, "10.0.0.1"},
		{"proxy", "10.0.0.1:1", []string{"203.0.113.1"}, "203.0.113.1"},
		{"IPv6 proxy", "[2001:db8::1]:1", []string{"203.0.113.1"}, "203.0.113.1"},
		{"IPv4-mapped addresses", "[::ffff:10.0.0.1]:1", []string{"::ffff:203.0.113.1"}, "203.0.113.1"},
		{"proxy after a client that forges the field", "10.0.0.1:1", []string{"198.51.100.1, 203.0.113.1"}, "203.0.113.1"},
		{"two proxies", "10.0.0.1:1", []string{"198.51.100.1, 203.0.113.1 , 10.0.0.2"}, "203.0.113.1"},
		{"two field lines", "10.0.0.1:1", []string{"198.51.100.1", "203.0.113.1,10.0.0.2"}, "203.0.113.1"},
		{"only proxies", "10.0.0.1:1", []string{"10.0.0.3,10.0.0.2"}, "10.0.0.3"},
		{"invalid address", "10.0.0.1:1", []string{"203.0.113.1, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"empty member", "10.0.0.1:1", []string{"203.0.113.1,"}, "10.0.0.1"},
		{"address with a zone", "10.0.0.1:1", []string{"fe80::1%eth0"}, "fe80::1"},
		{"Unix socket", "@", []string{"203.0.113.1"}, "invalid IP"},
	} {
		r := &http.Request{RemoteAddr: c.remote, Header: http.Header{"X-Forwarded-For": c.forwarded}}
		if got := proxies.ClientAddress(r).String(); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestIsHTTPS(t *testing.T) {
	proxies := trustedProxies("10.0.0.0/8")
	for _, c := range []struct {
		name, remote string
		tls          *tls.ConnectionState
		forwarded    []string
		want         bool
	}{
		{"HTTP", "192.0.2.1:1", nil, nil, false},
		{"HTTPS", "192.0.2.1:1", &tls.ConnectionState{}, nil, true},
		{"HTTP with a forged field", "192.0.2.1:1", nil, []string{"https"}, false},
		{"HTTPS to a proxy", "10.0.0.1:1", nil, []string{"HTTPS"}, true},
		{"HTTP to a proxy", "10.0.0.1:1", nil, []string{"http"}, false},
		{"proxy without the field", "10.0.0.1:1", nil, nil, false},
		{"proxy with two values", "10.0.0.1:1", nil, []string{"https", "http"}, false},
	} {
		r := &http.Request{RemoteAddr: c.remote, TLS: c.tls, Header: http.Header{"X-Forwarded-Proto": c.forwarded}}
		if got := proxies.IsHTTPS(r); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
