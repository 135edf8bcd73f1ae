package main

import "math"

const (
	cacheShare      = 2        // the cache gets at most 1/2 of GOMEMLIMIT
	waitingShare    = 4        // waiting requests get 1/4 of GOMEMLIMIT
	bytesPerWaiting = 38 << 10 // measured for one waiting request
	maxWaiting      = 10_000
)

// memoryShares returns the size of the cache and the number of requests that may wait. limit is GOMEMLIMIT, or
// math.MaxInt64 without a limit. cache is the configured size.
func memoryShares(limit, cache int64) (cacheSize int64, waiting int) {
	if limit == math.MaxInt64 {
		return cache, maxWaiting
	}
	return min(cache, limit/cacheShare), int(min(limit/waitingShare/bytesPerWaiting, maxWaiting))
}

const (
	// reservedFiles are the file descriptors for Redis, telemetry, listeners, files and the admin listener.
	reservedFiles       = 256
	maxAdminConnections = 100
)

// maxConnections returns the limit for connections of clients, and the limit for connections to the upstream. In the
// argument and in the result, 0 means unlimited.
func maxConnections(fileLimit int) int {
	if fileLimit == 0 {
		return 0
	}
	return max(64, (fileLimit-reservedFiles)/2)
}
