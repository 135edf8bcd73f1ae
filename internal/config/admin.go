package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/weirgate/weir/internal/credential"
)

// Admin is the operator's listener.
type Admin struct {
	Listen string            `yaml:"listen" desc:"its address; on loopback neither token nor certificate is needed"`
	Token  credential.Secret `yaml:"token" desc:"bearer token; this or tls.client_ca is required when not on loopback"`
	Hosts  []string          `yaml:"hosts" desc:"names by which it is called, beside localhost and addresses"`
	TLS    adminTLS          `yaml:"tls" desc:"HTTPS for the operator, and client certificates"`
}

// adminTLS is HTTPS for the operator. Its paths are relative to the file's folder; a
// Config holds them absolute, or relative to the working directory.
type adminTLS struct {
	Certificate string `yaml:"certificate" desc:"PEM file of the listener's certificate chain; with key, it answers by HTTPS"`
	Key         string `yaml:"key" desc:"PEM file of its private key"`
	ClientCA    string `yaml:"client_ca" desc:"PEM file of the authorities whose client certificates are let in"`
}

// Enabled reports whether the operator is answered by HTTPS.
func (t adminTLS) Enabled() bool { return t != adminTLS{} }

// Load reads the files. What is missing, or cannot be read, is an error: a listener
// without its authorities would let in anyone, or nobody. A certificate is asked of
// every client and held against the authorities; clients without one are for the
// handler to judge, because health needs none.
func (t adminTLS) Load() (*tls.Config, error) {
	if t.Certificate == "" || t.Key == "" {
		return nil, errors.New("needs certificate and key, both PEM files")
	}
	pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
	if err != nil {
		return nil, fmt.Errorf("%q with %q: %w", t.Certificate, t.Key, err)
	}
	c := &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13,
		SessionTicketsDisabled: true, // every connection is judged by the authorities of today
	}
	if t.ClientCA == "" {
		return c, nil
	}
	text, err := os.ReadFile(t.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("client_ca: %w", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("client_ca: %q holds no PEM certificate", t.ClientCA)
	}
	return c, nil
}

// admin holds admin against its ranges, and puts its paths on the file's folder.
func (d *decoder) admin(a *Admin) {
	d.address("admin.listen", a.Listen)
	if a.Token == "" && a.TLS.ClientCA == "" && !isLoopback(a.Listen) {
		d.wrong("admin.token", "required because admin.listen %q is not on loopback", a.Listen)
	}
	d.token("admin.token", a.Token)
	for i, host := range a.Hosts {
		if host == "" || strings.ContainsAny(host, ":/[]@ ") {
			d.wrong(fmt.Sprintf("admin.hosts[%d]", i), "%q: must be a name alone, such as weir.internal, without scheme and port", host)
		}
	}
	if !a.TLS.Enabled() {
		return
	}
	for _, path := range []*string{&a.TLS.Certificate, &a.TLS.Key, &a.TLS.ClientCA} {
		if *path != "" {
			*path = d.path(*path)
		}
	}
	if _, err := a.TLS.Load(); err != nil {
		d.wrong("admin.tls", "%v", err)
	}
}

// isLoopback reports whether nobody but this machine reaches an address, host:port.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true // reported as no address
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
