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
	"slices"
	"strings"
	"time"

	"github.com/weirgate/weir/proxy/caller"
)

// Certificate selects client certificates: by the SHA-256 fingerprint of the certificate, or by a name in a certificate
// from a trusted authority. The zero value selects no certificates.
type Certificate struct{ form, value string }

// ParseCertificate reads "sha256:FINGERPRINT" (64 hexadecimal digits, colons between them
// allowed), "subject:CN=builds,O=Acme" (RFC 2253, compared exactly), or a subject alternative
// name: "dns:builds.example", "uri:spiffe://example/builds" or "email:builds@example".
func ParseCertificate(text string) (Certificate, error) {
	form, value, _ := strings.Cut(text, ":")
	if value == "" {
		form = ""
	}
	switch form {
	case "sha256":
		value = strings.ToLower(strings.ReplaceAll(value, ":", ""))
		if sum, err := hex.DecodeString(value); err != nil || len(sum) != sha256.Size {
			return Certificate{}, errors.New("the fingerprint must have 64 hexadecimal digits")
		}
	case "dns":
		value = strings.ToLower(value)
	case "subject", "uri", "email":
	default:
		return Certificate{}, errors.New("must be sha256:FINGERPRINT, subject:NAME, dns:NAME, uri:URI or email:ADDRESS")
	}
	return Certificate{form, value}, nil
}

// NeedsAuthority reports whether the certificate must be signed by a configured authority. A certificate that is
// selected by its fingerprint needs no authority.
func (c Certificate) NeedsAuthority() bool { return c != Certificate{} && c.form != "sha256" }

// ParseAuthorities reads one or more certificates in PEM.
func ParseAuthorities(text string) ([]*x509.Certificate, error) {
	var authorities []*x509.Certificate
	rest := []byte(text)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("contains a PEM block %q; remove everything except certificates", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(authorities)+1, err)
		}
		authorities = append(authorities, c)
	}
	if len(authorities) == 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("must contain certificates in PEM, and nothing after them")
	}
	return authorities, nil
}

// ClientAuth returns the mode in which a TLS listener requests client certificates, and the authorities that verify
// them. The listener accepts connections without a certificate, because [Registry.Identify] checks every request. A
// reload therefore also applies to open connections and to resumed sessions.
func (r *Registry) ClientAuth() (tls.ClientAuthType, *x509.CertPool) {
	hasCertificate := func(c Client) bool { return c.Certificate != Certificate{} }
	switch {
	case !slices.ContainsFunc(r.config.Clients, hasCertificate):
		return tls.NoClientCert, nil
	case len(r.config.Authorities) == 0:
		return tls.RequestClientCert, nil // the handshake proves possession of the private key
	}
	pool := x509.NewCertPool()
	for _, authority := range r.config.Authorities {
		pool.AddCert(authority)
	}
	return tls.VerifyClientCertIfGiven, pool
}

// byCertificate returns the client of a connection's certificate. If several clients match, the first client in the
// configuration is returned. The result is nil if no client matches.
func (r *Registry) byCertificate(state *tls.ConnectionState) *caller.Identity {
	if state == nil || !state.HandshakeComplete || len(state.PeerCertificates) == 0 {
		return nil
	}
	leaf, now := state.PeerCertificates[0], time.Now()
	var names []Certificate
	if isValidAt(leaf, now) {
		sum := sha256.Sum256(leaf.Raw)
		names = append(names, Certificate{"sha256", hex.EncodeToString(sum[:])})
	}
	if r.hasValidChain(state.VerifiedChains, now) {
		names = append(names, Certificate{"subject", leaf.Subject.String()})
		for _, name := range leaf.DNSNames {
			names = append(names, Certificate{"dns", strings.ToLower(name)})
		}
		for _, uri := range leaf.URIs {
			names = append(names, Certificate{"uri", uri.String()})
		}
		for _, address := range leaf.EmailAddresses {
			names = append(names, Certificate{"email", address})
		}
	}
	for i, client := range r.config.Clients {
		if slices.Contains(names, client.Certificate) {
			return r.clients[i]
		}
	}
	return nil
}

// hasValidChain reports whether a chain that the handshake verified is still valid. After the handshake, including the
// handshake of a resumed session, an authority may have been removed or a certificate may have expired.
func (r *Registry) hasValidChain(chains [][]*x509.Certificate, now time.Time) bool {
	return slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool {
		return len(chain) > 0 && slices.ContainsFunc(r.config.Authorities, chain[len(chain)-1].Equal) &&
			!slices.ContainsFunc(chain, func(link *x509.Certificate) bool { return !isValidAt(link, now) })
	})
}

// isValidAt reports whether a certificate is in its validity period (RFC 5280 section 4.1.2.5).
func isValidAt(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && !now.After(c.NotAfter)
}
