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

// challenge is the path of an HTTP-01 challenge, to its end: the token is of the
// base64url alphabet (RFC 8555, section 8.3).
var challenge = regexp.MustCompile(`^/\.well-known/acme-challenge/[A-Za-z0-9_-]{1,128}$`)

// challengePatience is how long the storage has to say whether there is a challenge.
const challengePatience = 2 * time.Second

// Redirect returns what plain HTTP is answered with: challenges, and the way to
// HTTPS for names that are answered for. misdirected is for all others, and for
// targets without a path of their own: behind the host they could make it another.
// 308 keeps method and body (RFC 9110, section 15.4.9).
//
// Where the port of the request is not the one that is listened on, something in
// front maps ports, and HTTPS is at its usual one; else it is at the port of secure.
func (m *Manager) Redirect(secure, plain net.Addr, misdirected http.Handler) http.Handler {
	_, to := split(secure)
	_, at := split(plain)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, port := hostPort(r.Host)
		a := m.current.Load()
		if !a.serves(host) || !strings.HasPrefix(r.URL.Path, "/") || r.Method == http.MethodConnect {
			misdirected.ServeHTTP(w, r)
			return
		}
		if slices.Contains(a.domains, host) && m.challenged(w, r) {
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

// challenged answers a challenge, if one is on at the path. Whoever asks has the storage
// asked, so that is for what can be one alone, and bounded in time.
func (m *Manager) challenged(w http.ResponseWriter, r *http.Request) bool {
	issuer := m.issuer.Load()
	if issuer == nil || !challenge.MatchString(r.URL.EscapedPath()) {
		return false
	}
	ctx, cancel := context.WithTimeout(r.Context(), challengePatience)
	defer cancel()
	return issuer.HandleHTTPChallenge(w, r.WithContext(ctx))
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
