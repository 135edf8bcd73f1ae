package tlsauto

import (
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// challengePath is where HTTP-01 challenges are (RFC 8555, section 8.3).
const challengePath = "/.well-known/acme-challenge/"

// Redirect returns what plain HTTP is answered with: challenges, and the way to
// HTTPS for names that are answered for. misdirected is for all others. 308 keeps
// method and body (RFC 9110, section 15.4.9).
//
// Where the port of the request is not the one that is listened on, something in
// front maps ports, and HTTPS is at its usual one; else it is at the port of secure.
func (m *Manager) Redirect(secure, plain net.Addr, misdirected http.Handler) http.Handler {
	_, to := split(secure)
	_, at := split(plain)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, port := hostPort(r.Host)
		a := m.current.Load()
		if !a.serves(host) || r.URL.Path == "*" || r.Method == http.MethodConnect {
			misdirected.ServeHTTP(w, r)
			return
		}
		if issuer := m.issuer.Load(); strings.HasPrefix(r.URL.Path, challengePath) && issuer != nil && issuer.HandleHTTPChallenge(w, r) {
			return
		}
		target := host
		if strings.Contains(host, ":") {
			target = "[" + host + "]"
		}
		if port == at && to != 443 {
			target = net.JoinHostPort(host, strconv.Itoa(to))
		}
		http.Redirect(w, r, "https://"+target+r.URL.RequestURI(), http.StatusPermanentRedirect)
	})
}

// hostPort takes a Host field apart; port is 80 where none is named, 0 where what
// is named is none.
func hostPort(field string) (host string, port int) {
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
