// Package credential decides which client sends a request. The package also selects the upstream credential of the
// request: the client's credential, or a credential that the gateway holds.
//
// Invariants:
//   - A [Secret] never prints. Only hashes of client keys and passed-through credentials are stored.
//   - "token X", "Bearer X" and a Basic pair with the token X are one credential, with one account and one security class.
//   - A client is identified by its key, by the private key of its certificate, or by a signed token of its issuer. A
//     client never gets a credential that the configuration does not assign to the client.
//   - A client's credential is passed through only if it has a known form of upstream credentials.
//   - Client keys, keys made by [NewKey] and tokens of a configured issuer are for this gateway. They are never passed
//     through, even if they are invalid, wrapped or encoded.
//   - A credential that the upstream rejects is quarantined for a growing time. The first 401 of an accepted credential is
//     confirmed by a second request.
//   - One request at a time tests a new installation token, until the upstream accepts the token (standing.go).
//   - Of all replicas that share a [TokenStore], only one replica at a time requests an installation token, under a
//     lease. Errors do not quote the upstream's response.
//
// The upstream checks passed-through credentials, the package does not. Start with [Registry.Identify], then
// [Pool.Pick], [Pool.Await] and [Pool.Begin].
package credential
