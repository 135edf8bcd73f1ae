package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"
)

// Warning is a problem of a valid configuration.
type Warning struct {
	Key    string
	Found  string
	Remedy string
}

// String returns "KEY: FOUND; REMEDY".
func (w Warning) String() string { return w.Key + ": " + w.Found + "; " + w.Remedy }

// CertificateWarning is the remaining life of a certificate below which Weir warns.
const CertificateWarning = 14 * 24 * time.Hour

// Warnings returns the problems that an operator should see at the start, after a reload, and in weir check: a dialect that
// does not fit the API, and certificates in files that have ended or end soon.
func (c *Config) Warnings(now time.Time) []Warning {
	var found []Warning
	if text, remedy := c.DialectMismatch(); text != "" {
		found = append(found, Warning{"upstream.dialect", text, remedy})
	}
	for _, f := range c.CertificateFiles() {
		if text := EndOf(f.Expires, now); text != "" {
			found = append(found, Warning{f.Key, fmt.Sprintf("the certificate %s %s", f.Path, text), f.Remedy})
		}
	}
	return found
}

// DialectMismatch describes a dialect that does not fit the host of the API, or is empty.
func (c *Config) DialectMismatch() (found, remedy string) {
	name, reason, certain := c.Upstream.InferDialect()
	if !certain || name == c.Upstream.Dialect {
		return "", ""
	}
	return fmt.Sprintf("%q does not fit %s in upstream.url: limits, tokens and messages are those of another API", c.Upstream.Dialect, reason),
		fmt.Sprintf("remove the key, or set it to %s", name)
}

// EndOf describes the end of a certificate that has ended or ends soon, and is empty for others.
func EndOf(expires, now time.Time) string {
	switch date := expires.UTC().Format(time.DateOnly); {
	case !expires.After(now):
		return "expired on " + date
	case expires.Sub(now) < CertificateWarning:
		return "expires on " + date
	}
	return ""
}

// CertificateFile is a certificate in a file.
type CertificateFile struct {
	Key, Path string
	Expires   time.Time // of the first certificate of a chain, or of the authority that ends first
	Remedy    string
}

// CertificateFiles returns the certificates in files that can be read. Certificates by ACME renew themselves.
func (c *Config) CertificateFiles() []CertificateFile {
	const replace = "replace the files; Weir reads them again within ten seconds (docs/operations.md#weircertificateends)"
	const replaceAdmin = "replace the files and reload (docs/operations.md)"
	var files []CertificateFile
	chain := func(key, certificate, private, remedy string) {
		if pair, err := tls.LoadX509KeyPair(certificate, private); err == nil {
			files = append(files, CertificateFile{key, certificate, pair.Leaf.NotAfter, remedy})
		}
	}
	authorities := func(key, path, remedy string) {
		if first := firstEnd(path); !first.IsZero() {
			files = append(files, CertificateFile{key, path, first, remedy})
		}
	}
	for i, pair := range c.TLS.Certificates {
		chain(fmt.Sprintf("tls.certificates[%d]", i), pair.Certificate, pair.Key, replace)
	}
	authorities("tls.client_ca", c.TLS.ClientCA, replaceAdmin)
	chain("admin.tls.certificate", c.Admin.TLS.Certificate, c.Admin.TLS.Key, replaceAdmin)
	authorities("admin.tls.client_ca", c.Admin.TLS.ClientCA, replaceAdmin)
	if c.Proxy.Listen != "" {
		chain("proxy.ca", c.Proxy.CA.Certificate, c.Proxy.CA.Key, "create another authority with weir ca init (docs/proxy.md)")
	}
	return files
}

// firstEnd returns the end of the certificate in a PEM file that ends first, or the zero time.
func firstEnd(path string) (first time.Time) {
	text, err := os.ReadFile(path)
	if err != nil {
		return first
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && (first.IsZero() || c.NotAfter.Before(first)) {
			first = c.NotAfter
		}
	}
	return first
}
