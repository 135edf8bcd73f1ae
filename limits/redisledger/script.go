package redisledger

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
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

// run runs a script on an account and decodes its reply. argument gets the server that stores the account.
func (l *Ledger) run(
	ctx context.Context, script *redis.Script, name string, argument func(to server) any, answer any,
) error {
	l.calls.RLock()
	defer l.calls.RUnlock()
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	address, err := l.send(limited, script, name, argument, answer)
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

// errUnreadable means that an account contains data that no script has written.
var errUnreadable = errors.New("the account in redis cannot be read")

func (l *Ledger) send(
	ctx context.Context, script *redis.Script, name string, makeArgument func(to server) any, answer any,
) (address string, err error) {
	keys := l.keysOf(name)
	to, err := l.serverOf(ctx, keys[0])
	if err != nil {
		return to.address, err
	}
	argument, err := json.Marshal(makeArgument(to))
	if err != nil {
		return to.address, err
	}
	text, err := script.Run(ctx, to.node, keys, argument).Text()
	if err != nil {
		return to.address, err
	}
	if err := json.Unmarshal([]byte(text), answer); err != nil {
		return to.address, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return to.address, nil
}

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

// server is the node that stores an account, and the Redis process (run_id) of the node.
//
// A new process may have lost the last writes of the old process. Only the first call of a new process detects the loss
// (account.lua, begin), and that call must be made for the new process. Therefore no call is sent to a new process
// until all calls for the old process have ended.
type server struct {
	node             redis.Cmdable
	address, process string
}

func (l *Ledger) serverOf(ctx context.Context, key string) (server, error) {
	// The client does not redirect commands for the node. A node that no longer stores the account returns an error.
	node, address, err := redisclient.NodeOf(ctx, l.Client, key)
	if err != nil {
		return server{address: address}, err
	}
	if address != "" && l.process(address) == "" {
		if err := node.Ping(ctx).Err(); err != nil { // a new connection calls meet
			return server{address: address}, err
		}
	}
	return server{node, address, l.process(address)}, nil
}

func (l *Ledger) process(address string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trusted[address]
}

// reachSlack is the longest time from the preparation of a call to its execution for which the clock of Redis counts.
const reachSlack = 500 * time.Millisecond

// reach returns the bounds for a call that is prepared now. Ledger.mu must be held.
func (l *Ledger) reach(address string, now int64) reach {
	ahead, ok := l.ahead[address]
	if !ok {
		return reach{}
	}
	return reach{now + ahead, now + ahead + reachSlack.Microseconds()}
}

// replied records the time of Redis in the reply to a call. The clock of Redis minus the local clock is at least the least
// difference, and only drifts. Ledger.mu must be held.
func (l *Ledger) replied(address string, sent, redisTime int64) {
	ahead := redisTime - sent
	if known, ok := l.ahead[address]; ok {
		ahead = max(min(known, ahead), ahead-reachSlack.Microseconds())
	}
	l.ahead[address] = ahead
}

// identify returns a hook that passes the run_id of the server of each new connection to meet. Sentinels are ignored.
func identify(address string, meet func(address, process string) error) redisclient.OnConnect {
	return func(ctx context.Context, c *redis.Conn) error {
		text, err := c.Info(ctx, "server").Result()
		if err != nil {
			return err
		}
		info := map[string]string{}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			info[key] = value
		}
		switch {
		case info["redis_mode"] == "sentinel":
			return nil
		case info["run_id"] == "":
			return errors.New("redis does not report its run_id")
		}
		return meet(address, info["run_id"])
	}
}

// meet records the Redis process of a new connection. If the process is not trusted yet, meet returns an error, so that
// the connection is closed.
func (l *Ledger) meet(address, process string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.trusted[address] {
	case process:
		return nil
	case "":
		l.trusted[address] = process
		return nil
	}
	l.met[address] = process
	return fmt.Errorf("redis process changed (run_id %s)", process)
}

// trust waits for running calls and then trusts the new processes. It reports whether a new process exists.
func (l *Ledger) trust() (changed bool) {
	l.calls.Lock()
	defer l.calls.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	changed = len(l.met) > 0
	for address, process := range l.met {
		l.trusted[address] = process
		delete(l.met, address)
	}
	return changed
}
