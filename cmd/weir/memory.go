package main

import "math"

// Shares of GOMEMLIMIT: half for the cache at most, a quarter for requests that wait, of
// which each takes about 38 KB (4,000 of 80 accounts, in an idle gateway); the rest is for
// bodies, connections and what the collector has not yet collected.
const (
	cacheShare   = 2
	waitingShare = 4
	eachWaiting  = 38 << 10
	mostWaiting  = 10_000
)

// memoryBudget is how large the cache may be, of what is configured, and how many requests
// may wait, where the process may have so much memory; math.MaxInt64 is no limit.
func memoryBudget(limit, cache int64) (cacheBytes int64, waiting int) {
	if limit == math.MaxInt64 {
		return cache, mostWaiting
	}
	return min(cache, limit/cacheShare), int(min(limit/waitingShare/eachWaiting, mostWaiting))
}

// reserved is how many descriptors are for what is neither a client's nor the API's: Redis,
// telemetry, listeners, files.
const reserved = 256

// mostConnections is how many connections clients may have open, of so many descriptors, and
// how many go to the API. 0 is no bound.
func mostConnections(descriptors int) int {
	if descriptors == 0 {
		return 0
	}
	return max(64, (descriptors-reserved)/2)
}
