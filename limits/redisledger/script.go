package redisledger

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/limits"
)

//go:embed *.lua
var sources embed.FS

// redisClock defines the function clock of the scripts. Tests replace it.
var redisClock = source("clock.lua")

func source(file string) string {
	text, err := sources.ReadFile(file)
	if err != nil {
		panic(err) // the file is embedded
	}
	return string(text)
}

// scripts are the programs that run in Redis. Each script except register and aliases uses one account.
type scripts struct{ roundTrip, read, repair, register, aliases *redis.Script }

func newScripts(clock string) scripts {
	clock += source("steady.lua")
	account := clock + source("account.lua")
	return scripts{
		roundTrip: redis.NewScript(account + source("divide.lua") + source("roundtrip.lua")), read: redis.NewScript(account + source("read.lua")),
		repair:   redis.NewScript(account + source("repair.lua")),
		register: redis.NewScript(clock + source("register.lua")), aliases: redis.NewScript(source("aliases.lua")),
	}
}

// mayBeLost reports whether a missing account may have been lost. In a cluster, a replica cannot distinguish a new
// account from a lost account.
func (l *Ledger) mayBeLost() bool { return redisclient.IsCluster(l.Client) && l.replicas.Load() > 1 }

// ttl returns the time for which Redis keeps an unused account, in milliseconds.
func (a *account) ttl(r *limits.Rules) int64 {
	if !a.accepted {
		return refusedTime.Milliseconds()
	}
	longest := max(r.Primary.Window, r.Search.Window, r.Points.Window, r.CPU.Window)
	for _, w := range r.Content {
		longest = max(longest, w.Window)
	}
	return (longest + keptBeyond).Milliseconds()
}

// relearning returns a time between relearningMin and relearningMax that grows with the number of accounts to restore.
const (
	relearningMin        = time.Second
	relearningPerAccount = 100 * time.Microsecond
	relearningMax        = 30 * time.Second
)

// relearning returns the time for which an account grants nothing after a loss, so that all replicas can restore their
// writes. Ledger.mu must be held.
func (l *Ledger) relearning() time.Duration {
	return min(relearningMax, relearningMin+time.Duration(l.indexed*l.replicas.Load())*relearningPerAccount)
}

// runScript runs a script with one argument, and decodes its reply.
func runScript(ctx context.Context, node redis.Scripter, script *redis.Script, keys []string, argument, answer any) error {
	text, err := json.Marshal(argument)
	if err != nil {
		return err
	}
	reply, err := script.Run(ctx, node, keys, text).Text()
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(reply), answer); err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return nil
}

// run runs a script on an account and decodes its reply. argument gets the server that stores the account.
func (l *Ledger) run(
	ctx context.Context, script *redis.Script, name string, argument func(to server) any, answer any,
) error {
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	keys := l.keysOf(name)
	address, err := l.onServer(limited, keys[0], func(to server) error {
		return runScript(limited, to.node, script, keys, argument(to), answer)
	})
	switch {
	case err == nil:
		l.responds(address, nil)
		return nil
	case errors.Is(err, errUnreadable):
		return err
	case redis.HasErrorPrefix(err, "WRONGTYPE"), redis.HasErrorPrefix(err, "user_script:"):
		return fmt.Errorf("%w: %w", errUnreadable, err)
	case ctx.Err() == nil:
		l.responds(address, err)
	}
	return unavailable(err)
}

// errUnreadable means that Redis contains data that no script has written.
var errUnreadable = errors.New("data of the ledger in redis cannot be read")

// keysOf returns the keys of a script on an account: the hash of the account, and the epoch. In a cluster, the node of
// the account does not store the epoch.
func (l *Ledger) keysOf(name string) []string {
	sum := sha256.Sum256([]byte(l.shared(name)))
	key := accountPrefix + "{" + hex.EncodeToString(sum[:16]) + "}"
	if redisclient.IsCluster(l.Client) {
		return []string{key}
	}
	return []string{key, epochKey}
}

// shared returns the name of an account or of a key that all replicas for one API share.
func (l *Ledger) shared(name string) string {
	if l.Upstream == "" {
		return name
	}
	return name + ":" + l.Upstream
}
