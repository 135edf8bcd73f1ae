// Package credential knows who may call, and whose upstream credential pays: a
// client's own, passed through, or one that the gateway holds for it.
//
// Invariants:
//   - A [Secret] never prints; clients' keys and passed-through credentials
//     are kept as hashes only.
//   - "token X" and "Bearer X" are one credential, of one account and one
//     security class.
//   - A client never gets a credential that it was not given, and nobody is
//     taken for a client without its key, its certificate's private key or its
//     issuer's word.
//   - What is for this gateway alone, keys made by [NewKey] and tokens of a
//     configured issuer, is never passed through, valid or not.
//   - A credential that the upstream has refused rests, for a time that grows.
//
// It does not ask anybody whether a credential is valid: the upstream will say. Nor does
// it get tokens: it is told where they come from ([Source]).
package credential
