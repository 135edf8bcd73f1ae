package redisstore

import (
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Connect opens a client on a store's URL: redis://, redis+sentinel:// or
// redis+cluster://, with rediss for redis over TLS. The store's own timeouts bound
// every call.
func Connect(address string) (redis.UniversalClient, error) {
	scheme, rest, _ := strings.Cut(address, "://")
	scheme, kind, _ := strings.Cut(scheme, "+")
	address = scheme + "://" + rest
	switch kind {
	case "sentinel":
		o, err := redis.ParseFailoverURL(address)
		if err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		o.MaxRetries, o.ContextTimeoutEnabled = -1, true
		return redis.NewFailoverClient(o), nil
	case "cluster":
		o, err := redis.ParseClusterURL(address)
		if err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		o.MaxRetries, o.ContextTimeoutEnabled = -1, true
		return redis.NewClusterClient(o), nil
	}
	o, err := redis.ParseURL(address)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	o.MaxRetries, o.ContextTimeoutEnabled = -1, true
	return redis.NewClient(o), nil
}
