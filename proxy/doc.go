// Package proxy is a request's journey through Weir: in from a client, past
// the cache and the limits, to the upstream and back.
//
// Read it in the order in which it runs: [Gateway.ServeHTTP] (gateway.go) is
// the table of contents; answer.go decides between cache and upstream;
// flight.go lets many who ask the same ask once, and fleet.go many replicas;
// attempt.go admits, sends and learns, and is the only loop; reply.go and
// refuse.go write what the client gets. A question (exchange.go) is what is
// asked of the upstream and reaches no client; an exchange is one client's
// request with its deadline, its validators and its record.
//
// Invariants:
//   - What is keyed is what is sent: both are made from the question.
//   - Nothing is sent without a permit, and every permit is settled.
//   - An answer reaches another client than the first only through the cache,
//     under the other's own key.
//   - Request fields reach the upstream by an allow-list; the credential is
//     put on the outbound request last, and goes to the upstream's origin only.
//   - Only refuse.go writes an error body.
//
// It is not a general reverse proxy: there is one upstream, and it is an API.
package proxy
