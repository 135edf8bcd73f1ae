package tlsauto

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weirgate/weir/internal/testservers"
)

var secret = []byte(strings.Repeat("k", 32))

// openRedis opens a storage on a Redis server.
func openRedis(t *testing.T, o redis.Options, secret []byte) (*redisStorage, redis.UniversalClient) {
	t.Helper()
	o.MaxRetries, o.ContextTimeoutEnabled = -1, true
	client := redis.NewClient(&o)
	s, err := NewRedis(client, secret, slog.New(slog.DiscardHandler))
	noError(t, err)
	t.Cleanup(s.Close) // some tests close it themselves
	return s.(*redisStorage), client
}

// onServer returns the options for an empty database of redis-server.
func onServer(t *testing.T) redis.Options {
	socket, database := testservers.RedisDatabase(t, 0)
	return redis.Options{Network: "unix", Addr: socket, DB: database}
}

// inMemory starts a miniredis that serves in memory, also in virtual time.
func inMemory(t *testing.T) (*miniredis.Miniredis, redis.Options) {
	server := miniredis.NewMiniRedis()
	t.Cleanup(server.Close)
	return server, redis.Options{
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// eachStorage runs a test on every implementation.
func eachStorage(t *testing.T, test func(*testing.T, Storage)) {
	for _, c := range []struct {
		name string
		open func(*testing.T) Storage
	}{
		{"memory", func(*testing.T) Storage { return NewMemory() }},
		{"folder", func(t *testing.T) Storage { return NewFolder(t.TempDir()) }},
		{"miniredis", func(t *testing.T) Storage {
			_, o := inMemory(t)
			s, _ := openRedis(t, o, nil)
			return s
		}},
		{"redis-server, sealed", func(t *testing.T) Storage {
			s, client := openRedis(t, onServer(t), secret)
			t.Cleanup(func() { assertEveryKeyExpires(t, client) })
			return s
		}},
	} {
		t.Run(c.name, func(t *testing.T) { test(t, c.open(t)) })
	}
}

// assertEveryKeyExpires fails the test if a key has no TTL or an unknown prefix.
func assertEveryKeyExpires(t *testing.T, client redis.UniversalClient) {
	keys, err := client.Keys(context.Background(), "*").Result()
	noError(t, err)
	for _, key := range keys {
		life, err := client.TTL(context.Background(), key).Result()
		if life == -2 { // the key was deleted after the list was read
			continue
		}
		failIf(t, err != nil || life <= 0 || !strings.HasPrefix(key, "weir:{tls}:"), "%s has TTL %v, error %v", key, life, err)
	}
}

func TestStorageMeetsTheContractOfCertmagic(t *testing.T) {
	eachStorage(t, func(t *testing.T, s Storage) {
		ctx := t.Context()
		put := func(key, text string) {
			t.Helper()
			noError(t, s.Store(ctx, key, []byte(text)))
		}
		has := func(key, text string) {
			t.Helper()
			got, err := s.Load(ctx, key)
			failIf(t, text == "" && !errors.Is(err, fs.ErrNotExist) || text != "" && string(got) != text, "%s holds %q, %v", key, got, err)
			failIf(t, s.Exists(ctx, key) != (text != ""), "%s: exists is wrong", key)
		}
		has("certificates/ca/a/a.crt", "")
		if _, err := s.Stat(ctx, "certificates"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("stat in an empty storage: %v", err)
		}
		put("certificates/ca/a/a.crt", "one")
		put("certificates/ca/a/a.crt", "two")
		put("certificates/ca/a/a.key", "\x00\xffkey")
		put("certificates/ca/ab/ab.crt", "other")
		has("certificates/ca/a/a.crt", "two")
		has("certificates/ca/a/a.key", "\x00\xffkey")
		for _, c := range []struct {
			recursive bool
			want      []string
		}{
			{false, []string{"certificates/ca/a", "certificates/ca/ab"}},
			{true, []string{"certificates/ca/a", "certificates/ca/a/a.crt", "certificates/ca/a/a.key", "certificates/ca/ab", "certificates/ca/ab/ab.crt"}},
		} {
			got, err := s.List(ctx, "certificates/ca", c.recursive)
			slices.Sort(got)
			diff := cmp.Diff(c.want, got)
			failIf(t, diff != "" || err != nil, "%v %v", diff, err)
		}
		file, err := s.Stat(ctx, "certificates/ca/a/a.crt")
		failIf(t, err != nil || !file.IsTerminal || file.Size != 3 || time.Since(file.Modified).Abs() > time.Hour, "stat of a file: %+v, %v", file, err)
		if dir, err := s.Stat(ctx, "certificates/ca"); err != nil || dir.IsTerminal {
			t.Errorf("stat of a directory: %+v, %v", dir, err)
		}
		for _, key := range []string{"certificates/ca/a", "certificates/ca/a", "nothing"} {
			err := s.Delete(ctx, key)
			failIf(t, err != nil, "delete %s: %v", key, err)
		}
		has("certificates/ca/a/a.crt", "")
		has("certificates/ca/ab/ab.crt", "other")
	})
}

func TestLockIsExclusive(t *testing.T) {
	eachStorage(t, func(t *testing.T, s Storage) {
		ctx := t.Context()
		noError(t, s.Lock(ctx, "a"))
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if err := s.Lock(short, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("lock a held lock: %v", err)
		}
		if err := s.Lock(ctx, "b"); err != nil {
			t.Errorf("lock another name: %v", err)
		}
		got := make(chan error)
		go func() { got <- s.Lock(ctx, "a") }()
		err := errors.Join(s.Unlock(ctx, "a"), <-got, s.Unlock(ctx, "a"), s.Unlock(ctx, "b"))
		failIf(t, err != nil, "%v", err)
	})
}

func TestSealedValuesCannotBeReadOrForged(t *testing.T) {
	_, o := inMemory(t)
	s, client := openRedis(t, o, secret)
	open, _ := openRedis(t, o, nil)
	other, _ := openRedis(t, o, []byte(strings.Repeat("o", 32)))
	ctx := t.Context()
	const key, text = "certificates/ca/a/a.key", "PRIVATE KEY"
	noError(t, s.Store(ctx, key, []byte(text)))
	stored := client.Get(ctx, valuePrefix+key).Val()
	failIf(t, strings.Contains(stored, "PRIVATE"), "Redis holds %q", stored)
	for reader, storage := range map[string]Storage{"without a secret": open, "with another secret": other} {
		got, err := storage.Load(ctx, key)
		failIf(t, !errors.Is(err, fs.ErrNotExist), "load %s: %q, %v", reader, got, err)
	}
	for name, forged := range map[string]string{
		"one bit changed": stored[:len(stored)-1] + string(stored[len(stored)-1]^1),
		"truncated":       stored[:20], "empty": "", "nonsense": "x", "other time": stored[:10] + string(stored[10]^1) + stored[11:],
		"not sealed":           string(open.sealer.seal(key, []byte("EVIL"), time.Now())),
		"value of another key": string(s.sealer.seal("certificates/ca/b/b.key", []byte("EVIL"), time.Now())),
	} {
		client.Set(ctx, valuePrefix+key, forged, time.Hour)
		got, err := s.Load(ctx, key)
		failIf(t, !errors.Is(err, fs.ErrNotExist) || s.Exists(ctx, key), "%s: loaded %q, %v", name, got, err)
	}
}

func TestReadsRenewTheTTL(t *testing.T) {
	server, o := inMemory(t)
	s, client := openRedis(t, o, nil)
	for key, want := range map[string]time.Duration{"acme/ca/users/a/a.json": longTTL, "acme/ca/challenge_tokens/a.json": 30 * time.Minute} {
		noError(t, s.Store(t.Context(), key, []byte("x")))
		server.FastForward(30 * time.Minute)
		_, err := s.Load(t.Context(), key)
		stopIf(t, err != nil, "%v", err)
		life := client.TTL(t.Context(), valuePrefix+key).Val()
		failIf(t, life != want, "%s: TTL %v after a read, want %v", key, life, want)
	}
}

func TestLeaseExpiresAfterItsHolderDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, o := inMemory(t)
		server.ClockTTL(true)
		s, client := openRedis(t, o, nil)
		client.Set(t.Context(), lockPrefix+"a", "dead replica", leaseTTL)
		try := func(want bool, when string) {
			t.Helper()
			ok, err := s.TryLock(t.Context(), "a")
			failIf(t, ok != want || err != nil, "%s: locked %v, %v", when, ok, err)
		}
		time.Sleep(leaseTTL - time.Second)
		try(false, "before the lease expired")
		time.Sleep(time.Second)
		try(true, "after the lease expired")
		time.Sleep(3 * leaseTTL)
		life := client.PTTL(t.Context(), lockPrefix+"a").Val()
		failIf(t, life < leaseTTL/2, "the lease of the holder lasts %v after three leases", life)
		s.Close()
		failIf(t, server.Exists(lockPrefix+"a"), "a closed storage keeps its lock")
	})
}

func TestLockRetriesWhileRedisIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, o := inMemory(t)
		s, _ := openRedis(t, o, nil)
		server.SetError("LOADING")
		got := make(chan error)
		go func() { got <- s.Lock(t.Context(), "a") }()
		time.Sleep(10 * lockPause)
		select {
		case err := <-got:
			t.Errorf("locked without Redis: %v", err)
		default:
		}
		server.SetError("")
		err := <-got
		failIf(t, err != nil, "%v", err)
	})
}
