// Package service is the reference service: an implementation of the whole API. Its state is in memory and is generated
// from a seed.
//
// The demo uses the service as its upstream. The tests use the service to judge the gateway: it counts requests that
// exceed a limit, and finds reads that are older than an own write. Authors of clients can test their programs against
// the service.
//
// The service plays every operation of the table policy/github/operations.tsv. The operations of Documents A and B have
// exact handlers. docs/reference-service.md describes the behaviour that the documents leave open. The service is not
// safe to expose to untrusted clients.
//
// Invariants:
//   - The service shares the text of the tables and the numbers of [policy.Limits] with the gateway. It has its own matcher,
//     meter and notion of which reads a write makes stale.
//   - An endpoint is a row of the table, or a path that no row has.
//   - Every response is computed from the state, and carries the number of the last write that changed it. The same seed
//     gives the same state.
//   - The service holds no lock while it writes to a client.
//
// [New] is the entry point. It returns a [Service], which implements [net/http.Handler].
//
// Read service.go first: [Service.ServeHTTP] shows the steps of one request. table.go finds the operation, and meter.go
// counts. handlers.go names the handlers of the documents' operations, and answers those that have none from the table;
// repos.go names the other exact handlers, such as those of issues. world.go and seed.go hold the state. effects.go
// applies the table of what each write changes elsewhere and which webhook event announces it, for writes through the API;
// events.go makes the payload of an event, also of one from /_service/events; hooks.go selects the webhooks and sends it.
// The folder reference has the data: bodies.yaml has the schemas of bodies, and views.yaml the properties of paths.
package service
