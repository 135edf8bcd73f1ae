// Package policy says what the API is: which operations exist, who may call
// them, what a call costs, how long an answer may be kept and what makes it
// stale. The API lives in embedded YAML (operations/, parameters.yaml,
// aliases.yaml, resources.yaml, dialects.yaml), one operations file per section of the
// documents; the Go code only loads, checks and matches it.
//
// Invariants:
//   - A loaded [Catalogue] is immutable and safe for concurrent use.
//   - The path and query in a [Match] are canonical: what is matched is what
//     is keyed is what is sent upstream.
//   - Every request matches an operation; a route the documents do not show
//     gets safe defaults ([Match] says how).
//
// It is not a router, a cache or a limiter: it knows no clock, no network, no
// goroutine and no other package of this module.
package policy
