// Package limits says what may be sent now: it keeps, for every account, a
// ledger of what the upstream has counted and will count, admits requests
// against all budgets at once, and learns from every answer.
//
// A request's way through it: [Limiter.Acquire] asks the [Ledger] for a
// [Permit], lets it wait its turn while waiting can help, or returns a
// [*Refusal] that says when to come back; after the answer [Limiter.Settle]
// charges the permit with what became of it, and when the body has ended
// [Limiter.Release] gives its place back.
//
// An account is a machine (account.go) of a cool-down, leases, sliding logs and
// one window for each resource; every ledger is that machine, in memory
// ([Memory]) or in Redis (package redisledger).
//
// Invariants (limits.md section 5.9; package limitstest holds every ledger to
// them):
//   - A spent token returns one full window after its response was received,
//     so no window of the upstream's holds more than the limit, wherever it
//     begins.
//   - Of a primary window: used as far as told, plus what is in flight, plus
//     what may have been counted without an answer never exceeds the limit.
//   - A refused request costs nothing and changes nothing.
//   - Settling twice changes nothing. A permit that nobody settles ends by
//     itself, and is charged: it was probably counted.
//   - Nothing is sent during a cool-down; then one probe is.
//   - Steps are functions of the state and a time; no account sees time go
//     backwards.
//
// It is not an inbound limiter: it protects the upstream's limits, not the
// gateway.
package limits
