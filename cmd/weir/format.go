package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
)

// maxName is the number of characters that the output shows of a name.
const maxName = 80

// printable returns at most maxLength characters of a text that a client or a server chose,
// without the control and format characters that act on a terminal.
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

// shortDuration formats the two largest units of a duration, as in 42m 10s. It rounds up to a
// second.
func shortDuration(d time.Duration) string {
	seconds := int64(d / time.Second)
	if d%time.Second > 0 {
		seconds++
	}
	format := func(large int64, largeUnit string, small int64, smallUnit string) string {
		if small == 0 {
			return fmt.Sprintf("%d%s", large, largeUnit)
		}
		return fmt.Sprintf("%d%s %d%s", large, largeUnit, small, smallUnit)
	}
	switch {
	case seconds >= 86400:
		return format(seconds/86400, "d", seconds%86400/3600, "h")
	case seconds >= 3600:
		return format(seconds/3600, "h", seconds%3600/60, "m")
	case seconds >= 60:
		return format(seconds/60, "m", seconds%60, "s")
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
