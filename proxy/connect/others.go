package connect

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

var (
	errPrivate = errors.New("not a public address")
	errAPI     = errors.New("an address of the API")
	// errHandshake is the error of a tunnel that does not begin with a TLS handshake for its target.
	errHandshake = errors.New("the tunnel does not begin with a TLS handshake for its target")
)

// hostName matches texts that have the form of a host name.
var hostName = regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]*[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?$`)

// isName reports whether a target in lower case is a host name, and no address in any spelling. Resolvers read numbers such as
// 127.1, 0x7f.1 or 2130706433 as addresses. So the last label of a name must have a letter and be no hexadecimal number.
func isName(target string) bool {
	last := target[strings.LastIndexByte(target, '.')+1:]
	return len(target) <= 253 && hostName.MatchString(target) && strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(last, "0x")
}

// special are the networks of the IANA special-purpose address registries that the methods of [netip.Addr] do not recognize.
// Some lead into a private network by translation. Of IPv6, only 2000::/3 is assigned to hosts.
var special = func() []netip.Prefix {
	var list []netip.Prefix
	for text := range strings.FieldsSeq(`
		0.0.0.0/8 100.64.0.0/10 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4
		::/3 4000::/2 8000::/1 2001::/23 2001:db8::/32 2002::/16 3fff::/20
	`) {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}()

// isPublic reports whether an address belongs to a host in the public Internet.
func isPublic(ip netip.Addr) bool {
	ip = ip.WithZone("").Unmap()
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !slices.ContainsFunc(special, func(network netip.Prefix) bool { return network.Contains(ip) })
}

const (
	// dialTimeout bounds the resolution of a name and the attempts to connect, and attemptTimeout an attempt that is not the
	// last.
	dialTimeout, attemptTimeout = 10 * time.Second, 3 * time.Second
	// helloTimeout bounds the wait for the first message of a tunnel, and maxHello its size in bytes.
	helloTimeout, maxHello = 10 * time.Second, 64 << 10
)

// dialOther connects to a host that the gateway does not serve.
func (p *Proxy) dialOther(ctx context.Context, c Config, name string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if slices.Contains(c.APIHosts, name) {
		return nil, errAPI
	}
	addresses, err := p.lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	ofAPI, err := p.api.resolve(ctx, c.APIHosts, p.lookup)
	if err != nil {
		return nil, err
	}
	var public []netip.Addr
	for _, ip := range addresses {
		ip = ip.WithZone("").Unmap()
		switch {
		case ofAPI[ip]:
			return nil, fmt.Errorf("%s: %w", ip, errAPI)
		case isPublic(ip):
			public = append(public, ip)
		}
	}
	if len(public) == 0 {
		return nil, fmt.Errorf("%v: %w", addresses, errPrivate)
	}
	for i, ip := range public {
		timeout := dialTimeout
		if i < len(public)-1 {
			timeout = attemptTimeout
		}
		attempt, end := context.WithTimeout(ctx, timeout)
		var conn net.Conn
		conn, err = p.dial(attempt, "tcp", netip.AddrPortFrom(ip, 443).String())
		end()
		if err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// apiAddresses remembers the addresses of the API. A name server may return only some of them at a time.
type apiAddresses struct {
	mu   sync.Mutex
	seen map[netip.Addr]time.Time
}

const (
	// rememberAddress is the time for which an address of the API is remembered after its last resolution.
	rememberAddress = 24 * time.Hour
	// maxAddresses bounds the addresses that are remembered.
	maxAddresses = 1000
)

// resolve returns the addresses of the API's hosts that the name servers return now, and those of earlier calls. After an error
// the addresses are unknown, so no tunnel may be opened.
func (a *apiAddresses) resolve(
	ctx context.Context, hosts []string, lookup func(context.Context, string) ([]netip.Addr, error),
) (map[netip.Addr]bool, error) {
	var found []netip.Addr
	for _, host := range hosts {
		if ip, err := netip.ParseAddr(host); err == nil {
			found = append(found, ip)
			continue
		}
		list, err := lookup(ctx, host)
		if err != nil {
			return nil, fmt.Errorf("resolve the API: %w", err)
		}
		found = append(found, list...)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, current := time.Now(), map[netip.Addr]bool{}
	if a.seen == nil || len(a.seen) > maxAddresses {
		a.seen = map[netip.Addr]time.Time{}
	}
	for _, ip := range found {
		a.seen[ip.WithZone("").Unmap()] = now
	}
	for ip, last := range a.seen {
		if now.Sub(last) > rememberAddress {
			delete(a.seen, ip)
			continue
		}
		current[ip] = true
	}
	return current, nil
}

// readHello reads the first message of a tunnel, which must be the ClientHello of a TLS handshake for a host name. It returns
// the bytes that were read. A handshake may also have an encrypted name (Encrypted Client Hello). Only a server at the address
// of the target can decrypt that name.
func readHello(ctx context.Context, client net.Conn, name string) ([]byte, error) {
	if err := client.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return nil, err
	}
	var read bytes.Buffer
	requested, seen := "", false
	config := &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		requested, seen = hello.ServerName, true
		return nil, errHandshake // ends the handshake, because only the name is needed
	}}
	err := tls.Server(readOnly{client, io.TeeReader(io.LimitReader(client, maxHello), &read)}, config).HandshakeContext(ctx)
	switch {
	case !seen:
		return nil, fmt.Errorf("%w: %w", errHandshake, err)
	case !strings.EqualFold(requested, name):
		return nil, fmt.Errorf("%w: it is for %q", errHandshake, requested)
	}
	return read.Bytes(), client.SetReadDeadline(time.Time{})
}

// readOnly is a connection that reads from reader and discards all written bytes.
type readOnly struct {
	net.Conn
	reader io.Reader
}

func (c readOnly) Read(p []byte) (int, error)  { return c.reader.Read(p) }
func (c readOnly) Write(p []byte) (int, error) { return len(p), nil }
