package testservers

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Must returns a value that the setup of a test needs. Must panics if the setup failed.
func Must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// NoError ends the test if an error is not nil.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// FailIf fails the test if a condition holds.
func FailIf(t testing.TB, failed bool, format string, args ...any) {
	if failed {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// StopIf ends the test if a condition holds.
func StopIf(t testing.TB, failed bool, format string, args ...any) {
	if failed {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// Equal fails the test if a value is not the expected value, and reports both and their differences.
func Equal[T any](t interface {
	Helper()
	Errorf(format string, args ...any)
}, name string, got, want T, options ...cmp.Option,
) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s: got %v, want %v\n- want, + got:\n%s", name, got, want, diff)
	}
}

// EqualEach calls a function with each key, and compares the results with the values.
func EqualEach[K comparable, V any](t testing.TB, function func(K) V, wants map[K]V) {
	t.Helper()
	for key, want := range wants {
		Equal(t, fmt.Sprintf("%#v", key), function(key), want)
	}
}

// WriteFile replaces a file by renaming, like editors and tools.
func WriteFile(t testing.TB, path, text string) {
	t.Helper()
	NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	NoError(t, os.Rename(path+".new", path))
}

// AppKey returns the private key of an app, in PEM. It is always the same key, because generating a key takes long.
var AppKey = sync.OnceValue(func() string {
	return string(pemBlock("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(Must(rsa.GenerateKey(rand.Reader, 2048)))))
})
