// Package authority is the certificate authority of the forward proxy. [Create] makes an authority, and an [Authority]
// signs certificates for the hosts in which the gateway terminates TLS.
//
// Invariants:
//   - An authority can sign only for the DNS names for which it was created, and for no address (name constraints of
//     RFC 5280 section 4.2.1.10). So its key is of no use for other hosts.
//   - Certificates of hosts live for a day, exist only in memory, and never outlive the authority.
//   - The file of the key is not readable by all users.
package authority

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// leafLife is the life of a certificate of a host. Half of it remains at least when it is used.
	leafLife = 24 * time.Hour
	// clockSkew is the part of the life before the creation, for clients whose clock is late.
	clockSkew = time.Hour
	// maxLeaves bounds the certificates in memory. Clients choose the names below a domain.
	maxLeaves = 256
)

// Create returns a new authority for DNS names in lower case, such as api.example.com or *.example.com, as PEM: its certificate, which programs must trust, and its
// key.
func Create(names []string, validity time.Duration, now time.Time) (certificate, key []byte, err error) {
	if len(names) == 0 {
		return nil, nil, errors.New("create authority: no names")
	}
	domains := make([]string, len(names))
	for i, name := range names {
		domains[i] = strings.TrimPrefix(name, "*") // a leading dot permits all names below the domain (RFC 5280 section 4.2.1.10)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serialNumber(),
		Subject:      pkix.Name{CommonName: "Weir authority " + now.UTC().Format(time.DateOnly)},
		NotBefore:    now.Add(-clockSkew), NotAfter: now.Add(validity),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: domains,
		ExcludedIPRanges: []*net.IPNet{
			{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
		},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, fmt.Errorf("create authority: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("create authority: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), nil
}

// serialNumber returns a random serial number of 128 bits.
func serialNumber() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128)) // never fails (crypto/rand)
	return n
}

// Authority signs certificates. It is safe for concurrent use.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // by name; at most one for each name that the authority permits
}

// Load reads an authority from two PEM files.
func Load(certificateFile, keyFile string) (*Authority, error) {
	if info, err := os.Stat(keyFile); err == nil && info.Mode().Perm()&0o007 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("all users can read %s; run chmod o-rwx %s", keyFile, keyFile)
	}
	pair, err := tls.LoadX509KeyPair(certificateFile, keyFile)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	switch c := pair.Leaf; {
	case !ok || !c.IsCA || len(c.PermittedDNSDomains) == 0:
		return nil, fmt.Errorf("%s is not an authority of weir ca init", certificateFile)
	case time.Now().After(c.NotAfter):
		return nil, fmt.Errorf("%s expired on %s", certificateFile, c.NotAfter.Format(time.DateOnly))
	}
	return &Authority{certificate: pair.Leaf, key: key, leaves: map[string]*tls.Certificate{}}, nil
}

// Certificate returns a certificate for a DNS name, with the authority in its chain. It reports an error for a name that
// the authority does not permit.
func (a *Authority) Certificate(name string) (*tls.Certificate, error) {
	name = strings.ToLower(name)
	permits := func(domain string) bool { return domain == name || domain[0] == '.' && strings.HasSuffix(name, domain) }
	if !slices.ContainsFunc(a.certificate.PermittedDNSDomains, permits) {
		return nil, fmt.Errorf("the authority is not for %q; it is for %s", name, strings.Join(a.certificate.PermittedDNSDomains, ", "))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if leaf := a.leaves[name]; leaf != nil && leaf.Leaf.NotAfter.Sub(now) > leafLife/2 {
		return leaf, nil
	}
	leaf, err := a.sign(name, now)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate for %s: %w", name, err)
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	a.leaves[name] = leaf
	return leaf, nil
}

func (a *Authority) sign(name string, now time.Time) (*tls.Certificate, error) {
	end := now.Add(leafLife)
	if a.certificate.NotAfter.Before(end) {
		end = a.certificate.NotAfter
	}
	if !end.After(now) {
		return nil, fmt.Errorf("the authority expired on %s", end.Format(time.DateOnly))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serialNumber(), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: now.Add(-clockSkew), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, a.certificate.Raw}, PrivateKey: key, Leaf: leaf}, nil
}
