package redisledger

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	resourcesKey = sharedPrefix + "resources"
	// resourcesKept is the time for which Redis keeps learned resources without a change. A replica uses a resource for
	// an hour without a response that confirms it.
	resourcesKept = 2 * time.Hour
)

// ShareResources stores the resources that the upstream named, and returns what all replicas stored. Both maps are by
// operation and kind of caller, whose number the catalogue bounds.
func (l *Ledger) ShareResources(ctx context.Context, changed map[string]string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var all *redis.MapStringStringCmd
	_, err := l.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		if len(changed) > 0 {
			p.HSet(ctx, l.shared(resourcesKey), changed)
			p.Expire(ctx, l.shared(resourcesKey), resourcesKept)
		}
		all = p.HGetAll(ctx, l.shared(resourcesKey))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all.Val(), nil
}
