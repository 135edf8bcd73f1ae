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
	"sync/atomic"
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
	c, err := SelfSigned(&x509.Certificate{
		Subject: pkix.Name{CommonName: "private CA"}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	if err != nil {
		return nil, err
	}
	return &CA{c.Leaf, c.PrivateKey.(*ecdsa.PrivateKey)}, nil
}

// SelfSigned creates a certificate with a new key. It is valid for an hour unless the template has dates.
func SelfSigned(template *x509.Certificate) (tls.Certificate, error) { return new(CA).Sign(template) }

// Sign creates a certificate with a new key. It is for client authentication unless the template has other usages, and
// valid for an hour unless the template has dates.
func (a *CA) Sign(template *x509.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template.SerialNumber = big.NewInt(serial.Add(1))
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	}
	parent, signer := template, key
	if a.key != nil {
		parent, signer = a.Certificate, a.key
		if template.ExtKeyUsage == nil {
			template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// serial is the number of the last certificate.
var serial atomic.Int64

// Write writes the certificate of the authority to a PEM file.
func (a *CA) Write(file string) error {
	return os.WriteFile(file, pemBlock("CERTIFICATE", a.Certificate.Raw), 0o600)
}

// Issue writes tls.crt and tls.key for a server on 127.0.0.1, with further names, into dir.
func (a *CA) Issue(dir string, names ...string) error {
	c, err := a.issue(append(names, "localhost")...)
	if err != nil {
		return err
	}
	return WritePair(c, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
}

// WritePair writes a certificate and its key to PEM files.
func WritePair(c tls.Certificate, certificate, key string) error {
	private, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(certificate, pemBlock("CERTIFICATE", c.Certificate[0]), 0o600),
		os.WriteFile(key, pemBlock("PRIVATE KEY", private), 0o600))
}

// issue creates a certificate for a server on 127.0.0.1 with the given names.
func (a *CA) issue(names ...string) (tls.Certificate, error) {
	return a.Sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "weir"}, DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: a.Certificate.NotBefore, NotAfter: a.Certificate.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
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
		ca := Must(newCA(time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)))
		p.certificate = Must(ca.issue("*.test"))
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
