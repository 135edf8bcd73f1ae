package fields

import (
	"net/http"
	"strings"

	"github.com/weirgate/weir/policy"
)

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

func fieldSet(names string) map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(names) {
		set[name] = true
	}
	return set
}

// unreturnedFields are removed from all responses. These fields describe the upstream's host, its trace or the
// budget of another request. In a browser they would apply to the host of the gateway. Access-Control-Allow-Credentials
// would let another site read what a client certificate in the browser may read.
var unreturnedFields = []string{
	"Access-Control-Allow-Credentials", "Alt-Svc", "Nel", "Proxy-Authenticate", "Proxy-Authentication-Info", "Ratelimit", "Ratelimit-Policy",
	"Refresh", "Report-To", "Reporting-Endpoints", "Service-Worker-Allowed", "Strict-Transport-Security", Traceresponse, "Via",
}

// Traceresponse is the response field of W3C Trace Context, level 2.
const Traceresponse = "Traceresponse"

// FilterResponse removes the response fields that clients do not get. vendor is that of the dialect. The ReverseProxy later
// removes fields named by Connection (RFC 9110 section 7.6.1).
func FilterResponse(op *policy.Operation, vendor string, h http.Header) {
	for _, name := range unreturnedFields {
		delete(h, name)
	}
	if !op.Known() {
		return
	}
	for name := range h {
		if !returnedFields[name] && !strings.Contains(strings.ToLower(name), vendor) {
			delete(h, name)
		}
	}
}

// Interim returns the fields of an interim response that clients get: for a known operation Link, the field of early hints (RFC
// 8297). Other fields describe the upstream's host, its connection or the budget of another request.
func Interim(op *policy.Operation, vendor string, h http.Header) http.Header {
	kept := http.Header{}
	for name, values := range h {
		if name == "Link" || !op.Known() && !strings.HasPrefix(name, "X-Ratelimit-") && !connectionFields[name] {
			kept[name] = values
		}
	}
	FilterResponse(op, vendor, kept)
	return kept
}

// connectionFields describe the connection to the upstream or its client there.
var connectionFields = fieldSet("Connection Keep-Alive Proxy-Connection Set-Cookie Trailer Transfer-Encoding Upgrade")
