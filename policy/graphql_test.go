package policy

import (
	"strings"
	"testing"
)

func TestGraphQLBodyDecidesWhatACallCosts(t *testing.T) {
	op := Embedded().Operation("graphql")
	for _, c := range []struct {
		name, body string
		points     int
	}{
		{"a query", `{"query":"query { viewer { login } }"}`, 1},
		{"a query without its keyword", `{"query":"{ viewer { login } }","variables":{"n":1}}`, 1},
		{"a query beside a fragment", `{"query":"{ viewer { ...f } } fragment f on User { login }"}`, 1},
		{"a mutation", `{"query":"mutation { addStar(input:{}) { id } }"}`, 5},
		{"the word in a string", `{"query":"{ search(query:\"mutation { x }\") { id } }"}`, 1},
		{"the word as a name", `{"query":"query mutation { viewer { login } }"}`, 1},
		{"the word in a comment", `{"query":"# mutation\n{ viewer { login } }"}`, 1},
		{"several, the named one asks", `{"query":"query q { a } mutation m { b }","operationName":"q"}`, 1},
		{"several, the named one changes", `{"query":"query q { a } mutation m { b }","operationName":"m"}`, 5},
		{"several, none named", `{"query":"query q { a } mutation m { b }"}`, 5},
		{"a name that is not there", `{"query":"query q { a }","operationName":"m"}`, 5},
		{"a null name", `{"query":"query q { a }","operationName":null}`, 1},
		{"a subscription", `{"query":"subscription { a }"}`, 5},
		{"only a fragment", `{"query":"fragment f on User { login }"}`, 5},
		{"not GraphQL", `{"query":"{"}`, 5},
		{"not JSON", `query { a }`, 5},
		{"a batch", `[{"query":"{ a }"}]`, 5},
		{"nothing", ``, 5},
		{"a member that stands twice", `{"query":"mutation { a }","query":"{ a }"}`, 5},
		{"a member in two spellings", `{"query":"{ a }","Query":"mutation { a }"}`, 5},
		{"endless nesting", `{"query":"` + strings.Repeat("{ a ", 100_000) + `"}`, 5},
	} {
		as := op.ForBody([]byte(c.body))
		if as.Points != c.points || as.CreatesContent != (c.points == 5) {
			t.Errorf("%s: %d points, creates content %v; want %d points", c.name, as.Points, as.CreatesContent, c.points)
		}
	}
	if op.Points != 1 || op.CreatesContent {
		t.Error("the catalogue's own operation was changed")
	}
	if get := Embedded().Operation("gitignore/get-template"); get.ForBody(nil) != get {
		t.Error("another operation depends on its body")
	}
}

func FuzzGraphQLBody(f *testing.F) {
	op := Embedded().Operation("graphql")
	f.Add([]byte(`{"query":"mutation { a }","operationName":"a"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if points := op.ForBody(body).Points; points != 1 && points != 5 {
			t.Errorf("%d points", points)
		}
	})
}
