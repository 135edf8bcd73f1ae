package main

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Bounds of what the collector lets grow beside what lives. In a small heap a percentage of
// it would be little, and the collector at work all the time; in a large one, that of a full
// cache, much, and most of the memory for nothing.
const (
	leastSlack  = 40 << 20
	slackPart   = 5 // of what lives
	lookAtHeap  = time.Second
	mostPercent = 400
)

// tuneCollector keeps the collector's percentage to what lives, until ctx ends. Who says
// GOGC decides it; GOMEMLIMIT holds in any case.
func tuneCollector(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(lookAtHeap)
	defer tick.Stop()
	for last := 0; ; {
		metrics.Read(live)
		if percent := collectorPercent(live[0].Value.Uint64()); percent != last {
			last = percent
			debug.SetGCPercent(percent)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// collectorPercent is what may be allocated before the next collection, in percent of what
// lives, in steps: to change it stops everything for a moment.
func collectorPercent(live uint64) int {
	slack := max(leastSlack, live/slackPart)
	percent := int(100 * slack / max(live, 1<<20))
	return min(max(percent-percent%5, 100/slackPart), mostPercent)
}

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
