package redisstore

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

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
	database         int
	server           *miniredis.Miniredis // serves in memory, if it is set
	replicaLife      time.Duration

	mu    sync.Mutex // guards the following fields
	away  bool
	conns []net.Conn
}

// dial connects to Redis, unless cut was called.
func (f *fleet) dial(ctx context.Context, _, _ string) (c net.Conn, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.away:
		return nil, net.ErrClosed
	case f.server != nil:
		c, err = f.server.Dial()
	default:
		c, err = new(net.Dialer).DialContext(ctx, f.network, f.address)
	}
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

func TestMain(m *testing.M) { testservers.Main(m) }

// onRedis runs a test with redis-server.
func onRedis(t *testing.T, test func(f *fleet)) {
	t.Helper()
	t.Parallel()
	f := &fleet{T: t, network: "unix", replicaLife: time.Minute}
	f.address, f.database = testservers.RedisDatabase(t, 0)
	test(f)
}

// onMiniredis runs a test with miniredis, in virtual time.
func onMiniredis(t *testing.T, test func(f *fleet)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		t.Cleanup(server.Close)
		test(&fleet{T: t, server: server, replicaLife: time.Minute})
	})
}

// onEach runs a test with miniredis and with redis-server.
func onEach(t *testing.T, test func(f *fleet)) {
	t.Helper()
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) { onMiniredis(t, test) })
	t.Run("redis-server", func(t *testing.T) { onRedis(t, test) })
}

func (f *fleet) client() *redis.Client {
	// A call that waits for a connection uses a timer that go-redis shares between the bubbles of synctest.
	client := redis.NewClient(&redis.Options{
		Dialer: f.dial, DB: f.database, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, PoolSize: 1000,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return client
}

// store returns the shared tier of a replica that does not run, and its memory.
func (f *fleet) store(secret string) (*Store, *cache.Memory) {
	f.Helper()
	codec := testservers.Must(cache.NewCodec([]byte(secret)))
	memory := cache.NewMemory(1 << 20)
	return New(f.client(), codec, slog.New(slog.DiscardHandler)), memory
}

func (f *fleet) open(secret string) *replica {
	f.Helper()
	r := f.start(secret)
	f.eventually("the store is ready", r.shared.ready.Load)
	return r
}

// pair returns two replicas without a secret.
func (f *fleet) pair() (a, b *replica) {
	f.Helper()
	return f.open(""), f.open("")
}

// start returns a replica that may not follow the stream yet.
func (f *fleet) start(secret string) *replica {
	f.Helper()
	shared, memory := f.store(secret)
	// Most tests do not check response times.
	shared.timeout, shared.purgeWait, shared.runTimeout, shared.replicaLife = time.Minute, time.Minute, 4*time.Second, f.replicaLife
	ctx, cancel := context.WithCancel(f.Context())
	var running sync.WaitGroup
	running.Go(func() { shared.Run(ctx, memory) })
	r := &replica{Store: cache.NewStore(memory, shared), shared: shared}
	running.Go(func() { r.Run(ctx) })
	r.stop = func() {
		cancel()
		running.Wait()
	}
	f.Cleanup(func() {
		cancel()
		_ = shared.client.Close() // ends a call that waits for a purge
		running.Wait()
	})
	return r
}

// eventually waits until a condition holds. It fails the test after one minute.
func (f *fleet) eventually(condition string, holds func() bool) {
	f.Helper()
	testservers.Eventually(f, condition, func(context.Context) bool { return holds() })
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

// putPage stores the page, fetched now.
func (r *replica) putPage(body string, tags ...string) {
	r.Put(context.Background(), page, fetched(r.Generation(), body, tags...))
}

// remember stores the page in the memory of the replica only.
func (r *replica) remember(body string, tags ...string) {
	r.Memory.Put(page, fetched(r.Generation(), body, tags...))
}

// stale reports whether the memory of the replica has the page from before a purge.
func (r *replica) stale() bool {
	_, purged := r.Memory.Lookup(page, nil)
	return purged
}

// variantFor makes an entry depend on the language of the request.
func variantFor(e *cache.Entry, language string) *cache.Entry {
	e.Vary = []cache.Field{{Name: "Accept-Language", Value: language}}
	return e
}

func accepts(language string) http.Header { return http.Header{"Accept-Language": {language}} }

func TestEntriesAreSharedByReplicas(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.pair()
		body := strings.Repeat("long ", 1000)
		e := variantFor(fetched(a.Generation(), body), "de")
		a.Put(f.Context(), page, e)
		got, purged := b.Lookup(f.Context(), page, accepts("de"))
		stopIf(f, got == nil || purged, "%+v, purged %v", got, purged)
		now := time.Now()
		diff := cmp.Diff([]any{e.Status, e.Header, string(e.Body), e.Vary}, []any{got.Status, got.Header, string(got.Body), got.Vary})
		failIf(f, diff != "", "stored (-), found (+):\n%s", diff)
		if d := e.Age(now) - got.Age(now); d.Abs() > time.Millisecond { // the wall clock and the monotonic clock differ a little
			f.Errorf("the age differs by %v", d)
		}
		other, _ := b.holds(accepts("fr"))
		failIf(f, other != "", "another variant was found")
		a.Delete(f.Context(), page)
		f.eventually("the entry is deleted", func() bool {
			again, _ := f.open("").holds(accepts("de"))
			return again == ""
		})
	})
}

func TestPurgeReachesAllReplicas(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.pair()
		b.putPage("old", "repo:o/r", "org:o")
		late := b.Generation() // generation at the start of a fetch that is in progress during the purge
		a.Purge(f.Context(), "repo:o/r")
		f.eventually("the other replica applies the purge", func() bool { _, purged := b.holds(nil); return purged })
		b.Put(f.Context(), page, fetched(late, "late", "repo:o/r"))
		for name, r := range map[string]*replica{"purging replica": a, "fetching replica": b, "new replica": f.open("")} {
			body, purged := r.holds(nil)
			failIf(f, !purged, "%s: %q is fresh", name, body)
		}
		b.putPage("new", "repo:o/r")
		for name, r := range map[string]*replica{"purging replica": a, "fetching replica": b, "new replica": f.open("")} {
			body, purged := r.holds(nil)
			failIf(f, purged || body != "new", "%s: %q, purged %v", name, body, purged)
		}
		a.PurgeHard(f.Context(), "org:o", "repo:o/r")
		f.eventually("the other replica removes the entry", func() bool { body, _ := b.holds(nil); return body == "" })
	})
}

func TestUnreadableValueIsAMiss(t *testing.T) {
	onEach(t, func(f *fleet) {
		const secret = "a secret of thirty-two characters"
		a, client := f.open(secret), f.client()
		a.putPage("private words")
		value := client.HGetAll(f.Context(), entriesName(page)).Val()[variant(&cache.Entry{})]
		failIf(f, value == "" || strings.Contains(value, "private words"), "the stored value is missing or contains plain text: %q", value)
		if body, _ := f.open("another secret of thirty-two char.").holds(nil); body != "" {
			f.Error("decoded with another secret")
		}
		body, _ := f.open("").holds(nil)
		failIf(f, body != "", "decoded without a secret")
		other := cache.NewKey("other")
		client.HSet(f.Context(), entriesName(other), variant(&cache.Entry{}), value)
		if list := a.shared.Get(f.Context(), other); len(list) != 0 {
			f.Error("a value of another key was decoded")
		}
		list := a.shared.Get(f.Context(), page)
		failIf(f, len(list) != 1, "the value was not decoded")
	})
}

func TestEveryKeyExpiresAndIsBounded(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, client := f.open(""), f.client()
		for _, language := range strings.Split("de fr it es pt nl da sv fi pl", " ") {
			a.Put(f.Context(), page, variantFor(fetched(a.Generation(), language), language))
		}
		n := client.HLen(f.Context(), entriesName(page)).Val()
		failIf(f, n > 8, "%d variants", n)
		a.Put(f.Context(), cache.NewKey("large"), fetched(a.Generation(), randomText(2<<20)))
		a.Purge(f.Context(), "x")
		keys := client.Keys(f.Context(), "*").Val()
		if len(keys) != 3 { // the entry, the stream and the replicas
			f.Errorf("keys %q: the large entry must not be stored", keys)
		}
		for _, key := range keys {
			lives := client.TTL(f.Context(), key).Val()
			failIf(f, lives <= 0 || lives > streamLife, "key %s expires after %v", key, lives)
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
		a.putPage("old", "x")
		noError(f, client.Del(f.Context(), stream).Err())
		f.eventually("the old entry is stale", func() bool { _, purged := a.holds(nil); return purged })
		a.putPage("new", "x")
		f.eventually("a new entry is fresh", func() bool {
			body, purged := f.open("").holds(nil)
			return body == "new" && !purged
		})
	})
}

func TestPurgeDuringAnOutageIsSentLater(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.pair()
		b.putPage("old", "x")
		f.cut(true)
		a.putPage("stored here", "x")
		body, _ := a.holds(nil)
		failIf(f, body != "stored here", "got %q during the outage, want the local entry", body)
		a.Purge(f.Context(), "x")
		if _, purged := a.holds(nil); !purged {
			f.Error("the purge has no effect on this replica")
		}
		f.cut(false)
		f.eventually("the other replica applies the purge", func() bool { _, purged := b.holds(nil); return purged })
	})
}

// after is a hook that calls a function after each command with the given name.
type after struct {
	name string
	do   func(redis.Cmder)
}

func (after) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a after) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			a.called(cmd)
		}
		return err
	}
}

func (a after) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		a.called(cmd)
		return err
	}
}

func (a after) called(cmd redis.Cmder) {
	if cmd.Name() == a.name {
		a.do(cmd)
	}
}

// Another replica may restart the stream between the two reads of a check. Older entries are then
// stale.
func TestStreamThatStartsDuringACheckMakesOlderEntriesStale(t *testing.T) {
	onEach(t, func(f *fleet) {
		other := f.client()
		s, memory := f.store("")
		memory.Put(page, fetched(memory.Generation(), "old"))
		for _, c := range []redis.UniversalClient{s.client, other} { // the check has a deadline, connect before
			noError(f, c.Ping(f.Context()).Err())
		}
		var once sync.Once
		s.client.AddHook(after{"xrange", func(redis.Cmder) {
			once.Do(func() {
				err := other.XAdd(f.Context(), &redis.XAddArgs{Stream: stream, Values: []any{"purge", "{}"}}).Err()
				failIf(f, err != nil, "%v", err)
			})
		}})
		noError(f, s.check(f.Context(), memory))
		e, purged := memory.Lookup(page, nil)
		failIf(f, e == nil || !purged, "%v, purged %v", e, purged)
	})
}
