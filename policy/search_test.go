package policy

import (
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func term(s string) SearchToken             { return SearchToken{Term: s} }
func operator(s string) SearchToken         { return SearchToken{Operator: s} }
func qualifier(name, v string) SearchToken  { return SearchToken{Name: name, Value: v} }
func negated(token SearchToken) SearchToken { token.Negated = true; return token }

func TestParseSearchSplitsTokens(t *testing.T) {
	for _, c := range []struct {
		name, q   string
		want      SearchQuery
		length    int
		operators int
	}{
		{"empty", "", nil, 0, 0},
		{"blanks", " \t\n\u00a0", nil, 0, 0},
		{"keywords", "  gear  lever ", SearchQuery{term("gear"), term("lever")}, 10, 0},
		{"characters, not bytes", "größe", SearchQuery{term("größe")}, 5, 0},

		{"a phrase", `"the gear"`, SearchQuery{term("the gear")}, 10, 0},
		{"operators in a phrase", `"a AND b OR NOT c"`, SearchQuery{term("a AND b OR NOT c")}, 18, 0},
		{"a colon in a phrase", `"repo:a/b"`, SearchQuery{term("repo:a/b")}, 10, 0},
		{"a phrase without a closing quote", `a "b AND c`, SearchQuery{term("a"), term("b AND c")}, 10, 0},
		{"a phrase in a word", `a"b c"d`, SearchQuery{term("ab cd")}, 7, 0},
		{"an empty phrase", `a ""`, SearchQuery{term("a"), {}}, 4, 0},

		{"operators", "a AND NOT b OR c", SearchQuery{term("a"), operator("AND"), operator("NOT"), term("b"), operator("OR"), term("c")}, 5, 3},
		{"operators in lower case are words", "a and b", SearchQuery{term("a"), term("and"), term("b")}, 7, 0},
		{"operators in a word", "ANDROID NOTE", SearchQuery{term("ANDROID"), term("NOTE")}, 12, 0},
		{"a quoted operator", `a "AND" b`, SearchQuery{term("a"), term("AND"), term("b")}, 9, 0},

		{"a qualifier", "repo:acme/widgets", SearchQuery{qualifier("repo", "acme/widgets")}, 0, 0},
		{"a qualifier in upper case", "Repo:Acme/Widgets", SearchQuery{qualifier("repo", "Acme/Widgets")}, 0, 0},
		{"a quoted value", `label:"good first" gear`, SearchQuery{qualifier("label", "good first"), term("gear")}, 4, 0},
		{"an operator in a value", `label:"a OR b"`, SearchQuery{qualifier("label", "a OR b")}, 0, 0},
		{"a qualifier without a value", "label:", SearchQuery{qualifier("label", "")}, 0, 0},
		{"a value with a colon", "created:12:30", SearchQuery{qualifier("created", "12:30")}, 0, 0},
		{"a path as a value", "path:/src", SearchQuery{qualifier("path", "/src")}, 0, 0},
		{"a qualifier with a hyphen", "author-date:>2020", SearchQuery{qualifier("author-date", ">2020")}, 0, 0},
		{"a negated qualifier", "-repo:a/b", SearchQuery{negated(qualifier("repo", "a/b"))}, 0, 0},
		{"a negated qualifier with a quoted value", `-label:"a b"`, SearchQuery{negated(qualifier("label", "a b"))}, 0, 0},
		{"a qualifier after NOT", "NOT repo:a/b", SearchQuery{operator("NOT"), qualifier("repo", "a/b")}, 0, 1},

		{"a negated keyword", "-gear", SearchQuery{negated(term("gear"))}, 5, 0},
		{"a negated phrase", `-"a b"`, SearchQuery{negated(term("a b"))}, 6, 0},
		{"a single hyphen", "a - b", SearchQuery{term("a"), term("-"), term("b")}, 5, 0},
		{"a leading colon", ":x", SearchQuery{term(":x")}, 2, 0},
		{"two colons are not a qualifier", "std::vector", SearchQuery{term("std::vector")}, 11, 0},
		{"a URL is not a qualifier", "https://example.test", SearchQuery{term("https://example.test")}, 20, 0},
		{"a time is not a qualifier", "12:30", SearchQuery{term("12:30")}, 5, 0},
		{"a name that is not ASCII is not a qualifier", "größe:5", SearchQuery{term("größe:5")}, 7, 0},
		{"bytes that are not UTF-8", "\xff\xfe", SearchQuery{term("\xff\xfe")}, 2, 0},
	} {
		got := ParseSearch(c.q)
		wantEqual(t, c.q, c.want, got, cmpopts.IgnoreUnexported(SearchToken{}))
		failIf(t, got.Length() != c.length || got.Operators() != c.operators, "%s: %q: got length %d and %d operators, want %d and %d", c.name, c.q, got.Length(), got.Operators(), c.length, c.operators)
	}
}

func TestHasTermIgnoresQualifiersAndOperators(t *testing.T) {
	for q, want := range map[string]bool{
		"": false, "repo:a/b": false, "-repo:a/b language:go": false, "repo:a/b NOT language:go": false, `"" repo:a/b`: false, "AND": false,
		"gear": true, "repo:a/b gear": true, `"repo:a/b"`: true, "-gear": true, "std::vector": true, "-": true,
	} {
		wantEqual(t, q, want, ParseSearch(q).HasTerm())
	}
}

// checkParse returns an error if ParseSearch loses a character other than blanks, or if a token has two kinds.
func checkParse(q string) error {
	query := ParseSearch(q)
	rest := q
	for _, token := range query {
		after, ok := strings.CutPrefix(strings.TrimLeftFunc(rest, unicode.IsSpace), token.source)
		if !ok || token.source == "" {
			return fmt.Errorf("no token contains the text before %q", token.source)
		}
		rest = after
		set := 0
		for _, s := range []string{token.Term, token.Name, token.Operator} {
			if s != "" {
				set++
			}
		}
		if set > 1 || token.Name == "" && token.Value != "" {
			return fmt.Errorf("the token %q is of two kinds", token.source)
		}
	}
	switch {
	case strings.TrimFunc(rest, unicode.IsSpace) != "":
		return fmt.Errorf("no token contains %q", rest)
	case query.Length() > len(q) || query.Operators() > len(query):
		return fmt.Errorf("got length %d and %d operators, which is too high", query.Length(), query.Operators())
	}
	return nil
}

func TestParseSearchKeepsAllText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := rapid.StringMatching(`( |-|"|:|AND |OR |NOT |repo:|[a-zé/]|//){0,20}`).Draw(t, "q")
		if err := checkParse(q); err != nil {
			t.Fatalf("%q: %v", q, err)
		}
	})
}

func FuzzParseSearch(f *testing.F) {
	for _, q := range []string{"", `a "b c" d:e`, "AND OR NOT", `-"`, "\u00a0x", "\u00a0\xc2", "\xff:", `-label:"a b`, "a::b c://d", "\u2028-:\u0085"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, q string) {
		err := checkParse(q)
		failIf(t, err != nil, "%q: %v", q, err)
	})
}

func TestLengthIgnoresQualifiersAndOperators(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[a-zé]{1,6}`), 1, 6).Draw(t, "words")
		var q strings.Builder
		for _, word := range words {
			q.WriteString(rapid.SampledFrom([]string{"", "NOT ", "repo:a/b ", `-label:"x y" AND `}).Draw(t, "before") + word + " ")
		}
		if got, want := ParseSearch(q.String()).Length(), len([]rune(strings.Join(words, " "))); got != want {
			t.Fatalf("%q: got length %d, want %d", q.String(), got, want)
		}
	})
}
