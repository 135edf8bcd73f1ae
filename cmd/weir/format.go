package main

import (
	"cmp"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
)

// maxName is the maximum length of a name in the output, in characters.
const maxName = 80

// printable returns at most maxLength characters of a text that a client or a server chose. It removes the control and
// format characters that act on a terminal.
func printable(s string, maxLength int) string {
	kept := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s))
	if len(kept) > maxLength {
		kept = append(kept[:maxLength-1], '…')
	}
	return cmp.Or(string(kept), "?")
}

// printableJSON returns equivalent JSON in which control and format characters are escaped.
// Valid JSON contains such characters only in strings, except for line breaks and tabs.
func printableJSON(text []byte) string {
	var b strings.Builder
	for _, r := range strings.TrimRight(string(text), "\r\n") {
		switch {
		case unicode.IsPrint(r), r == '\n', r == '\t':
			b.WriteRune(r)
		case r != '\r':
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		}
	}
	return b.String() + "\n"
}
