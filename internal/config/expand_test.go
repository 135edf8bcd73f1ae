package config

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestExpandEnv(t *testing.T) {
	get := env("A", "1", "EMPTY", "", "NESTED", "${A}")
	for text, want := range map[string]string{
		"plain": "plain", "": "", "${A}": "1", "x${A}y${A}": "x1y1", "$A": "$A", "$": "$", "}": "}",
		"${B:-2}": "2", "${B:-}": "", "${A:-9}": "1", "${B:-a:-b}": "a:-b", "${B:-https://h:1}": "https://h:1",
		"${EMPTY}": "", "${EMPTY:-3}": "3",
		"$${A}": "${A}", "$${A": "${A", "$$${A}": "$${A}", "$${A}${A}": "${A}1",
		"${NESTED}": "${A}", // values are not expanded again
	} {
		if got, err := expandEnv(text, get); got != want || err != nil {
			t.Errorf("%s: got %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"${B}":       `environment variable "B" is not set; use ${B:-VALUE} for a default`,
		"${A}${B}":   `environment variable "B" is not set; use ${B:-VALUE} for a default`,
		"${}":        `environment variable "" is not set; use ${:-VALUE} for a default`,
		"${a}":       `environment variable "a" is not set; use ${a:-VALUE} for a default`,
		"${A":        "${ has no closing }; use $${ for a literal ${",
		"${A}${A:-x": "${ has no closing }; use $${ for a literal ${",
	} {
		if got, err := expandEnv(text, get); err == nil || err.Error() != want {
			t.Errorf("%s: got %q, %v; want %s", text, got, err, want)
		}
	}
}

func TestExpandEnvKeepsEscapedText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		escaped := strings.ReplaceAll(text, "${", "$${")
		if got, err := expandEnv(escaped, env()); got != text || err != nil {
			t.Fatalf("%q: got %q, %v", text, got, err)
		}
	})
}

func TestNearest(t *testing.T) {
	names := []string{"listen", "limits", "tls", "url"}
	for key, want := range map[string]string{
		"listne": "listen", "isten": "listen", "listenn": "listen", "Listen": "listen", "limit": "limits",
		"lists": "listen", "lts": "tls", "location": "", "": "", "LISTEN": "", "x": "",
	} {
		if got := nearest(key, names); got != want {
			t.Errorf("%q: got %q, want %q", key, got, want)
		}
	}
}

func TestEditsIsADistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[abc]{0,6}`)
		a, b, c := word.Draw(t, "a"), word.Draw(t, "b"), word.Draw(t, "c")
		switch ab, ba := edits(a, b), edits(b, a); {
		case ab != ba:
			t.Fatalf("%q to %q is %d, reverse %d", a, b, ab, ba)
		case (ab == 0) != (a == b):
			t.Fatalf("distance of %q and %q is %d", a, b, ab)
		case ab > edits(a, c)+edits(c, b):
			t.Fatalf("%q to %q is %d, shorter through %q", a, b, ab, c)
		case ab > max(len(a), len(b)):
			t.Fatalf("%q to %q is %d, more than the longer length", a, b, ab)
		}
	})
}
