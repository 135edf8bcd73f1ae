// Package installation has the tokens of an app's installations: it proves by the app's
// private key who asks, gets a token that lives for an hour, and renews it before its
// end.
//
// Invariants:
//   - Of all replicas that share a [Vault] one asks at a time, under a lease; the others
//     take what it gets. A holder that dies loses its lease.
//   - Tokens are told apart by app, installation and permissions; one with other
//     permissions is never given out.
//   - While a token is good nobody waits for the next. After a failure the upstream is
//     not asked again for a while, which grows.
//   - Keys and tokens are of a type that cannot print; errors quote nothing of what the
//     upstream has said.
//
// It neither chooses among credentials nor knows what a token may do: that is package
// credential's business, and the upstream's.
package installation
