// Package screen refuses the requests that a gateway does not handle: those of other protocols, with large headers, for its own
// paths, and those that it has forwarded before.
package screen

import (
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/cors"
	"github.com/weirgate/weir/proxy/names"
	"github.com/weirgate/weir/proxy/refusal"
)

// Gateway describes the gateway that handles the requests.
type Gateway struct {
	Prefix string // of the paths of the API at the gateway
	Files  bool   // the upstream has files instead of the API
	Name   string // unique name that the gateway adds to Via
}

// These constants bound the size of a request without its body. The bound of the server must exceed MaxHeader, so that
// the gateway writes the refusal.
const (
	MaxTarget = 8 << 10
	MaxHeader = 32 << 10
)

// MaxHeaderBytes is the setting for the [http.Server] of a gateway.
const MaxHeaderBytes = 2 * MaxHeader

// Check returns the refusal of a request that the gateway does not handle, or nil.
func (g *Gateway) Check(r *http.Request) error {
	switch {
	case r.Method == http.MethodConnect, r.Method == http.MethodTrace:
		return &refusal.Error{
			Status: http.StatusMethodNotAllowed, Message: "Method Not Allowed: " + r.Method,
			Allow: cors.Methods + ", OPTIONS",
		}
	case len(r.RequestURI) > MaxTarget:
		return &refusal.Error{Status: http.StatusRequestURITooLong, Message: "URI Too Long: at most 8 KiB"}
	case HeaderSize(r.Header) > MaxHeader:
		return &refusal.Error{Status: http.StatusRequestHeaderFieldsTooLarge, Message: "Request Header Fields Too Large: at most 32 KiB"}
	case r.URL.IsAbs() && !isLocal(r):
		return &refusal.Error{Status: http.StatusBadRequest, Message: "Bad Request: this listener is not a forward proxy; send the path alone, or use the address of proxy.listen"}
	case isOwnPath(r.URL.Path), isOwnPath(strings.TrimPrefix(r.URL.Path, g.Prefix)):
		return &refusal.Error{Status: http.StatusNotFound, Message: "Not Found: Weir has nothing at this path"}
	case !g.Files && isGit(r):
		return &refusal.Error{
			Status: http.StatusMisdirectedRequest, Detail: "git", Plain: true,
			Message: "Weir serves the API, not git. Use the URL of the git host, directly or through Weir's forward proxy (docs/proxy.md).",
		}
	case g.hasPassed(r):
		return &refusal.Error{Status: http.StatusLoopDetected, Detail: "loop", Message: "Loop Detected: the upstream forwards to this gateway"}
	}
	return nil
}

// isOwnPath reports whether a decoded path is one of Weir's own paths, also below the prefix of the API. Requests for
// these paths are never forwarded.
func isOwnPath(path string) bool {
	path = strings.TrimPrefix(policy.SingleSlashes(path), names.EnterprisePrefix)
	return path == "/_weir" || strings.HasPrefix(path, "/_weir/")
}

// isGit reports whether a request is of git over HTTP (gitprotocol-http) or of Git LFS. The API has no such paths.
func isGit(r *http.Request) bool {
	path, post := r.URL.Path, r.Method == http.MethodPost
	return strings.HasSuffix(path, "/info/refs") && strings.HasPrefix(r.URL.Query().Get("service"), "git-") ||
		post && strings.HasSuffix(path, "/git-upload-pack") || post && strings.HasSuffix(path, "/git-receive-pack") ||
		strings.Contains(path, ".git/info/lfs/") && !strings.HasPrefix(path, "/repos/")
}

// HeaderSize returns the size of a header over HTTP/1.1.
func HeaderSize(h http.Header) int {
	size := 0
	for name, values := range h {
		for _, value := range values {
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	return size
}

// isLocal reports whether an absolute-form target names the address that received the request.
func isLocal(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || r.URL.User != nil {
		return false
	}
	_, port, err := net.SplitHostPort(local.String())
	return err == nil && (r.URL.Host == local.String() || r.URL.Host == "localhost:"+port)
}

// hasPassed reports whether a request has passed this gateway before. The gateway's name in Via is unique.
func (g *Gateway) hasPassed(r *http.Request) bool {
	return slices.ContainsFunc(r.Header["Via"], func(value string) bool { return strings.Contains(value, g.Name) })
}
