package cache

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/weirgate/weir/policy"
)

// Directives are the directives of a Cache-Control field (RFC 9111 section 5.2). The first of repeated directives counts
// (section 4.2.1).
type Directives []Directive

// Directive is a directive with its name in lower case and its argument without quotes.
type Directive struct{ Name, Argument string }

// ParseDirectives parses the values of a Cache-Control field. Malformed parts are skipped.
func ParseDirectives(values []string) Directives {
	var d Directives
	for _, value := range values {
		for value != "" {
			var name, argument string
			name, argument, value = nextDirective(value)
			if name != "" {
				d = append(d, Directive{name, argument})
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
		_, rest, _ = strings.Cut(s, ",")
		return name, argument, rest
	}
	argument, rest, _ = strings.Cut(s, ",")
	return name, strings.TrimSpace(argument), rest
}

// unquote parses the quoted-string (RFC 9110 section 5.6.4) at the start of s. An unterminated string
// extends to the end of s.
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

// Has reports whether the directive is present, with or without an argument.
func (d Directives) Has(name string) bool {
	_, ok := d.argument(name)
	return ok
}

func (d Directives) argument(name string) (argument string, ok bool) {
	for _, directive := range d {
		if directive.Name == name {
			return directive.Argument, true
		}
	}
	return "", false
}

// longestTime replaces longer times (RFC 9111 section 1.2.2).
var longestTime = time.Duration(policy.CacheSeconds.Most) * time.Second

// Seconds returns a directive's argument as a duration, and whether the directive is present. An
// argument that is not a number counts as zero, which is the strictest reading.
func (d Directives) Seconds(name string) (time.Duration, bool) {
	argument, ok := d.argument(name)
	if !ok {
		return 0, false
	}
	return parseSeconds(argument), true
}

// parseSeconds parses a number of seconds (RFC 9111 section 1.2.2). Other text counts as zero.
func parseSeconds(text string) time.Duration {
	seconds, _ := policy.CacheSeconds.Parse(text)
	return time.Duration(seconds) * time.Second
}

// targetedFields lists the fields that address gateway caches. These fields take precedence over
// Cache-Control and Expires (RFC 9213 section 2.2). The first valid field counts.
var targetedFields = []string{"Cdn-Cache-Control", "Surrogate-Control"}

// governing returns the directives that this cache obeys. targeted reports whether the directives are
// from a targeted field. An empty or invalid targeted field is ignored (RFC 9213 section 2.1).
func governing(h http.Header) (d Directives, targeted bool) {
	for _, field := range targetedFields {
		if len(h[field]) == 0 {
			continue
		}
		dictionary, err := httpsfv.UnmarshalDictionary(h[field])
		if err != nil || len(dictionary.Names()) == 0 {
			continue
		}
		for _, name := range dictionary.Names() {
			member, _ := dictionary.Get(name)
			if item, ok := member.(httpsfv.Item); ok {
				d = addTargeted(d, field, name, item)
			}
		}
		return d, true
	}
	return ParseDirectives(h["Cache-Control"]), false
}

// surrogate is this cache's name in Surrogate-Control. Surrogate-Capability announces it to the
// upstream (Edge Architecture Specification sections 2.2 and 2.3).
const surrogate = "weir"

// integerDirectives contains the directives whose argument is an integer. A targeted field with
// another type of argument does not have the directive (RFC 9213 section 2.1).
var integerDirectives = map[string]bool{"max-age": true, "s-maxage": true, "stale-if-error": true, "stale-while-revalidate": true}

// addTargeted returns d with one directive of a targeted field. In Surrogate-Control, a parameter names the
// cache to which the directive applies.
func addTargeted(d Directives, field, name string, item httpsfv.Item) Directives {
	if caches := item.Params.Names(); field == "Surrogate-Control" && len(caches) > 0 && !slices.Contains(caches, surrogate) {
		return d
	}
	if _, integer := item.Value.(int64); !integer && integerDirectives[name] {
		return d
	}
	switch value := item.Value.(type) {
	case bool:
		if value {
			return append(d, Directive{name, ""})
		}
	case int64:
		return append(d, Directive{name, strconv.FormatInt(value, 10)})
	case string:
		return append(d, Directive{name, value})
	case httpsfv.Token:
		return append(d, Directive{name, string(value)})
	}
	return d
}
