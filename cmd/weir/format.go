package main

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"
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

// shortDuration formats the two largest units of a duration, as in 42m 10s. The duration is rounded up to a second.
func shortDuration(d time.Duration) string {
	seconds := int64(math.Ceil(d.Seconds()))
	units := []struct {
		seconds int64
		name    string
	}{{86400, "d"}, {3600, "h"}, {60, "m"}, {1, "s"}}
	for i, unit := range units[:3] {
		if seconds < unit.seconds {
			continue
		}
		text, next := fmt.Sprintf("%d%s", seconds/unit.seconds, unit.name), units[i+1]
		if rest := seconds % unit.seconds / next.seconds; rest > 0 {
			text += fmt.Sprintf(" %d%s", rest, next.name)
		}
		return text
	}
	return fmt.Sprintf("%ds", seconds)
}

// roundDuration formats about three digits of a duration.
func roundDuration(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
