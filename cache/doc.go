// Package cache says what may be answered without asking: keys, stored
// entries, freshness and validation by the rules of RFC 9111, and the store that
// keeps entries: in memory, over a tier that replicas may share (redisstore).
//
// Invariants:
//   - An entry is immutable once kept; a 304 makes a new one.
//   - An entry is found only under the key of the same upstream, method,
//     canonical target, representation and security class; what decides
//     whether two callers share one is in the key, never in the entry.
//   - Nothing incomplete is kept, and nothing that began to be fetched before
//     a purge of one of its tags counts as fresh after it.
//   - Whether something may be kept or used is a function of values and a
//     time; only [Store] and its tiers do anything.
//
// It is not an HTTP client and does not know who may see what: the proxy
// builds keys, the policy says which operations callers may share.
package cache
