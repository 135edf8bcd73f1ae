// Package tlsauto has certificates for the names that the gateway answers to:
// from an ACME server (RFC 8555), by the challenges HTTP-01 and TLS-ALPN-01
// (RFC 8737), or from an operator's files.
//
// Invariants:
//   - Only names that the configuration lists are ordered, answered for and
//     redirected to; what a client asks for by SNI or Host causes no order.
//   - Replicas on one [Storage] have one ACME account and one certificate a name:
//     who orders holds that name's lock. A lock is a lease, so it outlives its
//     holder by seconds; a holder that lost it can write no certificate any more.
//   - Private keys and accounts are sealed in Redis when there is a secret. A value
//     that cannot be opened, or that was written for another key, is not there.
//   - A pair of files that cannot be read, or whose halves do not match, leaves the
//     last good one in use.
//
// It listens to nothing itself: its [Manager] gives a TLS configuration and a
// handler for plain HTTP to whoever does. There is no on-demand issuance, and no
// DNS-01, so no wildcard from ACME.
package tlsauto
