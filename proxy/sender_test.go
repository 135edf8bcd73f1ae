package proxy

import (
	"crypto/tls"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
)

func trusted(networks ...string) Trusted {
	var t Trusted
	for _, n := range networks {
		t = append(t, netip.MustParsePrefix(n))
	}
	return t
}

// TestAttack14OnlyTrustedProxiesAreBelieved: what anybody may have written is not.
func TestAttack14OnlyTrustedProxiesAreBelieved(t *testing.T) {
	proxies := trusted("10.0.0.0/8", "2001:db8::1/128")
	for _, c := range []struct {
		name, remote string
		forwarded    []string
		want         string
	}{
		{"a client", "192.0.2.1:1", nil, "192.0.2.1"},
		{"a client that lies", "192.0.2.1:1", []string{"203.0.113.1"}, "192.0.2.1"},
		{"a proxy that says nothing", "10.0.0.1:1", nil, "10.0.0.1"},
		{"a proxy", "10.0.0.1:1", []string{"203.0.113.1"}, "203.0.113.1"},
		{"a proxy by IPv6", "[2001:db8::1]:1", []string{"203.0.113.1"}, "203.0.113.1"},
		{"a proxy, IPv4 in IPv6", "[::ffff:10.0.0.1]:1", []string{"::ffff:203.0.113.1"}, "203.0.113.1"},
		{"behind a proxy a client that lies", "10.0.0.1:1", []string{"198.51.100.1, 203.0.113.1"}, "203.0.113.1"},
		{"two proxies", "10.0.0.1:1", []string{"198.51.100.1, 203.0.113.1 , 10.0.0.2"}, "203.0.113.1"},
		{"in two fields", "10.0.0.1:1", []string{"198.51.100.1", "203.0.113.1,10.0.0.2"}, "203.0.113.1"},
		{"nothing but proxies", "10.0.0.1:1", []string{"10.0.0.3,10.0.0.2"}, "10.0.0.3"},
		{"what is no address", "10.0.0.1:1", []string{"203.0.113.1, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"an empty member", "10.0.0.1:1", []string{"203.0.113.1,"}, "10.0.0.1"},
		{"with a zone", "10.0.0.1:1", []string{"fe80::1%eth0"}, "fe80::1"},
		{"a socket", "@", []string{"203.0.113.1"}, "invalid IP"},
	} {
		r := &http.Request{RemoteAddr: c.remote, Header: http.Header{"X-Forwarded-For": c.forwarded}}
		if got := proxies.sender(r).String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestWhoCameByHTTPS(t *testing.T) {
	proxies := trusted("10.0.0.0/8")
	for _, c := range []struct {
		name, remote string
		tls          *tls.ConnectionState
		said         []string
		want         bool
	}{
		{"by HTTP", "192.0.2.1:1", nil, nil, false},
		{"by HTTPS", "192.0.2.1:1", &tls.ConnectionState{}, nil, true},
		{"by HTTP, who says otherwise", "192.0.2.1:1", nil, []string{"https"}, false},
		{"to a proxy", "10.0.0.1:1", nil, []string{"HTTPS"}, true},
		{"by HTTP to a proxy", "10.0.0.1:1", nil, []string{"http"}, false},
		{"to a proxy that does not say", "10.0.0.1:1", nil, nil, false},
		{"to a proxy that says two things", "10.0.0.1:1", nil, []string{"https", "http"}, false},
	} {
		r := &http.Request{RemoteAddr: c.remote, TLS: c.tls, Header: http.Header{"X-Forwarded-Proto": c.said}}
		if got := proxies.secure(r); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestAttack14BehindATrustedProxyEachHasItsOwn: rate, and the origin in links.
func TestAttack14BehindATrustedProxyEachHasItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "<"+upstreamURL+`/x?page=2>; rel="next"`)
		}, inbound(1, 1), func(c *Config) { c.Trusted = trusted("10.0.0.0/8") })
		for _, c := range []struct {
			client string
			want   int
		}{{"203.0.113.1", 200}, {"203.0.113.2", 200}, {"203.0.113.1", 429}, {"198.51.100.9, 203.0.113.2", 429}} {
			r := w.from("10.0.0.1:1000", "GET", "/user", "X-Forwarded-For: "+c.client, "X-Forwarded-Proto: https")
			w.want(c.client, r.StatusCode, c.want)
			if c.want == 200 {
				w.want("link", r.Header.Get("Link"), `<https://example.com/x?page=2>; rel="next"`)
			}
		}
		w.lets("192.0.2.1:1000", 200, 429)
	})
}

func TestConnectionsOfTrustedProxiesAreNotBounded(t *testing.T) {
	var c Connections
	c.Configure(1, trusted("10.0.0.0/8"))
	proxy, client := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1")
	for i := range 3 {
		if !c.enter(proxy) {
			t.Error("a proxy was not let in")
		}
		if c.enter(client) != (i == 0) {
			t.Errorf("client %d", i)
		}
	}
	c.leave(client)
	if !c.enter(client) {
		t.Error("its place did not come back")
	}
}
