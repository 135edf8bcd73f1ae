package learned

import (
	"context"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// bounded is a list of which the least recently used element is removed first. The zero value is empty.
type bounded[K comparable, V any] struct{ lru *simplelru.LRU[K, V] }

// list returns the list, which has at most the given number of elements.
func (b *bounded[K, V]) list(most int) *simplelru.LRU[K, V] {
	if b.lru == nil {
		b.lru, _ = simplelru.NewLRU[K, V](most, nil) // fails only for a size below 1
	}
	return b.lru
}

// shareInterval is the interval at which replicas exchange what they have learned.
const shareInterval = 2 * time.Second

// EveryShareInterval calls share now, and then in every interval until ctx ends.
func EveryShareInterval(ctx context.Context, share func()) {
	tick := time.NewTicker(shareInterval)
	defer tick.Stop()
	for {
		share()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
