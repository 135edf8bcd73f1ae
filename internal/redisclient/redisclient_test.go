package redisclient

import (
	"context"
	"crypto/tls"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// options are those of a client of any kind that the package sets.
type options struct {
	addresses           int
	retries, dials      int
	byContext, tls      bool
	dial, read, waiting time.Duration
}

func optionsOf(t *testing.T, c Client) options {
	t.Helper()
	switch c := c.(type) {
	case *redis.ClusterClient:
		o := c.Options()
		return options{len(o.Addrs), max(0, o.MaxRetries), o.DialerRetries, o.ContextTimeoutEnabled, verified(o.TLSConfig), o.DialTimeout, o.ReadTimeout, o.PoolTimeout}
	case *redis.Client:
		o := c.Options()
		return options{1, max(0, o.MaxRetries), o.DialerRetries, o.ContextTimeoutEnabled, verified(o.TLSConfig), o.DialTimeout, o.ReadTimeout, o.PoolTimeout}
	}
	t.Fatalf("%T", c)
	return options{}
}

// verified reports whether a client speaks TLS, and to whom it knows.
func verified(c *tls.Config) bool { return c != nil && !c.InsecureSkipVerify }

// TestAttack44EveryFormOfURL: each kind of client has the same bounds, retries nothing,
// and verifies whom it speaks TLS with.
func TestAttack44EveryFormOfURL(t *testing.T) {
	for address, want := range map[string]struct {
		addresses int
		tls       bool
	}{
		"redis://127.0.0.1:1/2":                                       {1, false},
		"rediss://user:pass@localhost:1":                              {1, true},
		"redis+sentinel://127.0.0.1:1?master_name=m&addr=127.0.0.1:2": {1, false},
		"redis+cluster://127.0.0.1:1?addr=127.0.0.1:2":                {2, false},
		"rediss+cluster://127.0.0.1:1":                                {1, true},
	} {
		c, err := Open(address, nil)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		got := optionsOf(t, c)
		// go-redis has 0 or -1 for "none".
		if w := (options{want.addresses, 0, 1, true, want.tls, time.Second, 250 * time.Millisecond, 100 * time.Millisecond}); got != w {
			t.Errorf("%s: got %+v, want %+v", address, got, w)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestWhatIsNoStoreIsToldSo(t *testing.T) {
	for _, address := range []string{"", "localhost:6379", "http://localhost", "redis://localhost:port", "redis+sentinel://localhost:1?master_name=a&db=x", "redis+cluster://localhost:1?max_retries=many"} {
		if c, err := Open(address, nil); err == nil {
			t.Errorf("%q is taken for a store", address)
			_ = c.Close()
		}
	}
}

// TestNewConnectionsAreGreeted before a command goes over them.
func TestNewConnectionsAreGreeted(t *testing.T) {
	server := miniredis.RunT(t)
	refused := errors.New("not this one")
	greeted, refuse := 0, false
	c, err := Open("redis://"+server.Addr(), func(node string) Greeting {
		if node != "" {
			t.Errorf("the one server is called %q", node)
		}
		return func(context.Context, redis.Cmdable) error {
			greeted++
			if refuse {
				return refused
			}
			return nil
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.Ping(t.Context()).Err(); err != nil || greeted != 1 {
		t.Errorf("%v, greeted %d times", err, greeted)
	}
	refuse = true
	server.Close()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the old connection first
		err = c.Ping(t.Context()).Err()
	}
	if !errors.Is(err, refused) {
		t.Errorf("a connection that the greeting refuses is used: %v", err)
	}
}
