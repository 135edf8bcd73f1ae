// Package cache stores responses by the rules of RFC 9111: keys, entries, freshness and
// validation, and a store of two tiers. The first tier is this process's memory. The second is
// optional and shared by replicas (package redisstore).
//
// Invariants:
//   - An entry is immutable once stored. A 304 creates a new entry.
//   - An entry is found only under the key of the same upstream, method, canonical target,
//     representation and security class. The key decides which callers share an entry.
//   - Incomplete responses are never stored. A response whose fetch began before a purge of one of
//     its tags is stale after the purge.
//   - Decisions about storing and freshness are functions of values and a time. Only [Store] and
//     its tiers have state.
//
// The package sends no requests and does not decide which caller may see a response: package proxy
// builds the keys, and the catalogue in package policy says which operations callers share. Read
// [Store], [Entry] and [Storable] first. Every purge, of this replica or another, ends in
// [Memory.ApplyPurge].
package cache
