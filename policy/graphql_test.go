package policy

import (
	"strings"
	"testing"
)

func TestForBodyCountsGraphQLMutationsAsWrites(t *testing.T) {
	op := Embedded().Operation("graphql")
	for _, c := range []struct {
		name, body string
		points     int
	}{
		{"a query", `{"query":"query { viewer { login } }"}`, 1},
		{"a query without its keyword", `{"query":"{ viewer { login } }","variables":{"n":1}}`, 1},
		{"a query with a fragment", `{"query":"{ viewer { ...f } } fragment f on User { login }"}`, 1},
		{"a mutation", `{"query":"mutation { addStar(input:{}) { id } }"}`, 5},
		{"mutation in a string", `{"query":"{ search(query:\"mutation { x }\") { id } }"}`, 1},
		{"mutation as a name", `{"query":"query mutation { viewer { login } }"}`, 1},
		{"mutation in a comment", `{"query":"# mutation\n{ viewer { login } }"}`, 1},
		{"several operations, a query is selected", `{"query":"query q { a } mutation m { b }","operationName":"q"}`, 1},
		{"several operations, a mutation is selected", `{"query":"query q { a } mutation m { b }","operationName":"m"}`, 5},
		{"several operations, none is selected", `{"query":"query q { a } mutation m { b }"}`, 5},
		{"an unknown operation name", `{"query":"query q { a }","operationName":"m"}`, 5},
		{"a null operation name", `{"query":"query q { a }","operationName":null}`, 1},
		{"a subscription", `{"query":"subscription { a }"}`, 5},
		{"only a fragment", `{"query":"fragment f on User { login }"}`, 5},
		{"not GraphQL", `{"query":"{"}`, 5},
		{"not JSON", `query { a }`, 5},
		{"a batch", `[{"query":"{ a }"}]`, 5},
		{"an empty body", ``, 5},
		{"a duplicate member", `{"query":"mutation { a }","query":"{ a }"}`, 5},
		{"a member in two spellings", `{"query":"{ a }","Query":"mutation { a }"}`, 5},
		{"deep nesting", `{"query":"` + strings.Repeat("{ a ", 100_000) + `"}`, 5},
	} {
		got := op.forBody([]byte(c.body))
		failIf(t, got.Points != c.points || got.CreatesContent != (c.points == 5), "%s: got %d points, creates content %v; want %d points", c.name, got.Points, got.CreatesContent, c.points)
	}
	failIf(t, op.Points != 1 || op.CreatesContent, "ForCall changed the operation of the catalogue")
}

func (o *Operation) forBody(body []byte) *Operation {
	call, _ := ParseGraphQL(body)
	return o.ForCall(call)
}

func FuzzGraphQLBody(f *testing.F) {
	op := Embedded().Operation("graphql")
	f.Add([]byte(`{"query":"mutation { a }","operationName":"a"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		points := op.forBody(body).Points
		failIf(t, points != 1 && points != 5, "got %d points, want 1 or 5", points)
	})
}
