package redisstore

import (
	"context"
	"flag"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/testservers"
)

// replica is the cache of one replica, with a shared tier.
type replica struct {
	*cache.Store
	shared *Store
	stop   func()
}

// fleet is a set of replicas that share one Redis server.
type fleet struct {
	*testing.T
	network, address string
	replicaLife      time.Duration

	mu    sync.Mutex // guards the following fields
	away  bool
	conns []net.Conn
}

// dial connects to Redis, unless cut was called.
func (f *fleet) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return nil, net.ErrClosed
	}
	c, err := new(net.Dialer).DialContext(ctx, f.network, f.address)
	if err == nil {
		f.conns = append(f.conns, c)
	}
	return c, err
}

// cut closes all connections to Redis, and refuses new connections while away is set.
func (f *fleet) cut(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
	for _, c := range f.conns {
		_ = c.Close()
	}
	f.conns = nil
}

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "16") // never fails; parallel tests mostly wait
	os.Exit(m.Run())
}

// onEach runs a test with miniredis and with redis-server.
func onEach(t *testing.T, test func(f *fleet)) {
	t.Parallel() // the tests mostly wait
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		test(&fleet{T: t, network: "tcp", address: miniredis.RunT(t).Addr(), replicaLife: time.Minute})
	})
	t.Run("redis-server", func(t *testing.T) {
		t.Parallel()
		test(&fleet{T: t, network: "unix", address: testservers.Redis(t), replicaLife: time.Minute})
	})
}

func (f *fleet) client() *redis.Client {
	// A call that waits for a connection uses a timer that go-redis shares between the bubbles of synctest.
	return redis.NewClient(&redis.Options{Dialer: f.dial, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, PoolSize: 1000})
}

func (f *fleet) open(secret string) *replica {
	r := f.start(secret)
	testservers.Eventually(f, "the store is ready", func(context.Context) bool { return r.shared.ready.Load() })
	return r
}

// start returns a replica that may not follow the stream yet.
func (f *fleet) start(secret string) *replica {
	codec, err := cache.NewCodec([]byte(secret))
	if err != nil {
		f.Fatal(err)
	}
	memory := cache.NewMemory(1 << 20)
	shared := New(f.client(), codec, memory, slog.New(slog.DiscardHandler))
	// Most tests do not check response times.
	shared.timeout, shared.purgeWait, shared.runTimeout, shared.replicaLife = time.Minute, time.Minute, 4*time.Second, f.replicaLife
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { shared.Run(ctx) })
	r := &replica{Store: cache.NewStore(memory, shared), shared: shared}
	running.Go(func() { r.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = shared.Close()
	})
	f.Cleanup(r.stop)
	return r
}

// Put stores an entry and waits until it is shared.
func (r *replica) Put(ctx context.Context, key cache.Key, e *cache.Entry) (shared bool) {
	done := make(chan bool, 1)
	r.Store.Put(ctx, key, e, func(shared bool) { done <- shared })
	return <-done
}

var page = cache.NewKey("page")

// fetched returns an entry whose fetch began at this generation.
func fetched(since cache.Generation, body string, tags ...string) *cache.Entry {
	now := time.Now().Round(0)
	e := cache.NewEntry(cache.Response{
		Status: http.StatusOK, Header: http.Header{"Etag": {`"one"`}, "Age": {"7"}}, Requested: now.Add(-time.Second), Answered: now,
	}, []byte(body), time.Hour)
	e.Since = since
	e.Tags = tags
	return e
}

// holds returns the body that the replica finds for the page.
func (r *replica) holds(request http.Header) (body string, purged bool) {
	e, purged := r.Lookup(context.Background(), page, request)
	if e == nil {
		return "", false
	}
	return string(e.Body), purged
}

func TestEntriesAreSharedByReplicas(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.open(""), f.open("")
		body := strings.Repeat("long ", 1000)
		e := fetched(a.Generation(), body)
		e.Vary = []cache.Field{{Name: "Accept-Language", Value: "de"}}
		a.Put(f.Context(), page, e)
		got, purged := b.Lookup(f.Context(), page, http.Header{"Accept-Language": {"de"}})
		if got == nil || purged {
			f.Fatalf("%+v, purged %v", got, purged)
		}
		now := time.Now()
		if diff := cmp.Diff([]any{e.Status, e.Header, string(e.Body), e.Vary, e.Age(now)}, []any{got.Status, got.Header, string(got.Body), got.Vary, got.Age(now)}); diff != "" {
			f.Errorf("stored (-), found (+):\n%s", diff)
		}
		if other, _ := b.holds(http.Header{"Accept-Language": {"fr"}}); other != "" {
			f.Error("another variant was found")
		}
		a.Delete(f.Context(), page)
		testservers.Eventually(f, "the entry is deleted", func(context.Context) bool {
			again, _ := f.open("").holds(http.Header{"Accept-Language": {"de"}})
			return again == ""
		})
	})
}

func TestPurgeReachesAllReplicas(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.open(""), f.open("")
		b.Put(f.Context(), page, fetched(b.Generation(), "old", "repo:o/r", "org:o"))
		late := b.Generation() // generation at the start of a fetch that is in progress during the purge
		a.Purge(f.Context(), "repo:o/r")
		testservers.Eventually(f, "the other replica applies the purge", func(context.Context) bool { _, purged := b.holds(nil); return purged })
		b.Put(f.Context(), page, fetched(late, "late", "repo:o/r"))
		for name, r := range map[string]*replica{"purging replica": a, "fetching replica": b, "new replica": f.open("")} {
			if body, purged := r.holds(nil); !purged {
				f.Errorf("%s: %q is fresh", name, body)
			}
		}
		b.Put(f.Context(), page, fetched(b.Generation(), "new", "repo:o/r"))
		for name, r := range map[string]*replica{"purging replica": a, "fetching replica": b, "new replica": f.open("")} {
			if body, purged := r.holds(nil); purged || body != "new" {
				f.Errorf("%s: %q, purged %v", name, body, purged)
			}
		}
		a.PurgeHard(f.Context(), "org:o", "repo:o/r")
		testservers.Eventually(f, "the other replica removes the entry", func(context.Context) bool { body, _ := b.holds(nil); return body == "" })
	})
}

func TestUnreadableValueIsAMiss(t *testing.T) {
	onEach(t, func(f *fleet) {
		const secret = "a secret of thirty-two characters"
		a, client := f.open(secret), f.client()
		defer func() { _ = client.Close() }()
		a.Put(f.Context(), page, fetched(a.Generation(), "private words"))
		value := client.HGetAll(f.Context(), entriesName(page)).Val()[variant(&cache.Entry{})]
		if value == "" || strings.Contains(value, "private words") {
			f.Errorf("the stored value is missing or contains plain text: %q", value)
		}
		if body, _ := f.open("another secret of thirty-two char.").holds(nil); body != "" {
			f.Error("decoded with another secret")
		}
		if body, _ := f.open("").holds(nil); body != "" {
			f.Error("decoded without a secret")
		}
		other := cache.NewKey("other")
		client.HSet(f.Context(), entriesName(other), variant(&cache.Entry{}), value)
		if list := a.shared.Get(f.Context(), other); len(list) != 0 {
			f.Error("a value of another key was decoded")
		}
		if list := a.shared.Get(f.Context(), page); len(list) != 1 {
			f.Error("the value was not decoded")
		}
	})
}

func TestEveryKeyExpiresAndIsBounded(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, client := f.open(""), f.client()
		defer func() { _ = client.Close() }()
		for _, language := range strings.Split("de fr it es pt nl da sv fi pl", " ") {
			e := fetched(a.Generation(), language)
			e.Vary = []cache.Field{{Name: "Accept-Language", Value: language}}
			a.Put(f.Context(), page, e)
		}
		if n := client.HLen(f.Context(), entriesName(page)).Val(); n > 8 {
			f.Errorf("%d variants", n)
		}
		a.Put(f.Context(), cache.NewKey("large"), fetched(a.Generation(), randomText(2<<20)))
		a.Purge(f.Context(), "x")
		keys := client.Keys(f.Context(), "*").Val()
		if len(keys) != 3 { // the entry, the stream and the replicas
			f.Errorf("keys %q: the large entry must not be stored", keys)
		}
		for _, key := range keys {
			if lives := client.TTL(f.Context(), key).Val(); lives <= 0 || lives > streamLife {
				f.Errorf("key %s expires after %v", key, lives)
			}
		}
	})
}

// randomText returns a text that cannot be compressed to less than half.
func randomText(n int) string {
	var b strings.Builder
	for sum := cache.NewKey("seed"); b.Len() < n; sum = cache.NewKey(string(sum[:])) {
		b.Write(sum[:])
	}
	return b.String()
}

// Without the stream, a replica cannot determine which tags were purged.
func TestLostStreamMakesOlderEntriesStale(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, client := f.open(""), f.client()
		defer func() { _ = client.Close() }()
		a.Put(f.Context(), page, fetched(a.Generation(), "old", "x"))
		if err := client.Del(f.Context(), stream).Err(); err != nil {
			f.Fatal(err)
		}
		testservers.Eventually(f, "the old entry is stale", func(context.Context) bool { _, purged := a.holds(nil); return purged })
		a.Put(f.Context(), page, fetched(a.Generation(), "new", "x"))
		testservers.Eventually(f, "a new entry is fresh", func(context.Context) bool {
			body, purged := f.open("").holds(nil)
			return body == "new" && !purged
		})
	})
}

func TestPurgeDuringAnOutageIsSentLater(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.open(""), f.open("")
		b.Put(f.Context(), page, fetched(b.Generation(), "old", "x"))
		f.cut(true)
		a.Put(f.Context(), page, fetched(a.Generation(), "stored here", "x"))
		if body, _ := a.holds(nil); body != "stored here" {
			f.Errorf("got %q during the outage, want the local entry", body)
		}
		a.Purge(f.Context(), "x")
		if _, purged := a.holds(nil); !purged {
			f.Error("the purge has no effect on this replica")
		}
		f.cut(false)
		testservers.Eventually(f, "the other replica applies the purge", func(context.Context) bool { _, purged := b.holds(nil); return purged })
	})
}

// then is a hook that calls a function after the first command with the given name.
type then struct {
	name string
	do   func()
}

func (*then) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*then) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (t *then) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == t.name && t.do != nil {
			t.do()
			t.do = nil
		}
		return err
	}
}

// Another replica may restart the stream between the two reads of a check. Older entries are then
// stale.
func TestStreamThatStartsDuringACheckMakesOlderEntriesStale(t *testing.T) {
	onEach(t, func(f *fleet) {
		other := f.client()
		f.Cleanup(func() { _ = other.Close() })
		codec, err := cache.NewCodec(nil)
		if err != nil {
			f.Fatal(err)
		}
		memory := cache.NewMemory(1 << 20)
		s := New(f.client(), codec, memory, slog.New(slog.DiscardHandler))
		f.Cleanup(func() { _ = s.Close() })
		memory.Put(page, fetched(memory.Generation(), "old"))
		for _, c := range []redis.UniversalClient{s.client, other} { // the check has a deadline, connect before
			if err := c.Ping(f.Context()).Err(); err != nil {
				f.Fatal(err)
			}
		}
		s.client.(*redis.Client).AddHook(&then{"xrange", func() {
			if err := other.XAdd(f.Context(), &redis.XAddArgs{Stream: stream, Values: []any{"purge", "{}"}}).Err(); err != nil {
				f.Error(err)
			}
		}})
		if err := s.check(f.Context()); err != nil {
			f.Fatal(err)
		}
		if e, purged := memory.Lookup(page, nil); e == nil || !purged {
			f.Errorf("%v, purged %v", e, purged)
		}
	})
}
