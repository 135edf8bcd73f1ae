package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificates returns a directory with a self-signed certificate, its key and an empty file.
func certificates(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	chain, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string][]byte{
		"own.pem":   pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain}),
		"own.key":   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		"empty.pem": nil,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestInvalidAdminCertificatesAreRefused(t *testing.T) {
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
	} {
		t.Run(c.name, func(t *testing.T) {
			text := minimal + fmt.Sprintf("admin: {listen: \":9090\", tls: {%s}}", c.tls)
			got, err := Parse(Source{Path: filepath.Join(dir, "weir.yaml"), Getenv: env()}, []byte(text))
			if err == nil || got != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestAdminWithClientCANeedsNoToken(t *testing.T) {
	dir := certificates(t)
	text := minimal + "admin: {listen: \":9090\", hosts: [weir.internal], tls: {certificate: own.pem, key: own.key, client_ca: " + filepath.Join(dir, "own.pem") + "}}"
	c, err := Parse(Source{Path: filepath.Join(dir, "weir.yaml"), Getenv: env()}, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := c.Admin.TLS.Load()
	if err != nil || loaded.ClientAuth != tls.VerifyClientCertIfGiven || loaded.ClientCAs == nil || loaded.MinVersion != tls.VersionTLS13 {
		t.Errorf("TLS configuration %+v, %v", loaded, err)
	}
}

func TestAdminHostsMustBeNames(t *testing.T) {
	var mistakes []mistake
	for name, host := range map[string]string{"name with a port": "weir:9090", "URL": "https://weir", "empty": ""} {
		mistakes = append(mistakes, mistake{name, fmt.Sprintf("admin: {hosts: [%q]}", host),
			fmt.Sprintf("weir.yaml:2:17: admin.hosts[0]: %q: must be only a name such as weir.internal, without scheme and port", host)})
	}
	checkMistakes(t, mistakes)
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
		if got := fmt.Sprintf("%d:%d %v", line, column, positions.Plain(key)); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
}
