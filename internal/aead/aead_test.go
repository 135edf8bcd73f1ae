package aead

import (
	"bytes"
	"testing"
)

func TestAValueIsForItsSecretAndPurpose(t *testing.T) {
	text, bound := []byte("text"), []byte("bound to")
	first, err := New([]byte("secret"), "one")
	if err != nil {
		t.Fatal(err)
	}
	sealed := first.Seal(nil, nil, text, bound)
	if bytes.Contains(sealed, text) || bytes.Equal(sealed, first.Seal(nil, nil, text, bound)) {
		t.Errorf("sealed %x", sealed)
	}
	for _, c := range []struct {
		secret, purpose, bound string
		opens                  bool
	}{
		{"secret", "one", "bound to", true},
		{"secret", "two", "bound to", false},
		{"other", "one", "bound to", false},
		{"secret", "one", "another", false},
	} {
		opener, err := New([]byte(c.secret), c.purpose)
		if err != nil {
			t.Fatal(err)
		}
		got, err := opener.Open(nil, nil, sealed, []byte(c.bound))
		if (err == nil) != c.opens || c.opens && !bytes.Equal(got, text) {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

func TestWithoutASecretNothingIsSealed(t *testing.T) {
	if got, err := New(nil, "one"); got != nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}
