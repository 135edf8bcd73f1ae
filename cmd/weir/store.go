package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net"
	"os"
	"strings"
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

// ledger is a ledger with the accounts for operators.
type ledger interface {
	limits.Ledger
	limits.Operator
}

// store is the ledger that store.url selects.
type store interface {
	ledger
	Configure(limits.Rules)
	// Rename is like Merge for a name that the configuration has changed. The other replicas may use the account from.
	Rename(from, into string, kind policy.CallerKind)
	// Run does background work until the context ends. Afterwards Leave returns the leases to the other replicas, and no request may
	// follow. No call may follow Close.
	Run(ctx context.Context)
	Leave(ctx context.Context) error
	Close() error
	// Lost returns the time at which the store was lost, or zero.
	Lost() time.Time
	Replicas() int
	// ColdStart describes what the ledger holds back because past spending is unknown, or returns "".
	ColdStart() string
}

// sharedStore is a store that several replicas use.
type sharedStore interface {
	// ShareResources and ShareAliases are for [learned.Resources.Share] and [learned.Identities.Share].
	ShareResources(ctx context.Context, changed map[string]string) (map[string]string, error)
	ShareAliases(ctx context.Context, changed []string) ([]string, error)
	// ShareNames is for [credential.Registry.MergeStored].
	ShareNames(ctx context.Context, names []string) ([]string, error)
	marks
	// Redis returns the client of the process. Close of the store closes it.
	Redis() redisclient.Client
}

// marks are names that can be used once.
type marks interface {
	// Once reports whether a call is the first one with this name at any replica before end.
	Once(ctx context.Context, name string, end time.Time) (bool, error)
}

// memoryStore implements [store] in this process.
type memoryStore struct{ *limits.Memory }

func (s memoryStore) Rename(from, into string, kind policy.CallerKind) { s.Merge(from, into, kind) }

func (memoryStore) Leave(context.Context) error { return nil }

func (memoryStore) Close() error { return nil }

func (memoryStore) Lost() time.Time { return time.Time{} }

func (memoryStore) Replicas() int { return 1 }

// hashKeys are the keys of the hashes that name accounts. former is the key that this process used before it joined the
// other replicas; empty without a change.
type hashKeys struct{ current, former []byte }

// storeTimeout bounds the first connection to a store. Afterwards the gateway starts without the store.
const storeTimeout = 5 * time.Second

// inMemory reports whether the store belongs to this process alone.
func inMemory(c *config.Config) bool { return strings.HasPrefix(c.Store.URL, "memory:") }

// storeKind returns the kind of the store for people: memory, file or redis.
func storeKind(c *config.Config) string {
	switch path, ok := strings.CutPrefix(c.Store.URL, "memory:"); {
	case !ok:
		return "redis"
	case path != "":
		return "file"
	}
	return "memory"
}

// openStore opens the store that the configuration selects, and returns the key of the hashes that name accounts. If the store is
// unreachable at first, openStore calls joined when the store responds, with the key from then on.
func openStore(cfg *config.Config, replica string, joined func(hashKey []byte), log *slog.Logger) (s store, hashKey []byte, err error) {
	rules := limitRules(cfg)
	if path, ok := strings.CutPrefix(cfg.Store.URL, "memory:"); ok {
		return openMemory(path, rules, log)
	}
	shared, err := redisledger.New(redisledger.Config{
		URL: cfg.Store.URL, Replica: replica, Upstream: ledgerName(cfg), Rules: rules, Closed: cfg.Limits.OnStoreLoss == "closed", Joined: joined, Log: log,
	})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	return shared, shared.Join(ctx), nil
}

// openMemory opens a ledger in memory. With a path, the ledger survives the end of this process (ledgerFile).
func openMemory(path string, rules limits.Rules, log *slog.Logger) (s store, hashKey []byte, err error) {
	memory := memoryStore{limits.NewMemory(rules)}
	if path == "" {
		if held := memory.ColdStart(); held != "" {
			log.Info("ledger started without past spending", "cold_start", rules.ColdStart, "held", held)
		}
		return memory, credential.NewHashKey(), nil
	}
	file, err := openLedgerFile(path, memory, log)
	if err != nil {
		return nil, nil, err
	}
	return file, file.hashKey, nil
}

// replicaName returns a unique name that contains the host's name.
func replicaName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "weir"
	}
	return host + "-" + rand.Text()[:8]
}

// openRedisCache opens the cache tier that the replicas share.
func openRedisCache(cfg *config.Config, client redisclient.Client, log *slog.Logger) (*redisstore.Store, error) {
	codec, err := cache.NewCodec([]byte(cfg.Cache.Key.Reveal()))
	if err != nil {
		return nil, err
	}
	s := redisstore.New(client, codec, log)
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
	public := cfg.Upstream.MustDialect().PublicHost
	if host, path := apiOf(cfg); public != "" && host == public+":443" && path == "" {
		return ""
	}
	return upstreamName(cfg)
}

// apiOf returns the host with the port and the path of the API.
func apiOf(cfg *config.Config) (host, path string) {
	u := config.Upstream{URL: strings.ToLower(cfg.Upstream.URL)}.Base()
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	return net.JoinHostPort(u.Hostname(), port), strings.TrimSuffix(strings.TrimSuffix(u.EscapedPath(), "/"), "/api/v3")
}
