// Package redisclient connects Weir to Redis. The package opens clients, combines concurrent calls into batches, traces
// commands and encrypts stored values.
//
// Invariants: The client never retries a command, because a script that timed out may have run, and a second run may be
// unsafe. Dialing, reading, writing and waiting for a connection each have a timeout, in addition to the deadlines of
// the calls. The client writes nothing to standard error.
//
// Start with [Open], then [Batcher], [Lease] and [NewSealer].
package redisclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"golang.org/x/sync/errgroup"
)

// These timeouts apply to calls without a deadline. They are as long as the longest deadline of a call, because a shorter
// timeout would fail calls while the machine is busy.
const (
	dialTimeout = time.Second
	ioTimeout   = time.Second
	poolTimeout = time.Second
)

// poolSize is the default of the largest number of connections to a node per processor. The ledger and the cache share them.
const poolSize = 20

// connections returns the largest number of connections to a node, for the pool_size of a URL or zero.
func connections(stated int) int {
	if stated > 0 {
		return stated
	}
	return poolSize * runtime.GOMAXPROCS(0)
}

// OnConnect is called for every new connection before the client uses the connection. Commands on the argument use that
// connection. When OnConnect returns an error, the client closes the connection.
type OnConnect func(ctx context.Context, connection *redis.Conn) error

// Dialer opens a connection to a server.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// dialers contains the dialers of [DialWith] by address.
var dialers sync.Map

// DialWith makes clients that are opened later connect to a single server with a dialer instead of the network. A test in
// virtual time needs a server in memory. Without a dialer, DialWith removes the dialer of the address.
func DialWith(address string, dial Dialer) {
	dialers.Store(address, dial)
	if dial == nil {
		dialers.Delete(address)
	}
}

// Client is a client of one server, of the master that sentinels name, or of a cluster.
type Client = redis.UniversalClient

// Open opens a client on the URL of a store. The client adds a span for each command of a traced request. The URL has
// the forms of go-redis:
//
//	redis://[USER:PASSWORD@]HOST:PORT[/DB]                          one server
//	redis+sentinel://HOST:PORT?master_name=NAME&addr=HOST:PORT...  a master named by sentinels
//	redis+cluster://HOST:PORT?addr=HOST:PORT...                    a cluster
//
// The scheme rediss uses TLS, and pool_size=N bounds the connections to a node. onConnect returns the hook for new
// connections to a node. node is the address of a cluster node, and "" for a single server and for sentinels. onConnect
// may be nil. Open returns an error for an invalid URL, and does not dial.
func Open(address string, onConnect func(node string) OnConnect) (redis.UniversalClient, error) {
	client, err := open(address, onConnect)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	client.AddHook(spans{})
	return client, nil
}

// Check returns an error for an invalid URL of a store. The error quotes no password.
func Check(address string) error {
	client, err := open(address, nil)
	if err != nil {
		return err
	}
	return client.Close()
}

func open(address string, onConnect func(node string) OnConnect) (redis.UniversalClient, error) {
	logging.Disable() // errors carry the same information
	if onConnect == nil {
		onConnect = func(string) OnConnect { return nil }
	}
	scheme, rest, _ := strings.Cut(address, "://")
	scheme, kind, _ := strings.Cut(scheme, "+")
	address = scheme + "://" + rest
	off := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	switch kind {
	case "sentinel":
		o, err := redis.ParseFailoverURL(address)
		if err != nil {
			return nil, err
		}
		if o.MasterName == "" {
			return nil, errors.New("redis: the name of the master is missing: add ?master_name=NAME")
		}
		o.OnConnect = onConnect("")
		o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout, o.PoolSize = dialTimeout, ioTimeout, ioTimeout, poolTimeout, connections(o.PoolSize)
		return redis.NewFailoverClient(o), nil
	case "cluster":
		o, err := redis.ParseClusterURL(address)
		if err != nil {
			return nil, err
		}
		o.NewClient = func(node *redis.Options) *redis.Client {
			node.OnConnect = onConnect(node.Addr)
			return redis.NewClient(node)
		}
		o.MaxRetries, o.DialerRetries, o.MaxRedirects, o.ContextTimeoutEnabled = -1, 1, 3, true
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout, o.PoolSize = dialTimeout, ioTimeout, ioTimeout, poolTimeout, connections(o.PoolSize)
		o.MaintNotificationsConfig = off
		return redis.NewClusterClient(o), nil
	}
	o, err := redis.ParseURL(address)
	if err != nil {
		return nil, err
	}
	o.OnConnect, o.MaintNotificationsConfig = onConnect(""), off
	if dial, ok := dialers.Load(o.Addr); ok {
		o.Dialer = dial.(Dialer)
	}
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout, o.PoolSize = dialTimeout, ioTimeout, ioTimeout, poolTimeout, connections(o.PoolSize)
	return redis.NewClient(o), nil
}

// IsCluster reports whether the client sends commands to the nodes of a cluster.
func IsCluster(c redis.UniversalClient) bool {
	_, cluster := c.(*redis.ClusterClient)
	return cluster
}

// NodeOf returns the server that stores a key, and the address of the server. The address is "" unless the client is
// connected to a cluster. Commands that are sent to the server are not redirected.
func NodeOf(ctx context.Context, c redis.UniversalClient, key string) (node redis.Cmdable, address string, err error) {
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

// Masters returns the servers that store keys, by address: the masters that a cluster names now, or the only server, whose
// address is "".
func Masters(ctx context.Context, c redis.UniversalClient) (map[string]redis.UniversalClient, error) {
	cluster, ok := c.(*redis.ClusterClient)
	if !ok {
		return map[string]redis.UniversalClient{"": c}, nil
	}
	var mu sync.Mutex
	nodes := map[string]redis.UniversalClient{}
	err := cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes[node.Options().Addr] = node
		return nil
	})
	return nodes, err
}

// Moved reports whether a server of a cluster has not run a call, because it does not store the key. [Masters] learns which
// server does.
func Moved(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") || redis.HasErrorPrefix(err, "CLUSTERDOWN Hash slot not served")
}

// remedies are by a part of an error.
var remedies = []struct{ part, remedy string }{
	{"WRONGPASS", "correct the user and the password in the URL"},
	{"NOAUTH", "add the password to the URL: redis://USER:PASSWORD@HOST"},
	{"NOPERM", "give the user the rights in docs/operations.md"},
	{"READONLY", "name the master, or let sentinels name it: redis+sentinel://HOST?master_name=NAME"},
	{"cluster support disabled", "remove +cluster from the URL"},
	{"MOVED", "use redis+cluster:// in the URL"},
	{"CLUSTERDOWN", "repair the cluster; its slots are not served"},
	{"DB index", "correct the number of the database in the URL"},
	{"unknown command", "name a Redis server; a sentinel needs redis+sentinel://HOST?master_name=NAME"},
	{"invalid reply", "correct the port; no Redis responds there"},
	{"no such host", "correct the host in the URL"},
	{"tls: ", "correct the scheme (rediss is Redis with TLS), or the certificate of Redis"},
	{"OOM ", "give Redis more memory, and set maxmemory-policy noeviction"},
	{"MISCONF", "let Redis write to its disk"},
	{"LOADING", "wait until Redis has loaded its data"},
}

// Remedy returns what an operator can do about an error of Redis.
func Remedy(err error) string {
	for _, r := range remedies {
		if err != nil && strings.Contains(err.Error(), r.part) {
			return r.remedy
		}
	}
	return "start redis, or correct the URL and its scheme (rediss is Redis with TLS)"
}

// PingIdle returns an error unless a server responds over every idle connection. The client closes connections that fail,
// so that later calls do not use them.
func PingIdle(ctx context.Context, node redis.UniversalClient) error {
	var group errgroup.Group
	for range node.PoolStats().IdleConns + 1 {
		group.Go(func() error { return node.Ping(ctx).Err() })
	}
	return group.Wait()
}

// Serves returns an error if a master of a cluster does not respond, or refuses calls because of the state of the cluster.
func Serves(ctx context.Context, node redis.UniversalClient) error {
	text, err := node.ClusterInfo(ctx).Result()
	if redis.HasErrorPrefix(err, "NOPERM") { // the user may not ask, but the master responds
		return nil
	}
	if err == nil && !strings.Contains(text, "cluster_state:ok") {
		err = errors.New("the redis cluster refuses calls (cluster_state is not ok)")
	}
	return err
}

// Eviction returns the eviction policy of Redis, and whether its memory is bounded. It reads INFO, because CONFIG GET needs an
// administrative right.
func Eviction(ctx context.Context, client redis.UniversalClient) (policy string, bounded bool, err error) {
	text, err := client.Info(ctx, "memory").Result()
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(text) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "maxmemory_policy":
			policy = value
		case "maxmemory":
			bounded = value != "0"
		}
	}
	if policy == "" {
		return "", false, errors.New("INFO has no maxmemory_policy")
	}
	return policy, bounded, nil
}
