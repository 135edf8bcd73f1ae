// Package history remembers the last hour of a gateway for people to look at, and tells
// those who watch what happens now: what requests came to, what each operation and each
// client cost, what each budget had left and when it ends at the present rate.
//
// Invariants:
//   - Everything is bounded, whatever clients send: what finds no place is summed as
//     "others", and nothing is older than an hour.
//   - Nobody who is observed waits: who watches too slowly skips, and is told how much.
//   - It holds names, numbers and records, which hold no secret.
//
// It is not a store of metrics: it ends with the process, and knows this replica only,
// but for the accounts, which are the ledger's.
package history
