package credential

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// Certificate names a certificate: by the SHA-256 of the whole of it, or by a
// name in it that an authority has vouched for. The zero value names none.
type Certificate struct{ form, value string }

// The forms of a certificate's name, as the configuration writes them.
const (
	byFingerprint = "sha256"
	bySubject     = "subject"
	byDNS         = "dns"
	byURI         = "uri"
	byEmail       = "email"
)

// ParseCertificate reads "sha256:FINGERPRINT" (64 hexadecimal digits, with or
// without colons between them), "subject:CN=builds,O=Acme" (RFC 2253, to the
// letter), or a subject alternative name: "dns:builds.example",
// "uri:spiffe://example/builds" or "email:builds@example".
func ParseCertificate(text string) (Certificate, error) {
	form, value, _ := strings.Cut(text, ":")
	if value == "" {
		form = ""
	}
	switch form {
	case byFingerprint:
		value = strings.ToLower(strings.ReplaceAll(value, ":", ""))
		if sum, err := hex.DecodeString(value); err != nil || len(sum) != sha256.Size {
			return Certificate{}, errors.New("the fingerprint must be 64 hexadecimal digits")
		}
	case byDNS:
		value = strings.ToLower(value)
	case bySubject, byURI, byEmail:
	default:
		return Certificate{}, errors.New("must be sha256:FINGERPRINT, subject:NAME, dns:NAME, uri:URI or email:ADDRESS")
	}
	return Certificate{form, value}, nil
}

// Vouched reports whether the certificate counts only when an authority has
// vouched for it. A fingerprint speaks for itself.
func (c Certificate) Vouched() bool { return c != Certificate{} && c.form != byFingerprint }

// ParseAuthorities reads certificates in PEM, at least one.
func ParseAuthorities(text string) ([]*x509.Certificate, error) {
	var authorities []*x509.Certificate
	rest := []byte(text)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a %s: certificates alone belong there", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(authorities)+1, err)
		}
		authorities = append(authorities, c)
	}
	if len(authorities) == 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("must be certificates in PEM, and nothing after them")
	}
	return authorities, nil
}

// certificates are clients by their certificates.
type certificates struct {
	authorities map[[sha256.Size]byte]bool // by the hash of the certificate
	pool        *x509.CertPool
	order       map[Certificate]int // which client it is
	callers     []Caller
	pinned      bool // a fingerprint is among them
}

func newCertificates(authorities []*x509.Certificate) certificates {
	c := certificates{authorities: map[[sha256.Size]byte]bool{}, pool: x509.NewCertPool(), order: map[Certificate]int{}}
	for _, authority := range authorities {
		c.authorities[sha256.Sum256(authority.Raw)] = true
		c.pool.AddCert(authority)
	}
	return c
}

// add takes a client's certificate; the zero value is none.
func (c *certificates) add(certificate Certificate, who Caller) {
	if _, taken := c.order[certificate]; taken || certificate == (Certificate{}) {
		return
	}
	c.order[certificate] = len(c.callers)
	c.callers = append(c.callers, who)
	c.pinned = c.pinned || !certificate.Vouched()
}

// ClientAuth is what the listener must ask of those who connect, and the
// authorities for it. Nobody is turned away there for having no certificate:
// who it is Identify says, request by request, so a reload takes effect on
// connections that are open, and on sessions that are resumed.
func (b *Registry) ClientAuth() (tls.ClientAuthType, *x509.CertPool) {
	switch {
	case len(b.certificates.order) == 0:
		return tls.NoClientCert, nil
	case len(b.certificates.authorities) == 0:
		return tls.RequestClientCert, nil // the handshake proves that they have the private key
	}
	return tls.VerifyClientCertIfGiven, b.certificates.pool
}

// caller returns the client whose certificate a connection has shown: the first
// of those that it names.
func (c *certificates) caller(state *tls.ConnectionState) (Caller, bool) {
	if len(c.order) == 0 || state == nil || !state.HandshakeComplete || len(state.PeerCertificates) == 0 {
		return Caller{}, false
	}
	leaf, now := state.PeerCertificates[0], time.Now()
	first := math.MaxInt
	look := func(form, value string) {
		if at, known := c.order[Certificate{form, value}]; known {
			first = min(first, at)
		}
	}
	if c.pinned && current(leaf, now) {
		sum := sha256.Sum256(leaf.Raw)
		look(byFingerprint, hex.EncodeToString(sum[:]))
	}
	if c.vouched(state.VerifiedChains, now) {
		look(bySubject, leaf.Subject.String())
		for _, name := range leaf.DNSNames {
			look(byDNS, strings.ToLower(name))
		}
		for _, uri := range leaf.URIs {
			look(byURI, uri.String())
		}
		for _, address := range leaf.EmailAddresses {
			look(byEmail, address)
		}
	}
	if first == math.MaxInt {
		return Caller{}, false
	}
	return c.callers[first], true
}

// vouched reports whether one of the chains that the handshake has verified is
// still good: it was verified when the connection began, or the session that
// it resumes, with the authorities of that time.
func (c *certificates) vouched(chains [][]*x509.Certificate, now time.Time) bool {
	for _, chain := range chains {
		good := len(chain) > 0 && c.authorities[sha256.Sum256(chain[len(chain)-1].Raw)]
		for _, link := range chain {
			good = good && current(link, now)
		}
		if good {
			return true
		}
	}
	return false
}

// current reports whether a certificate is valid at a time (RFC 5280 section 4.1.2.5).
func current(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && !now.After(c.NotAfter)
}
