package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

// certificates returns a directory with a self-signed certificate, its key and an empty file.
func certificates(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	own := must(testservers.SelfSigned(&x509.Certificate{IsCA: true, BasicConstraintsValid: true}))
	err := testservers.WritePair(own, filepath.Join(dir, "own.pem"), filepath.Join(dir, "own.key"))
	noError(t, errors.Join(err, os.WriteFile(filepath.Join(dir, "empty.pem"), nil, 0o600)))
	return dir
}

func TestAdminCertificates(t *testing.T) {
	dir := certificates(t)
	for _, c := range []struct{ name, tls, want string }{
		{"certificate without a key", "certificate: own.pem", "2:31: admin.tls: needs certificate and key"},
		{"client_ca without a certificate", "client_ca: own.pem", "2:31: admin.tls: needs certificate and key"},
		{"missing certificate file", "certificate: none.pem, key: own.key", "no such file or directory"},
		{"certificate instead of a key", "certificate: own.pem, key: own.pem", "admin.tls: "},
		{"missing client_ca file", "certificate: own.pem, key: own.key, client_ca: none.pem", "none.pem: no such file or directory"},
		{"empty client_ca file", "certificate: own.pem, key: own.key, client_ca: empty.pem", `empty.pem" contains no PEM certificate`},
		{"key instead of client_ca", "certificate: own.pem, key: own.key, client_ca: own.key", `own.key" contains no PEM certificate`},
		{"public HTTPS without token and client_ca", "certificate: own.pem, key: own.key", "2:8: admin.token: required"},
		{"client_ca without token", "certificate: own.pem, key: own.key, client_ca: " + filepath.Join(dir, "own.pem"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := minimal + fmt.Sprintf("admin: {listen: \":9090\", tls: {%s}, hosts: [weir.internal]}", c.tls)
			got, err := parseAt(filepath.Join(dir, "weir.yaml"), text)
			if c.want != "" {
				if err == nil || got != nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %s", err, c.want)
				}
				return
			}
			loaded := must(must(got, err).Admin.TLS.Load())
			if loaded.ClientAuth != tls.VerifyClientCertIfGiven || loaded.ClientCAs == nil || loaded.MinVersion != tls.VersionTLS13 {
				t.Errorf("TLS configuration %+v", loaded)
			}
		})
	}
}

func TestAdminHostsMustBeNames(t *testing.T) {
	var mistakes []mistake
	for name, host := range map[string]string{"name with a port": "weir:9090", "URL": "https://weir", "empty": ""} {
		mistakes = append(mistakes, mistake{name, fmt.Sprintf("admin: {hosts: [%q]}", host),
			fmt.Sprintf("2:17: admin.hosts[0]: %q: must be only a name such as weir.internal, without scheme and port", host)})
	}
	checkMistakes(t, minimal, mistakes)
}

func TestPrometheusURLMayHaveAPathPrefix(t *testing.T) {
	c := valid(t, minimal+`admin: {prometheus: {url: "https://metrics.example.com/prometheus/", token: "${TOKEN}"}}`)
	if p := c.Admin.Prometheus; p.URL != "https://metrics.example.com/prometheus/" || p.Token.Reveal() != "s3cret" {
		t.Errorf("got %+v", p)
	}
}

func TestPositionsOfValues(t *testing.T) {
	text := minimal + "admin: {token: plain}\ncredentials: [{name: a, kind: user, token: \"${TOKEN}\"}]\nwebhooks: {secret: \"\"}\n"
	_, positions, err := ParseWithPositions(Source{Path: "weir.yaml", Getenv: env("TOKEN", "s3cret")}, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"upstream.url": "1:17 true", "admin.token": "2:16 true", "admin.listen": "2:8 false",
		"credentials[0].token": "3:44 false", "webhooks.secret": "4:20 false", "store.url": "1:1 false",
	} {
		line, column := positions.At(key)
		equal(t, key, fmt.Sprintf("%d:%d %v", line, column, positions.Plain(key)), want)
	}
}
