package redisclient

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// options are the client options that Open sets.
type options struct {
	addresses        int
	retries, dials   int
	byContext, tls   bool
	dial, read, pool time.Duration
	connections      int
}

func optionsOf(t *testing.T, c redis.UniversalClient) options {
	t.Helper()
	switch c := c.(type) { // go-redis reports 0 or -1 for "no retries"
	case *redis.ClusterClient:
		o := c.Options()
		return options{len(o.Addrs), max(0, o.MaxRetries), o.DialerRetries, o.ContextTimeoutEnabled, verified(o.TLSConfig), o.DialTimeout, o.ReadTimeout, o.PoolTimeout, o.PoolSize}
	case *redis.Client:
		o := c.Options()
		return options{1, max(0, o.MaxRetries), o.DialerRetries, o.ContextTimeoutEnabled, verified(o.TLSConfig), o.DialTimeout, o.ReadTimeout, o.PoolTimeout, o.PoolSize}
	}
	t.Fatalf("%T", c)
	return options{}
}

// verified reports whether the configuration uses TLS and verifies the certificate of the server.
func verified(c *tls.Config) bool { return c != nil && !c.InsecureSkipVerify }

func TestOpenSetsTheSameTimeoutsForEveryValidURL(t *testing.T) {
	for address, want := range map[string]options{
		"redis://127.0.0.1:1/2":                                       {addresses: 1},
		"rediss://user:pass@localhost:1":                              {addresses: 1, tls: true},
		"redis+sentinel://127.0.0.1:1?master_name=m&addr=127.0.0.1:2": {addresses: 1},
		"redis+cluster://127.0.0.1:1?addr=127.0.0.1:2":                {addresses: 2},
		"rediss+cluster://127.0.0.1:1":                                {addresses: 1, tls: true},
		"redis://127.0.0.1:1?pool_size=7":                             {addresses: 1, connections: 7},
		"redis+sentinel://127.0.0.1:1?master_name=m&pool_size=7":      {addresses: 1, connections: 7},
		"redis+cluster://127.0.0.1:1?pool_size=7":                     {addresses: 1, connections: 7},
		"redis://127.0.0.1:1?pool_size=-1":                            {addresses: 1},
	} {
		c, err := Open(address, nil)
		if err != nil {
			t.Errorf("open %s: %v", address, err)
			continue
		}
		want.connections = cmp.Or(want.connections, 20*runtime.GOMAXPROCS(0))
		want.dials, want.byContext, want.dial, want.read, want.pool = 1, true, time.Second, time.Second, time.Second
		got := optionsOf(t, c)
		failIf(t, got != want, "%s: got %+v, want %+v", address, got, want)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, invalid := range []string{
		"", "localhost:6379", "http://localhost", "redis://localhost:port", "redis+sentinel://localhost:1?master_name=a&db=x",
		"redis+cluster://localhost:1?max_retries=many",
	} {
		if c, err := Open(invalid, nil); err == nil {
			t.Errorf("Open accepted %q", invalid)
			_ = c.Close()
		}
	}
}

func TestOnConnectRunsBeforeTheFirstCommand(t *testing.T) {
	server := miniredis.RunT(t)
	refused := errors.New("refused by the hook")
	calls, refuse := 0, false
	c, err := Open("redis://"+server.Addr(), func(node string) OnConnect {
		failIf(t, node != "", "the single server has the address %q", node)
		return func(context.Context, *redis.Conn) error {
			calls++
			if refuse {
				return refused
			}
			return nil
		}
	})
	noError(t, err)
	defer func() { _ = c.Close() }()
	if err := c.Ping(t.Context()).Err(); err != nil || calls != 1 {
		t.Errorf("%v after %d calls of the hook", err, calls)
	}
	refuse = true
	server.Close()
	noError(t, server.Restart())
	for range 3 { // the first call uses the old connection
		err = c.Ping(t.Context()).Err()
	}
	failIf(t, !errors.Is(err, refused), "the client used a connection that the hook refused: %v", err)
}

func TestRemedyFitsTheErrorOfRedis(t *testing.T) {
	for text, want := range map[string]string{
		"WRONGPASS invalid username-password pair or user is disabled.":                 "correct the user and the password",
		"NOAUTH Authentication required.":                                               "add the password",
		"READONLY You can't write against a read only replica.":                         "name the master",
		"ERR This instance has cluster support disabled":                                "remove +cluster",
		"ERR DB index is out of range":                                                  "number of the database",
		"ERR unknown command 'evalsha'":                                                 "a sentinel needs redis+sentinel",
		"dial tcp: lookup no.such.invalid: no such host":                                "correct the host",
		"tls: failed to verify certificate: x509: certificate signed by unknown author": "rediss is Redis with TLS",
		"dial tcp 127.0.0.1:1: connect: connection refused":                             "start redis",
	} {
		got := Remedy(errors.New(text))
		failIf(t, !strings.Contains(got, want), "%s: %q lacks %q", text, got, want)
	}
}
