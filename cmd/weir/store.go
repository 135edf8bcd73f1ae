package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/limits/redisledger"
)

// store is where the budgets are kept.
type store struct {
	limits.Ledger
	configure func(limits.Rules)
	// run works beside the ledger until its context ends.
	run func(context.Context)
	// close ends it; nothing uses the ledger any more.
	close func() error
	// hashKey is what the names of accounts are made with.
	hashKey []byte
}

// storePatience is how long a store may take to answer for the first time.
const storePatience = 15 * time.Second

// openStore opens the store that the configuration names.
func openStore(cfg *config.Config, log *slog.Logger) (*store, error) {
	rules := limitRules(cfg)
	if path, ok := strings.CutPrefix(cfg.Store.URL, "memory:"); ok {
		return openMemory(path, rules, log)
	}
	ledger, err := redisledger.New(redisledger.Config{
		URL: cfg.Store.URL, Replica: replicaName(), Rules: rules, Closed: cfg.Limits.OnStoreLoss == "closed", Log: log,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), storePatience)
	defer cancel()
	key, err := ledger.Begin(ctx)
	if err != nil {
		_ = ledger.Close() // nothing was written
		return nil, err
	}
	return &store{Ledger: ledger, configure: ledger.Configure, hashKey: key, run: ledger.Run, close: ledger.Close}, nil
}

// openMemory opens a store in this process's memory. Where a path is given, what
// the last process has left there is taken up, and what this one knows at its
// end is left there for the next.
func openMemory(path string, rules limits.Rules, log *slog.Logger) (*store, error) {
	ledger := limits.NewMemory(rules)
	s := &store{
		Ledger: ledger, configure: ledger.Configure, hashKey: credential.NewHashKey(),
		run: func(context.Context) {}, close: func() error { return nil },
	}
	if path == "" {
		return s, nil
	}
	left := legacy{path}
	if err := left.try(); err != nil {
		return nil, err
	}
	s.close = func() error { return left.save(ledger, s.hashKey) }
	switch key, err := left.load(ledger); {
	case errors.Is(err, fs.ErrNotExist):
		log.Info("no ledger was left by a process before: what was spent is unknown", "file", path, "cold_start", rules.ColdStart)
	case err != nil:
		log.Error("the ledger that was left is not used: what was spent is unknown", "file", path, "cold_start", rules.ColdStart, "error", err)
	default:
		s.hashKey = key
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
