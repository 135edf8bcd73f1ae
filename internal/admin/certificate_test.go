package admin

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"testing"
	"time"
)

// authority signs certificates of operators.
type authority struct {
	*testing.T
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{T: t, key: key}
	a.certificate = a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, Subject: pkix.Name{CommonName: "authority"}}, nil, key)
	return a
}

// sign returns a certificate for a template, signed by the authority. With a nil parent the certificate is self-signed.
func (a *authority) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	a.Helper()
	template.SerialNumber = big.NewInt(1)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), a.key)
	if err != nil {
		a.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		a.Fatal(err)
	}
	return c
}

// connection returns the state of a connection whose client presented a certificate. The certificate is for client
// authentication unless the template lists other usages.
func (a *authority) connection(template *x509.Certificate) *tls.ConnectionState {
	a.Helper()
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	leaf := a.sign(template, a.certificate, a.key)
	return &tls.ConnectionState{
		HandshakeComplete: true, PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf, a.certificate}},
	}
}

// pool returns a pool with only this authority.
func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.certificate)
	return p
}

// Each request is verified against the current authorities, independently of the handshake.
func TestCertificatesAuthenticateEachRequest(t *testing.T) {
	trusted, foreign := newAuthority(t), newAuthority(t)
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
			w := respond(Handler(c.access, sources()), http.MethodGet, "http://localhost/api/v1/config", func(r *http.Request) {
				r.TLS = c.tls
				r.Header.Set("Authorization", c.token)
			})
			if w.Code != c.status {
				t.Errorf("got %d %s, want %d", w.Code, w.Body, c.status)
			}
		})
	}
}
