package redisledger

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// connect opens a client on a store's URL:
//
//	redis://[USER:PASSWORD@]HOST:PORT[/DB]        one server
//	rediss://...                                  the same over TLS
//	redis+sentinel://HOST:PORT[,HOST:PORT]/MASTER a master that sentinels name
//	redis+cluster://HOST:PORT[,HOST:PORT]         a cluster
//
// It calls meet for every new connection with its address and the run_id of the
// process that answers there. No command is sent twice: a step that may have
// been run is for the ledger to repeat.
func connect(address string, meet func(address, process string) error) (redis.UniversalClient, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	password, _ := u.User.Password()
	redis.SetLogger(silent{})
	off := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	switch u.Scheme {
	case "redis+sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: strings.Trim(u.Path, "/"), SentinelAddrs: strings.Split(u.Host, ","),
			Username: u.User.Username(), Password: password, OnConnect: identify("", meet),
			MaxRetries: -1, DialTimeout: dialTimeout, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout, PoolTimeout: timeout,
			ContextTimeoutEnabled: true,
		}), nil
	case "redis+cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: strings.Split(u.Host, ","), Username: u.User.Username(), Password: password,
			NewClient: func(o *redis.Options) *redis.Client {
				o.OnConnect = identify(o.Addr, meet)
				return redis.NewClient(o)
			},
			MaxRetries: -1, MaxRedirects: 3, DialTimeout: dialTimeout, ReadTimeout: ioTimeout, WriteTimeout: ioTimeout, PoolTimeout: timeout,
			ContextTimeoutEnabled: true, MaintNotificationsConfig: off,
		}), nil
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

// identify asks every new connection which process it leads to.
func identify(address string, meet func(address, process string) error) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, c *redis.Conn) error {
		text, err := c.Info(ctx, "server").Result()
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			if id, ok := strings.CutPrefix(line, "run_id:"); ok {
				return meet(address, strings.TrimSpace(id))
			}
		}
		return errors.New("the server does not tell its run_id")
	}
}
