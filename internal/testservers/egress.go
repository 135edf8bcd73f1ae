package testservers

import (
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// EgressProxy is a proxy with CONNECT and the absolute form, which requires Basic credentials. It refuses names that contain
// "forbidden", and cannot reach those that contain "unreachable".
type EgressProxy struct {
	*httptest.Server
	credentials string
	route       func(target string) (address string)
	mu          sync.Mutex
	seen        []string
}

// NewEgressProxy starts a proxy. credentials is USER:PASSWORD. route returns the server for the target of a CONNECT. Requests in
// absolute form get a response of the proxy.
func NewEgressProxy(t testing.TB, credentials string, route func(target string) (address string)) *EgressProxy {
	t.Helper()
	p := &EgressProxy{credentials: credentials, route: route}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

// ServeHTTP implements [http.Handler].
func (p *EgressProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.seen = append(p.seen, r.Method+" "+r.RequestURI)
	p.mu.Unlock()
	switch {
	case r.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte(p.credentials)):
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.WriteHeader(http.StatusProxyAuthRequired)
	case strings.Contains(r.Host, "forbidden"):
		w.WriteHeader(http.StatusForbidden)
	case strings.Contains(r.Host, "unreachable"):
		w.WriteHeader(http.StatusBadGateway)
	case r.Method == http.MethodConnect:
		up, err := new(net.Dialer).DialContext(r.Context(), "tcp", p.route(r.Host))
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		down, buffered, _ := http.NewResponseController(w).Hijack()
		_, _ = io.WriteString(down, "HTTP/1.1 200 Connected\r\n\r\n")
		var copies sync.WaitGroup
		copies.Go(func() { _, _ = io.Copy(up, buffered); _ = up.Close() })
		_, _ = io.Copy(down, up)
		_ = down.Close()
		copies.Wait()
	default:
		_, _ = io.WriteString(w, `{"through":"proxy"}`)
	}
}

// Take returns the requests since the last call.
func (p *EgressProxy) Take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.seen
	p.seen = nil
	return seen
}
