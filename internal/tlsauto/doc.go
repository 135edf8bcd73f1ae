// Package tlsauto obtains certificates for the names of the gateway. The certificates come from an ACME server (RFC
// 8555) by HTTP-01 and TLS-ALPN-01 challenges (RFC 8737), or from an operator's files.
//
// Invariants:
//   - Certificates are ordered and served, and requests are redirected, only for configured names. The server name or
//     Host of a client never causes an order.
//   - Replicas with one [Storage] share one ACME account and one certificate per name. A replica orders only while it
//     holds the lock of the name. A lock in Redis is a lease, which expires seconds after the death of its holder. A
//     replica that has lost its lock cannot store a certificate.
//   - With a secret, private keys and accounts are sealed in Redis. A value that cannot be opened, or that was sealed
//     for another key, is treated as missing.
//   - A pair of files that cannot be loaded leaves the last valid pair in use.
//
// Entry point: [NewManager] (manager.go). The manager opens no listener. The calling package opens the listeners for
// [Manager.TLS] and [Manager.Redirect]. There is no on-demand issuance and no DNS-01, so ACME issues no wildcard
// certificates.
package tlsauto
