// Package credential decides which client sends a request and with which upstream
// credential the request is forwarded: the client's own, or one that the gateway holds.
//
// Invariants:
//   - A [Secret] never prints. Client keys and passed-through credentials are kept as hashes
//     only.
//   - "token X" and "Bearer X" are one credential, with one account and one security class.
//   - A client is identified by its key, by the private key of its certificate, or by a
//     signed token of its issuer. It never gets a credential that it was not given.
//   - Keys made by [NewKey] and tokens of a configured issuer are for this gateway. They are
//     never passed through, valid or not.
//   - A credential that the upstream rejects with 401 is quarantined for a growing time.
//   - Of all replicas that share a [TokenStore], one at a time requests an installation
//     token, under a lease. Errors quote nothing of the upstream's response.
//
// The package does not check passed-through credentials: the upstream does. Start with
// [Registry.Identify], then [Pool.Pick].
package credential
