package redisclient

import (
	"context"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// IsCluster reports whether the client's commands go to several servers.
//
//go:noinline (who gets the assertion compiles the client's methods with it)
func IsCluster(c Client) bool {
	_, cluster := c.(*redis.ClusterClient)
	return cluster
}

// NodeOf finds the server that keeps a key, and its address: "" is that of the one server.
// What is sent to it is not redirected.
func NodeOf(ctx context.Context, c Client, key string) (node redis.Cmdable, address string, err error) {
	cluster, ok := c.(*redis.ClusterClient)
	if !ok {
		return c, "", nil
	}
	master, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, "", err
	}
	return master, master.Options().Addr, nil
}

// Answers reports whether every server does that keeps anything, over every connection
// that is open: those that lead nowhere are closed by it.
func Answers(ctx context.Context, c Client) bool {
	var group errgroup.Group
	ping := func(c Client) {
		for range c.PoolStats().IdleConns + 1 {
			group.Go(func() error { return c.Ping(ctx).Err() })
		}
	}
	cluster, ok := c.(*redis.ClusterClient)
	if !ok {
		ping(c)
		return group.Wait() == nil
	}
	cluster.ReloadState(ctx)
	err := cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		ping(node)
		return nil
	})
	return group.Wait() == nil && err == nil
}
