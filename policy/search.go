package policy

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// SearchQuery is a parsed search: keywords, qualifiers and operators in their order (Document B section 4.1, query
// rules).
type SearchQuery []SearchToken

// SearchToken is a term, a qualifier or an operator. At most one of Term, Name and Operator is set. For an empty
// phrase, all three are empty.
type SearchToken struct {
	// Term is a keyword, or a phrase without its quotes.
	Term string
	// Name and Value are set for a qualifier, such as "repo" and "acme/widgets". Name is in lower case, and Value has
	// no quotes.
	Name, Value string
	// Negated is true for a term or qualifier with a leading minus, which Term and Name do not include.
	Negated bool
	// Operator is "AND", "OR" or "NOT".
	Operator string
	// source is the token as written in the query.
	source string
}

// ParseSearch parses any string. A quoted phrase is one term; a phrase without a closing quote extends to the end. A
// qualifier is a name, a colon and a value, which may be quoted. A name is a letter, then letters, digits, minus or
// underscore. std::vector and https://host are terms. Operators are AND, OR and NOT in capitals.
func ParseSearch(q string) SearchQuery {
	var query SearchQuery
	for {
		q = strings.TrimLeftFunc(q, unicode.IsSpace)
		if q == "" {
			return query
		}
		var source string
		source, q = nextSearchToken(q)
		query = append(query, parseSearchToken(source))
	}
}

// nextSearchToken cuts at the first blank outside quotes.
func nextSearchToken(q string) (source, rest string) {
	quoted := false
	for i, r := range q {
		switch {
		case r == '"':
			quoted = !quoted
		case !quoted && unicode.IsSpace(r):
			return q[:i], q[i:]
		}
	}
	return q, ""
}

func parseSearchToken(source string) SearchToken {
	switch source {
	case "AND", "OR", "NOT":
		return SearchToken{Operator: source, source: source}
	}
	text, negated := strings.CutPrefix(source, "-")
	if text == "" {
		return SearchToken{Term: source, source: source}
	}
	if name, value, ok := strings.Cut(text, ":"); ok && qualifierName.MatchString(name) && !strings.HasPrefix(value, ":") && !strings.HasPrefix(value, "//") {
		return SearchToken{Name: strings.ToLower(name), Value: unquote(value), Negated: negated, source: source}
	}
	return SearchToken{Term: unquote(text), Negated: negated, source: source}
}

func unquote(s string) string { return strings.ReplaceAll(s, `"`, "") }

var qualifierName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

// Length returns the number of characters that count against the limit of 256 (Document B section 7). Terms count with
// their quotes, with one blank between two terms. Operators and qualifiers do not count.
func (q SearchQuery) Length() int {
	n := 0
	for _, t := range q {
		if t.Operator == "" && t.Name == "" {
			if n > 0 {
				n++
			}
			n += utf8.RuneCountInString(t.source)
		}
	}
	return n
}

// Operators returns the number of AND, OR and NOT.
func (q SearchQuery) Operators() int {
	n := 0
	for _, t := range q {
		if t.Operator != "" {
			n++
		}
	}
	return n
}

// HasTerm reports whether the search has a term besides qualifiers and operators.
func (q SearchQuery) HasTerm() bool {
	return slices.ContainsFunc(q, func(t SearchToken) bool { return t.Term != "" })
}
