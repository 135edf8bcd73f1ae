package redisstore

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strconv"
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

// replica is a store of two tiers, whose second is shared.
type replica struct {
	*cache.Store
	shared *Store
	stop   func()
}

// fleet are replicas on one Redis.
type fleet struct {
	*testing.T
	network, address string

	mu    sync.Mutex // guards what follows
	away  bool
	conns []net.Conn
}

// dial connects to Redis, unless it is cut off.
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

// cut cuts all replicas off from Redis, or lets them find it again.
func (f *fleet) cut(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
	for _, c := range f.conns {
		_ = c.Close()
	}
	f.conns = nil
}

// onEach runs a test on miniredis and on a real server.
func onEach(t *testing.T, test func(f *fleet)) {
	t.Parallel() // they wait for Redis most of the time
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		test(&fleet{T: t, network: "tcp", address: miniredis.RunT(t).Addr()})
	})
	t.Run("redis-server", func(t *testing.T) {
		t.Parallel()
		test(&fleet{T: t, network: "unix", address: testservers.Redis(t)})
	})
}

func (f *fleet) client() *redis.Client {
	return redis.NewClient(&redis.Options{Dialer: f.dial, MaxRetries: -1, ContextTimeoutEnabled: true})
}

func (f *fleet) open(secret string) *replica {
	codec, err := cache.NewCodec([]byte(secret))
	if err != nil {
		f.Fatal(err)
	}
	memory := cache.NewMemory(1 << 20)
	shared := New(f.client(), codec, memory, slog.New(slog.DiscardHandler))
	shared.patience = time.Minute // a machine may be busy: what is held here is not how fast it is
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { shared.Run(ctx) })
	r := &replica{Store: cache.NewStore(memory, shared), shared: shared}
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = shared.Close()
	})
	f.Cleanup(r.stop)
	testservers.Eventually(f, "the store is ready", func(context.Context) bool { return shared.ready.Load() })
	return r
}

var page = cache.NewKey("page")

// fetched is an entry whose fetch began at that generation.
func fetched(since cache.Generation, body string, tags ...string) *cache.Entry {
	now := time.Now().Round(0)
	e := cache.NewEntry(cache.Response{
		Status: http.StatusOK, Header: http.Header{"Etag": {`"one"`}, "Age": {"7"}}, Requested: now.Add(-time.Second), Answered: now,
	}, []byte(body), time.Hour)
	e.Since = since
	e.Tags = tags
	return e
}

// holds is what a replica would answer.
func (r *replica) holds(request http.Header) (body string, purged bool) {
	e, purged := r.Lookup(context.Background(), page, request)
	if e == nil {
		return "", false
	}
	return string(e.Body), purged
}

func TestWhatOneFetchesAllHave(t *testing.T) {
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
			f.Errorf("kept (-), got (+):\n%s", diff)
		}
		if other, _ := b.holds(http.Header{"Accept-Language": {"fr"}}); other != "" {
			f.Error("another variant is taken for it")
		}
		a.Delete(f.Context(), page)
		if again, _ := f.open("").holds(http.Header{"Accept-Language": {"de"}}); again != "" {
			f.Error("it was forgotten")
		}
	})
}

func TestAttack45APurgeReachesAll(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.open(""), f.open("")
		b.Put(f.Context(), page, fetched(b.Generation(), "old", "repo:o/r", "org:o"))
		late := b.Generation() // a fetch that is under way
		a.Purge(f.Context(), "repo:o/r")
		testservers.Eventually(f, "the other replica knows", func(context.Context) bool { _, purged := b.holds(nil); return purged })
		b.Put(f.Context(), page, fetched(late, "late", "repo:o/r"))
		for name, r := range map[string]*replica{"who purged": a, "who fetched": b, "who comes later": f.open("")} {
			if body, purged := r.holds(nil); !purged {
				f.Errorf("%s takes %q for fresh", name, body)
			}
		}
		b.Put(f.Context(), page, fetched(b.Generation(), "new", "repo:o/r"))
		for name, r := range map[string]*replica{"who purged": a, "who fetched": b, "who comes later": f.open("")} {
			if body, purged := r.holds(nil); purged || body != "new" {
				f.Errorf("%s has %q, purged %v", name, body, purged)
			}
		}
		a.PurgeHard(f.Context(), "org:o", "repo:o/r")
		testservers.Eventually(f, "it is dropped there, too", func(context.Context) bool { body, _ := b.holds(nil); return body == "" })
	})
}

func TestAttack42WhatCannotBeReadIsAMiss(t *testing.T) {
	onEach(t, func(f *fleet) {
		const secret = "a secret of thirty-two characters"
		a, client := f.open(secret), f.client()
		defer func() { _ = client.Close() }()
		a.Put(f.Context(), page, fetched(a.Generation(), "private words"))
		value := client.HGetAll(f.Context(), name(page)).Val()[variant(&cache.Entry{})]
		if value == "" || strings.Contains(value, "private words") {
			f.Errorf("stored as %q", value)
		}
		if body, _ := f.open("another secret of thirty-two char.").holds(nil); body != "" {
			f.Error("read with another secret")
		}
		if body, _ := f.open("").holds(nil); body != "" {
			f.Error("read without a secret")
		}
		other := cache.NewKey("other")
		client.HSet(f.Context(), name(other), variant(&cache.Entry{}), value)
		if list := a.shared.Get(f.Context(), other); len(list) != 0 {
			f.Error("a value of another key is read")
		}
		if list := a.shared.Get(f.Context(), page); len(list) != 1 {
			f.Error("the value itself is not")
		}
	})
}

func TestEveryKeyHasALifetimeAndABound(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, client := f.open(""), f.client()
		defer func() { _ = client.Close() }()
		for _, language := range strings.Split("de fr it es pt nl da sv fi pl", " ") {
			e := fetched(a.Generation(), language)
			e.Vary = []cache.Field{{Name: "Accept-Language", Value: language}}
			a.Put(f.Context(), page, e)
		}
		if n := client.HLen(f.Context(), name(page)).Val(); n > 8 {
			f.Errorf("%d variants", n)
		}
		a.Put(f.Context(), cache.NewKey("large"), fetched(a.Generation(), randomText(2<<20)))
		a.Purge(f.Context(), "x")
		keys := client.Keys(f.Context(), "*").Val()
		if len(keys) != 2 {
			f.Errorf("%q: what is too large is not stored", keys)
		}
		for _, key := range keys {
			if lives := client.TTL(f.Context(), key).Val(); lives <= 0 || lives > streamLives {
				f.Errorf("%s lives for %v", key, lives)
			}
		}
	})
}

// randomText cannot be compressed to less than half.
func randomText(n int) string {
	var b strings.Builder
	for sum := cache.NewKey("seed"); b.Len() < n; sum = cache.NewKey(string(sum[:])) {
		b.Write(sum[:])
	}
	return b.String()
}

// TestAttack41AStreamThatIsLost: nobody can tell any more what was purged.
func TestAttack41AStreamThatIsLost(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, client := f.open(""), f.client()
		defer func() { _ = client.Close() }()
		a.Put(f.Context(), page, fetched(a.Generation(), "old", "x"))
		if err := client.Del(f.Context(), stream).Err(); err != nil {
			f.Fatal(err)
		}
		testservers.Eventually(f, "what is old is stale", func(context.Context) bool { _, purged := a.holds(nil); return purged })
		a.Put(f.Context(), page, fetched(a.Generation(), "new", "x"))
		testservers.Eventually(f, "a new one is fresh", func(context.Context) bool {
			body, purged := f.open("").holds(nil)
			return body == "new" && !purged
		})
	})
}

func TestAttack41WithoutRedis(t *testing.T) {
	onEach(t, func(f *fleet) {
		a, b := f.open(""), f.open("")
		b.Put(f.Context(), page, fetched(b.Generation(), "old", "x"))
		f.cut(true)
		a.Put(f.Context(), page, fetched(a.Generation(), "kept here", "x"))
		if body, _ := a.holds(nil); body != "kept here" {
			f.Errorf("%q", body)
		}
		a.Purge(f.Context(), "x")
		if _, purged := a.holds(nil); !purged {
			f.Error("not purged here")
		}
		f.cut(false)
		testservers.Eventually(f, "the other learns of the purge", func(context.Context) bool { _, purged := b.holds(nil); return purged })
	})
}

// batches counts how many reads go to Redis at once, and lets them go when hold does.
type batches struct {
	mu    sync.Mutex
	sizes []int
	hold  chan struct{}
}

func (*batches) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *batches) goes(cmds ...redis.Cmder) {
	if cmds[0].Name() != "hgetall" { // the stream is read all the time
		return
	}
	b.mu.Lock()
	b.sizes = append(b.sizes, len(cmds))
	b.mu.Unlock()
	<-b.hold
}

func (b *batches) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		b.goes(cmd)
		return next(ctx, cmd)
	}
}

func (b *batches) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		b.goes(cmds...)
		return next(ctx, cmds)
	}
}

// TestReadsGoTogether: those who ask while a question is on its way share a round trip, and
// each gets its own answer; one whose key nobody here has written holds up nobody.
func TestReadsGoTogether(t *testing.T) {
	f := &fleet{T: t, network: "unix", address: testservers.Redis(t)}
	r := f.open("secret")
	keys := make([]cache.Key, 20)
	for i := range keys {
		keys[i] = cache.NewKey("key", strconv.Itoa(i))
		r.shared.Put(t.Context(), keys[i], fetched(0, strconv.Itoa(i)))
	}
	client := f.client()
	defer func() { _ = client.Close() }()
	if err := client.Set(t.Context(), name(keys[7]), "text", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	b := &batches{hold: make(chan struct{})}
	r.shared.client.(*redis.Client).AddHook(b)
	r.shared.patience = time.Minute
	var asking sync.WaitGroup
	for i, key := range keys {
		asking.Go(func() {
			list := r.shared.Get(t.Context(), key)
			if i == 7 && len(list) > 0 || i != 7 && (len(list) != 1 || string(list[0].Body) != strconv.Itoa(i)) {
				t.Errorf("key %d: %v", i, list)
			}
		})
		if i == 0 {
			testservers.Eventually(t, "the first is on its way", func(context.Context) bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				return len(b.sizes) == 1
			})
		}
	}
	testservers.Eventually(t, "all wait", func(context.Context) bool { return r.shared.batches.Waiting() == len(keys)-1 })
	close(b.hold)
	asking.Wait()
	if len(b.sizes) < 2 || b.sizes[0] != 1 || b.sizes[1] != len(keys)-1 {
		t.Errorf("they went by %v", b.sizes)
	}
}

// then does something after the first command of a name.
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

// TestAStreamThatBeginsWhileItIsLookedAt: another replica begins it anew between the look at
// its oldest entry and at its newest; what is held counts as purged.
func TestAStreamThatBeginsWhileItIsLookedAt(t *testing.T) {
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
		s.client.(*redis.Client).AddHook(&then{"xrange", func() {
			if err := other.XAdd(f.Context(), &redis.XAddArgs{Stream: stream, Values: []any{"purge", "{}"}}).Err(); err != nil {
				f.Error(err)
			}
		}})
		if err := s.look(f.Context()); err != nil {
			f.Fatal(err)
		}
		if e, purged := memory.Lookup(page, nil); e == nil || !purged {
			f.Errorf("%v, purged %v", e, purged)
		}
	})
}
