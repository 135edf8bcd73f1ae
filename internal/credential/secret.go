package credential

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
)

// Secret is a text that cannot print: whatever writes it (fmt, JSON, YAML,
// slog) gets a mask, in a struct, a list or a map's value too. Only
// [Secret.Reveal] gives it away. Compare with a secret from outside by
// [Secret.Equal], never by ==.
//
// It keeps secrets from being shown by mistake, not from an attacker: it is
// neither encrypted nor wiped, and a conversion to string takes the mask off.
// Two printers ask no method and show it: fmt's verb %p, and encoding/json of a
// map whose keys are secrets. Neither has a use here.
type Secret string

// mask stands for a secret; an empty one has nothing to hide.
const mask = "•••"

// Reveal returns the text. Its callers are few and easy to find.
func (s Secret) Reveal() string { return string(s) }

// String returns a mask.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// Equal reports whether both are the same text, in a time that tells neither
// where they differ nor how long they are.
func (s Secret) Equal(other Secret) bool {
	a, b := sha256.Sum256([]byte(s)), sha256.Sum256([]byte(other))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// GoString returns a mask, for printers that do not ask fmt.
func (s Secret) GoString() string { return s.String() }

// Format writes a mask whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalText returns a mask; encoding/json uses it too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML returns a mask.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// LogValue returns a mask.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
