package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
)

// store is where the budgets are kept.
type store struct {
	limits.Ledger
	configure func(limits.Rules)
	// run works beside the ledger until its context ends.
	run func(context.Context)
	// leave tells other replicas that this one is gone; nothing is admitted any more.
	leave func() error
	// close ends it; nothing uses the ledger any more.
	close func() error
	// hashKey is what the names of accounts are made with.
	hashKey []byte
	left    *legacy // nil where nothing is left to the next process
	// lost is since when it does not answer, zero while it does; replicas is how many
	// share it.
	lost     func() time.Time
	replicas func() int
}

// storePatience is how long a store may take to answer for the first time.
const storePatience = 15 * time.Second

// openStore opens the store that the configuration names, for a replica of this name.
func openStore(cfg *config.Config, replica string, log *slog.Logger) (*store, error) {
	rules := limitRules(cfg)
	if path, ok := strings.CutPrefix(cfg.Store.URL, "memory:"); ok {
		return openMemory(path, rules, log)
	}
	ledger, err := redisledger.New(redisledger.Config{
		URL: cfg.Store.URL, Replica: replica, Rules: rules, Closed: cfg.Limits.OnStoreLoss == "closed", Log: log,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), storePatience)
	defer cancel()
	key, err := ledger.Register(ctx)
	if err != nil {
		_ = ledger.Close() // nothing was written
		return nil, fmt.Errorf("store.url: no answer within %v: %w", storePatience, err)
	}
	return &store{
		Ledger: ledger, configure: ledger.Configure, hashKey: key, run: ledger.Run,
		leave: func() error { return ledger.Leave(context.Background()) }, close: ledger.Close,
		lost: ledger.Lost, replicas: ledger.Replicas,
	}, nil
}

// openMemory opens a store in this process's memory. Where a path is given, what
// the last process has left there is taken up, and what this one knows at its
// end is left there for the next.
func openMemory(path string, rules limits.Rules, log *slog.Logger) (*store, error) {
	ledger := limits.NewMemory(rules)
	s := &store{
		Ledger: ledger, configure: ledger.Configure, hashKey: credential.NewHashKey(),
		run: func(context.Context) {}, leave: func() error { return nil }, close: func() error { return nil },
		lost: func() time.Time { return time.Time{} }, replicas: func() int { return 1 },
	}
	if path == "" {
		return s, nil
	}
	s.left = newLegacy(path)
	if err := s.left.take(); err != nil {
		return nil, err
	}
	s.close = func() error {
		err := s.left.save(ledger, s.hashKey)
		if err == nil {
			log.Info("the ledger is left for the next process", "file", path)
		}
		return errors.Join(err, s.left.lock.Unlock())
	}
	switch key, err := s.left.load(ledger); {
	case errors.Is(err, fs.ErrNotExist):
		log.Info("no ledger was left by a process before: what was spent is unknown", "file", path, "cold_start", rules.ColdStart)
	case err != nil:
		log.Error("the ledger that was left is not used: what was spent is unknown", "file", path, "cold_start", rules.ColdStart, "error", err)
	default:
		s.hashKey = key
		log.Info("the ledger that the process before has left is taken up", "file", path)
	}
	return s, nil
}

// replicaName is a name that no other replica has, and that people recognize.
func replicaName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "weir"
	}
	return host + "-" + rand.Text()[:8]
}

// openShared opens the tier of the cache that replicas share; nil where they share
// no store.
func openShared(cfg *config.Config, memory *cache.Memory, log *slog.Logger) (*redisstore.Store, error) {
	if strings.HasPrefix(cfg.Store.URL, "memory:") {
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
	return redisstore.New(client, codec, memory, log), nil
}
