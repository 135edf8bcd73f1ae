package config

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// label is one of the labels of a name (RFC 5890, section 2.3.1), in lower case.
var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// tls holds tls against its ranges, reads the files that it names, and puts their
// paths on the file's folder.
func (d *decoder) tls(c *Config) {
	t := &c.TLS
	for i, name := range t.Domains {
		d.domain(fmt.Sprintf("tls.domains[%d]", i), name, t.Domains[:i])
	}
	if t.Email != "" && !strings.Contains(t.Email, "@") {
		d.wrong("tls.email", "%q is no address of mail", t.Email)
	}
	if ca, err := url.Parse(t.CA); t.CA != "" && (err != nil || ca.Scheme != "https" || ca.Host == "" || ca.User != nil) {
		d.wrong("tls.ca", "%q: must be an absolute https URL, of an ACME directory", redacted(t.CA))
	}
	switch t.Storage {
	case "":
		d.wrong("tls.storage", "must be store, or a folder")
	case "store":
	default:
		t.Storage = d.path(t.Storage)
	}
	if t.HTTP != "" {
		d.address("tls.http", t.HTTP)
		if !t.Enabled() {
			d.wrong("tls.http", "there is no HTTPS to send to: tls.domains and tls.certificates are empty")
		}
	}
	for i := range t.Certificates {
		d.certificate(fmt.Sprintf("tls.certificates[%d]", i), &t.Certificates[i])
	}
}

// domain reports a name that no challenge that there is can have a certificate for.
func (d *decoder) domain(key, name string, before []string) {
	labels := strings.Split(name, ".")
	_, notIP := netip.ParseAddr(name)
	switch {
	case strings.HasPrefix(name, "*."):
		d.wrong(key, "%q: wildcards take a DNS-01 challenge, which is not there; name a certificate of your own under tls.certificates", name)
	case notIP == nil:
		d.wrong(key, "%q is an address: must be a name", name)
	case len(name) > 253 || len(labels) < 2 || slices.ContainsFunc(labels, func(l string) bool { return !label.MatchString(l) }):
		d.wrong(key, "%q: must be a full name in lower case, such as weir.example.com, beyond ASCII as xn--…", name)
	case slices.Contains(before, name):
		d.wrong(key, "%q stands twice", name)
	}
}

// certificate reads a pair of files.
func (d *decoder) certificate(key string, c *certificate) {
	if c.Certificate == "" || c.Key == "" {
		d.wrong(key, "needs certificate and key, both PEM files")
		return
	}
	c.Certificate, c.Key = d.path(c.Certificate), d.path(c.Key)
	if _, err := tls.LoadX509KeyPair(c.Certificate, c.Key); err != nil {
		d.wrong(key, "%q with %q: %v", c.Certificate, c.Key, err)
	}
}

// path puts a relative path on the file's folder.
func (d *decoder) path(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(d.source.Path), path)
}
