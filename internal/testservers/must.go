package testservers

import (
	"fmt"
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
