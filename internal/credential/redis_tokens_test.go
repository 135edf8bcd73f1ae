package credential

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
)

const sealing = "0123456789abcdef0123456789abcdef"

// tokenFleet is a Redis, and an upstream that issues tokens to who asks.
type tokenFleet struct {
	*testing.T
	network, address string
	forward          func(time.Duration) // lets miniredis's time go by; nil for a real server
	issued           atomic.Int32
}

func onEach(t *testing.T, test func(f *tokenFleet)) {
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		mini := miniredis.RunT(t)
		test(&tokenFleet{T: t, network: "tcp", address: mini.Addr(), forward: mini.FastForward})
	})
	t.Run("redis-server", func(t *testing.T) {
		t.Parallel()
		test(&tokenFleet{T: t, network: "unix", address: testservers.Redis(t)})
	})
}

func (f *tokenFleet) client() *redis.Client {
	c := redis.NewClient(&redis.Options{
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, f.network, f.address)
		},
		MaxRetries: -1, ContextTimeoutEnabled: true,
	})
	f.Cleanup(func() { _ = c.Close() })
	return c
}

func (f *tokenFleet) open(secret string) *RedisTokens {
	s, err := NewRedisTokens(f.client(), []byte(secret))
	if err != nil {
		f.Fatal(err)
	}
	return s
}

// RoundTrip issues a token.
func (f *tokenFleet) RoundTrip(r *http.Request) (*http.Response, error) {
	n := f.issued.Add(1)
	testservers.Sleep(r.Context(), 100*time.Millisecond)
	text := fmt.Sprintf(`{"token":"ghs_secret%d","expires_at":%q}`, n, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

func (f *tokenFleet) source(v TokenStore, key Secret) *Source {
	m := NewAppTokens(v, slog.New(slog.DiscardHandler))
	f.Cleanup(m.Close)
	app := &App{ID: "7", Installation: 42, Key: key}
	return m.Source("bot", app, &TokenEndpoint{Upstream: &url.URL{Scheme: "http", Host: "api.test"}, Transport: f})
}

func newAppKey(t *testing.T) Secret {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return Secret(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

func TestReplicasHaveOneTokenAndItIsSealed(t *testing.T) {
	onEach(t, func(f *tokenFleet) {
		key := newAppKey(f.T)
		var replicas sync.WaitGroup
		for range 4 {
			s := f.source(f.open(sealing), key)
			replicas.Go(func() {
				if got, err := s.Token(f.Context()); err != nil || got.Reveal() != "ghs_secret1" {
					f.Errorf("got %s, %v", got.Reveal(), err)
				}
			})
		}
		replicas.Wait()
		if n := f.issued.Load(); n != 1 {
			f.Errorf("%d were issued", n)
		}
		c := f.client()
		keys, err := c.Keys(f.Context(), "*").Result()
		if err != nil || len(keys) != 1 {
			f.Fatalf("%q, %v", keys, err)
		}
		value, err := c.Get(f.Context(), keys[0]).Result()
		if err != nil || strings.Contains(keys[0]+value, "secret") {
			f.Errorf("%q, %v", value, err)
		}
		if lives := c.TTL(f.Context(), keys[0]).Val(); lives <= 0 || lives > time.Hour {
			f.Errorf("it lives for %v", lives)
		}
	})
}

func TestAHolderThatDiesHoldsNobodyUp(t *testing.T) {
	onEach(t, func(f *tokenFleet) {
		dead := f.open(sealing)
		if mine, err := dead.Lease(f.Context(), "x", "dead", time.Second); !mine || err != nil {
			f.Fatal(mine, err)
		}
		next := f.open(sealing)
		if mine, err := next.Lease(f.Context(), "x", "next", time.Second); mine || err != nil {
			f.Fatal(mine, err)
		}
		if err := next.Return(f.Context(), "x", "next", AppToken{}); err != nil { // not its own
			f.Fatal(err)
		}
		if mine, _ := next.Lease(f.Context(), "x", "next", time.Second); mine {
			f.Error("another's lease was ended")
		}
		if f.forward != nil {
			f.forward(2 * time.Second)
		}
		testservers.Eventually(f.T, "the lease ends", func(ctx context.Context) bool {
			mine, err := next.Lease(ctx, "x", "next", time.Second)
			return mine && err == nil
		})
	})
}

func TestATokenIsReadUnderItsNameAndKeyAlone(t *testing.T) {
	onEach(t, func(f *tokenFleet) {
		s, expires := f.open(sealing), time.Now().Add(time.Minute).Round(time.Millisecond)
		if err := s.Return(f.Context(), "x", "me", AppToken{Value: "ghs_secret", Expires: expires}); err != nil {
			f.Fatal(err)
		}
		if got, err := s.Load(f.Context(), "x"); err != nil || got.Value != "ghs_secret" || !got.Expires.Equal(expires) {
			f.Errorf("%v, %v", got, err)
		}
		if got, err := s.Load(f.Context(), "y"); err != nil || got.Value != "" {
			f.Errorf("%v, %v", got, err)
		}
		if _, err := f.open(strings.Repeat("x", 32)).Load(f.Context(), "x"); !errors.Is(err, ErrSealed) {
			f.Errorf("with another key: %v", err)
		}
		c := f.client()
		if err := c.Copy(f.Context(), tokenKey("x"), tokenKey("y"), 0, true).Err(); err != nil {
			f.Fatal(err)
		}
		if _, err := s.Load(f.Context(), "y"); !errors.Is(err, ErrSealed) {
			f.Errorf("under another name: %v", err)
		}
	})
}

func TestWithoutRedisEachAsksForItself(t *testing.T) {
	f := &tokenFleet{T: t, network: "unix", address: "/nowhere"}
	s := f.source(f.open(sealing), newAppKey(t))
	if got, err := s.Token(t.Context()); err != nil || got != "ghs_secret1" {
		t.Errorf("%s, %v", got, err)
	}
}
