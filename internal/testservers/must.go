package testservers

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"os"
	"sync"
	"testing"
)

// Must returns a value that the setup of a test needs. Must panics if the setup failed.
func Must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// WriteFile replaces a file by renaming, like editors and tools.
func WriteFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// AppKey returns the private key of an app, in PEM. It is always the same key, because generating a key takes long.
var AppKey = sync.OnceValue(func() string {
	return string(pemBlock("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(Must(rsa.GenerateKey(rand.Reader, 2048)))))
})
