// Package replay predicts what a gateway would do with the requests of a log. It runs the requests in virtual time.
// The ledger, the cache and the client shares are those of a configuration, and the upstream is a model.
//
// The decisions are those of the gateway: [proxy.Gateway.Plan] classifies requests and selects credentials and cache rules,
// [limits.Simulation] grants permits, and [cache.Memory] stores responses. The steps between these decisions, in
// simulation.go, are a short form of package proxy. The model of the upstream is in upstream.go, and docs/replay.md lists its
// assumptions.
//
// Invariants:
//   - Memory is bounded for logs of any size.
//   - The same log and the same configuration give the same report.
//   - Nothing is sent, and no secret of the configuration is in the report.
//
// Start with [Run]. log.go reads logs, and report.go and page.go write reports.
package replay
