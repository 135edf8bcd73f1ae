package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/cache/redisstore"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/redisledger"
	"github.com/weirgate/weir/policy"
)

// store is the ledger that store.url selects, and the calls that depend on its kind.
type store struct {
	limits.Ledger
	kind      string // memory, file or redis
	hashKeys  *atomic.Pointer[hashKeys]
	configure func(limits.Rules)
	run       func(context.Context) // background work, until the context ends
	leave     func() error          // returns the leases to the other replicas; no request may follow
	close     func() error          // no call of the ledger may follow
	lostSince func() time.Time      // zero while the store is reachable
	replicas  func() int
	coldStart func() string // what the ledger holds back because past spending is unknown, or ""
	// shareResources exchanges the resources that the upstream named (see [learned.Resources.Share]); nil if the store
	// belongs to this process alone.
	shareResources func(ctx context.Context, changed map[string]string) (map[string]string, error)
	// shareAliases exchanges the identities of accounts (see [learned.Identities.Share]); nil like shareResources.
	shareAliases func(ctx context.Context, changed []string) ([]string, error)
	// once reports whether a call is the first one with this name at any replica before end.
	once func(ctx context.Context, name string, end time.Time) (bool, error)
}

// hashKeys are the keys of the hashes that name accounts. former is the key that this process used before it joined the
// other replicas; empty without a change.
type hashKeys struct{ current, former []byte }

// storeTimeout bounds the first connection to a store. Afterwards the gateway starts without the store.
const storeTimeout = 5 * time.Second

// inMemory reports whether the store belongs to this process alone.
func inMemory(c *config.Config) bool { return strings.HasPrefix(c.Store.URL, "memory:") }

// openStore opens the store that the configuration selects. If the store is unreachable at first, openStore calls joined
// when the store responds, with the key of the hashes that name accounts from then on.
func openStore(cfg *config.Config, replica string, joined func(hashKey []byte), log *slog.Logger) (*store, error) {
	rules := limitRules(cfg)
	if path, ok := strings.CutPrefix(cfg.Store.URL, "memory:"); ok {
		return openMemory(path, rules, log)
	}
	ledger, err := redisledger.New(redisledger.Config{
		URL: cfg.Store.URL, Replica: replica, Upstream: ledgerName(cfg), Rules: rules, Closed: cfg.Limits.OnStoreLoss == "closed", Joined: joined, Log: log,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	return &store{
		Ledger: ledger, kind: "redis", hashKeys: newHashKeys(ledger.Join(ctx)), coldStart: ledger.ColdStart, configure: ledger.Configure, run: ledger.Run,
		leave: func() error { return ledger.Leave(context.Background()) }, close: ledger.Close,
		lostSince: ledger.Lost, replicas: ledger.Replicas, shareResources: ledger.ShareResources,
		shareAliases: ledger.ShareAliases, once: ledger.Once,
	}, nil
}

func newHashKeys(key []byte) *atomic.Pointer[hashKeys] {
	p := &atomic.Pointer[hashKeys]{}
	p.Store(&hashKeys{current: key})
	return p
}

// openMemory opens a ledger in memory. With a path, the ledger survives the end of this process (ledgerFile).
func openMemory(path string, rules limits.Rules, log *slog.Logger) (*store, error) {
	ledger := limits.NewMemory(rules)
	s := &store{
		Ledger: ledger, kind: "memory", hashKeys: newHashKeys(credential.NewHashKey()), configure: ledger.Configure,
		run: ledger.Run, leave: func() error { return nil }, close: func() error { return nil },
		lostSince: func() time.Time { return time.Time{} }, replicas: func() int { return 1 }, coldStart: ledger.ColdStart,
		once: func(context.Context, string, time.Time) (bool, error) { return true, nil }, // the history has no duplicates
	}
	if path == "" {
		if held := ledger.ColdStart(); held != "" {
			log.Info("ledger started without past spending", "cold_start", rules.ColdStart, "held", held)
		}
		return s, nil
	}
	s.kind = "file"
	file, err := openLedgerFile(path, ledger, log)
	if err != nil {
		return nil, err
	}
	s.hashKeys, s.run, s.close = newHashKeys(file.hashKey), file.run, file.close
	return s, nil
}

// replicaName returns a unique name that contains the host's name.
func replicaName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "weir"
	}
	return host + "-" + rand.Text()[:8]
}

// openRedisCache opens the cache tier that the replicas share. It returns nil if the store is in memory.
func openRedisCache(cfg *config.Config, memory *cache.Memory, log *slog.Logger) (*redisstore.Store, error) {
	if inMemory(cfg) {
		return nil, nil
	}
	codec, err := cache.NewCodec([]byte(cfg.Cache.Key.Reveal()))
	if err != nil {
		return nil, err
	}
	client, err := redisclient.Open(cfg.Store.URL, nil)
	if err != nil {
		return nil, err
	}
	s := redisstore.New(client, codec, memory, log)
	s.Upstream = upstreamName(cfg)
	return s, nil
}

// upstreamName returns the name of the API in Redis, a hash of its host, port and path: the path may contain a key. The common
// path of self-hosted APIs does not name another API.
func upstreamName(cfg *config.Config) string {
	host, path := apiOf(cfg)
	sum := sha256.Sum256([]byte(host + path))
	return hex.EncodeToString(sum[:8])
}

// ledgerName returns the end of the names that the ledger uses in Redis. The public API of the dialect has plain names.
func ledgerName(cfg *config.Config) string {
	dialect, err := policy.LoadDialect(cfg.Upstream.Dialect)
	if host, path := apiOf(cfg); err == nil && dialect.PublicHost != "" && host == dialect.PublicHost+":443" && path == "" {
		return ""
	}
	return upstreamName(cfg)
}

// apiOf returns the host with the port and the path of the API.
func apiOf(cfg *config.Config) (host, path string) {
	u, err := url.Parse(strings.ToLower(cfg.Upstream.URL))
	if err != nil {
		return cfg.Upstream.URL, ""
	}
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	return net.JoinHostPort(u.Hostname(), port), strings.TrimSuffix(strings.TrimSuffix(u.EscapedPath(), "/"), "/api/v3")
}
