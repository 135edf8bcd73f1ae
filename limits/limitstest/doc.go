// Package limitstest tests implementations of limits.Ledger. It contains two checkers that share no decision code with
// package limits:
//
//   - [RunSuite] applies fixed cases and random histories to a ledger. Every decision is compared with a naive model
//     (model.go).
//   - [Scenario.Run] sends traffic to a hostile upstream ([Upstream]), which counts every limit with its own code.
//     [Draw] returns a random scenario. [Saturations] are scenarios that use one limit completely. [RunFairness] checks
//     how the clients of an account divide its limits.
//
// The tests of package proxy send requests through a gateway to the same upstream, over HTTP/1.1 and HTTP/2. Clients leave
// early there, and streams and connections end.
//
// All tests run in virtual time (testing/synctest). A ledger with another clock must follow the clock of the bubble.
// Read suite.go first, then model.go or scenario.go.
//
// # The hostile upstream
//
// The upstream counts each limit at its own random time between the sending of a request and its response. The windows
// of the upstream begin at any time, its clock differs, and its rate headers arrive in any order. Responses are lost.
// The upstream works on abandoned requests for up to ten seconds. Other users share the account, and limit errors occur
// without a reason.
//
// A violation is a request beyond a limit, or a request granted during a cool-down or exhausted window that the ledger
// had learned of. No ledger can prevent these causes, which are not violations:
//
//   - requests of other users since the last report
//   - CPU time beyond the prediction
//   - copies that the transport sent before the ledger learned of these copies
//
// # Invariants
//
// The invariants of docs/internals/limits.md are tested here:
//
//	I1 to I3       the hostile upstream, over every ledger
//	I4, I5, I6, I20 random histories, compared with the model
//	I7, I8, I15    properties of random histories
//	I9             package redisledger: the clock of Redis goes back
//	I10, I11       package redisledger: failover, data loss, lost connections
//	I12            slots here, keys in package redisledger
//	I13            properties of random histories, and the hostile upstream
//	I14            saturations, in memory and over Redis
//	I16, I17, I19  package limits: the queue
//	I18            the batch reserve
package limitstest
