package service

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// searchQuery is the query of a search: terms, qualifiers and operators in their order (Document B section 4.1).
type searchQuery []searchToken

// searchToken is a term, a qualifier or an operator. An empty phrase is none of these.
type searchToken struct {
	term        string // a keyword, or a phrase without its quotes
	name, value string // of a qualifier, such as repo and acme/widgets
	operator    string // AND, OR or NOT
	negated     bool   // the term or the qualifier has a leading minus
	length      int    // of the token as written, in characters
}

var (
	// searchWord matches a token. A blank in quotes does not end it, and a phrase may lack its closing quote.
	searchWord = regexp.MustCompile(`([^\s\v\x{85}\p{Z}"]|"[^"]*("|$))+`)
	// searchQualifier matches a qualifier without its minus. std::vector and https://host are terms.
	searchQualifier = regexp.MustCompile(`(?s)^([A-Za-z][A-Za-z0-9_-]*):($|[^:/].*|/$|/[^/].*)$`)
)

// parseQuery parses any text.
func parseQuery(q string) (query searchQuery) {
	for _, source := range searchWord.FindAllString(q, -1) {
		text, negated := strings.CutPrefix(source, "-")
		unquoted := func(text string) string { return strings.ReplaceAll(text, `"`, "") }
		t := searchToken{negated: negated, length: utf8.RuneCountInString(source)}
		qualifier := searchQualifier.FindStringSubmatch(text)
		switch {
		case slices.Contains([]string{"AND", "OR", "NOT"}, source):
			t.operator = source
		case text == "": // a single minus
			t.term, t.negated = source, false
		case qualifier != nil:
			t.name, t.value = strings.ToLower(qualifier[1]), unquoted(qualifier[2])
		default:
			t.term = unquoted(text)
		}
		query = append(query, t)
	}
	return query
}

// length returns the number of characters that count: those of the terms, with one blank between two terms.
func (q searchQuery) length() int {
	n := -1 // no blank precedes the first term
	for _, t := range q {
		if t.operator == "" && t.name == "" {
			n += 1 + t.length
		}
	}
	return n
}

func (q searchQuery) operators() (n int) {
	for _, t := range q {
		if t.operator != "" {
			n++
		}
	}
	return n
}

func (q searchQuery) hasTerm() bool {
	return slices.ContainsFunc(q, func(t searchToken) bool { return t.term != "" })
}
