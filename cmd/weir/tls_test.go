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
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
)

const served = "weir.example.com"

// secured is a replica that answers TLS, beside a listener for plain HTTP.
type secured struct {
	*fleet
	secure, plain string // addresses
	kill          func()
}

// startSecured starts a replica of the gateway, a real process.
func (f *fleet) startSecured(ca *testservers.ACME, secure, plain string) *secured {
	f.Helper()
	config := f.file("gateway.yaml", fmt.Sprintf(`upstream: {url: "http://127.0.0.1:1"}
store: {url: %q}
cache: {key: %q}
tls: {domains: [%s], ca: %q, http: %q}
`, f.store, strings.Repeat("k", 32), served, ca.URL, plain))
	process := f.start("serve", "--config", config, "--listen", secure, "--admin", freeAddress(f.T))
	s := &secured{fleet: f, secure: secure, plain: plain}
	s.kill = func() { _ = process.Process.Signal(syscall.SIGKILL) }
	return s
}

// httpsClient trusts the ACME server's certificates, and finds every name at an address.
func httpsClient(roots *x509.CertPool, address string) *http.Client {
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		ForceAttemptHTTP2: true, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}}
}

// serial waits until the replica answers HTTPS with a certificate of the ACME server,
// by HTTP/2, and returns the certificate's number.
func (s *secured) serial(ca *testservers.ACME) (serial string) {
	s.Helper()
	c := httpsClient(ca.Roots, s.secure)
	testservers.Eventually(s, "a replica serves a certificate", func(ctx context.Context) bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+served+"/_weir/", nil)
		if err != nil {
			s.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			testservers.Sleep(ctx, 50*time.Millisecond)
			return false
		}
		_ = resp.Body.Close()
		if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusNotFound {
			s.Errorf("%s %s", resp.Proto, resp.Status)
		}
		serial = resp.TLS.PeerCertificates[0].SerialNumber.Text(16)
		return true
	})
	return serial
}

// TestTheHolderOfTheLockDies: the replica that orders is killed in the middle; the
// other orders in its place, and the first, come back, serves the same certificate.
func TestTheHolderOfTheLockDies(t *testing.T) {
	f := emptyFleet(t)
	f.store = oneRedis(f)
	secure, plain := []string{freeAddress(t), freeAddress(t)}, []string{freeAddress(t), freeAddress(t)}
	ca := testservers.NewACME(t, testservers.NewBalancer(t, plain...).Port(), testservers.NewBalancer(t, secure...).Port())
	t.Setenv("SSL_CERT_FILE", ca.File)
	release := ca.Hold()
	t.Cleanup(release)

	dies := f.startSecured(ca, secure[0], plain[0])
	testservers.Eventually(t, "the first replica orders", func(context.Context) bool { return ca.Waiting() == 1 })
	lives := f.startSecured(ca, secure[1], plain[1])
	lock := redis.NewClient(&redis.Options{Addr: f.address})
	defer func() { _ = lock.Close() }()
	const held = "weir:{tls}:lock:issue_cert_" + served
	holder := lock.Get(t.Context(), held).Val()
	dies.kill()
	testservers.Eventually(t, "the lease of who died ends", func(ctx context.Context) bool { return lock.Get(ctx, held).Val() != holder })
	testservers.Eventually(t, "the second orders in its place", func(context.Context) bool { return ca.Waiting() == 2 })
	release()
	serial := lives.serial(ca)

	again := f.startSecured(ca, secure[0], plain[0])
	if got := again.serial(ca); got != serial || ca.Orders() != 1 || ca.Issued() != 1 || ca.Accounts() != 1 {
		t.Errorf("one serves %s, the other %s; %d orders, %d certificates, %d accounts", serial, got, ca.Orders(), ca.Issued(), ca.Accounts())
	}
	plainly := httpsClient(nil, lives.plain)
	plainly.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for host, want := range map[string]string{served: "308 https://" + served + "/user ", "other.example.com": `421  {"message":"Misdirected Request`} {
		resp, err := plainly.Get("http://" + host + "/user")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if got := fmt.Sprintf("%d %s %s", resp.StatusCode, resp.Header.Get("Location"), body); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", host, got)
		}
	}
}

// selfSigned writes a pair of files for a name, and returns who trusts it.
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

// TestServeByOnesOwnCertificate: links name https, a reload takes up changed files,
// and one that breaks them leaves the old certificate.
func TestServeByOnesOwnCertificate(t *testing.T) {
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
	address, admin := s.says(`msg="gateway started" address=(\S+)`), "http://"+s.says(`msg="admin listener started" address=(\S+)`)
	s.drain()
	ask := func(roots *x509.CertPool) *http.Response {
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
	if resp := ask(roots); resp.ProtoMajor != 2 || resp.Header.Get("Link") != "<https://"+served+`/user/repos?page=2>; rel="next"` {
		t.Errorf("%s %v", resp.Proto, resp.Header)
	}
	renewed := selfSigned(t, dir, served, 2)
	if status := reload(); status >= 300 {
		t.Errorf("reload: %d", status)
	}
	ask(renewed)
	write(t, filepath.Join(dir, "tls.key"), "no key")
	if status := reload(); status < 400 {
		t.Errorf("reload of what does not fit: %d", status)
	}
	ask(renewed)
}
