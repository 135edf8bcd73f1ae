// Package cors lets programs in browsers call the gateway from pages of other sites (Cross-Origin Resource Sharing).
package cors

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
	preflightAge   = "86400" // seconds, as at the API
)

// Methods are those of the API.
const Methods = "GET, HEAD, POST, PUT, PATCH, DELETE"

// Allow lets programs of all sites read a response of the gateway itself. exposed lists the fields that they may read.
func Allow(h http.Header, exposed string) {
	h.Set("Access-Control-Allow-Origin", allowedOrigins)
	h.Set("Access-Control-Expose-Headers", exposed)
}

// IsPreflight reports whether a browser asks for the permission to send a request, or the gateway is the last recipient of OPTIONS
// (RFC 9110 section 7.6.2). Such a question has no credential and no body.
func IsPreflight(r *http.Request) bool {
	if r.Method != http.MethodOptions {
		return false
	}
	h := r.Header
	if most := h.Get("Max-Forwards"); most != "" && strings.Trim(most, "0") == "" {
		return true
	}
	return h.Get("Origin") != "" && h.Get("Access-Control-Request-Method") != ""
}

// Permit sets the fields of the response h to a preflight. It permits the methods of the API, and the method and all fields that
// the browser names, because all of them are forwarded.
func Permit(h, asked http.Header) {
	h.Set("Allow", Methods+", OPTIONS")
	methods := Methods
	if method := asked.Get("Access-Control-Request-Method"); record.MethodLabel(method) == record.OtherMethod && httpguts.ValidHeaderFieldName(method) {
		methods += ", " + method // a method is a token, like the name of a field
	}
	h.Set("Access-Control-Allow-Methods", methods)
	h.Set("Access-Control-Max-Age", preflightAge)
	var fields []string
	for _, value := range asked["Access-Control-Request-Headers"] {
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
}
