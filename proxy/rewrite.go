package proxy

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/policy"
)

// enterprisePrefix is where self-hosted instances have the API; Weir answers
// there too.
const enterprisePrefix = "/api/v3"

// target is the upstream URL of a canonical request target.
func (g *Gateway) target(m policy.Match) *url.URL {
	u := *g.Upstream
	base := strings.TrimSuffix(u.EscapedPath(), "/")
	if m.Path == "/graphql" {
		if host, ok := strings.CutSuffix(base, enterprisePrefix); ok {
			base = host + "/api"
		}
	}
	u.RawPath = base + m.Path
	u.Path, _ = url.PathUnescape(u.RawPath) // canonical, so it cannot fail
	u.RawQuery = m.Query
	return &u
}

// forwarded are the request fields that go upstream, beside the dialect's own.
// For operations of the documents everything else stays here: nothing unkeyed can
// change an answer, nothing of the client's network is told, and no credential is
// merged.
var forwarded = []string{
	"Accept", "Accept-Encoding", "Accept-Language", "Cache-Control", "Content-Encoding", "Content-Language", "Content-Type",
	"If-Match", "If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since", "Range", "User-Agent",
}

// defaultAgent is sent for clients that name none: the upstream demands one.
const defaultAgent = "weir"

// Values that many requests share; nobody writes to them. The capability tells origins
// that the API's documents do not know how they may speak to this cache alone, by which
// name (package cache).
var (
	via        = []string{"1.1 weir"}
	agents     = []string{defaultAgent}
	identity   = []string{"identity"}
	capability = []string{`weir="Surrogate/1.0"`}
)

// outbound puts into out what goes on of a request's fields.
func (g *Gateway) outbound(out, in http.Header, known bool) {
	named := cache.ConnectionFields(in)
	for name, values := range in {
		if len(values) > 0 && !named[name] && (g.passes[name] || !known && plain(name)) {
			out[name] = values[:len(values):len(values)]
		}
	}
	if !known {
		out["Surrogate-Capability"] = capability
	}
	if out.Get("User-Agent") == "" {
		out["User-Agent"] = agents
	}
	out["Via"] = via
}

// plain reports whether a request field goes upstream where nothing documents what
// the operation takes. None does by which gateways tell each other who asks and for
// what (X-…), nor one that is about the connection, the credential or the cache.
func plain(name string) bool {
	for i := range len(name) {
		if c := name[i] | 0x20; c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	for _, prefix := range []string{"X-", "Proxy-", "Sec-", "Cf-", "Fastly-", "Akamai-", "Remote-", "Weir-"} {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return !ours[name]
}

// ours are the request fields that plain leaves here, beside those of a prefix.
var ours = map[string]bool{
	"Authorization": true, "Client-Ip": true, "Connection": true, "Content-Length": true, "Cookie": true, "Expect": true,
	"Forwarded": true, "Front-End-Https": true, "Host": true, "Keep-Alive": true, "Pragma": true, "Prefer": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "True-Client-Ip": true, "Upgrade": true, "Via": true,
}

// returned are the response fields of operations of the documents that clients get,
// beside those with the dialect's vendor in their names: what an answer is, how it is
// kept, and what it tells of a token. Nothing about the upstream's host or its
// connections comes through.
var returned = map[string]bool{
	"Accept-Ranges": true, "Access-Control-Allow-Credentials": true, "Access-Control-Allow-Origin": true, "Access-Control-Expose-Headers": true,
	"Age": true, "Allow": true, "Cache-Control": true, "Cache-Status": true, "Content-Disposition": true, "Content-Encoding": true,
	"Content-Language": true, "Content-Length": true, "Content-Location": true, "Content-Range": true, "Content-Security-Policy": true,
	"Content-Type": true, "Date": true, "Deprecation": true, "Etag": true, "Expires": true, "Last-Modified": true, "Link": true, "Location": true,
	"Pragma": true, "Referrer-Policy": true, "Retry-After": true, "Set-Cookie": true, "Sunset": true, "Vary": true, "Warning": true, "Www-Authenticate": true,
	"X-Accepted-Oauth-Scopes": true, "X-Content-Type-Options": true, "X-Frame-Options": true, "X-Oauth-Client-Id": true, "X-Oauth-Scopes": true,
	"X-Poll-Interval": true, "X-Ratelimit-Limit": true, "X-Ratelimit-Remaining": true, "X-Ratelimit-Reset": true, "X-Ratelimit-Resource": true,
	"X-Ratelimit-Used": true, "X-Xss-Protection": true,
}

// withheld are those that do not come through where nothing documents what an
// operation answers: they are about the upstream's host, or about some other
// request's budget.
var withheld = []string{"Ratelimit", "Ratelimit-Policy", "Alt-Svc", "Strict-Transport-Security", "Proxy-Authenticate", "Proxy-Authentication-Info", "Via"}

// sift takes out of an answer what does not come through. What Connection names goes
// with it later (RFC 9110 section 7.6.1).
func (g *Gateway) sift(op *policy.Operation, h http.Header) {
	if !op.Known() {
		for _, name := range withheld {
			h.Del(name)
		}
		return
	}
	for name := range h {
		if !returned[name] && !hopByHop[name] && !strings.Contains(strings.ToLower(name), g.Dialect.Vendor) {
			delete(h, name)
		}
	}
}

// hopByHop are the response fields by which the ReverseProxy and the cache know what is
// about one connection; they take them out.
var hopByHop = map[string]bool{"Connection": true, "Keep-Alive": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true}

// localize makes Link and Location name the gateway where they name the
// upstream. Other hosts stay as they are: they never get a credential of ours.
func (g *Gateway) localize(ex *exchange, h http.Header) {
	if location := h.Get("Location"); location != "" {
		h.Set("Location", g.local(ex, location))
	}
	if links := h["Link"]; len(links) > 0 {
		rewritten := make([]string, len(links))
		for i, value := range links {
			rewritten[i] = g.localLinks(ex, value)
		}
		h["Link"] = rewritten
	}
}

// localLinks rewrites each <URI-Reference> of a Link field (RFC 8288 section
// 3). Angle brackets cannot stand in a URI, nor unquoted in a parameter; one in
// a quoted parameter is left alone unless it holds the upstream's URL.
func (g *Gateway) localLinks(ex *exchange, value string) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(value, "<")
		uri, after, closed := strings.Cut(rest, ">")
		if !ok || !closed {
			b.WriteString(value)
			return b.String()
		}
		b.WriteString(before)
		b.WriteByte('<')
		b.WriteString(g.local(ex, uri))
		b.WriteByte('>')
		value = after
	}
}

// local turns an absolute URL under the upstream's base into the same under
// the gateway's origin, as this client reached it.
func (g *Gateway) local(ex *exchange, raw string) string {
	u, err := url.Parse(raw)
	if err != nil || !sameOrigin(u, g.Upstream) || u.User != nil {
		return raw
	}
	base := strings.TrimSuffix(g.Upstream.EscapedPath(), "/")
	rest, ok := strings.CutPrefix(u.EscapedPath(), base)
	if !ok || rest != "" && rest[0] != '/' {
		return raw
	}
	scheme := "http"
	if g.TrustedProxies.IsHTTPS(ex.in) {
		scheme = "https"
	}
	local := scheme + "://" + ex.in.Host + ex.prefix + rest
	if u.RawQuery != "" {
		local += "?" + u.RawQuery
	}
	if u.Fragment != "" {
		local += "#" + u.EscapedFragment()
	}
	return local
}

func sameOrigin(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	if strings.EqualFold(u.Scheme, "https") {
		return "443"
	}
	return "80"
}
