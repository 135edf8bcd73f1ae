package admin

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// authority signs certificates of operators.
type authority struct{ *testservers.CA }

func newAuthority() authority { return authority{must(testservers.NewCA())} }

// connection returns the state of a connection whose client presented a certificate.
func (a authority) connection(template *x509.Certificate) *tls.ConnectionState {
	leaf := must(a.Sign(template)).Leaf
	return &tls.ConnectionState{
		HandshakeComplete: true, PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf, a.Certificate}},
	}
}

// pool returns a pool with only this authority.
func (a authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.Certificate)
	return p
}

// Each request is verified against the current authorities, independently of the handshake.
func TestCertificatesAuthenticateEachRequest(t *testing.T) {
	trusted, foreign := newAuthority(), newAuthority()
	ops := func() *x509.Certificate { return &x509.Certificate{Subject: pkix.Name{CommonName: "ops"}} }
	good, expired, server := trusted.connection(ops()), ops(), ops()
	expired.NotAfter = time.Now().Add(-time.Minute)
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	unfinished := *good
	unfinished.HandshakeComplete = false
	for _, c := range []struct {
		name   string
		access Access
		tls    *tls.ConnectionState
		token  string
		status int
	}{
		{"of the authority", Access{Authorities: trusted.pool}, good, "", 200},
		{"of another authority, verified by the handshake before a reload", Access{Authorities: trusted.pool}, foreign.connection(ops()), "", 401},
		{"expired during an open connection", Access{Authorities: trusted.pool}, trusted.connection(expired), "", 401},
		{"server certificate", Access{Authorities: trusted.pool}, trusted.connection(server), "", 401},
		{"incomplete handshake", Access{Authorities: trusted.pool}, &unfinished, "", 401},
		{"all authorities removed", Access{Authorities: x509.NewCertPool}, good, "", 401},
		{"no certificate", Access{Authorities: trusted.pool}, &tls.ConnectionState{HandshakeComplete: true}, "", 401},
		{"no TLS", Access{Authorities: trusted.pool}, nil, "", 401},
		{"empty token, none configured", Access{Authorities: trusted.pool}, nil, "Bearer ", 401},
		{"certificates are not configured", Access{Token: "secret"}, good, "", 401},
		{"token without a certificate", Access{Token: "secret", Authorities: trusted.pool}, nil, "Bearer secret", 200},
		{"token with a certificate of another authority", Access{Token: "secret", Authorities: trusted.pool}, foreign.connection(ops()), "Bearer secret", 200},
		{"token as a basic password", Access{Token: "secret"}, nil, "Basic secret", 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRequest("GET /api/v1/config", "Authorization: "+c.token)
			r.TLS = c.tls
			w := serve(Handler(c.access, sources()), r)
			equal(t, "status", w.Code, c.status)
		})
	}
}
