package main

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/hypermedia"
	"github.com/weirgate/weir/proxy/inbound"
	"github.com/weirgate/weir/proxy/names"
)

// host is an upstream of the gateway, the API or one of the configured hosts, with one way to reach it: by its name, or by
// a path prefix at the gateway's own address.
type host struct {
	name  string // name by which clients call the host; empty for an API whose URL has an address
	path  string // prefix of the path; empty for a host with a name
	proxy *proxy.Gateway
	below *hostsBelow // for a name such as *.example.com, otherwise nil
}

// serves reports whether a host has a name, or the name of its entry matches it.
func (h host) serves(name string) bool {
	if h.below != nil {
		return strings.HasSuffix(name, h.name[len("*"):]) && config.IsDomainName(name)
	}
	return h.path == "" && h.name == name
}

// maxHostsBelow bounds the gateways for the names that match one entry.
const maxHostsBelow = 64

// hostsBelow contains the gateways for the names that match an entry. It is safe for concurrent use.
type hostsBelow struct {
	config   proxy.Config // without Upstream
	mu       sync.Mutex
	gateways *simplelru.LRU[string, *proxy.Gateway]
}

func newHostsBelow(c proxy.Config) *hostsBelow {
	gateways, _ := simplelru.NewLRU[string, *proxy.Gateway](maxHostsBelow, nil) // the size is valid
	return &hostsBelow{config: c, gateways: gateways}
}

// gateway returns the gateway for a name.
func (b *hostsBelow) gateway(name string) *proxy.Gateway {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, ok := b.gateways.Get(name)
	if !ok {
		c := b.config
		c.Upstream = &url.URL{Scheme: "https", Host: name}
		g = proxy.New(c)
		b.gateways.Add(name, g)
	}
	return g
}

// newHosts returns the API and the configured hosts. base is the configuration of the API.
func (g *gateway) newHosts(c *config.Config, base proxy.Config, callers *credential.Registry) []host {
	hosts := []host{{name: c.APIName(), proxy: proxy.New(base)}}
	for _, entry := range c.Hosts {
		next := base
		next.Upstream = entry.Base()
		if entry.BaseURL() != c.Upstream.URL {
			next.Aliases = nil
		}
		next.BodyTimeout = 0 // a large file takes longer than a call of the API
		if entry.Kind == "files" {
			// Resources, tokens and users that the host reports do not apply to the API.
			next.Catalogue, next.Host, next.Ledger, next.Limiter = policy.Files, entry.Name, limits.Unlimited{}, g.unlimited
			next.Transport = throughProxy{g.files}
			next.Resources, next.Tokens, next.Identities, next.AccountOf = nil, &g.fileTokens, nil, nil
			if !entry.Credential {
				next.Identify = identifyWithoutCredential(callers)
			}
		}
		named := host{name: entry.Name, proxy: proxy.New(next)}
		if entry.IsWildcard() {
			named.below = newHostsBelow(next)
		}
		hosts = append(hosts, named)
		if next.Prefix = entry.Path; entry.Path != "" {
			hosts = append(hosts, host{path: entry.Path, proxy: proxy.New(next)})
		}
	}
	for _, name := range c.AliasNames() {
		hosts = append(hosts, host{name: name, proxy: hosts[0].proxy})
	}
	return hosts
}

// identifyWithoutCredential returns the Identify function of a host that gets no credential. Signed URLs of such a host
// carry their own authorization. HTTP clients drop their key when a redirect leads to another host, so a request without
// a known key is accepted.
func identifyWithoutCredential(callers *credential.Registry) func(*http.Request) (*caller.Identity, error) {
	return func(r *http.Request) (*caller.Identity, error) {
		id := &caller.Identity{Caller: callers.Anonymous()}
		client, err := callers.Identify(r)
		switch {
		case err == nil:
			id.Client, id.Debug, id.TokenTag, id.TagFromClaim = client.Client, client.Debug, client.TokenTag, client.TagFromClaim
			id.Scope = client.Scope.NamesOnly()
		case r.Context().Err() != nil:
			return nil, err
		}
		return id, nil
	}
}

// errMisdirected refuses a request for a host that the gateway does not serve.
var errMisdirected = errors.New("the request names a host that is not in hosts")

// named returns the host with a name. An exact name has precedence over a wildcard.
func (c *configured) named(name string) (host, bool) {
	for _, h := range c.hosts {
		if h.below == nil && h.serves(name) {
			return h, true
		}
	}
	for _, h := range c.hosts {
		if h.below != nil && h.serves(name) {
			h.proxy = h.below.gateway(name)
			return h, true
		}
	}
	return host{}, false
}

// route returns the host that a request is for. The request names the host as the target of its CONNECT, in its Host
// field, in a field of a trusted proxy, or by the prefix of its path. All other requests are for the API.
func (c *configured) route(r *http.Request) (host, error) {
	name := hostName(r.Host)
	tunnel, tunnelled := inbound.TunnelOf(r.Context())
	if tunnelled && tunnel.Host != name {
		return host{}, errMisdirected
	}
	for _, name := range []string{hostName(c.trusted.Origin(r).Host), name} {
		if h, ok := c.named(name); ok {
			return h, nil
		}
	}
	if tunnelled { // a reload has removed the host
		return host{}, errMisdirected
	}
	for _, h := range c.hosts {
		if rest, ok := strings.CutPrefix(r.URL.EscapedPath(), h.path); ok && h.path != "" && strings.HasPrefix(rest, "/") {
			return h, nil
		}
	}
	// A program that sends all its requests to the Unix socket names the hosts that it wants to reach. The API must not get
	// the requests for other hosts.
	if _, socket := r.Context().Value(http.LocalAddrContextKey).(*net.UnixAddr); socket && strings.Contains(name, ".") {
		return host{}, errMisdirected
	}
	return c.hosts[0], nil
}

// serve passes a request to the host. If configured, a client that calls the gateway by its own name gets the URLs of the
// gateway in bodies of the API. Files stay unchanged.
func (c *configured) serve(h host, w http.ResponseWriter, r *http.Request) {
	if !bool(c.config.Upstream.Rewrite) || h.proxy.Host != "" {
		h.proxy.ServeHTTP(w, r)
		return
	}
	own := c.trusted.Origin(r)
	if hostName(own.Host) == h.name {
		h.proxy.ServeHTTP(w, r)
		return
	}
	local := own.String()
	if strings.HasPrefix(r.URL.Path, names.EnterprisePrefix+"/") {
		local += names.EnterprisePrefix
	}
	var bases []hypermedia.Base
	for _, entry := range c.config.Hosts {
		if entry.Path != "" {
			bases = append(bases, hypermedia.Base{Upstream: entry.BaseURL(), Local: own.String() + entry.Path}, hypermedia.Base{Upstream: "https://" + entry.Name, Local: own.String() + entry.Path})
		}
	}
	api := c.hosts[0].proxy
	for _, prefix := range append(names.List{api.Upstream}, api.Aliases...).Prefixes() {
		bases = append(bases, hypermedia.Base{Upstream: prefix, Local: local})
	}
	hypermedia.Handler(h.proxy, bases).ServeHTTP(w, r)
}

// hostName returns the name in a Host field, in lower case and without the port.
func hostName(field string) string {
	return strings.TrimSuffix(strings.ToLower((&url.URL{Host: field}).Hostname()), ".")
}
