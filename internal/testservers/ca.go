package testservers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// CA is a private certificate authority. All of its certificates are valid for the same time.
type CA struct {
	Certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewCA creates a certificate authority that is valid for one hour.
func NewCA() (*CA, error) { return newCA(time.Now().Add(-time.Hour), time.Now().Add(time.Hour)) }

func newCA(from, until time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "private CA"}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &CA{certificate, key}, err
}

// Write writes the certificate of the authority to a PEM file.
func (a *CA) Write(file string) error {
	return os.WriteFile(file, pemBlock("CERTIFICATE", a.Certificate.Raw), 0o600)
}

// Issue writes tls.crt and tls.key for a server on 127.0.0.1 into dir.
func (a *CA) Issue(dir string) error {
	der, key, err := a.issue("localhost")
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "tls.crt"), pemBlock("CERTIFICATE", der), 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), pemBlock("PRIVATE KEY", private), 0o600))
}

// issue creates a certificate for a server on 127.0.0.1 with the given names.
func (a *CA) issue(names ...string) (der []byte, key *ecdsa.PrivateKey, err error) {
	key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "weir"}, DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: a.Certificate.NotBefore, NotAfter: a.Certificate.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err = x509.CreateCertificate(rand.Reader, template, a.Certificate, &key.PublicKey, a.key)
	return der, key, err
}

// pipeTLS has the configurations for TLS over pipes. The certificate is created once per process, and is valid in virtual
// time, which starts in 2000.
var pipeTLS pipeCertificate

type pipeCertificate struct {
	once        sync.Once
	authority   *x509.CertPool
	certificate tls.Certificate
}

func (p *pipeCertificate) create() {
	p.once.Do(func() {
		ca, err := newCA(time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC))
		if err != nil {
			panic(err)
		}
		der, key, err := ca.issue("*.test")
		if err != nil {
			panic(err)
		}
		p.certificate = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
		p.authority = x509.NewCertPool()
		p.authority.AddCert(ca.Certificate)
	})
}

// server returns a new configuration for servers. Session tickets are disabled: a pipe has no buffer, so a server that
// writes tickets would block while the client writes its first request.
func (p *pipeCertificate) server() *tls.Config {
	p.create()
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{p.certificate}, SessionTicketsDisabled: true}
}

func (p *pipeCertificate) client() *tls.Config {
	p.create()
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: p.authority}
}

func pemBlock(kind string, bytes []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes})
}
