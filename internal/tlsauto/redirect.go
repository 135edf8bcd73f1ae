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

// challengePath matches the whole path of an HTTP-01 challenge. The token in the path is base64url (RFC 8555 section
// 8.3).
var challengePath = regexp.MustCompile(`^/\.well-known/acme-challenge/[A-Za-z0-9_-]{1,128}$`)

// challengeTimeout bounds the look-up of a challenge in the storage.
const challengeTimeout = 2 * time.Second

// Redirect returns the handler for the plain HTTP listener. The handler serves HTTP-01 challenges. Requests for
// configured names are redirected to HTTPS with status 308, which preserves method and body (RFC 9110 section 15.4.9).
// All other requests go to misdirected. Targets without an absolute path also go to misdirected, because text behind
// the host could change the host.
//
// secure and plain are the addresses of the listeners. If the port of the request differs from the port of plain, a
// port mapping is in front, and HTTPS is at port 443. Otherwise HTTPS is at the port of secure.
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

// serveChallenge responds to a pending challenge and reports whether a challenge was pending. Only paths of challenges
// cause a look-up in the storage.
func (m *Manager) serveChallenge(w http.ResponseWriter, r *http.Request) bool {
	issuer := m.issuer.Load()
	if issuer == nil || !challengePath.MatchString(r.URL.EscapedPath()) {
		return false
	}
	ctx, cancel := context.WithTimeout(r.Context(), challengeTimeout)
	defer cancel()
	return issuer.HandleHTTPChallenge(w, r.WithContext(ctx))
}

// splitHost splits a Host header. A header without a port has the port 80. A port that is not a number is returned as
// 0.
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
