package admin

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/credential"
)

// Access configures authentication. With neither a token nor authorities, every request is accepted, which is only safe
// on a loopback listener.
type Access struct {
	// Token authenticates requests that send Token as a bearer token. An empty Token disables token authentication.
	Token credential.Secret
	// Authorities returns the CAs whose client certificates are accepted instead of the token. If Authorities is nil,
	// no certificates are accepted. The function is called for every request, because a connection can outlast a
	// configuration.
	Authorities func() *x509.CertPool
	// Hosts are the allowed Host headers, in addition to localhost and IP addresses.
	Hosts []string
}

// Guarded reports whether requests must authenticate.
func (a Access) Guarded() bool { return a.Token != "" || a.Authorities != nil }

// allowsHost reports whether a Host header is allowed. An IP address is safe, because the user entered the address or
// the request is cross-origin. Any other name could point to this listener by DNS rebinding.
func (a Access) allowsHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	name = strings.Trim(name, "[]")
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	same := func(allowed string) bool { return strings.EqualFold(allowed, name) }
	return same("localhost") || slices.ContainsFunc(a.Hosts, same)
}

// guard authenticates requests by token, certificate or session.
type guard struct {
	Access
	trail    *Trail
	sessions sessions
	guesses  guesses
}

// errNoCredential refuses a request without a valid session, certificate or token.
var errNoCredential = errors.New("authentication required; send Authorization: Bearer TOKEN with the admin token")

// authenticate returns the name of the operator. The error is errNoCredential, errWrongToken or errGuesses.
func (g *guard) authenticate(r *http.Request) (name string, err error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case !g.Guarded():
		return "loopback", nil
	case g.Authorities != nil && verified(r.TLS, g.Authorities()):
		return "certificate " + r.TLS.PeerCertificates[0].Subject.String(), nil
	case g.Token != "" && g.sessions.isValid(sessionOf(r), time.Now()):
		return "session", nil
	case g.Token != "" && strings.EqualFold(scheme, "Bearer"):
		return "token", g.checkToken(r, token)
	}
	return "", errNoCredential
}

// verified reports whether the client certificate of a connection is valid now.
func verified(state *tls.ConnectionState, authorities *x509.CertPool) bool {
	if state == nil || !state.HandshakeComplete || len(state.PeerCertificates) == 0 || authorities == nil {
		return false // a nil pool would mean the CAs of the system
	}
	intermediates := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: authorities, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err == nil
}

// operatorKey is the context key of the operator's name.
type operatorKey struct{}

// setSecurityHeaders forbids browsers to run scripts, to send a referrer, and to frame, sniff or store the response.
func setSecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}
