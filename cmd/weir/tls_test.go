package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"
)

const served = "weir.example.com"

// httpsClient returns a client that trusts roots and connects to address for every name.
func httpsClient(roots *x509.CertPool, address string) *http.Client {
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		ForceAttemptHTTP2: true, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}}
}

// selfSigned writes a self-signed certificate and its key, and returns a pool that trusts it.
func selfSigned(t *testing.T, dir, name string, serial int64) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tls.key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	write(t, filepath.Join(dir, "tls.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	roots := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(leaf)
	return roots
}

// TestReloadReplacesCertificate checks that links use https, and that a reload loads changed files. Invalid files must
// keep the old certificate.
func TestReloadReplacesCertificate(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", `<http://`+r.Host+`/user/repos?page=2>; rel="next"`)
	}))
	defer up.Close()
	dir := t.TempDir()
	roots := selfSigned(t, dir, served, 1)
	path := filepath.Join(dir, "weir.yaml")
	text := fmt.Sprintf("listen: \"127.0.0.1:0\"\nadmin: {listen: \"127.0.0.1:0\"}\nupstream: {url: %q}\ntls: {certificates: [{certificate: tls.crt, key: tls.key}]}\n", up.URL)
	write(t, path, text)
	s := start(t, "serve", "--config", path)
	address, admin := s.find(`msg="gateway started" address=(\S+)`), "http://"+s.find(`msg="admin listener started" address=(\S+)`)
	send := func(roots *x509.CertPool) *http.Response {
		t.Helper()
		resp, err := httpsClient(roots, address).Get("https://" + served + "/user/repos")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	reload := func() int {
		t.Helper()
		resp, err := http.Post(admin+"/api/v1/reload", "application/json", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	if resp := send(roots); resp.ProtoMajor != 2 || resp.Header.Get("Link") != "<https://"+served+`/user/repos?page=2>; rel="next"` {
		t.Errorf("want HTTP/2 and a link with https, got %s %v", resp.Proto, resp.Header)
	}
	renewed := selfSigned(t, dir, served, 2)
	if status := reload(); status >= 300 {
		t.Errorf("reload of a new certificate: %d", status)
	}
	send(renewed)
	write(t, filepath.Join(dir, "tls.key"), "no key")
	if status := reload(); status < 400 {
		t.Errorf("reload of an invalid key: %d", status)
	}
	send(renewed)
}
