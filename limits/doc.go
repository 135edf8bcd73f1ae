// Package limits says what may be sent now: it keeps, for every account, a
// ledger of what the upstream has counted and will count, admits requests
// against it, and learns from every answer.
//
// A request's way through it: [Limiter.Acquire] asks the [Ledger] for a
// [Permit], waits while waiting can help, or returns a [*Refusal] that says
// when to come back; after the answer, [Limiter.Settle] gives the permit back
// with what the upstream said.
//
// Invariants:
//   - Used as far as known, plus what is in flight, plus what may have been
//     counted without an answer never exceeds a limit.
//   - A refused request costs nothing and writes nothing.
//   - Every permit is settled exactly once; settling twice changes nothing.
//   - Decisions are functions of the state and a time argument; only [Memory]
//     and [Limiter] look at the clock.
//
// This version keeps the primary windows, the search and code search windows
// and the cool-down after a limit error, in memory. It is not an inbound
// limiter: it protects the upstream's limits, not the gateway.
package limits
