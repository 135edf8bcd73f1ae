package proxy

import (
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/weirgate/weir/proxy/record"
)

// The API lets programs in browsers of all sites read its responses, without credentials of the browser. Responses of the gateway
// itself have the same fields, so that such a program sees the refusal instead of a network error.
const (
	allowedOrigins = "*"
	allowedMethods = "GET, HEAD, POST, PUT, PATCH, DELETE"
	preflightAge   = "86400" // seconds, as at the API
	// exposedFields are the response fields that programs of other sites may read, besides those of the dialect.
	exposedFields = "ETag, Link, Location, Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Used, X-RateLimit-Resource, X-RateLimit-Reset, " +
		"X-OAuth-Scopes, X-Accepted-OAuth-Scopes, X-Poll-Interval, Deprecation, Sunset, Cache-Status, " + requestIDHeader + ", " + debugHeader
)

// allowOrigins lets programs of all sites read a response of the gateway itself.
func (g *Gateway) allowOrigins(h http.Header) {
	h.Set("Access-Control-Allow-Origin", allowedOrigins)
	h.Set("Access-Control-Expose-Headers", g.exposed)
}

// isPreflight reports whether a browser asks for the permission to send a request, or the gateway is the last recipient of OPTIONS
// (RFC 9110 section 7.6.2). Such a question has no credential.
func (ex *exchange) isPreflight() bool {
	if ex.in.Method != http.MethodOptions || ex.body != nil {
		return false
	}
	h := ex.in.Header
	if most := h.Get("Max-Forwards"); most != "" && strings.Trim(most, "0") == "" {
		return true
	}
	return h.Get("Origin") != "" && h.Get("Access-Control-Request-Method") != ""
}

// answerPreflight permits the methods of the API, and the method and all fields that the browser names, because all of them are
// forwarded.
func (g *Gateway) answerPreflight(ex *exchange) {
	ex.record.Cache = record.CacheStatus{Detail: "preflight", Own: true}
	h := ex.w.Header()
	h.Set("Allow", allowedMethods+", OPTIONS")
	g.allowOrigins(h)
	methods := allowedMethods
	if method := ex.in.Header.Get("Access-Control-Request-Method"); methodLabel(method) == "_OTHER" && httpguts.ValidHeaderFieldName(method) {
		methods += ", " + method // a method is a token, like the name of a field
	}
	h.Set("Access-Control-Allow-Methods", methods)
	h.Set("Access-Control-Max-Age", preflightAge)
	var fields []string
	for _, value := range ex.in.Header["Access-Control-Request-Headers"] {
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.Trim(name, " \t"); httpguts.ValidHeaderFieldName(name) {
				fields = append(fields, name)
			}
		}
	}
	if len(fields) > 0 {
		h.Set("Access-Control-Allow-Headers", strings.Join(fields, ", "))
	}
	h.Set("Vary", "Access-Control-Request-Headers, Access-Control-Request-Method")
	g.setWeirHeaders(ex, http.StatusNoContent, h)
	ex.w.WriteHeader(http.StatusNoContent)
}
