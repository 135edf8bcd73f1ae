package credential

import (
	"context"
	"errors"
	"fmt"
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
	return must(NewRedisTokens(f.client(), []byte(secret)))
}

// expectLease checks whether a replica gets a lease.
func (f *tokenFleet) expectLease(s *RedisTokens, token, owner string, lifetime time.Duration, want bool) {
	f.Helper()
	leased, err := s.Lease(f.Context(), token, owner, lifetime)
	failIf(f, leased != want || err != nil, "lease of %s for %s: %v, %v; want %v", token, owner, leased, err, want)
}

// expectToken checks a stored token, or the error of reading it.
func (f *tokenFleet) expectToken(what string, s *RedisTokens, name string, want AppToken, wantErr error) {
	f.Helper()
	got, err := s.Load(f.Context(), name)
	failIf(f, got.Value != want.Value || !got.Expires.Equal(want.Expires) || !got.Minted.Equal(want.Minted) || !errors.Is(err, wantErr), "%s: got %+v, %v; want %+v, %v", what, got, err, want, wantErr)
}

// RoundTrip responds with a new token.
func (f *tokenFleet) RoundTrip(r *http.Request) (*http.Response, error) {
	n := f.issued.Add(1)
	testservers.Sleep(r.Context(), 100*time.Millisecond)
	return tokenResponse(r, fmt.Sprint("ghs_secret", n), time.Hour), nil
}

// replica returns the app of a new replica.
func (f *tokenFleet) replica() *Source {
	m := NewAppTokens(f, f.open(sealKey), slog.New(slog.DiscardHandler))
	f.Cleanup(m.Close)
	app := testApp()
	return m.Source("bot", &app)
}

func TestReplicasShareOneSealedToken(t *testing.T) {
	onEachServer(t, func(f *tokenFleet) {
		var replicas sync.WaitGroup
		for range 4 {
			s := f.replica()
			replicas.Go(func() {
				got, err := s.get(f.Context())
				failIf(f, err != nil || got.Reveal() != "ghs_secret1", "got %s, %v", got.Reveal(), err)
			})
		}
		replicas.Wait()
		equal(f, "issued tokens", f.issued.Load(), 1)
		c := f.client()
		keys, err := c.Keys(f.Context(), "*").Result()
		stopIf(f, err != nil || len(keys) != 1, "want one key, got %q, %v", keys, err)
		value, err := c.Get(f.Context(), keys[0]).Result()
		failIf(f, err != nil || strings.Contains(keys[0]+value, "secret"), "stored value %q, %v", value, err)
		lifetime := c.TTL(f.Context(), keys[0]).Val()
		failIf(f, lifetime <= 0 || lifetime > time.Hour, "lifetime %v", lifetime)
	})
}

func TestLeaseOfACrashedReplicaExpires(t *testing.T) {
	onEachServer(t, func(f *tokenFleet) {
		s := f.open(sealKey)
		f.expectLease(s, "x", "dead", time.Second, true)
		f.expectLease(s, "x", "next", time.Second, false)
		noError(f, s.Return(f.Context(), "x", "next", AppToken{})) // not the owner
		f.expectLease(s, "x", "next", time.Second, false)
		if f.forward != nil {
			f.forward(2 * time.Second)
		}
		testservers.Eventually(f.T, "the lease ends", func(ctx context.Context) bool {
			leased, err := s.Lease(ctx, "x", "next", time.Second)
			return leased && err == nil
		})
	})
}

func TestStoredTokenOpensOnlyWithItsNameAndKey(t *testing.T) {
	onEachServer(t, func(f *tokenFleet) {
		s, now := f.open(sealKey), time.Now().Round(time.Millisecond)
		token := AppToken{Value: "ghs_secret", Expires: now.Add(time.Minute), Minted: now}
		noError(f.T, s.Return(f.Context(), "x", "me", token))
		f.expectToken("stored token", s, "x", token, nil)
		f.expectToken("missing token", s, "y", AppToken{}, nil)
		f.expectToken("with another key", f.open(strings.Repeat("x", 32)), "x", AppToken{}, ErrSealed)
		noError(f.T, f.client().Copy(f.Context(), tokenKey("x"), tokenKey("y"), 0, true).Err())
		f.expectToken("under another name", s, "y", AppToken{}, ErrSealed)
	})
}

func TestWithoutRedisEachReplicaRequestsAToken(t *testing.T) {
	f := &tokenFleet{T: t, network: "unix", address: "/nowhere"}
	got, err := f.replica().get(t.Context())
	failIf(t, err != nil || got != "ghs_secret1", "got token %s, %v", got, err)
}

// recording is the data of a replica of version 0.2.
const recording = "testdata/redis-0.2.txt"

// recordedToken is the stored token. It expires after all runs of the test.
var recordedToken = AppToken{Value: "recorded-token", Expires: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)}

// TestStoredFormatIsThatOfTheRelease stores a token and a lease, and compares their format with the recording.
func TestStoredFormatIsThatOfTheRelease(t *testing.T) {
	f := &tokenFleet{T: t, network: "unix", address: testservers.Redis(t)}
	s := f.open(sealKey)
	f.expectLease(s, "stored", "r1", 15*time.Second, true)
	noError(t, s.Return(t.Context(), "stored", "r1", recordedToken))
	f.expectLease(s, "requested", "r1", 15*time.Second, true)
	testservers.CompareFormat(t, f.client(), recording, nil)
}

// TestReplicaContinuesWithTheDataOfTheRelease uses the recorded token and lease. The recorded replica requests a token.
func TestReplicaContinuesWithTheDataOfTheRelease(t *testing.T) {
	f := &tokenFleet{T: t, network: "unix", address: testservers.Redis(t)}
	testservers.Replay(t, f.client(), recording)
	f.expectToken("recorded token", f.open(sealKey), "stored", recordedToken, nil)
	f.expectLease(f.open(sealKey), "requested", "r2", 15*time.Second, false)
}
