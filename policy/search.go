package policy

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// SearchQuery is the q of a search, taken apart (Document B section 4.1, query
// rules): keywords, qualifiers and operators in their order.
type SearchQuery []SearchToken

// SearchToken is one part of a query: a term, a qualifier or an operator. At
// most one of Term, Name and Operator is set; none is for an empty phrase.
type SearchToken struct {
	// Term is a keyword, or a phrase without its quotes.
	Term string
	// Name and Value are those of a qualifier, such as "repo" and
	// "acme/widgets": the name in lower case, the value without quotes.
	Name, Value string
	// Negated is set for a term or qualifier with a leading minus; the minus is
	// in neither Term nor Name.
	Negated bool
	// Operator is "AND", "OR" or "NOT".
	Operator string
	// written is the token as it stood in the query.
	written string
}

// ParseSearch takes a query apart. Every string is a query; one of blanks has
// no token. A quoted phrase may hold blanks, and operators and colons mean
// nothing in it; one that does not end takes the rest. A qualifier is a name (a
// letter, then letters, digits, minus or underscore), a colon and a value,
// which may be quoted; std::vector and https://host are terms. Operators are
// AND, OR and NOT in capitals.
func ParseSearch(q string) SearchQuery {
	var query SearchQuery
	for {
		q = strings.TrimLeftFunc(q, unicode.IsSpace)
		if q == "" {
			return query
		}
		var written string
		written, q = nextSearchToken(q)
		query = append(query, readSearchToken(written))
	}
}

// nextSearchToken cuts at the first blank outside quotes.
func nextSearchToken(q string) (written, rest string) {
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

func readSearchToken(written string) SearchToken {
	switch written {
	case "AND", "OR", "NOT":
		return SearchToken{Operator: written, written: written}
	}
	text, negated := strings.CutPrefix(written, "-")
	if text == "" {
		return SearchToken{Term: written, written: written}
	}
	if name, value, ok := strings.Cut(text, ":"); ok && isQualifier(name, value) {
		return SearchToken{Name: strings.ToLower(name), Value: unquote(value), Negated: negated, written: written}
	}
	return SearchToken{Term: unquote(text), Negated: negated, written: written}
}

func unquote(s string) string { return strings.ReplaceAll(s, `"`, "") }

func isQualifier(name, value string) bool {
	return qualifierName.MatchString(name) && !strings.HasPrefix(value, ":") && !strings.HasPrefix(value, "//")
}

var qualifierName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

// Length is the number of characters that count against the limit of 256
// (Document B section 7): operators and qualifiers do not, quotes and one blank
// between two terms do.
func (q SearchQuery) Length() int {
	n := 0
	for _, t := range q {
		if t.Operator == "" && t.Name == "" {
			if n > 0 {
				n++
			}
			n += utf8.RuneCountInString(t.written)
		}
	}
	return n
}

// Operators is the number of AND, OR and NOT.
func (q SearchQuery) Operators() int {
	n := 0
	for _, t := range q {
		if t.Operator != "" {
			n++
		}
	}
	return n
}

// HasTerm reports whether there is a search term beside qualifiers and
// operators.
func (q SearchQuery) HasTerm() bool {
	for _, t := range q {
		if t.Term != "" {
			return true
		}
	}
	return false
}
