package redisclient

import (
	"bytes"
	"testing"
)

func TestSealedValueOpensOnlyWithItsSecretPurposeAndData(t *testing.T) {
	text, data := []byte("text"), []byte("additional data")
	first, err := NewSealer([]byte("secret"), "one")
	if err != nil {
		t.Fatal(err)
	}
	sealed := first.Seal(nil, nil, text, data)
	if bytes.Contains(sealed, text) || bytes.Equal(sealed, first.Seal(nil, nil, text, data)) {
		t.Errorf("sealed %x", sealed)
	}
	for _, c := range []struct {
		secret, purpose, data string
		opens                 bool
	}{
		{"secret", "one", "additional data", true},
		{"secret", "two", "additional data", false},
		{"other", "one", "additional data", false},
		{"secret", "one", "other data", false},
	} {
		opener, err := NewSealer([]byte(c.secret), c.purpose)
		if err != nil {
			t.Fatal(err)
		}
		got, err := opener.Open(nil, nil, sealed, []byte(c.data))
		if (err == nil) != c.opens || c.opens && !bytes.Equal(got, text) {
			t.Errorf("%+v: opened as %q, %v", c, got, err)
		}
	}
	if got, err := NewSealer(nil, "one"); got != nil || err != nil {
		t.Errorf("without a secret: got %v, %v, want nil", got, err)
	}
}
