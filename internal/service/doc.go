// Package service is the reference service: an implementation of the API of Documents A and B. Its state is in memory
// and is generated from a seed.
//
// The demo uses the service as its upstream. The tests use the service to judge the gateway, because the service counts
// every request that exceeds a limit. Authors of clients can test their programs against the service.
//
// The service implements every operation of the catalogue and every limit of Document B section 8.
// docs/reference-service.md describes the behaviour that the documents leave open. The service is not safe to expose to
// untrusted clients.
//
// Invariants:
//   - Responses are computed from the state. The same seed gives the same state.
//   - The service shares the policy's catalogue of operations with the gateway. It shares no counting code, because its
//     meter is simple and exact.
//   - The service holds no lock while it writes to a client.
//
// [New] is the entry point. It returns a [Service], which implements [net/http.Handler].
//
// Read service.go first: [Service.ServeHTTP] shows the steps of one request. Then read meter.go for the limits, and
// world.go and seed.go for the state.
package service
