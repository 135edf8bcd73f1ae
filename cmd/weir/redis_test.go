package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/testservers"
	"github.com/weirgate/weir/limits"
)

// redisGateway is a gateway in this process with a real Redis as its store.
type redisGateway struct {
	*testing.T
	*gateway
	redis *redis.Client // client of the test
	log   testservers.Output
}

// startOnRedis starts a gateway on Redis. The gateway connects as user, or without a user if user is empty. The functions
// change the configuration.
func startOnRedis(t *testing.T, socket, user string, changes ...func(*config.Config)) *redisGateway {
	t.Helper()
	o := &redisGateway{T: t, redis: redisClient(t, socket)}
	var used atomic.Int32
	reset := fmt.Sprint(time.Now().Add(time.Hour).Unix())
	up := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Ratelimit-Limit", "5000")
		w.Header().Set("X-Ratelimit-Used", fmt.Sprint(used.Add(1)))
		w.Header().Set("X-Ratelimit-Reset", reset)
		w.Header().Set("Cache-Control", "private, max-age=600")
		w.Header().Set("Etag", `"v1"`)
		w.Header().Set("X-Oauth-Scopes", "repo")
		_, _ = fmt.Fprint(w, "response to ", r.URL.Path)
	})
	if user != "" {
		user += "@"
	}
	const api = "api.test:80" // one API for all replicas
	cfg := configure("http://"+api, inboundRate(0, 0), func(c *config.Config) {
		c.Store.URL, c.Upstream.Timeout, c.Limits.Wait = "unix://"+user+socket, 5*time.Second, time.Second
		c.Credentials = []config.Credential{userToken("ci", "octo-bot", "held-token")}
		c.Clients = []config.Client{{Name: "builds", Key: keyHash("gateway-key"), Credentials: []string{"ci"}}}
	})
	for _, change := range changes {
		change(cfg)
	}
	o.gateway = openLogged(t, cfg, &o.log)
	o.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == api {
			address = strings.TrimPrefix(up, "http://")
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return o
}

// redisClient returns a client of the test.
func redisClient(t *testing.T, socket string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, MaxRetries: -1})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// send sends a request with a token, and returns the status and the Cache-Status field.
func (o *redisGateway) send(token, path string) (status int, cacheStatus string) {
	w := sendTo(o, http.MethodGet, path, "", "Authorization: Bearer "+token)
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
		stored := false
		for range 50 { // the response is written behind
			if stored = len(o.redis.Keys(ctx, "weir:cache:*").Val()) > before; stored || status != http.StatusOK {
				break
			}
			testservers.Sleep(ctx, 10*time.Millisecond)
		}
		return status == http.StatusOK && stored
	})
}

// surviveFault starts and ends a fault of Redis. During the fault, hits must succeed, and misses must be forwarded or
// refused in time. After the fault, new responses must be stored. A fault that loses purges makes the cached response stale
// once.
func (o *redisGateway) surviveFault(losesPurges bool, begin, end func(context.Context, *redis.Client) error) {
	o.Helper()
	o.awaitStored("before")
	o.send("caller-token", "/users/cached")
	noError(o, begin(o.Context(), o.redis))
	for i := range 20 {
		began := time.Now()
		status, cacheStatus := o.send("caller-token", "/users/cached")
		revalidated := losesPurges && strings.HasPrefix(cacheStatus, "weir; fwd=stale")
		failIf(o, status != http.StatusOK || !strings.HasPrefix(cacheStatus, "weir; hit") && !revalidated, "cached response: %d, %s", status, cacheStatus)
		losesPurges = losesPurges && !revalidated
		status, cacheStatus = o.send("caller-token", fmt.Sprint("/users/", i))
		failIf(o, status != http.StatusOK && status != http.StatusTooManyRequests, "uncached response: %d, %s", status, cacheStatus)
		if took := time.Since(began); took > 3*time.Second { // limits.wait is one second, and the pause is longer
			o.Errorf("two requests took %v", took)
		}
	}
	noError(o, end(o.Context(), o.redis))
	o.awaitStored("after")
}

func TestGatewaySurvivesRedisFaults(t *testing.T) {
	t.Parallel()
	nothing := func(context.Context, *redis.Client) error { return nil }
	for name, c := range map[string]struct {
		begin, end func(ctx context.Context, c *redis.Client) error
	}{
		"paused for two seconds": {
			func(ctx context.Context, c *redis.Client) error {
				return c.Do(ctx, "client", "pause", 2000, "all").Err()
			},
			func(ctx context.Context, _ *redis.Client) error { testservers.Sleep(ctx, 2*time.Second); return nil },
		},
		"read-only replica": {
			func(ctx context.Context, c *redis.Client) error { return c.ReplicaOf(ctx, "127.0.0.1", "1").Err() },
			func(ctx context.Context, c *redis.Client) error { return c.ReplicaOf(ctx, "no", "one").Err() },
		},
		"memory is full": {
			func(ctx context.Context, c *redis.Client) error { return c.ConfigSet(ctx, "maxmemory", "1").Err() },
			func(ctx context.Context, c *redis.Client) error { return c.ConfigSet(ctx, "maxmemory", "0").Err() },
		},
		"scripts are flushed": {func(ctx context.Context, c *redis.Client) error { return c.ScriptFlush(ctx).Err() }, nothing},
		"data is flushed":     {func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() }, nothing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			startOnRedis(t, testservers.Redis(t), "").surviveFault(name == "data is flushed", c.begin, c.end)
		})
	}
}

// requestedPaths are paths of operations with different rules.
var requestedPaths = []string{"/user", "/repos/acme/widgets/subscribers", "/repos/acme/widgets/dependency-graph/sbom", "/search/code?q=x"}

// TestRedisContainsNoToken checks the names and values of all keys for tokens of callers,
// clients and credentials.
func TestRedisContainsNoToken(t *testing.T) {
	t.Parallel()
	o := startOnRedis(t, testservers.Redis(t), "")
	o.awaitStored("anything")
	for _, token := range []string{"caller-token", "gateway-key", "held-token"} {
		for _, path := range append(requestedPaths, "/gitignore/templates") {
			status, _ := o.send(token, path)
			failIf(t, status != http.StatusOK, "%s: got %d, want 200", path, status)
		}
	}
	var all string
	testservers.Eventually(t, "accounts and responses are in Redis", func(context.Context) bool {
		all = testservers.DumpRedis(o, o.redis)
		return strings.Contains(all, "octo-bot") && strings.Contains(all, "response to /user")
	})
	for _, secret := range []string{"caller-token", "gateway-key", "held-token", "Bearer"} {
		i := strings.Index(all, secret)
		failIf(t, i >= 0, "%q is in Redis: …%q…", secret, all[max(0, i-60):min(len(all), i+60)])
	}
}

// minimalPermissions are the permissions in Redis that a gateway needs.
const minimalPermissions = "~weir:* resetchannels -@all +@read +@write +@connection +@transaction +eval +evalsha +info +time +command" +
	" -keys -scan -flushall -flushdb -swapdb -migrate -restore -copy -randomkey -dbsize"

// TestMinimalRedisPermissionsAreDocumented compares the permissions with docs/operations.md.
func TestMinimalRedisPermissionsAreDocumented(t *testing.T) {
	text := must(os.ReadFile("../../docs/operations.md"))(t)
	failIf(t, !strings.Contains(string(text), "`"+minimalPermissions+"`"), "docs/operations.md does not contain %s", minimalPermissions)
}

// restrictGateway creates the user gateway with the minimal permissions, and returns a client with all permissions.
func restrictGateway(t *testing.T, socket string) *redis.Client {
	t.Helper()
	operator := redisClient(t, socket)
	set := []any{"acl", "setuser", "gateway", "reset", "on", "nopass"}
	for _, rule := range strings.Fields(minimalPermissions) {
		set = append(set, rule)
	}
	noError(t, operator.Do(t.Context(), set...).Err())
	return operator
}

// wantNothingRefused checks that the gateway has used only keys and commands of the minimal permissions.
func wantNothingRefused(t *testing.T, operator *redis.Client) {
	t.Helper()
	for _, refused := range operator.Do(t.Context(), "acl", "log").Val().([]any) {
		t.Errorf("Redis refused %v", refused)
	}
}

// redisKeys matches every key of the gateway. Names in keys are hashes, or names of the configuration and the catalogue.
var redisKeys = regexp.MustCompile(`^weir:(account:3:\{[0-9a-f]{32}\}|(cache|candidates|fetch):[0-9a-f]{64}|cache:(purges|replicas)|\{weir\}:(epoch|key|(replicas|accounts|resources|aliases|names):[0-9a-f]{16}))$`)

// TestRedisKeysContainNoTextOfRequests sends names with a meaning in the protocol, the patterns and the slots of Redis in
// every part of a request, a response and a delivery. All keys keep their forms and expire, no stored text is readable
// with cache.key, and a purge of such a name affects no other entry.
func TestRedisKeysContainNoTextOfRequests(t *testing.T) {
	t.Parallel()
	socket := testservers.Redis(t)
	operator := restrictGateway(t, socket)
	texts := []string{
		"a b", "a\r\nFLUSHALL\r\n", "*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1\r\ny\r\n", "{weir}:key", "}{", "{}", "*", "weir:*", "?", "[a-z]*",
		`\*`, "a\x00b", "\xff\xfe", "%s%n", "'; redis.call('FLUSHALL') --", `"}]]`, strings.Repeat("k", 8<<10), strings.Repeat("{", 64<<10),
	}
	o := startOnRedis(t, socket, "gateway:any", func(c *config.Config) {
		c.Cache.Key, c.Webhooks.Secret = credential.Secret(strings.Repeat("sealing-key-", 4)), "hook-secret"
		c.Upstream.URL = serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
			for _, name := range []string{"X-Ratelimit-Resource", "Etag", "Link", "Location", "Surrogate-Key"} {
				w.Header().Set(name, r.Header.Get("Accept-Language"))
			}
			w.Header().Set("X-Ratelimit-Limit", "5000")
			w.Header().Set("X-Ratelimit-Used", "1")
			w.Header().Set("X-Ratelimit-Reset", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
			w.Header().Set("Cache-Control", "private, max-age=600")
			w.Header().Set("Vary", "Accept-Language")
			_, _ = fmt.Fprint(w, "body of the response ", r.URL.Path)
		})
	})
	o.awaitStored("a response")
	const victim = "/repos/acme/widgets/subscribers"
	o.send("caller-token", victim)
	for i, text := range texts {
		segment := url.PathEscape(text)
		for _, target := range []string{
			"/" + segment, "/made/" + segment + "?q=" + url.QueryEscape(text), "/repos/acme/" + segment + "/subscribers",
			"/repos/" + segment + "/x/subscription", "/gitignore/templates/" + segment,
		} {
			for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
				sendTo(o, method, target, text, "Authorization: Bearer "+text+fmt.Sprint(i), "Accept-Language: "+text, "User-Agent: "+text, "Weir-Tag: "+text)
				sendTo(o, method, target, text, fmt.Sprint("Authorization: Bearer token-", i), "Accept-Language: "+text, "If-None-Match: "+text, "Range: "+text)
			}
		}
		body := must(json.Marshal(map[string]any{
			"repository": map[string]string{"full_name": "acme/" + text}, "organization": map[string]string{"login": text},
			"query": "query($x: String) { viewer { login } }", "variables": map[string]string{"x": text},
		}))(t)
		sendTo(o, http.MethodPost, "/graphql", string(body), "Authorization: Bearer caller-token")
		deliver(o, "X-Service-", "hook-secret", "push", text, string(body))
		o.cache.Purge(t.Context(), "repo:acme/"+text, "org:"+text, "op:"+text, "url:"+text, text)
	}
	if _, status := o.send("caller-token", victim); !strings.HasPrefix(status, "weir; hit") {
		t.Errorf("after purges of other names: %s, want a hit", status)
	}
	o.cache.Purge(t.Context(), "repo:acme/widgets")
	_, status := o.send("caller-token", victim)
	failIf(t, !strings.HasPrefix(status, "weir; fwd=stale"), "after a purge of its repository: %s, want stale", status)
	o.awaitStored("after the hostile names")
	wantNothingRefused(t, operator)
	keys := operator.Keys(t.Context(), "*").Val()
	failIf(t, len(keys) < 20, "only %d keys", len(keys))
	for _, key := range keys {
		failIf(t, !redisKeys.MatchString(key), "key %.100q has an unknown form", key)
		const removed = -2 // since the list of keys, such as the lease of a fetch
		lives := operator.PTTL(t.Context(), key).Val()
		failIf(t, lives != removed && (lives <= 0 || lives > 31*24*time.Hour), "key %s expires after %v", key, lives)
	}
	all := testservers.DumpRedis(o, o.redis)
	for _, text := range []string{"body of the response", "caller-token", "token-1", "sealing-key", "hook-secret", "Surrogate-Key"} {
		i := strings.Index(all, text)
		failIf(t, i >= 0, "%q is readable in Redis: …%.200q…", text, all[max(0, i-60):])
	}
}

// TestMinimalRedisPermissionsSuffice runs a gateway as a user with minimalPermissions. The gateway must use no other
// key and no administrative command.
func TestMinimalRedisPermissionsSuffice(t *testing.T) {
	t.Parallel()
	socket := testservers.Redis(t)
	operator := restrictGateway(t, socket)
	o := startOnRedis(t, socket, "gateway:any")
	o.awaitStored("with minimal permissions")
	for _, path := range requestedPaths {
		for _, token := range []string{"a", "b"} {
			status, _ := o.send(token, path)
			failIf(t, status != http.StatusOK, "%s: got %d, want 200", path, status)
		}
	}
	o.cache.Purge(t.Context(), "repo:acme/widgets")
	if _, err := o.store.Accounts(t.Context(), 10); err != nil {
		t.Error(err)
	}
	_, err := o.store.(marks).Once(t.Context(), "name", time.Now().Add(time.Minute))
	failIf(t, err != nil, "%v", err)
	wantNothingRefused(t, operator)
	noError(t, operator.Do(t.Context(), "script", "flush").Err())
	o.awaitStored("after a flush of the scripts")
	for _, key := range operator.Keys(t.Context(), "*").Val() {
		failIf(t, !strings.HasPrefix(key, "weir:"), "key %q outside the prefix weir:", key)
	}
	memory, scripts := operator.Info(t.Context(), "memory").Val(), 0
	if _, rest, ok := strings.Cut(memory, "number_of_cached_scripts:"); ok {
		_, _ = fmt.Sscan(rest, &scripts) // 0 if the line is invalid
	}
	failIf(t, scripts == 0 || scripts > 16, "%d cached scripts, want 1 to 16", scripts)
	used := operator.Info(t.Context(), "commandstats").Val()
	for _, command := range []string{"flushall", "flushdb", "config|set", "debug", "function", "script|load", "publish", "subscribe"} {
		failIf(t, strings.Contains(used, "cmdstat_"+command+":"), "command %s was used", command)
	}
}

// startOnLink starts a gateway whose connection to Redis can be disturbed.
func startOnLink(t *testing.T) (*redisGateway, *testservers.Link) {
	t.Helper()
	socket := testservers.Redis(t)
	link := testservers.NewSocketLink(t, socket)
	o := startOnRedis(t, link.Address, "")
	o.redis = redisClient(t, socket) // the test connects without the link
	return o, link
}

// reports reports whether a metric or a log line contains a text.
func (o *redisGateway) reports(text string) bool {
	return strings.Contains(o.metrics(), "\n"+text+"\n") || strings.Contains(o.log.String(), text)
}

// awaitReport waits until a metric or a log line contains a text.
func (o *redisGateway) awaitReport(text string) {
	o.Helper()
	testservers.Eventually(o, "a report contains "+text, func(context.Context) bool { return o.reports(text) })
}

// TestGatewaySurvivesCutRedisConnection cuts the link without closing connections. Commands in
// transit arrive late.
func TestGatewaySurvivesCutRedisConnection(t *testing.T) {
	t.Parallel()
	o, link := startOnLink(t)
	o.surviveFault(false, func(context.Context, *redis.Client) error {
		link.Cut()
		o.send("caller-token", "/users/first") // this request detects the loss
		o.awaitReport("weir_store_up 0")
		return nil
	}, func(context.Context, *redis.Client) error {
		link.Restore()
		return nil
	})
	o.awaitReport("weir_store_up 1")
	o.awaitReport("redis connection lost; using the leases of this replica")
	o.awaitReport("redis connection restored")
}

// TestUnresponsiveRedisCountsAsLost checks that a slow Redis is not lost, and that a delay beyond
// the timeout counts as a lost connection.
func TestUnresponsiveRedisCountsAsLost(t *testing.T) {
	t.Parallel()
	o, link := startOnLink(t)
	o.awaitStored("at first")
	link.Delay(5 * time.Millisecond)
	o.awaitStored("slowly")
	link.Delay(200 * time.Millisecond)
	for range 5 {
		o.send("caller-token", "/users/first")
	}
	failIf(t, o.reports("weir_store_up 0"), "redis is lost, although it responds within 200 ms")
	link.Restore() // the cache stores no responses while Redis needs more than 100 ms
	o.surviveFault(false, func(context.Context, *redis.Client) error {
		link.Delay(1500 * time.Millisecond)
		o.send("caller-token", "/users/first")
		o.awaitReport("weir_store_up 0")
		return nil
	}, func(context.Context, *redis.Client) error {
		link.Restore()
		return nil
	})
	o.awaitReport("weir_store_up 1")
}

// TestReplicaKeepsSpendingOfColdStart starts a gateway while Redis is unreachable. When the gateway joins the other
// replica, it renames the accounts of passed-through tokens. What the accounts used before must count afterwards.
func TestReplicaKeepsSpendingOfColdStart(t *testing.T) {
	t.Parallel()
	socket := testservers.Redis(t)
	other := startOnRedis(t, socket, "")
	link := testservers.NewSocketLink(t, socket)
	link.Cut()
	o := startOnRedis(t, link.Address, "")
	const before = 3
	for i := range before {
		status, _ := o.send("caller-token", fmt.Sprint("/users/cold-", i))
		failIf(t, status != http.StatusOK, "status %d without redis, want 200", status)
	}
	account := o.current.Load().callers.AccountOf("caller-token")
	link.Restore()
	testservers.Eventually(t, "the replica joined", func(context.Context) bool {
		return o.current.Load().callers.AccountOf("caller-token") != account
	})
	testservers.Eventually(t, "a request after joining succeeds", func(context.Context) bool {
		status, _ := o.send("caller-token", "/users/joined")
		return status == http.StatusOK
	})
	testservers.Eventually(t, "the other replica sees all spending of the account", func(ctx context.Context) bool {
		accounts, err := other.store.Accounts(ctx, 10)
		i := slices.IndexFunc(accounts, func(a limits.Account) bool { return a.Name == o.current.Load().callers.AccountOf("caller-token") })
		if err != nil || i < 0 {
			return false
		}
		return slices.ContainsFunc(accounts[i].Budgets, func(b limits.Budget) bool {
			return strings.HasPrefix(b.Resource, "points:") && b.Used == before+1
		})
	})
}

// spentPoints returns the used points of all accounts in Redis.
func (o *redisGateway) spentPoints() (n int) {
	accounts, err := o.store.Accounts(o.Context(), 10)
	if err != nil {
		return -1
	}
	for _, a := range accounts {
		for _, b := range a.Budgets {
			if strings.HasPrefix(b.Resource, "points:") {
				n += b.Used
			}
		}
	}
	return n
}

// TestSpendingSurvivesLostKeys evicts, deletes and corrupts keys in Redis. A replica must restore the spending of its
// local accounts in Redis.
func TestSpendingSurvivesLostKeys(t *testing.T) {
	t.Parallel()
	eachField := func(change func(value string) string) func(context.Context, *redis.Client, string) error {
		return func(ctx context.Context, c *redis.Client, key string) (err error) {
			for field, value := range c.HGetAll(ctx, key).Val() {
				err = errors.Join(err, c.HSet(ctx, key, field, change(value)).Err())
			}
			return err
		}
	}
	for name, fault := range map[string]struct {
		keys  string // the fault happens to each of them
		fails func(ctx context.Context, c *redis.Client, key string) error
	}{
		"keys are evicted": {"weir:{weir}:epoch", func(ctx context.Context, c *redis.Client, _ string) error {
			err := errors.Join(c.ConfigSet(ctx, "maxmemory-policy", "allkeys-random").Err(), c.ConfigSet(ctx, "maxmemory", "1").Err())
			_ = c.Set(ctx, "any", "more", 0).Err() // evicts all keys, and fails
			if n := len(c.Keys(ctx, "weir:*").Val()); n > 0 {
				err = fmt.Errorf("%d keys are left", n)
			}
			return errors.Join(err, c.ConfigSet(ctx, "maxmemory", "0").Err())
		}},
		"keys are deleted": {"weir:account:*", func(ctx context.Context, c *redis.Client, key string) error { return c.Del(ctx, key).Err() }},
		"keys have another type": {"weir:account:*", func(ctx context.Context, c *redis.Client, key string) error {
			return c.Set(ctx, key, "\x00rubbish", time.Hour).Err()
		}},
		"fields have invalid values": {"weir:account:*", eachField(func(string) string { return "\xffrubbish" })},
		"fields are truncated":       {"weir:account:*", eachField(func(value string) string { return value[:len(value)/2] })},
		"shared keys have another type": {"weir:{weir}:*", func(ctx context.Context, c *redis.Client, key string) error {
			_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error { // a gateway may write the key in between
				p.Del(ctx, key)
				p.HSet(ctx, key, "rubbish", 1)
				return nil
			})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := startOnRedis(t, testservers.Redis(t), "")
			spent := 0
			o.surviveFault(name == "keys are evicted", func(ctx context.Context, c *redis.Client) error { // all keys, with the purges
				n := 0
				testservers.Eventually(t, "points are spent", func(context.Context) bool {
					n++
					o.send("caller-token", fmt.Sprint("/users/spends-", n))
					spent = o.spentPoints()
					return spent >= 10
				})
				keys := c.Keys(ctx, fault.keys).Val()
				failIf(t, len(keys) == 0, "no keys %s", fault.keys)
				for _, key := range keys {
					noError(t, fault.fails(ctx, c, key))
				}
				return nil
			}, func(context.Context, *redis.Client) error { return nil })
			testservers.Eventually(t, "the spending is written again", func(context.Context) bool { return o.spentPoints() >= spent })
			if strings.HasPrefix(name, "fields") || strings.HasPrefix(name, "keys are of") {
				o.awaitReport("replacing an unreadable account in redis by an empty one")
			}
		})
	}
}

// Two replicas share one Redis. Each replica learns the user of one token. A limit error of one token at one replica then
// reaches the other token at the other replica within about two seconds, without a request upstream.
func TestCooldownReachesTheTokensOfAUserAtEveryReplica(t *testing.T) {
	t.Parallel()
	socket := testservers.Redis(t)
	var limited atomic.Bool
	var requests atomic.Int64
	up := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		switch {
		case limited.Load():
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `{"message": "You have exceeded a secondary rate limit for user ID 123."}`)
		case r.URL.Path == "/user":
			_, _ = fmt.Fprint(w, `{"login": "octo", "id": 123}`)
		default:
			_, _ = fmt.Fprint(w, `{}`)
		}
	})
	passingThrough := func(c *config.Config) {
		c.Upstream.URL, c.Limits.Wait, c.Callers.PassThrough, c.Credentials, c.Clients = up, 2*time.Second, true, nil, nil
	}
	replicas := []*redisGateway{startOnRedis(t, socket, "", passingThrough), startOnRedis(t, socket, "", passingThrough)}
	send := func(replica int, token, path string, want int) {
		t.Helper()
		status, reason := replicas[replica].send(token, path)
		stopIf(t, status != want, "%s with token %s at replica %d: %d (%s), want %d", path, token, replica, status, reason, want)
	}
	send(0, "token-b", "/repos/o/r/tags", http.StatusOK) // this account exists before it is merged
	send(1, "token-b", "/user", http.StatusOK)
	limited.Store(true)
	send(0, "token-a", "/repos/o/r/branches", http.StatusForbidden)
	name := replicas[0].current.Load().callers.AccountOf
	testservers.Eventually(t, "both replicas know both tokens", func(context.Context) bool {
		for _, r := range replicas {
			for _, token := range []string{"token-a", "token-b"} {
				if r.store.Canonical(name(token)) != "user:123" {
					return false
				}
			}
		}
		return true
	})
	testservers.Eventually(t, "both replicas know the cool-down", func(ctx context.Context) bool {
		for _, r := range replicas {
			list, err := r.store.Accounts(ctx, 10)
			if err != nil || !slices.ContainsFunc(list, func(a limits.Account) bool { return a.Name == "user:123" && !a.BlockedUntil.IsZero() }) {
				return false
			}
		}
		return true
	})
	before := requests.Load()
	for replica := range replicas {
		for _, token := range []string{"token-a", "token-b"} {
			send(replica, token, "/repos/o/r/commits", http.StatusTooManyRequests)
		}
	}
	n := requests.Load() - before
	failIf(t, n != 0, "%d requests were sent during the cool-down", n)
}

// writesToSend returns WEIR_WRITES, or 200 without it.
func writesToSend(t *testing.T) int {
	return testservers.Setting(t, "WEIR_WRITES", 200)
}

// TestClientSeesItsWriteThroughTheOtherReplica writes through one gateway and reads at once through another gateway,
// whose connections to Redis are slower. Other clients read through the other gateway at the same time. No test runs beside this
// one, because a write does not wait for a replica that is too busy to respond.
func TestClientSeesItsWriteThroughTheOtherReplica(t *testing.T) {
	for name, redis := range map[string]func(t *testing.T) (address, overLink string, link *testservers.Link){
		"redis-server": func(t *testing.T) (address, overLink string, link *testservers.Link) {
			socket := testservers.Redis(t)
			link = testservers.NewSocketLink(t, socket)
			return "unix://" + socket, "unix://" + link.Address, link
		},
		// The ledger does not join on miniredis, so each gateway starts after five seconds.
		"miniredis": func(t *testing.T) (address, overLink string, link *testservers.Link) {
			server := miniredis.RunT(t)
			link = testservers.NewLink(t, server.Addr())
			return "redis://" + server.Addr(), "redis://" + link.Address, link
		},
	} {
		if name == "miniredis" && testservers.HasRedis() && os.Getenv("WEIR_WRITES") == "" {
			continue // the case of redis-server sends the same writes
		}
		t.Run(name, func(t *testing.T) {
			var written atomic.Int64
			up := serveAPI(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "private, max-age=600")
				if r.Method == http.MethodPatch {
					written.Add(1)
				}
				_, _ = fmt.Fprint(w, written.Load())
				if r.Method == http.MethodPatch && written.Load()%2 == 0 { // a body without a length
					_ = http.NewResponseController(w).Flush()
				}
			})
			address, overLink, link := redis(t)
			openOn := func(store string) *gateway {
				return open(t, configure(up, inboundRate(0, 0), func(c *config.Config) { c.Store.URL, c.Upstream.Limits = store, false }))
			}
			near, far := openOn(address), openOn(overLink)
			link.Delay(time.Millisecond)
			send := func(g *gateway, method string) string {
				body := map[string]string{http.MethodPatch: "{}"}[method]
				w := sendTo(g, method, "/repos/acme/widgets/issues/3", body, "Authorization: Bearer caller-token")
				failIf(t, w.Code != http.StatusOK, "%s: %d", method, w.Code)
				return w.Body.String()
			}
			writes := writesToSend(t)
			if name == "miniredis" { // runs scripts slowly
				writes /= 5
			}
			took, stale := make([]time.Duration, writes), 0
			for i := range took {
				reader := make(chan struct{})
				go func() { // this read may fetch the old response during the write
					defer close(reader)
					send(far, http.MethodGet)
				}()
				began := time.Now()
				send(near, http.MethodPatch)
				took[i] = time.Since(began)
				if got := send(far, http.MethodGet); got != fmt.Sprint(i+1) && took[i] < 250*time.Millisecond { // the bound of the wait
					stale++
				}
				<-reader
			}
			slices.Sort(took)
			t.Logf("a write took %v (median), %v (99th percentile)", took[len(took)/2], took[len(took)*99/100])
			failIf(t, stale > 0, "%d of %d reads did not see the write before", stale, len(took))
		})
	}
}
