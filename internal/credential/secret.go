package credential

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
)

// Secret is a string that prints as a mask. fmt, JSON, YAML and slog write the mask, also for secrets in structs, lists
// and map values. Only [Secret.Reveal] returns the text. Compare with untrusted input by [Secret.Equal],
// never by ==.
//
// The type prevents accidental output, not attacks: the text is neither encrypted nor wiped, and a conversion to string
// reveals it. Two printers call no method and would reveal the text: fmt's %p, and encoding/json for a map with secrets
// as keys.
type Secret string

// mask is the output for every secret that is not empty.
const mask = "•••"

// Reveal returns the text.
func (s Secret) Reveal() string { return string(s) }

// String returns the mask.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// Equal reports whether both texts are equal. The duration of the call reveals neither the position of a difference nor
// the lengths.
func (s Secret) Equal(other Secret) bool {
	a, b := sha256.Sum256([]byte(s)), sha256.Sum256([]byte(other))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// GoString returns the mask, for printers that do not use fmt.
func (s Secret) GoString() string { return s.String() }

// Format writes the mask for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalText returns the mask. encoding/json uses it too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML returns the mask.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// LogValue returns the mask.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
