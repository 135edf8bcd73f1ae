package proxy

import (
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/weirgate/weir/cache"
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

// forwardedFields and the fields of the dialect are the only request fields that are forwarded for known operations. The
// upstream therefore gets no information about the client's network, and no second credential.
var forwardedFields = []string{
	"Accept", "Accept-Encoding", "Accept-Language", "Cache-Control", "Content-Encoding", "Content-Language", "Content-Type",
	"If-Match", "If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since", "Range", "User-Agent",
}

// All requests share these field values, which must not be modified. The upstream requires a User-Agent.
// Surrogate-Capability names this cache for targeted Cache-Control fields of unknown operations (package cache).
var (
	defaultAgent        = []string{"weir"}
	identityEncoding    = []string{"identity"}
	surrogateCapability = []string{`weir="Surrogate/1.0"`}
)

// contentFields describe the body of a request. GET and HEAD requests are forwarded without a body, and therefore without
// these fields.
var contentFields = []string{"Content-Encoding", "Content-Language", "Content-Type"}

// unkeyedFields are the forwarded fields that the cache key of an unknown operation does not contain, besides forwardedFields.
// The gateway sets these fields, or they name one request.
var unkeyedFields = fieldSet(`Correlation-Id Date Request-Id Surrogate-Capability Via`)

var (
	// smallNumbers matches values of at most four digits, which hold no credential.
	smallNumbers = regexp.MustCompile(`^[0-9, ]{0,4}$`)
	// namesCaller matches the names of fields in which even a small number may select the data of a caller.
	namesCaller = regexp.MustCompile(`(?i)(^|-)(id|uid|gid|sid|pin|otp|as|org|for)(-|$)|token|key|secret|pass|pwd|auth|sign|sess|jwt|cred|cookie|code|` +
		`ticket|grant|cert|user|login|account|tenant|owner|member|client|customer|person|sudo|actor|subject|principal|ident|role|scope|group|team|project|organi|company|workspace|` +
		`behalf|impersonat|delegat|mfa|employee|staff|person|badge|device|profile|view|visitor|reader|subscriber|holder|patient|department|division|realm|domain|site|store|uuid|nonce`)
)

// isKeyed reports whether a forwarded field of an unknown operation belongs to the cache key. A field with any name may hold a
// credential, and Vary may not list the field. Only small numbers in fields that name no caller are left to Vary.
func (g *Gateway) isKeyed(name string, values []string) bool {
	small := len(values) == 1 && smallNumbers.MatchString(values[0]) && !namesCaller.MatchString(name)
	return !small && !unkeyedFields[name] && !g.forwardable[name]
}

// outbound returns the forwarded fields of a client's request.
func (g *Gateway) outbound(in http.Header, known bool) http.Header {
	connection, out := cache.ConnectionFields(in), make(http.Header, len(in)+2)
	for name, values := range in {
		if len(values) > 0 && !connection[name] && g.forwards(name, known) {
			out[name] = values[:len(values):len(values)]
		}
	}
	if !known {
		out["Surrogate-Capability"] = surrogateCapability
	}
	if values := out["If-Match"]; len(values) > 0 {
		out["If-Match"] = strengthen(values)
	}
	if out.Get("User-Agent") == "" {
		out["User-Agent"] = defaultAgent
	}
	out["Via"] = g.via
	if earlier := in["Via"]; len(earlier) > 0 && !connection["Via"] {
		out["Via"] = slices.Concat(earlier, g.via)
	}
	return out
}

// forwards reports whether a request field or a trailer with a name is forwarded.
func (g *Gateway) forwards(name string, known bool) bool {
	return g.forwardable[name] || !known && forwardsUnknown(name)
}

// addTrailers forwards the trailers of a request with a body, by the rules for fields. Their values are known at the end of
// the body.
func (g *Gateway) addTrailers(ex *exchange, out *http.Request) {
	connection := cache.ConnectionFields(ex.in.Header)
	for name := range ex.in.Trailer {
		if !connection[name] && g.forwards(name, ex.question.match.Operation.Known()) {
			if out.Trailer == nil {
				out.Trailer = http.Header{}
			}
			out.Trailer[name] = nil
		}
	}
	if out.Trailer != nil {
		out.Body = &trailedBody{ReadCloser: out.Body, g: g, ex: ex, out: out.Trailer}
	}
}

// trailedBody is a request body that sets the forwarded trailers at its end.
type trailedBody struct {
	io.ReadCloser
	g   *Gateway
	ex  *exchange
	out http.Header
}

func (b *trailedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != io.EOF {
		return n, err
	}
	for name := range b.out {
		b.out[name] = b.ex.in.Trailer[name]
	}
	if refusal := b.g.findOwn(b.ex, b.out, "the trailer "); refusal != nil {
		return n, refusal
	}
	return n, err
}

// minOwn is the length of the shortest text that can contain a key or a token for this gateway.
const minOwn = 20

// holdsOwn reports whether a text of a request contains a key or a token for this gateway.
func (g *Gateway) holdsOwn(ex *exchange, text string) bool {
	return g.HoldsOwn != nil && len(text) >= minOwn && g.HoldsOwn(ex.in, text)
}

// ownRefusal refuses a request that would send a key or a token for this gateway upstream.
func ownRefusal(place string) *failure {
	return &failure{
		status: http.StatusBadRequest, detail: "key",
		message: "Bad Request: " + place + " has a key or a token for this gateway, which must not reach the API; send it only in Authorization",
	}
}

// findOwn returns the refusal for a key or a token for this gateway in fields or trailers, or nil.
func (g *Gateway) findOwn(ex *exchange, fields http.Header, kind string) *failure {
	for name, values := range fields {
		if name == "Via" { // the last value is that of the gateway
			values = values[:len(values)-len(g.via)]
		}
		if slices.ContainsFunc(values, func(value string) bool { return g.holdsOwn(ex, value) }) {
			return ownRefusal(kind + name)
		}
	}
	return nil
}

// checkOwn refuses a request that would send a key or a token for this gateway upstream. It checks the forwarded fields, the
// path and the query.
func (g *Gateway) checkOwn(a *attempt) error {
	if g.HoldsOwn == nil {
		return nil
	}
	holds := func(text string) bool { return g.holdsOwn(a.exchange, text) }
	if refusal := g.findOwn(a.exchange, a.header, "the field "); refusal != nil {
		return refusal
	}
	for parameter := range strings.SplitSeq(a.match.Query, "&") {
		name, value, _ := strings.Cut(parameter, "=")
		switch {
		case holds(name):
			return ownRefusal("the name of a query parameter")
		case holds(value):
			return ownRefusal("the query parameter " + name)
		}
	}
	for segment := range strings.SplitSeq(a.match.Path, "/") {
		if holds(segment) {
			return ownRefusal("the path")
		}
	}
	return nil
}

// hasPassed reports whether a request has passed this gateway before. The gateway's Via value is unique.
func (g *Gateway) hasPassed(r *http.Request) bool {
	return slices.ContainsFunc(r.Header["Via"], func(value string) bool { return strings.Contains(value, g.via[0]) })
}

// forwardsUnknown reports whether a request field is forwarded for operations outside the catalogue. Fields about the
// connection, the credential and the cache are not forwarded. Fields by which gateways identify clients (X-…) are not
// forwarded either.
func forwardsUnknown(name string) bool {
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
	return !withheldFields[name]
}

func fieldSet(names string) map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(names) {
		set[name] = true
	}
	return set
}

// withheldFields are the request fields that forwardsUnknown excludes by name.
var withheldFields = fieldSet(`
	Authorization B3 Baggage Client-Ip Connection Content-Length Cookie Expect Forwarded Front-End-Https Host
	Keep-Alive Pragma Prefer Te Traceparent Tracestate Trailer Transfer-Encoding True-Client-Ip Uber-Trace-Id Upgrade Via
`)

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
