// Package redisclient opens clients on the URL of a store in Redis, for all who keep
// something there, and tells one server from a cluster.
//
// Invariants: no command is sent twice, for a step that may have been run is for its
// sender to repeat; dialing, reading, writing and waiting for a connection each have a
// bound, beside the deadlines of the calls; nothing is written to standard error. It is
// not where commands are: those are their packages' own.
package redisclient

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Bounds of what the callers' own deadlines do not end.
const (
	dialTimeout = time.Second
	ioTimeout   = 250 * time.Millisecond
	poolTimeout = 100 * time.Millisecond
)

// Client sends commands to one server or to a cluster, whichever its URL names. It is
// what Weir uses of [redis.UniversalClient]: a package that names that one, or a client
// of go-redis itself, compiles its 1,470 methods once more.
type Client interface {
	redis.Cmdable
	Process(context.Context, redis.Cmder) error
	PoolStats() *redis.PoolStats
	Close() error
}

// Greeting is called for every new connection before it is used, with what sends over it
// alone; an error ends it.
type Greeting func(ctx context.Context, connection redis.Cmdable) error

// Open opens a client on a store's URL, which makes spans of its commands where what
// they are for is traced. The URL is in the forms of go-redis:
//
//	redis://[USER:PASSWORD@]HOST:PORT[/DB]                          one server
//	redis+sentinel://HOST:PORT?master_name=NAME&addr=HOST:PORT...  a master that sentinels name
//	redis+cluster://HOST:PORT?addr=HOST:PORT...                    a cluster
//
// and with rediss for redis over TLS. greet, nil for none, makes the greeting of a
// node of a cluster, by its address, or of the one server, by "": of sentinels, too.
// An error is of the URL: nothing is dialed yet.
func Open(address string, greet func(node string) Greeting) (Client, error) {
	client, err := open(address, greet)
	if err != nil {
		return nil, err
	}
	client.AddHook(spans{})
	return client, nil
}

func open(address string, greet func(node string) Greeting) (redis.UniversalClient, error) {
	redis.SetLogger(silent{})
	onConnect := func(node string) func(context.Context, *redis.Conn) error {
		if greet == nil {
			return nil
		}
		greeting := greet(node)
		return func(ctx context.Context, c *redis.Conn) error { return greeting(ctx, c) }
	}
	scheme, rest, _ := strings.Cut(address, "://")
	scheme, kind, _ := strings.Cut(scheme, "+")
	address = scheme + "://" + rest
	off := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	switch kind {
	case "sentinel":
		o, err := redis.ParseFailoverURL(address)
		if err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		o.OnConnect = onConnect("")
		o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = dialTimeout, ioTimeout, ioTimeout, poolTimeout
		return redis.NewFailoverClient(o), nil
	case "cluster":
		o, err := redis.ParseClusterURL(address)
		if err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		o.NewClient = func(node *redis.Options) *redis.Client {
			node.OnConnect = onConnect(node.Addr)
			return redis.NewClient(node)
		}
		o.MaxRetries, o.DialerRetries, o.MaxRedirects, o.ContextTimeoutEnabled = -1, 1, 3, true
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = dialTimeout, ioTimeout, ioTimeout, poolTimeout
		o.MaintNotificationsConfig = off
		return redis.NewClusterClient(o), nil
	}
	o, err := redis.ParseURL(address)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	o.OnConnect, o.MaintNotificationsConfig = onConnect(""), off
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = dialTimeout, ioTimeout, ioTimeout, poolTimeout
	return redis.NewClient(o), nil
}

// silent keeps the client from writing to standard error: what it has to say is
// in its errors.
type silent struct{}

// Printf implements the client's logger.
func (silent) Printf(context.Context, string, ...any) {}
