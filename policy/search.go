package policy

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// SearchQuery is the q of a search, taken apart (Document B section 4.1, query
// rules): keywords, qualifiers and operators in their order.
type SearchQuery []SearchToken

// SearchToken is one part of a query. Exactly one of Term, Name and Operator
// is set.
type SearchToken struct {
	// Term is a keyword, or a phrase without its quotes.
	Term string
	// Name and Value are those of a qualifier, such as "repo" and "acme/widgets".
	Name, Value string
	// Negated is set for a qualifier or term with a leading minus.
	Negated bool
	// Operator is "AND", "OR" or "NOT".
	Operator string
	// written is the token as it stood in the query.
	written string
}

// ParseSearch takes a query apart. Every string is a query. A quoted phrase may
// hold blanks, and operators and colons mean nothing in it; one that does not
// end takes the rest. A qualifier is letters, digits, minus or underscore, a
// colon and a value, which may be quoted.
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
	if name, value, ok := strings.Cut(text, ":"); ok && isQualifierName(name) {
		return SearchToken{Name: strings.ToLower(name), Value: strings.ReplaceAll(value, `"`, ""), Negated: negated, written: written}
	}
	return SearchToken{Term: strings.ReplaceAll(text, `"`, ""), Negated: negated, written: written}
}

func isQualifierName(s string) bool {
	for _, r := range s {
		if r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_' {
			return false
		}
	}
	return s != ""
}

// Length is the number of characters that count against the limit of 256:
// operators and qualifiers do not, one blank between two terms does.
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
