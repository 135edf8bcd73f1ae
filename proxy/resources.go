package proxy

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/weirgate/weir/policy"
)

// Resources remembers which resource the upstream named for each operation, because the catalogue cannot know all
// resources. The next request of the operation is admitted against that resource. The number of operations is bounded by
// the catalogue. The zero value is empty and ready for use. Resources is safe for concurrent use and outlives a [Gateway].
type Resources struct {
	mu      sync.RWMutex
	named   map[string]string // by claim scope; operations that the upstream named as predicted are absent
	changed map[string]string // learned and not shared yet
}

// of returns the resource of an operation: the resource that the upstream named last, or the predicted resource.
func (r *Resources) of(scope, predicted string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if named := r.named[scope]; named != "" {
		return named
	}
	return predicted
}

// learn records the resource that the upstream named for an operation. GraphQL has limits of its own, so that neither an
// operation can become a GraphQL call nor GraphQL another operation.
func (r *Resources) learn(scope, used, named string) {
	if named == "" || named == used || used == policy.GraphQL || named == policy.GraphQL {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.named == nil {
		r.named, r.changed = map[string]string{}, map[string]string{}
	}
	r.named[scope], r.changed[scope] = named, named
}

// shareInterval is the interval at which replicas exchange what they learned.
const shareInterval = 2 * time.Second

// Share exchanges the learned resources with the other replicas until ctx ends. exchange stores the changes of this
// replica and returns what all replicas learned. After an error, the changes are sent again.
func (r *Resources) Share(ctx context.Context, exchange func(ctx context.Context, changed map[string]string) (map[string]string, error)) {
	tick := time.NewTicker(shareInterval)
	defer tick.Stop()
	for {
		r.mu.Lock()
		changed := r.changed
		r.changed = map[string]string{}
		r.mu.Unlock()
		all, err := exchange(ctx, changed)
		r.mu.Lock()
		if err != nil {
			maps.Copy(changed, r.changed)
			r.changed = changed
		} else {
			maps.Copy(all, r.changed)
			r.named = all
		}
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
