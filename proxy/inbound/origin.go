package inbound

import (
	"net"
	"net/http"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weirgate/weir/policy"
)

// Origin is the URL at which the client reaches the gateway: of the gateway, or of a trusted proxy in front of it.
type Origin struct {
	Scheme string // http or https
	Host   string // name or address, with the port if it is not the default
	Prefix string // path prefix that the proxy removes; empty, or a path that begins but does not end with a slash
}

// String returns the URL.
func (o Origin) String() string { return o.Scheme + "://" + o.Host + o.Prefix }

// Forwarded values are part of URLs in responses, so only these forms are used.
var (
	forwardedName   = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?$`)
	forwardedPrefix = regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)+/?$`)
)

// maxPrefix bounds the length of a forwarded path prefix.
const maxPrefix = 256

// Origin returns the URL at which the client sent a request. A trusted proxy names it in Forwarded (RFC 7239), or in
// X-Forwarded-Proto, -Host, -Port and -Prefix. Origin ignores invalid values. The fields of a request inside a tunnel are
// those of the client, and are not used.
func (t TrustedProxies) Origin(r *http.Request) Origin {
	o := Origin{Scheme: "http", Host: r.Host}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && o.Host == "" && isForwardedHost(local.String()) {
		o.Host = local.String() // HTTP/1.0 needs no Host field
	}
	if r.TLS != nil {
		o.Scheme = "https"
	}
	if len(t) == 0 || !t.SentBy(r) {
		return o
	}
	if _, tunnelled := TunnelOf(r.Context()); tunnelled {
		return o
	}
	standard := t.outermost(parseForwarded(r.Header["Forwarded"]))
	proxies := t.countProxies(slices.Collect(policy.Members(r.Header["X-Forwarded-For"])))
	field := func(name string) string {
		list := slices.Collect(policy.Members(r.Header["X-Forwarded-"+name]))
		if len(list) == 0 {
			return ""
		}
		return list[max(0, len(list)-proxies)]
	}
	for _, scheme := range []string{standard["proto"], field("Proto")} {
		if scheme = strings.ToLower(scheme); scheme == "http" || scheme == "https" {
			o.Scheme = scheme
			break
		}
	}
	switch host := field("Host"); {
	case isForwardedHost(standard["host"]):
		o.Host = standard["host"]
	case isForwardedHost(host):
		o.Host = withPort(host, field("Port"))
	default:
		o.Host = withPort(o.Host, field("Port"))
	}
	if prefix := field("Prefix"); len(prefix) <= maxPrefix && forwardedPrefix.MatchString(prefix) {
		if prefix = strings.TrimSuffix(prefix, "/"); path.Clean(prefix) == prefix {
			o.Prefix = prefix
		}
	}
	return o
}

// countProxies returns the number of trusted proxies that a request passed last. addresses are the addresses that sent the
// request to each of the proxies. Each proxy may have added a value to a list.
func (t TrustedProxies) countProxies(addresses []string) int {
	n := 1
	for i := len(addresses) - 1; i >= 0; i-- {
		address, err := parseNode(addresses[i])
		if err != nil || !t.contain(address) {
			break
		}
		n++
	}
	return n
}

// outermost returns the element of a Forwarded field that the first of the trusted proxies added.
func (t TrustedProxies) outermost(elements []map[string]string) map[string]string {
	if len(elements) == 0 {
		return nil
	}
	return elements[max(0, len(elements)-t.countProxies(sendersOf(elements)))]
}

// sendersOf returns the nodes that sent the request to each of the proxies.
func sendersOf(elements []map[string]string) []string {
	nodes := make([]string, len(elements))
	for i, element := range elements {
		nodes[i] = element["for"]
	}
	return nodes
}

// parseNode returns the address of a node (RFC 7239 section 6), without its port.
func parseNode(node string) (netip.Addr, error) {
	if withPort, err := netip.ParseAddrPort(node); err == nil {
		return withPort.Addr().Unmap().WithZone(""), nil
	}
	address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(node, "["), "]"))
	return address.Unmap().WithZone(""), err
}

// isForwardedHost reports whether a text is a name or an address, with or without a port.
func isForwardedHost(text string) bool {
	if address, err := netip.ParseAddrPort(text); err == nil {
		return address.Addr().Zone() == "" && address.Port() > 0
	}
	if inner, ok := strings.CutPrefix(text, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		address, err := netip.ParseAddr(inner)
		return ok && err == nil && address.Is6() && address.Zone() == ""
	}
	name, port, hasPort := strings.Cut(text, ":")
	return forwardedName.MatchString(name) && !strings.Contains(name, "..") && (!hasPort || isPort(port))
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0 && text[0] != '+' && text[0] != '0'
}

// withPort adds a forwarded port to a host without a port. Some proxies send the default port of the other scheme, so the
// default ports are not added.
func withPort(host, port string) string {
	if !isPort(port) || port == "80" || port == "443" || strings.Contains(host[strings.LastIndexByte(host, ']')+1:], ":") {
		return host
	}
	return host + ":" + port
}

// forwardedPair matches a parameter and the separator that ends it (RFC 7239 section 4).
var forwardedPair = regexp.MustCompile(`^[ \t]*([!#$%&'*+.^_` + "`" + `|~0-9A-Za-z-]+)=(?:([!#$%&'*+.^_` + "`" + `|~0-9A-Za-z-]+)|"((?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[^\x00-\x08\x0a-\x1f\x7f])*)")[ \t]*([;,]|$)`)

var quotedPair = regexp.MustCompile(`\\(.)`)

// parseForwarded returns the elements of a Forwarded field, by the names of their parameters in lower case. An invalid field
// has no elements.
func parseForwarded(values []string) (elements []map[string]string) {
	rest := strings.Join(values, ",")
	element := map[string]string{}
	for rest != "" {
		m := forwardedPair.FindStringSubmatch(rest)
		if m == nil {
			return nil
		}
		name, value := strings.ToLower(m[1]), m[2]
		if m[3] != "" {
			value = quotedPair.ReplaceAllString(m[3], "$1")
		}
		if _, again := element[name]; again {
			return nil
		}
		element[name] = value
		if rest = rest[len(m[0]):]; m[4] != "" && rest == "" {
			return nil
		}
		if m[4] != ";" {
			elements, element = append(elements, element), map[string]string{}
		}
	}
	return elements
}
