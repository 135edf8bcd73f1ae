package service

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirgate/weir/policy"
)

// pointsOf returns what the service and the gateway charge for a body.
func pointsOf(t *tester, body string) (service demand, gateway *policy.Operation) {
	call := &request{Request: &http.Request{Method: http.MethodPost}, op: t.s.router.byID[graphQLID], graphQL: t.s.readGraphQL([]byte(body))}
	read, _ := policy.ParseGraphQL([]byte(body))
	return t.s.demand(call), policy.Embedded().Operation("graphql").ForCall(read)
}

// TestPointsOfGraphQLCalls checks the points of Document B section 8.3: five with mutations, one without. A call that the
// service refuses has the points of the operations that it selects. The gateway never counts less, and counts the same if it
// can read the call.
func TestPointsOfGraphQLCalls(t *testing.T) {
	runWithService(t, func(t *tester) {
		for _, c := range []struct {
			body             string
			service, gateway int
		}{
			{`{"query":"{ viewer { login } }"}`, 1, 1},
			{`{"query":"{ nosuch }"}`, 1, 1},
			{`{"query":"query($unused: Int) { viewer { login } }"}`, 1, 1},
			{`{"query":"query($n: String!) { repository(owner: \"acme\", name: $n) { id } }"}`, 1, 1},
			{`{"query":"{ viewer { ...Missing } }"}`, 1, 1},
			{`{"query":"{ viewer }"}`, 1, 1},
			{`{"query":"{ viewer { login @nosuch } }"}`, 1, 1},
			{`{"query":"{ viewer { repositories { nodes { id } } } }"}`, 1, 1},
			{`{"query":"mutation { nosuch }"}`, 5, 5},
			{`{"query":"mutation { addStar(input: {starrableId: \"R_1001\"}) { clientMutationId } }"}`, 5, 5},
			{`{"query":"mutation($unused: Int) { addStar(input: {starrableId: \"R_1001\"}) { clientMutationId } }"}`, 5, 5},
			{`{"query":"query A { viewer { login } } mutation B { nosuch }","operationName":"A"}`, 1, 1},
			{`{"query":"query A { viewer { login } } mutation B { nosuch }","operationName":"B"}`, 5, 5},
			{`{"query":"query A { viewer { login } } mutation B { nosuch }"}`, 5, 5},
			{`{"query":"query A { viewer { login } } query B { nosuch }"}`, 1, 1},
			{`{"query":"query A { viewer { login } } query B { nosuch }","operationName":"C"}`, 1, 5},
			{`{"query":"{ viewer { login } } query B { nosuch }"}`, 1, 1},
			{`{"query":"{ viewer { login } } mutation B { nosuch }"}`, 5, 5},
			{`{"query":"{ viewer { login } } mutation B { nosuch }","operationName":"B"}`, 5, 5},
			{`{"query":"subscription { nosuch }"}`, 1, 5},
			{`{"query":"fragment F on User { login }"}`, 1, 5},
			{`{"query":""}`, 1, 5},
			{`{"query":"{"}`, 1, 5},
			{`{"query":"mutation {"}`, 1, 5},
			{`{"query":null}`, 1, 5},
			{`{"query":7}`, 1, 5},
			{`{"query":"{ viewer { login } }","operationName":7}`, 1, 5},
			{`{"query":"{ viewer { login } }","variables":7}`, 1, 5},
			{`{"query":"{ viewer { login } }","extensions":{"x":1}}`, 1, 1},
			{`{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"aa"}}}`, 1, 5},
			{`[{"query":"{ viewer { login } }"}]`, 1, 5},
			{`[{"query":"mutation { nosuch }"}]`, 1, 5},
			{`{"query":"{ viewer { login } }","query":"mutation { nosuch }"}`, 5, 5},
			{`{"query":"{ viewer { login } }","Query":"mutation { nosuch }"}`, 1, 5},
			{``, 1, 5},
			{`{`, 1, 5},
			{`{}`, 1, 5},
			{`null`, 1, 5},
			{`"{ viewer { login } }"`, 1, 5},
			{`{"query":"{ viewer { login } }","variables":{"x":"` + strings.Repeat("x", 1<<20) + `"}}`, 1, 1},
			{`{"query":"{ viewer { login } } #` + strings.Repeat("x", 1<<20) + `"}`, 1, 5},
			{`{"query":"{` + strings.Repeat(" viewer { login }", 20_000) + `}"}`, 1, 5},
		} {
			service, gateway := pointsOf(t, c.body)
			failIf(t, service.points != c.service || service.content != (c.service == 5), "%.100s: the service counts %d points, content %v, want %d", c.body, service.points, service.content, c.service)
			failIf(t, gateway.Points != c.gateway || gateway.CreatesContent != (c.gateway == 5), "%.100s: the gateway counts %d points, content %v, want %d", c.body, gateway.Points, gateway.CreatesContent, c.gateway)
		}
	})
}

// TestGatewayCountsAtLeastThePointsOfTheService joins parts of documents and members of bodies.
func TestGatewayCountsAtLeastThePointsOfTheService(t *testing.T) {
	own := (&tester{T: t}).newService("service", 1)
	part := rapid.SampledFrom([]string{
		"{ viewer { login } }", "{ nosuch }", "query A { viewer { id } }", "query B($x: Int) { nosuch(x: $x) }", "mutation A { nosuch }", "mutation B { x: addStar(input: $x) { y } }",
		"mutation { nosuch }", "subscription A { x }", "fragment F on User { login }", "{", "}", "#", "\n", "query A", "extend type User { x: Int }", `"text"`, "mutation A @x { y }", ",",
	})
	rapid.Check(t, func(rt *rapid.T) {
		var members []string
		for range rapid.IntRange(0, 4).Draw(rt, "members") {
			name := rapid.SampledFrom([]string{"query", "query", "query", "operationName", "variables", "extensions", "Query", "id"}).Draw(rt, "name")
			value := rapid.SampledFrom([]string{`"A"`, `"B"`, `"C"`, `""`, "null", "{}", "[]", "7"}).Draw(rt, "value")
			if strings.EqualFold(name, "query") {
				text, _ := json.Marshal(strings.Join(rapid.SliceOfN(part, 0, 4).Draw(rt, "parts"), " "))
				value = string(text)
			}
			members = append(members, `"`+name+`":`+value)
		}
		body := "{" + strings.Join(members, ",") + "}"
		service, gateway := pointsOf(own, body)
		if gateway.Points < service.points || service.content && !gateway.CreatesContent {
			rt.Errorf("%s: the service counts %d points, the gateway %d", body, service.points, gateway.Points)
		}
	})
}
