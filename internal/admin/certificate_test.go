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

// sign makes a certificate from a template, which the parent's key signs; nil is for
// itself.
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

// shown is a connection that has shown a certificate made from a template; one for
// clients, unless that says what for.
func (a *authority) shown(template *x509.Certificate) *tls.ConnectionState {
	a.Helper()
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	leaf := a.sign(template, a.certificate, a.key)
	return &tls.ConnectionState{
		HandshakeComplete: true, PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf, a.certificate}},
	}
}

// pool is of this authority alone.
func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.certificate)
	return p
}

// TestAttack50CertificatesLetIn: those that are good for the authorities of now, whatever
// the handshake has verified, and nobody where there are none.
func TestAttack50CertificatesLetIn(t *testing.T) {
	own, foreign := newAuthority(t), newAuthority(t)
	ops := func() *x509.Certificate { return &x509.Certificate{Subject: pkix.Name{CommonName: "ops"}} }
	good, over, server := own.shown(ops()), ops(), ops()
	over.NotAfter = time.Now().Add(-time.Minute)
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
		{"by the authority", Access{Authorities: own.pool}, good, "", 200},
		{"by another that the handshake has verified, before a reload", Access{Authorities: own.pool}, foreign.shown(ops()), "", 401},
		{"that has expired on an open connection", Access{Authorities: own.pool}, own.shown(over), "", 401},
		{"that is for servers", Access{Authorities: own.pool}, own.shown(server), "", 401},
		{"in a handshake that goes on", Access{Authorities: own.pool}, &unfinished, "", 401},
		{"where none of them is left", Access{Authorities: x509.NewCertPool}, good, "", 401},
		{"none", Access{Authorities: own.pool}, &tls.ConnectionState{HandshakeComplete: true}, "", 401},
		{"none, without TLS", Access{Authorities: own.pool}, nil, "", 401},
		{"none, and an empty token where there is none", Access{Authorities: own.pool}, nil, "Bearer ", 401},
		{"by the authority, where certificates let nobody in", Access{Token: "secret"}, good, "", 401},
		{"none, and the token", Access{Token: "secret", Authorities: own.pool}, nil, "Bearer secret", 200},
		{"by another, and the token", Access{Token: "secret", Authorities: own.pool}, foreign.shown(ops()), "Bearer secret", 200},
		{"the token as a password", Access{Token: "secret"}, nil, "Basic secret", 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := asked(Handler(c.access, sources()), http.MethodGet, "http://localhost/api/v1/config", func(r *http.Request) {
				r.TLS = c.tls
				r.Header.Set("Authorization", c.token)
			})
			if w.Code != c.status {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}
