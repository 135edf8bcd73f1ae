// Package policy describes the API as data: its operations, their callers, costs and cache rules, and the causes that
// make stored responses stale. The data are embedded YAML files (operations/, parameters.yaml, aliases.yaml,
// resources.yaml, dialects.yaml), with one operations file per section of the documents. The Go code loads, checks and
// matches the data.
//
// Invariants:
//   - A loaded [Catalogue] is immutable and safe for concurrent use.
//   - Path and query of a [Match] are canonical: the matched target is the cache key and the forwarded target.
//   - Every request matches an operation. An undocumented route gets careful defaults ([Catalogue.Classify]).
//   - The package uses no clock, no network, no goroutine and no other package of the module.
//
// Entry points: [Embedded] and [Catalogue.Classify]. Read operation.go first, then match.go.
package policy
