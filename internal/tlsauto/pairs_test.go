package tlsauto

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// writePair writes a self-signed certificate for names, and returns the paths and the PEM texts.
func writePair(t *testing.T, dir string, serial int64, key crypto.Signer, names ...string) (p Pair, certificate, private string) {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: names, NotAfter: time.Now().Add(365 * 24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	noError(t, err)
	bits, err := x509.MarshalPKCS8PrivateKey(key)
	noError(t, err)
	p = Pair{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
	certificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	private = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bits}))
	writeFile(t, p.Certificate, certificate)
	writeFile(t, p.Key, private)
	return p, certificate, private
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	noError(t, os.WriteFile(path, []byte(text), 0o600))
}

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	noError(t, err)
	return key
}

// servedSerial returns the serial number of the certificate for a server name, or 0.
func servedSerial(m *Manager, server string) int64 {
	c, err := m.certificate(&tls.ClientHelloInfo{
		ServerName: server, SupportedVersions: []uint16{tls.VersionTLS13}, SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256},
	})
	if err != nil {
		return 0
	}
	return c.Leaf.SerialNumber.Int64()
}

func TestChangedFilesAreReloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testservers.Output
		dir := t.TempDir()
		pair, _, _ := writePair(t, dir, 1, newKey(t), name)
		m, err := NewManager(Config{Storage: NewMemory(), Log: slog.New(slog.NewTextHandler(&log, nil))}, Names{Pairs: []Pair{pair}})
		noError(t, err)
		defer m.Close()
		_, certificate, key := writePair(t, t.TempDir(), 2, newKey(t), name)
		for _, step := range []struct {
			name string
			do   func()
			want int64
		}{
			{"no change", func() {}, 1},
			{"only the certificate changed", func() { writeFile(t, pair.Certificate, certificate) }, 1},
			{"invalid key", func() { writeFile(t, pair.Key, "") }, 1},
			{"key of the new certificate", func() { writeFile(t, pair.Key, key) }, 2},
			{"certificate removed", func() { _ = os.Remove(pair.Certificate) }, 2},
			{"files restored", func() { writePair(t, dir, 3, newKey(t), name) }, 3},
		} {
			step.do()
			time.Sleep(10*pollInterval + time.Second) // the next step writes between two polls
			got := servedSerial(m, name)
			failIf(t, got != step.want, "%s: certificate %d, want %d", step.name, got, step.want)
		}
		n := strings.Count(log.String(), "the previous one stays")
		failIf(t, n != 3, "%d log lines about failed reloads, want 3: one for each error\n%s", n, &log)
		_ = os.Remove(pair.Key)
		if err := m.Change(Names{Pairs: []Pair{pair}}); err == nil || servedSerial(m, name) != 3 {
			t.Errorf("change to unreadable files: error %v, certificate %d", err, servedSerial(m, name))
		}
	})
}

func TestPairIsSelectedByServerName(t *testing.T) {
	_, odd, err := ed25519.GenerateKey(rand.Reader)
	noError(t, err)
	other, _, _ := writePair(t, t.TempDir(), 1, odd, name) // the client does not support Ed25519
	one, _, _ := writePair(t, t.TempDir(), 2, newKey(t), name)
	wild, _, _ := writePair(t, t.TempDir(), 3, newKey(t), "*.internal.example.com")
	only, _, _ := writePair(t, t.TempDir(), 4, odd, "only.example.com")
	m, err := NewManager(Config{Storage: NewMemory(), Log: slog.New(slog.DiscardHandler)}, Names{Pairs: []Pair{other, one, wild, only}})
	noError(t, err)
	defer m.Close()
	ends := m.Expiries()
	until := time.Until(ends[name])
	failIf(t, len(ends) != 3 || until < 364*24*time.Hour || until > 365*24*time.Hour, "expiries %v", ends)
	for server, want := range map[string]int64{
		name: 2, "WEIR.EXAMPLE.COM": 2, "a.internal.example.com": 3, "a.b.internal.example.com": 0, "internal.example.com": 0,
		"only.example.com": 4, "": 2, "*.internal.example.com": 0, "other.example": 0,
	} {
		got := servedSerial(m, server)
		failIf(t, got != want, "%q: certificate %d, want %d", server, got, want)
	}
}
