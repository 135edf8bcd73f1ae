package credential

import (
	"fmt"
	"log/slog"
)

// Secret is a text that cannot print: whatever writes it (fmt, JSON, YAML,
// slog) gets a mask. Only [Secret.Reveal] gives it away.
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

// Format writes a mask whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.String())) }

// MarshalText returns a mask; encoding/json uses it too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML returns a mask.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// LogValue returns a mask.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
