package authority

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }

// create writes an authority for a.test and b.test to files.
func create(t *testing.T, validity time.Duration) (certificateFile, keyFile string, roots *x509.CertPool) {
	t.Helper()
	certificate, key, err := Create([]string{"a.test", "b.test"}, validity, time.Now())
	testservers.NoError(t, err)
	dir := t.TempDir()
	certificateFile, keyFile = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	for file, text := range map[string][]byte{certificateFile: certificate, keyFile: key} {
		testservers.NoError(t, os.WriteFile(file, text, 0o600))
	}
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	return certificateFile, keyFile, roots
}

func load(t *testing.T, validity time.Duration) (*Authority, *x509.CertPool) {
	t.Helper()
	certificate, key, roots := create(t, validity)
	a := testservers.Must(Load(certificate, key))
	return a, roots
}

func TestCertificateIsTrustedForItsNameOnly(t *testing.T) {
	a, roots := load(t, time.Hour*48)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for name, want := range map[string]bool{"a.test": true, "b.test": false, "x.a.test": false, "127.0.0.1": false} {
			leaf := testservers.Must(a.Certificate("A.test"))
			client, server := net.Pipe()
			var serving sync.WaitGroup
			serving.Go(func() {
				_ = tls.Server(server, &tls.Config{Certificates: []tls.Certificate{*leaf}, MaxVersion: version}).Handshake() // the client's result counts
				_ = server.Close()
			})
			err := tls.Client(client, &tls.Config{RootCAs: roots, ServerName: name}).Handshake()
			_ = client.Close()
			serving.Wait()
			failIf(t, (err == nil) != want, "handshake for %s: %v", name, err)
		}
	}
}

// TestAuthorityIsOfNoUseForOtherHosts checks that programs refuse certificates that a thief of the key signs.
func TestAuthorityIsOfNoUseForOtherHosts(t *testing.T) {
	a, roots := load(t, time.Hour*48)
	for _, name := range []string{"other.test", "test", "aa.test", "127.0.0.1"} {
		if _, err := a.Certificate(name); err == nil {
			t.Errorf("the authority signed for %s", name)
		}
		leaf := testservers.Must(a.sign(name, time.Now()))
		_, err := leaf.Leaf.Verify(x509.VerifyOptions{Roots: roots})
		failIf(t, err == nil, "a certificate for %s is trusted", name)
	}
	leaf := testservers.Must(a.sign("a.test", time.Now()))
	_, err := leaf.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "a.test"})
	failIf(t, err != nil, "a certificate for a.test: %v", err)
}

func TestCertificateIsRenewedAndNeverOutlivesTheAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := load(t, 60*time.Hour)
		var last *tls.Certificate
		for hour := range 60 {
			leaf := testservers.Must(a.Certificate("a.test"))
			left := time.Until(leaf.Leaf.NotAfter)
			if left < min(leafLife/2, time.Until(a.certificate.NotAfter)-time.Second) || leaf.Leaf.NotAfter.After(a.certificate.NotAfter) {
				t.Errorf("hour %d: the certificate lives for %v, the authority for %v", hour, left, time.Until(a.certificate.NotAfter))
			}
			failIf(t, hour > 0 && hour < 12 && leaf != last, "hour %d: the certificate was renewed too early", hour)
			last = leaf
			time.Sleep(time.Hour)
		}
		_, err := a.Certificate("a.test")
		failIf(t, err == nil, "an expired authority signed a certificate")
	})
}

func TestLoadRefusesUnsuitableFiles(t *testing.T) {
	certificate, key, _ := create(t, time.Hour)
	other, otherKey, _ := create(t, time.Hour)
	expired, expiredKey, _ := create(t, -time.Minute)
	ca := testservers.Must(testservers.NewCA())
	leaf := t.TempDir()
	testservers.NoError(t, ca.Issue(leaf))
	readable := filepath.Join(t.TempDir(), "readable.key")
	text := testservers.Must(os.ReadFile(key))
	testservers.NoError(t, os.WriteFile(readable, text, 0o644))
	for _, c := range []struct{ certificate, key, want string }{
		{certificate, readable, "run chmod o-rwx"},
		{certificate, otherKey, "private key does not match"},
		{expired, expiredKey, "expired on"},
		{filepath.Join(leaf, "tls.crt"), filepath.Join(leaf, "tls.key"), "is not an authority of weir ca init"},
		{certificate + ".absent", key, "no such file"},
		{otherKey, other, "PEM"},
	} {
		_, err := Load(c.certificate, c.key)
		failIf(t, err == nil || !strings.Contains(err.Error(), c.want), "got %v, want %q", err, c.want)
	}
}

func TestCreateNeedsNames(t *testing.T) {
	_, _, err := Create(nil, time.Hour, time.Now())
	failIf(t, err == nil, "an authority without names could sign for all hosts")
}
