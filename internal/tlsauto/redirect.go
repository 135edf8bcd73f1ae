package tlsauto

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// challengePath matches the whole path of an HTTP-01 challenge; its token is base64url (RFC 8555 section 8.3).
var challengePath = regexp.MustCompile(`^/\.well-known/acme-challenge/[A-Za-z0-9_-]{1,128}$`)

// challengeTimeout bounds the look-up of a challenge in the storage.
const challengeTimeout = 2 * time.Second

// Redirect returns the handler for the plain HTTP listener. It serves HTTP-01 challenges and redirects
// requests for configured names to HTTPS with status 308, which preserves method and body (RFC 9110
// section 15.4.9). All other requests go to misdirected, and so do targets without an absolute path, because
// text behind the host could change the host.
//
// secure and plain are the addresses of the listeners. If the port of the request differs from that of plain, a
// port mapping is in front, and HTTPS is at port 443. Otherwise it is at the port of secure.
func (m *Manager) Redirect(secure, plain net.Addr, misdirected http.Handler) http.Handler {
	_, securePort := splitAddress(secure)
	_, plainPort := splitAddress(plain)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, port := splitHost(r.Host)
		s := m.current.Load()
		if !s.serves(host) || !strings.HasPrefix(r.URL.Path, "/") || r.Method == http.MethodConnect {
			misdirected.ServeHTTP(w, r)
			return
		}
		if slices.Contains(s.domains, host) && m.serveChallenge(w, r) {
			return
		}
		target := host
		if strings.Contains(host, ":") {
			target = "[" + host + "]"
		}
		if port == plainPort && securePort != 443 {
			target = net.JoinHostPort(host, strconv.Itoa(securePort))
		}
		http.Redirect(w, r, "https://"+target+r.URL.RequestURI(), http.StatusPermanentRedirect)
	})
}

// serveChallenge responds to a pending challenge and reports whether there was one. Only paths of
// challenges cause a look-up in the storage.
func (m *Manager) serveChallenge(w http.ResponseWriter, r *http.Request) bool {
	issuer := m.issuer.Load()
	if issuer == nil || !challengePath.MatchString(r.URL.EscapedPath()) {
		return false
	}
	ctx, cancel := context.WithTimeout(r.Context(), challengeTimeout)
	defer cancel()
	return issuer.HandleHTTPChallenge(w, r.WithContext(ctx))
}

// splitHost splits a Host header. The port is 80 if the header has none, and 0 if it is not a number.
func splitHost(field string) (host string, port int) {
	host, text, err := net.SplitHostPort(field)
	if err != nil {
		host, text = strings.Trim(field, "[]"), "80"
	}
	port, _ = strconv.Atoi(text)
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.String(), port
	}
	return strings.ToLower(strings.TrimSuffix(host, ".")), port
}
