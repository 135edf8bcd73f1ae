package cache

import (
	"strconv"
	"strings"
	"time"
)

// Directives are those of a Cache-Control field, names in lower case,
// arguments unquoted (RFC 9111 section 5.2). Of a repeated directive the first
// counts (section 4.2.1).
type Directives map[string]string

// ParseDirectives reads the values of a Cache-Control field. It never fails:
// what cannot be read is left out, and an argument that is not a number counts
// as zero where a number is wanted, which is the careful reading.
func ParseDirectives(values []string) Directives {
	var d Directives
	for _, value := range values {
		for value != "" {
			var name, argument string
			name, argument, value = nextDirective(value)
			if name == "" {
				continue
			}
			if d == nil {
				d = Directives{}
			}
			if _, ok := d[name]; !ok {
				d[name] = argument
			}
		}
	}
	return d
}

func nextDirective(s string) (name, argument, rest string) {
	end := strings.IndexAny(s, ",=")
	if end < 0 {
		return strings.ToLower(strings.TrimSpace(s)), "", ""
	}
	name = strings.ToLower(strings.TrimSpace(s[:end]))
	if s[end] == ',' {
		return name, "", s[end+1:]
	}
	s = strings.TrimLeft(s[end+1:], " \t")
	if strings.HasPrefix(s, `"`) {
		argument, s = unquote(s)
	} else {
		argument, s = s, ""
		if comma := strings.IndexByte(argument, ','); comma >= 0 {
			argument, s = argument[:comma], argument[comma:]
		}
		argument = strings.TrimSpace(argument)
	}
	if comma := strings.IndexByte(s, ','); comma >= 0 {
		return name, argument, s[comma+1:]
	}
	return name, argument, ""
}

// unquote reads a quoted-string (RFC 9110 section 5.6.4) at the start of s. One
// that does not end takes all of s.
func unquote(s string) (text, rest string) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:]
		case '\\':
			if i++; i == len(s) {
				return b.String(), ""
			}
		}
		b.WriteByte(s[i])
	}
	return b.String(), ""
}

// Has reports whether the directive is there, with or without an argument.
func (d Directives) Has(name string) bool {
	_, ok := d[name]
	return ok
}

// maxDelta is what a larger number of seconds counts as (RFC 9111 section
// 1.2.2).
const maxDelta = 1 << 31

// Seconds returns a directive's argument as a duration, and whether the
// directive is there.
func (d Directives) Seconds(name string) (time.Duration, bool) {
	argument, ok := d[name]
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(argument, 10, 64)
	if err != nil {
		if len(argument) > 10 && strings.Trim(argument, "0123456789") == "" {
			n = maxDelta
		} else {
			n = 0
		}
	}
	return time.Duration(min(n, maxDelta)) * time.Second, true
}
