package redisclient

import (
	"bytes"
	"testing"

	"github.com/weirgate/weir/internal/testservers"
)

func failIf(t testing.TB, c bool, f string, a ...any) { t.Helper(); testservers.FailIf(t, c, f, a...) }
func noError(t testing.TB, err error)                 { t.Helper(); testservers.NoError(t, err) }

func TestSealedValueOpensOnlyWithItsSecretPurposeAndData(t *testing.T) {
	text, data := []byte("text"), []byte("additional data")
	first := testservers.Must(NewSealer([]byte("secret"), "one"))
	sealed := first.Seal(nil, nil, text, data)
	failIf(t, bytes.Contains(sealed, text) || bytes.Equal(sealed, first.Seal(nil, nil, text, data)), "sealed %x", sealed)
	for _, c := range []struct {
		secret, purpose, data string
		opens                 bool
	}{
		{"secret", "one", "additional data", true},
		{"secret", "two", "additional data", false},
		{"other", "one", "additional data", false},
		{"secret", "one", "other data", false},
	} {
		opener := testservers.Must(NewSealer([]byte(c.secret), c.purpose))
		got, err := opener.Open(nil, nil, sealed, []byte(c.data))
		failIf(t, (err == nil) != c.opens || c.opens && !bytes.Equal(got, text), "%+v: opened as %q, %v", c, got, err)
	}
	if got, err := NewSealer(nil, "one"); got != nil || err != nil {
		t.Errorf("without a secret: got %v, %v, want nil", got, err)
	}
}
