// Package limits decides which requests may be sent to the upstream now. Each account contains one budget for each
// limit, because the upstream counts the requests of an account together.
//
// # Life of a permit
//
//	permit, err := limiter.Acquire(ctx, claim, caller, deadline) // Ledger.Admit; may queue
//	...                                                          // send the request
//	limiter.Settle(ctx, *permit, outcome)                        // response headers, or a failure
//	limiter.SettleLate(ctx, *permit, kind, retryAfter)           // only for a limit error at the end of the body
//	limiter.Release(ctx, *permit, aborted)                       // end of the response body
//
// To follow a permit in memory mode, read [Limiter.Acquire] (limiter.go) and [Memory.Admit] (memory.go). Then read
// reservation, needs, admit, Settle and Release in account.go. An account combines the budgets of slidinglog.go,
// window.go and cooldown.go. divide.go divides a budget among clients, and clientbudget.go the primary windows. doubt.go decides about reports that contradict each other. [policy.ReadLimitError] classifies
// responses. The queue of waiting requests is in queue.go. Package redisledger implements the same [Ledger] in Redis,
// for many replicas.
//
// # Invariants
//
// docs/internals/limits.md contains the proofs. Package limitstest checks every ledger.
//
//   - A spent token returns one full window after the arrival of the response. Therefore no window of the upstream
//     exceeds the limit, independently of the start of that window.
//   - For a primary window, reported use plus permits in use plus unconfirmed requests never exceed the limit.
//   - A refused claim reserves and charges nothing.
//   - Settling a permit twice has the same effect as settling it once. A permit that is never settled expires, and its
//     cost is charged.
//   - During a cool-down no request is granted. After the cool-down, one probe is granted.
//   - Every decision is a function of the account and a time. Time never goes back within an account, and follows no step of
//     the wall clock ([Clock]).
//
// [Simulation] makes the same decisions in the time of a simulation, without goroutines.
//
// The package protects the upstream's limits, and does not limit inbound traffic.
package limits
