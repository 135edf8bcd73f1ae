// Package wholeapi is the second mode of the reference service. It plays every operation of the table
// policy/github/operations.tsv and judges a gateway in front of it: it counts requests that exceed a limit, and a [Judge]
// counts reads that are older than an own write.
//
// The package shares no code with the gateway that it judges. The package uses the text of the table and the numbers of
// [policy.Limits], and has its own parser, matcher, meter and notion of which reads a write makes stale.
//
// Invariants:
//   - An endpoint is a row of the table, never a path.
//   - Every response is computed from the state, and carries the number of the last write that changed it.
//   - The service holds no lock while it writes to a client, and starts no goroutine.
//
// [New] is the entry point. Read service.go first: [Service.ServeHTTP] shows the steps of one request. table.go finds the
// operation, meter.go counts, and world.go holds the state. generic.go answers most operations, collections.go those on
// comments, releases, checks and the like, and repos.go, issues.go and git.go the others. effects.go holds, as data, what
// each write changes elsewhere. judge.go finds stale reads.
package wholeapi
