package proxy

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/inbound"
)

// EnterprisePrefix is the path prefix of the API on self-hosted instances. Weir accepts paths with and without the
// prefix.
const EnterprisePrefix = "/api/v3"

// target returns the upstream URL of a canonical request target.
func (g *Gateway) target(m policy.Match) *url.URL {
	u := *g.Upstream
	base := strings.TrimSuffix(u.EscapedPath(), "/")
	if m.Path == "/graphql" {
		if host, ok := strings.CutSuffix(base, EnterprisePrefix); ok {
			base = host + "/api"
		}
	}
	u.RawPath = base + m.Path
	u.Path, _ = url.PathUnescape(u.RawPath) // canonical paths have valid escapes
	u.RawQuery = m.Query
	return &u
}

func fieldSet(names string) map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(names) {
		set[name] = true
	}
	return set
}

// returnedFields are the response fields that clients get for known operations. Fields with the dialect's vendor in
// their name are also returned. Fields about the upstream's host are removed. The ReverseProxy and the cache use, and
// later remove, the connection fields in the last line.
var returnedFields = fieldSet(`
	Accept-Ranges Access-Control-Allow-Origin
	Access-Control-Expose-Headers Age Allow Cache-Control Cache-Status Content-Disposition
	Content-Encoding Content-Language Content-Length Content-Location Content-Range
	Content-Security-Policy Content-Type Date Deprecation Etag Expires Last-Modified Link Location
	Pragma Referrer-Policy Retry-After Set-Cookie Sunset Vary Warning Www-Authenticate
	X-Accepted-Oauth-Scopes X-Content-Type-Options X-Frame-Options X-Oauth-Client-Id X-Oauth-Scopes
	X-Poll-Interval X-Ratelimit-Limit X-Ratelimit-Remaining X-Ratelimit-Reset X-Ratelimit-Resource
	X-Ratelimit-Used X-Xss-Protection
	Connection Keep-Alive Trailer Transfer-Encoding Upgrade
`)

// unreturnedFields are removed from all responses. These fields describe the upstream's host, its trace or the
// budget of another request. In a browser they would apply to the host of the gateway. Access-Control-Allow-Credentials
// would let another site read what a client certificate in the browser may read.
var unreturnedFields = []string{
	"Access-Control-Allow-Credentials", "Alt-Svc", "Nel", "Proxy-Authenticate", "Proxy-Authentication-Info", "Ratelimit", "Ratelimit-Policy",
	"Refresh", "Report-To", "Reporting-Endpoints", "Service-Worker-Allowed", "Strict-Transport-Security", traceresponseHeader, "Via",
}

// filterResponse removes the response fields that clients do not get. The ReverseProxy later removes fields named by
// Connection (RFC 9110 section 7.6.1).
func (g *Gateway) filterResponse(op *policy.Operation, h http.Header) {
	for _, name := range unreturnedFields {
		delete(h, name)
	}
	if !op.Known() {
		return
	}
	for name := range h {
		if !returnedFields[name] && !strings.Contains(strings.ToLower(name), g.Dialect.Vendor) {
			delete(h, name)
		}
	}
}

// interimFields returns the fields of an interim response that clients get: for a known operation Link, the field of
// early hints (RFC 8297). Other fields describe the upstream's host, its connection or the budget of another request.
func (g *Gateway) interimFields(a *attempt, h http.Header) http.Header {
	kept := http.Header{}
	for name, values := range h {
		if name == "Link" || !a.match.Operation.Known() && !strings.HasPrefix(name, "X-Ratelimit-") && !connectionFields[name] {
			kept[name] = values
		}
	}
	g.filterResponse(a.match.Operation, kept)
	g.localize(a.exchange, kept)
	return kept
}

// connectionFields describe the connection to the upstream or its client there.
var connectionFields = fieldSet("Connection Keep-Alive Proxy-Connection Set-Cookie Trailer Transfer-Encoding Upgrade")

// localFields are the response fields with one URL that localize rewrites.
var localFields = [...]string{"Location", "Content-Location"}

// localize replaces the upstream by the gateway in the URLs of Link, Location and Content-Location. URLs of other hosts stay
// unchanged. The gateway never sends a credential to other hosts.
func (g *Gateway) localize(ex *exchange, h http.Header) {
	if len(h["Link"]) == 0 && len(h["Location"]) == 0 && len(h["Content-Location"]) == 0 {
		return
	}
	origin := g.TrustedProxies.Origin(ex.in)
	for _, name := range localFields {
		if target := h.Get(name); target != "" {
			local := g.localURL(ex, origin, target)
			if h.Set(name, local); local == target {
				g.noteForeignName(name, target, "")
			}
		}
	}
	if links := h["Link"]; len(links) > 0 {
		rewritten := make([]string, len(links))
		for i, value := range links {
			rewritten[i] = g.localLinks(ex, origin, value)
		}
		h["Link"] = rewritten
	}
}

// localLinks rewrites each <URI-Reference> of a Link field (RFC 8288 section 3). Angle brackets cannot occur in a URI
// or in an unquoted parameter. A quoted parameter is changed only if angle brackets in the parameter contain the
// upstream's URL.
func (g *Gateway) localLinks(ex *exchange, origin inbound.Origin, value string) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(value, "<")
		uri, after, closed := strings.Cut(rest, ">")
		if !ok || !closed {
			b.WriteString(value)
			return b.String()
		}
		local := g.localURL(ex, origin, uri)
		if local == uri {
			parameters, _, _ := strings.Cut(after, "<")
			g.noteForeignName("Link", uri, parameters)
		}
		b.WriteString(before + "<" + local + ">")
		value = after
	}
}

// localURL translates a URL below the upstream's base into the URL for the same target at the gateway. Other URLs are
// returned unchanged, and so are URLs with the name by which the client calls the upstream, for example through the forward
// proxy. A path without a host needs a translation only if clients reach the upstream below a prefix.
func (g *Gateway) localURL(ex *exchange, origin inbound.Origin, raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.User != nil || u.Host != "" && strings.EqualFold(u.Host, origin.Host) {
		return raw
	}
	prefix, base := origin.Prefix+ex.prefix, origin.String()+ex.prefix
	if u.Host == "" && u.Scheme == "" && strings.HasPrefix(u.Path, "/") && prefix != "" {
		u.Scheme, u.Host, base = g.Upstream.Scheme, g.Upstream.Host, prefix
	}
	path, ok := g.pathOf(u)
	if !ok {
		return raw
	}
	local := base + path
	if u.RawQuery != "" {
		local += "?" + u.RawQuery
	}
	if u.Fragment != "" {
		local += "#" + u.EscapedFragment()
	}
	return local
}

// pathOf returns the path of a URL of the upstream below its base, and false for other URLs. The paths of files stay
// unchanged.
func (g *Gateway) pathOf(u *url.URL) (path string, ok bool) {
	if g.Host == "" {
		return g.names.Path(u, g.Catalogue)
	}
	return pathBelow(u, g.Upstream, strings.TrimSuffix(g.Upstream.EscapedPath(), "/"))
}
