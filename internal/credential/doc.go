// Package credential decides which client sends a request. The package also selects the upstream credential of the
// request: the client's credential, or a credential that the gateway holds.
//
// Invariants:
//   - A [Secret] never prints. Only hashes of client keys and passed-through credentials are stored.
//   - "token X" and "Bearer X" are one credential, with one account and one security class.
//   - A client is identified by its key, by the private key of its certificate, or by a signed token of its issuer. A
//     client never gets a credential that the configuration does not assign to the client.
//   - Keys made by [NewKey] and tokens of a configured issuer are for this gateway. Even invalid keys and tokens of
//     these kinds are never passed through.
//   - A credential that the upstream rejects with 401 is quarantined for a growing time.
//   - Of all replicas that share a [TokenStore], only one replica at a time requests an installation token, under a
//     lease. Errors do not quote the upstream's response.
//
// The package does not check passed-through credentials, because the upstream checks them. Start with
// [Registry.Identify], then [Pool.Pick].
package credential
