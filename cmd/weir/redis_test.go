package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/testservers"
)

// redisGateway is a gateway in this process with a real Redis as its store.
type redisGateway struct {
	*testing.T
	*gateway
	redis *redis.Client // client of the test
	log   output
}

// startOnRedis starts a gateway on Redis. The gateway connects as user, or without a user if user is empty. The functions
// change the configuration.
func startOnRedis(t *testing.T, socket, user string, changes ...func(*config.Config)) *redisGateway {
	t.Helper()
	o := &redisGateway{T: t, redis: redis.NewClient(&redis.Options{Network: "unix", Addr: socket, MaxRetries: -1})}
	t.Cleanup(func() { _ = o.redis.Close() })
	var used atomic.Int32
	reset := fmt.Sprint(time.Now().Add(time.Hour).Unix())
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Ratelimit-Limit", "5000")
		w.Header().Set("X-Ratelimit-Used", fmt.Sprint(used.Add(1)))
		w.Header().Set("X-Ratelimit-Reset", reset)
		w.Header().Set("Cache-Control", "private, max-age=600")
		w.Header().Set("Etag", `"v1"`)
		w.Header().Set("X-Oauth-Scopes", "repo")
		_, _ = fmt.Fprint(w, "response to ", r.URL.Path)
	}))
	t.Cleanup(up.Close)
	if user != "" {
		user += "@"
	}
	cfg := config.Default()
	cfg.Upstream.URL, cfg.Store.URL, cfg.Limits.Inbound.Rate = up.URL, "unix://"+user+socket, 0
	cfg.Upstream.Timeout, cfg.Limits.Wait = 5*time.Second, time.Second
	cfg.Credentials = []config.Credential{{Name: "ci", Kind: "user", Account: "octo-bot", Token: credential.Secret("held-token")}}
	cfg.Clients = []config.Client{{Name: "builds", Key: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("gateway-key"))), Credentials: []string{"ci"}}}
	for _, change := range changes {
		change(cfg)
	}
	g, err := newGateway(cfg, slog.New(slog.NewTextHandler(&o.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	o.gateway = g
	t.Cleanup(g.close)
	return o
}

// send sends a request with a token, and returns the status and the Cache-Status field.
func (o *redisGateway) send(token, path string) (status int, cacheStatus string) {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	o.ServeHTTP(w, r)
	return w.Code, w.Header().Get("Cache-Status")
}

// awaitStored waits until a new response is stored in Redis.
func (o *redisGateway) awaitStored(condition string) {
	o.Helper()
	n := 0
	testservers.Eventually(o, condition, func(ctx context.Context) bool {
		n++
		before := len(o.redis.Keys(ctx, "weir:cache:*").Val())
		status, _ := o.send("caller-token", fmt.Sprintf("/users/%s-%d", strings.ReplaceAll(condition, " ", "-"), n))
		return status == http.StatusOK && len(o.redis.Keys(ctx, "weir:cache:*").Val()) > before
	})
}

// surviveFault starts and ends a fault of Redis. During the fault, hits must succeed, and misses must be forwarded or
// refused in time. After the fault, new responses must be stored.
func (o *redisGateway) surviveFault(begin, end func(context.Context, *redis.Client) error) {
	o.Helper()
	o.awaitStored("before")
	o.send("caller-token", "/users/cached")
	if err := begin(o.Context(), o.redis); err != nil {
		o.Fatal(err)
	}
	for i := range 20 {
		began := time.Now()
		status, cacheStatus := o.send("caller-token", "/users/cached")
		if status != http.StatusOK || !strings.HasPrefix(cacheStatus, "weir; hit") {
			o.Errorf("cached response: %d, %s", status, cacheStatus)
		}
		if status, cacheStatus = o.send("caller-token", fmt.Sprint("/users/", i)); status != http.StatusOK && status != http.StatusTooManyRequests {
			o.Errorf("uncached response: %d, %s", status, cacheStatus)
		}
		if took := time.Since(began); took > 3*time.Second { // limits.wait is one second, and the pause is longer
			o.Errorf("two requests took %v", took)
		}
	}
	if err := end(o.Context(), o.redis); err != nil {
		o.Fatal(err)
	}
	o.awaitStored("after")
}

func TestGatewaySurvivesRedisFaults(t *testing.T) {
	for name, c := range map[string]struct {
		begin func(ctx context.Context, c *redis.Client) error
		end   func(ctx context.Context, c *redis.Client) error
	}{
		"paused for four seconds": {
			func(ctx context.Context, c *redis.Client) error {
				return c.Do(ctx, "client", "pause", 4000, "all").Err()
			},
			func(ctx context.Context, c *redis.Client) error { testservers.Sleep(ctx, 4*time.Second); return nil },
		},
		"read-only replica": {
			func(ctx context.Context, c *redis.Client) error { return c.ReplicaOf(ctx, "127.0.0.1", "1").Err() },
			func(ctx context.Context, c *redis.Client) error { return c.ReplicaOf(ctx, "no", "one").Err() },
		},
		"memory is full": {
			func(ctx context.Context, c *redis.Client) error { return c.ConfigSet(ctx, "maxmemory", "1").Err() },
			func(ctx context.Context, c *redis.Client) error { return c.ConfigSet(ctx, "maxmemory", "0").Err() },
		},
		"scripts are flushed": {
			func(ctx context.Context, c *redis.Client) error { return c.ScriptFlush(ctx).Err() },
			func(context.Context, *redis.Client) error { return nil },
		},
		"data is flushed": {
			func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() },
			func(context.Context, *redis.Client) error { return nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			startOnRedis(t, testservers.Redis(t), "").surviveFault(c.begin, c.end)
		})
	}
}

// TestRedisContainsNoToken checks the names and values of all keys for tokens of callers,
// clients and credentials.
func TestRedisContainsNoToken(t *testing.T) {
	o := startOnRedis(t, testservers.Redis(t), "")
	o.awaitStored("anything")
	for _, token := range []string{"caller-token", "gateway-key", "held-token"} {
		for _, path := range []string{"/user", "/repos/acme/widgets/subscribers", "/repos/acme/widgets/dependency-graph/sbom", "/search/code?q=x", "/gitignore/templates"} {
			if status, _ := o.send(token, path); status != http.StatusOK {
				t.Errorf("%s: got %d, want 200", path, status)
			}
		}
	}
	var all string
	testservers.Eventually(t, "accounts and responses are in Redis", func(context.Context) bool {
		all = o.dump()
		return strings.Contains(all, "octo-bot") && strings.Contains(all, "response to /user")
	})
	for _, secret := range []string{"caller-token", "gateway-key", "held-token", "Bearer"} {
		if i := strings.Index(all, secret); i >= 0 {
			t.Errorf("%q is in Redis: …%q…", secret, all[max(0, i-60):min(len(all), i+60)])
		}
	}
}

// dump returns all keys with their values.
func (o *redisGateway) dump() string {
	var b strings.Builder
	for _, key := range o.redis.Keys(o.Context(), "*").Val() {
		var value any
		switch o.redis.Type(o.Context(), key).Val() {
		case "hash":
			value = uncompressed(o.redis.HGetAll(o.Context(), key).Val())
		case "zset":
			value = o.redis.ZRange(o.Context(), key, 0, -1).Val()
		case "stream":
			value = o.redis.XRange(o.Context(), key, "-", "+").Val()
		default:
			value = o.redis.Get(o.Context(), key).Val()
		}
		_, _ = fmt.Fprintln(&b, key, value)
	}
	return b.String()
}

// uncompressed returns the fields of a hash with zstd values decompressed, so that a search
// finds text in them.
func uncompressed(hash map[string]string) map[string]string {
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		panic(err)
	}
	defer decoder.Close()
	for name, value := range hash {
		if text, err := decoder.DecodeAll([]byte(value), nil); err == nil {
			hash[name] = string(text)
		}
	}
	return hash
}

// minimalPermissions are the permissions in Redis that a gateway needs.
const minimalPermissions = "~weir:* resetchannels -@all +@read +@write +@connection +@transaction +eval +evalsha +info +time +command" +
	" -keys -scan -flushall -flushdb -swapdb -migrate -restore -copy -randomkey -dbsize"

// TestMinimalRedisPermissionsAreDocumented compares the permissions with docs/operations.md.
func TestMinimalRedisPermissionsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "`"+minimalPermissions+"`") {
		t.Errorf("docs/operations.md does not contain %s", minimalPermissions)
	}
}

// restrictGateway creates the user gateway with the minimal permissions, and returns a client with all permissions.
func restrictGateway(t *testing.T, socket string) *redis.Client {
	t.Helper()
	operator := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	t.Cleanup(func() { _ = operator.Close() })
	set := []any{"acl", "setuser", "gateway", "reset", "on", "nopass"}
	for _, rule := range strings.Fields(minimalPermissions) {
		set = append(set, rule)
	}
	if err := operator.Do(t.Context(), set...).Err(); err != nil {
		t.Fatal(err)
	}
	return operator
}

// wantNothingRefused checks that the gateway has used only keys and commands of the minimal permissions.
func wantNothingRefused(t *testing.T, operator *redis.Client) {
	t.Helper()
	for _, refused := range operator.Do(t.Context(), "acl", "log").Val().([]any) {
		if text := fmt.Sprint(refused); !strings.Contains(text, "object:config|get") { // read at the start to warn of an eviction policy
			t.Errorf("Redis refused %s", text)
		}
	}
}

// redisKeys matches every key of the gateway. Names in keys are hashes, or names of the configuration and the catalogue.
var redisKeys = regexp.MustCompile(`^weir:(account:3:\{[0-9a-f]{32}\}|(cache|candidates|fetch):[0-9a-f]{64}|cache:(purges|replicas)|\{weir\}:(replicas|epoch|key|accounts|resources|grants|aliases))$`)

// TestRedisKeysContainNoTextOfRequests sends names with a meaning in the protocol, the patterns and the slots of Redis in
// every part of a request, a response and a delivery. All keys keep their forms and expire, no stored text is readable
// with cache.key, and a purge of such a name affects no other entry.
func TestRedisKeysContainNoTextOfRequests(t *testing.T) {
	socket := testservers.Redis(t)
	operator := restrictGateway(t, socket)
	texts := []string{
		"a b", "a\r\nFLUSHALL\r\n", "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1\r\ny\r\n", "{weir}:key", "}{", "{}", "*", "weir:*", "?", "[a-z]*", `\*`, "a\x00b", "\xff\xfe", "%s%n", "'; redis.call('FLUSHALL') --", `"}]]`,
		strings.Repeat("k", 8<<10), strings.Repeat("{", 64<<10),
	}
	o := startOnRedis(t, socket, "gateway:any", func(c *config.Config) {
		c.Cache.Key, c.Webhooks.Secret = credential.Secret(strings.Repeat("sealing-key-", 4)), "hook-secret"
		up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, name := range []string{"X-Ratelimit-Resource", "Etag", "Link", "Location", "Surrogate-Key"} {
				w.Header().Set(name, r.Header.Get("Accept-Language"))
			}
			w.Header().Set("X-Ratelimit-Limit", "5000")
			w.Header().Set("X-Ratelimit-Used", "1")
			w.Header().Set("X-Ratelimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
			w.Header().Set("Cache-Control", "private, max-age=600")
			w.Header().Set("Vary", "Accept-Language")
			_, _ = fmt.Fprint(w, "body of the response ", r.URL.Path)
		}))
		t.Cleanup(up.Close)
		c.Upstream.URL = up.URL
	})
	o.awaitStored("a response")
	const victim = "/repos/acme/widgets/subscribers"
	o.send("caller-token", victim)
	for i, text := range texts {
		segment := url.PathEscape(text)
		for _, target := range []string{"/" + segment, "/made/" + segment + "?q=" + url.QueryEscape(text), "/repos/acme/" + segment + "/subscribers", "/repos/" + segment + "/x/subscription", "/gitignore/templates/" + segment} {
			for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
				sendTo(o, method, target, text, "Authorization: Bearer "+text+fmt.Sprint(i), "Accept-Language: "+text, "User-Agent: "+text, "Weir-Tag: "+text)
				sendTo(o, method, target, text, fmt.Sprint("Authorization: Bearer token-", i), "Accept-Language: "+text, "If-None-Match: "+text, "Range: "+text)
			}
		}
		body, err := json.Marshal(map[string]any{"repository": map[string]string{"full_name": "acme/" + text}, "organization": map[string]string{"login": text}, "query": "query($x: String) { viewer { login } }", "variables": map[string]string{"x": text}})
		if err != nil {
			t.Fatal(err)
		}
		sendTo(o, http.MethodPost, "/graphql", string(body), "Authorization: Bearer caller-token")
		signedDelivery(o, "push", text, string(body))
		o.cache.Purge(t.Context(), "repo:acme/"+text, "org:"+text, "op:"+text, "url:"+text, text)
	}
	if _, status := o.send("caller-token", victim); !strings.HasPrefix(status, "weir; hit") {
		t.Errorf("after purges of other names: %s, want a hit", status)
	}
	o.cache.Purge(t.Context(), "repo:acme/widgets")
	if _, status := o.send("caller-token", victim); !strings.HasPrefix(status, "weir; fwd=stale") {
		t.Errorf("after a purge of its repository: %s, want stale", status)
	}
	o.awaitStored("after the hostile names")
	wantNothingRefused(t, operator)
	keys := operator.Keys(t.Context(), "*").Val()
	if len(keys) < 20 {
		t.Errorf("only %d keys", len(keys))
	}
	for _, key := range keys {
		if !redisKeys.MatchString(key) {
			t.Errorf("key %.100q has an unknown form", key)
		}
		const removed = -2 // since the list of keys, such as the lease of a fetch
		if lives := operator.PTTL(t.Context(), key).Val(); lives != removed && (lives <= 0 || lives > 31*24*time.Hour) {
			t.Errorf("key %s expires after %v", key, lives)
		}
	}
	all := o.dump()
	for _, text := range []string{"body of the response", "caller-token", "token-1", "sealing-key", "hook-secret", "Surrogate-Key"} {
		if i := strings.Index(all, text); i >= 0 {
			t.Errorf("%q is readable in Redis: …%.200q…", text, all[max(0, i-60):])
		}
	}
}

// TestMinimalRedisPermissionsSuffice runs a gateway as a user with minimalPermissions. The gateway must use no other
// key and no administrative command.
func TestMinimalRedisPermissionsSuffice(t *testing.T) {
	socket := testservers.Redis(t)
	operator := restrictGateway(t, socket)
	o := startOnRedis(t, socket, "gateway:any")
	o.awaitStored("with minimal permissions")
	for _, path := range []string{"/user", "/repos/acme/widgets/subscribers", "/repos/acme/widgets/dependency-graph/sbom", "/search/code?q=x"} {
		for _, token := range []string{"a", "b"} {
			if status, _ := o.send(token, path); status != http.StatusOK {
				t.Errorf("%s: got %d, want 200", path, status)
			}
		}
	}
	o.cache.Purge(t.Context(), "repo:acme/widgets")
	if _, err := o.store.Accounts(t.Context(), 10); err != nil {
		t.Error(err)
	}
	if _, err := o.store.once(t.Context(), "name", time.Now().Add(time.Minute)); err != nil {
		t.Error(err)
	}
	wantNothingRefused(t, operator)
	if err := operator.Do(t.Context(), "script", "flush").Err(); err != nil {
		t.Fatal(err)
	}
	o.awaitStored("after a flush of the scripts")
	for _, key := range operator.Keys(t.Context(), "*").Val() {
		if !strings.HasPrefix(key, "weir:") {
			t.Errorf("key %q outside the prefix weir:", key)
		}
	}
	memory, scripts := operator.Info(t.Context(), "memory").Val(), 0
	if _, rest, ok := strings.Cut(memory, "number_of_cached_scripts:"); ok {
		_, _ = fmt.Sscan(rest, &scripts) // 0 if the line is invalid
	}
	if scripts == 0 || scripts > 16 {
		t.Errorf("%d cached scripts, want 1 to 16", scripts)
	}
	used := operator.Info(t.Context(), "commandstats").Val()
	for _, command := range []string{"flushall", "flushdb", "config|set", "debug", "function", "script|load", "publish", "subscribe"} {
		if strings.Contains(used, "cmdstat_"+command+":") {
			t.Errorf("command %s was used", command)
		}
	}
}
