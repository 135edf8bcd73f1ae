package authority

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
)

func TestWhoIsToldOfTheFileTrustsWhatIsIssued(t *testing.T) {
	dir := t.TempDir()
	a, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Write(filepath.Join(dir, "ca.pem")); err != nil {
		t.Fatal(err)
	}
	if err := a.Issue(dir); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	told := x509.NewCertPool()
	told.AppendCertsFromPEM(text)
	for _, name := range []string{"127.0.0.1", "localhost"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: told, DNSName: name}); err != nil {
			t.Error(err)
		}
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: x509.NewCertPool(), DNSName: "localhost"}); err == nil {
		t.Error("who was told of no file trusts it")
	}
}
