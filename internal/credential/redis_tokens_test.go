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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/testservers"
)

const sealKey = "0123456789abcdef0123456789abcdef"

// tokenFleet is a Redis server and an upstream that issues tokens to several replicas.
type tokenFleet struct {
	*testing.T
	network, address string
	forward          func(time.Duration) // advances miniredis's clock; nil for a real server
	issued           atomic.Int32
}

// onEachServer runs a test with miniredis and with redis-server.
func onEachServer(t *testing.T, test func(f *tokenFleet)) {
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

// RoundTrip responds with a new token.
func (f *tokenFleet) RoundTrip(r *http.Request) (*http.Response, error) {
	n := f.issued.Add(1)
	testservers.Sleep(r.Context(), 100*time.Millisecond)
	text := fmt.Sprintf(`{"token":"ghs_secret%d","expires_at":%q}`, n, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

func (f *tokenFleet) source(v TokenStore, key Secret) *Source {
	m := NewAppTokens(f, v, slog.New(slog.DiscardHandler))
	f.Cleanup(m.Close)
	return m.Source("bot", &App{Upstream: apiURL(f.T, "http://api.test"), ID: "7", Installation: 42, Key: key})
}

func newAppKey(t *testing.T) Secret {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return Secret(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

func TestReplicasShareOneSealedToken(t *testing.T) {
	onEachServer(t, func(f *tokenFleet) {
		key := newAppKey(f.T)
		var replicas sync.WaitGroup
		for range 4 {
			s := f.source(f.open(sealKey), key)
			replicas.Go(func() {
				if got, err := s.get(f.Context()); err != nil || got.Reveal() != "ghs_secret1" {
					f.Errorf("got %s, %v", got.Reveal(), err)
				}
			})
		}
		replicas.Wait()
		if n := f.issued.Load(); n != 1 {
			f.Errorf("%d tokens were issued, want 1", n)
		}
		c := f.client()
		keys, err := c.Keys(f.Context(), "*").Result()
		if err != nil || len(keys) != 1 {
			f.Fatalf("want one key, got %q, %v", keys, err)
		}
		value, err := c.Get(f.Context(), keys[0]).Result()
		if err != nil || strings.Contains(keys[0]+value, "secret") {
			f.Errorf("stored value %q, %v", value, err)
		}
		if lifetime := c.TTL(f.Context(), keys[0]).Val(); lifetime <= 0 || lifetime > time.Hour {
			f.Errorf("lifetime %v", lifetime)
		}
	})
}

func TestLeaseOfACrashedReplicaExpires(t *testing.T) {
	onEachServer(t, func(f *tokenFleet) {
		dead := f.open(sealKey)
		if leased, err := dead.Lease(f.Context(), "x", "dead", time.Second); !leased || err != nil {
			f.Fatal(leased, err)
		}
		next := f.open(sealKey)
		if leased, err := next.Lease(f.Context(), "x", "next", time.Second); leased || err != nil {
			f.Fatal(leased, err)
		}
		if err := next.Return(f.Context(), "x", "next", AppToken{}); err != nil { // not the owner
			f.Fatal(err)
		}
		if leased, _ := next.Lease(f.Context(), "x", "next", time.Second); leased {
			f.Error("Return released the lease of another owner")
		}
		if f.forward != nil {
			f.forward(2 * time.Second)
		}
		testservers.Eventually(f.T, "the lease ends", func(ctx context.Context) bool {
			leased, err := next.Lease(ctx, "x", "next", time.Second)
			return leased && err == nil
		})
	})
}

func TestStoredTokenOpensOnlyWithItsNameAndKey(t *testing.T) {
	onEachServer(t, func(f *tokenFleet) {
		s, expires := f.open(sealKey), time.Now().Add(time.Minute).Round(time.Millisecond)
		minted := time.Now().Round(time.Millisecond)
		if err := s.Return(f.Context(), "x", "me", AppToken{Value: "ghs_secret", Expires: expires, Minted: minted}); err != nil {
			f.Fatal(err)
		}
		if got, err := s.Load(f.Context(), "x"); err != nil || got.Value != "ghs_secret" || !got.Expires.Equal(expires) || !got.Minted.Equal(minted) {
			f.Errorf("stored token: got %v, %v", got, err)
		}
		if got, err := s.Load(f.Context(), "y"); err != nil || got.Value != "" {
			f.Errorf("missing token: got %v, %v", got, err)
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

func TestWithoutRedisEachReplicaRequestsAToken(t *testing.T) {
	f := &tokenFleet{T: t, network: "unix", address: "/nowhere"}
	s := f.source(f.open(sealKey), newAppKey(t))
	if got, err := s.get(t.Context()); err != nil || got != "ghs_secret1" {
		t.Errorf("got token %s, %v", got, err)
	}
}
