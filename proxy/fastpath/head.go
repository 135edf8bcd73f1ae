package fastpath

import (
	"net/http"
	"strconv"
	"strings"
)

// head is the framing of a request.
type head struct {
	size  int   // bytes up to and including the empty line
	body  int64 // Content-Length
	plain bool  // a GET without a body
}

// parseHead returns the framing of the request at the start of text. It reports false unless
// the head is complete and has the strictest form of RFC 9112. That form has single spaces,
// CRLF line ends, an origin-form target, one Host field, printable ASCII values, and no field
// that changes the connection or the transfer coding. All programs agree on its framing.
func parseHead(text string) (h head, ok bool) {
	end := strings.Index(text, "\r\n\r\n")
	if end < 0 {
		return head{}, false
	}
	line, fields, _ := strings.Cut(text[:end], "\r\n")
	method, line, _ := strings.Cut(line, " ")
	target, version, _ := strings.Cut(line, " ")
	if version != "HTTP/1.1" || !all(method, isUpper) || !strings.HasPrefix(target, "/") || !all(target, isVisible) {
		return head{}, false
	}
	h = head{size: end + len("\r\n\r\n"), body: -1}
	host := false
	for len(fields) > 0 {
		line, fields, _ = strings.Cut(fields, "\r\n")
		name, value, colon := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !colon || !all(name, isToken) || value != "" && !all(value, isPrintable) {
			return head{}, false
		}
		switch http.CanonicalHeaderKey(name) {
		case "Host":
			if host || !all(value, isAuthority) {
				return head{}, false
			}
			host = true
		case "Content-Length":
			n, err := strconv.ParseUint(value, 10, 63)
			if h.body >= 0 || err != nil {
				return head{}, false
			}
			h.body = int64(n)
		case "Connection":
			if !strings.EqualFold(value, "keep-alive") {
				return head{}, false
			}
		case "Transfer-Encoding", "Upgrade", "Expect", "Trailer":
			return head{}, false
		}
	}
	h.plain = method == http.MethodGet && h.body < 0
	h.body = max(0, h.body)
	return h, host
}

// all reports whether text is not empty and all its bytes belong to a class.
func all(text string, class func(byte) bool) bool {
	for i := range len(text) {
		if !class(text[i]) {
			return false
		}
	}
	return text != ""
}

func isUpper(c byte) bool     { return 'A' <= c && c <= 'Z' }
func isVisible(c byte) bool   { return '!' <= c && c <= '~' }
func isPrintable(c byte) bool { return ' ' <= c && c <= '~' || c == '\t' }

func isAlphanumeric(c byte) bool {
	return isUpper(c) || 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
}

func isToken(c byte) bool     { return isAlphanumeric(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 }
func isAuthority(c byte) bool { return isAlphanumeric(c) || strings.IndexByte("-._:[]", c) >= 0 }
