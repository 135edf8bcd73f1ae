// Package cache stores responses by the rules of RFC 9111. The store has two tiers. The first tier
// is the memory of this process. The second tier is optional and shared by replicas (package
// redisstore).
//
// Invariants:
//   - An entry is immutable once stored. A 304 creates a new entry.
//   - An entry is found only under the key of the same upstream, canonical target, representation,
//     forwarded fields and security class. The key decides which callers share an entry.
//   - Incomplete responses are never stored. A response whose fetch began before a purge of one of
//     its tags is stale after the purge. While the change of a purge may still happen, a response
//     whose fetch begins is stale, too ([Purge.Unsettled]).
//   - Decisions about storing and freshness are functions of values and a time. Only [Store] and
//     its tiers have state.
//
// The package sends no requests and does not decide which caller may see a response. Package proxy
// builds the keys, and the catalogue in package policy lists the operations that callers share. Read
// [Store], [Entry] and [Storable] first. [Memory.ApplyPurge] applies every purge of every replica.
package cache
