package admin

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/credential"
)

// Access says who is let in, and by which names. With neither token nor certificates
// nobody is asked who they are: that is for a listener on loopback only.
type Access struct {
	// Token lets in who shows it as a bearer token.
	Token credential.Secret
	// Authorities lets in who has shown a certificate that one of those that it returns
	// vouches for, with or without the token; nil lets in nobody so. It is asked for
	// every request: a connection lasts longer than a configuration, and than what was
	// true when it began.
	Authorities func() *x509.CertPool
	// Hosts are names of the listener, beside localhost and any address.
	Hosts []string
}

// Guarded reports whether anything is asked of who comes.
func (a Access) Guarded() bool { return a.Token != "" || a.Authorities != nil }

// called reports whether the listener answers to the Host of a request. An address
// is no danger: a browser that sends one was told it by its user, or by a page whose
// origin is another, which is refused as such. A name leads where its owner says.
func (a Access) called(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	name = strings.Trim(name, "[]")
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	same := func(own string) bool { return strings.EqualFold(own, name) }
	return same("localhost") || slices.ContainsFunc(a.Hosts, same)
}

// guard is who is let in, and the browsers that were.
type guard struct {
	Access
	sessions sessions
}

// who names the operator behind a request; not ok if it has shown nothing that lets
// it in.
func (g *guard) who(r *http.Request) (name string, ok bool) {
	if name, ok = g.Access.who(r); ok || g.Token == "" {
		return name, ok
	}
	return "session", g.sessions.lasts(sessionOf(r), time.Now())
}

// who is that of guard without sessions.
func (a Access) who(r *http.Request) (name string, ok bool) {
	if !a.Guarded() {
		return "loopback", true
	}
	if a.Authorities != nil && vouched(r.TLS, a.Authorities()) {
		return "certificate " + r.TLS.PeerCertificates[0].Subject.String(), true
	}
	scheme, shown, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if a.Token != "" && strings.EqualFold(scheme, "Bearer") && a.Token.Equal(credential.Secret(shown)) {
		return "token", true
	}
	return "", false
}

// vouched reports whether the certificate of a connection is one by which the
// authorities let a client in, now.
func vouched(state *tls.ConnectionState, authorities *x509.CertPool) bool {
	if state == nil || !state.HandshakeComplete || len(state.PeerCertificates) == 0 || authorities == nil {
		return false // without a pool the system's authorities would vouch
	}
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: authorities, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err == nil
}

// operator is the key of the operator's name in a request's context.
type operator struct{}

// harden sets what every answer says to browsers: run nothing, show it in no frame,
// guess no type, keep nothing, tell nobody.
func harden(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}
