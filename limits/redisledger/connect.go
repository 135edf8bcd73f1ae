package redisledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// connect opens a client on a store's URL, in the forms of go-redis:
//
//	redis://[USER:PASSWORD@]HOST:PORT[/DB]                          one server
//	redis+sentinel://HOST:PORT?master_name=NAME&addr=HOST:PORT...  a master that sentinels name
//	redis+cluster://HOST:PORT?addr=HOST:PORT...                    a cluster
//
// and with rediss for redis over TLS. It calls meet for every new connection with
// its address and the run_id of the process that answers there. No command is
// sent twice: a step that may have been run is for the ledger to repeat.
func connect(address string, meet func(address, process string) error) (redis.UniversalClient, error) {
	redis.SetLogger(silent{})
	off := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	scheme, rest, _ := strings.Cut(address, "://")
	scheme, kind, _ := strings.Cut(scheme, "+")
	address = scheme + "://" + rest
	switch kind {
	case "sentinel":
		o, err := redis.ParseFailoverURL(address)
		if err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		o.OnConnect = identify("", meet)
		o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = dialTimeout, ioTimeout, ioTimeout, timeout
		return redis.NewFailoverClient(o), nil
	case "cluster":
		o, err := redis.ParseClusterURL(address)
		if err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		o.NewClient = func(node *redis.Options) *redis.Client {
			node.OnConnect = identify(node.Addr, meet)
			return redis.NewClient(node)
		}
		o.MaxRetries, o.DialerRetries, o.MaxRedirects, o.ContextTimeoutEnabled = -1, 1, 3, true
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = dialTimeout, ioTimeout, ioTimeout, timeout
		o.MaintNotificationsConfig = off
		return redis.NewClusterClient(o), nil
	}
	o, err := redis.ParseURL(address)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	o.OnConnect, o.MaintNotificationsConfig = identify("", meet), off
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = dialTimeout, ioTimeout, ioTimeout, timeout
	return redis.NewClient(o), nil
}

// silent keeps the client from writing to standard error: what it has to say is
// in its errors.
type silent struct{}

// Printf implements the client's logger.
func (silent) Printf(context.Context, string, ...any) {}

const (
	dialTimeout = time.Second
	// ioTimeout bounds what the ledger's own timeout does not.
	ioTimeout = 250 * time.Millisecond
)

// identify asks every new connection which process it leads to. Sentinels are
// asked for the way only.
func identify(address string, meet func(address, process string) error) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, c *redis.Conn) error {
		text, err := c.Info(ctx, "server").Result()
		if err != nil {
			return err
		}
		told := map[string]string{}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			told[key] = value
		}
		switch {
		case told["redis_mode"] == "sentinel":
			return nil
		case told["run_id"] == "":
			return errors.New("the server does not tell its run_id")
		}
		return meet(address, told["run_id"])
	}
}
