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

// scripts are the programs that run in Redis. Each script except register runs one step on one account.
type scripts struct{ batch, renew, read, restore, heartbeat, repair, register *redis.Script }

func newScripts(clock string) scripts {
	step := func(file string) *redis.Script {
		return redis.NewScript(clock + source("account.lua") + source(file))
	}
	return scripts{
		batch: step("batch.lua"), renew: step("renew.lua"), read: step("read.lua"), restore: step("restore.lua"),
		heartbeat: step("heartbeat.lua"), repair: step("repair.lua"), register: redis.NewScript(clock + source("register.lua")),
	}
}

// call is the argument of every step: one JSON document. Scripts get times in microseconds since 1970.
type call struct {
	TTL     int64  `json:"ttl"` // of the account, in milliseconds
	Account string `json:"account"`
	Replica string `json:"replica"`
	// Confirmed is the number of the last confirmed write of this replica (restore.go).
	Confirmed int64 `json:"confirmed"`
	// Process is the run_id of the Redis process for which the call is made.
	Process string `json:"process"`
	// MayBeLost means that a missing account may have been lost.
	MayBeLost bool `json:"may_be_lost"`
	// Enforced means that this replica knows that the upstream limits the account.
	Enforced bool `json:"enforced,omitempty"`
	// Relearning is the time for which an account grants nothing after a loss.
	Relearning int64 `json:"relearning"`
	Step       any   `json:"step"` // the arguments of the step
}

// reply is the JSON document that a step returns. Each step sets some of the fields.
type reply struct {
	// Missing means that Redis has lost confirmed writes of this replica, and the step changed no state.
	Missing       bool         `json:"missing"`
	Writes        int64        `json:"writes"` // of this replica
	Now           int64        `json:"now,string"`
	CooldownUntil int64        `json:"cooldown_until,string"`
	Rates         []rateReply  `json:"rates"`
	Decisions     []decision   `json:"decisions"`
	Leases        []leaseReply `json:"leases"`
	Account       accountReply `json:"account"`
}

// lostWrites is logged before missing writes are restored.
const lostWrites = "redis lost writes of the ledger; restoring them"

// step runs a step on an account. If Redis lost writes of this replica, step restores the writes and repeats the step.
// done records the reply while Ledger.mu is held, before the next restore. restore.go explains the write numbers.
func (l *Ledger) step(
	ctx context.Context, script *redis.Script, a *localAccount, r *limits.Rules, args any, done func(reply),
) error {
	for try := 0; ; try++ {
		var restores int
		answer, err := l.run(ctx, script, a.name, func(process string) call {
			l.mu.Lock()
			restores = a.restores
			l.mu.Unlock()
			return l.call(a, r, process, args)
		}, func(answer reply) {
			if a.restores != restores {
				answer.Writes = a.confirmed + 1 // Redis may have lost the write, and the restore did not include the write
			}
			a.confirmed = max(a.confirmed, answer.Writes)
			done(answer)
		})
		if err != nil || !answer.Missing {
			return err
		}
		if try == 2 {
			return unavailable(errors.New("writes are still missing after two restores"))
		}
		l.Log.Warn(lostWrites, "account", a.name)
		if _, err := l.restore(ctx, a, answer.Writes); err != nil {
			return err
		}
	}
}

// call returns the argument of a step that changes an account.
func (l *Ledger) call(a *localAccount, r *limits.Rules, process string, args any) call {
	mayBeLost := redisclient.IsCluster(l.Client) && l.replicas.Load() > 1
	l.mu.Lock()
	defer l.mu.Unlock()
	return call{
		TTL: ttl(r), Account: a.title(), Replica: l.Replica, Confirmed: a.confirmed, Process: process,
		Enforced: a.enforced, MayBeLost: mayBeLost, Relearning: l.relearning().Microseconds(), Step: args,
	}
}

// ttl returns the time for which Redis keeps an unused account, in milliseconds.
func ttl(r *limits.Rules) int64 {
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

// run runs a script once. makeCall gets the Redis process that stores the account. done records the reply while
// Ledger.mu is held. An error means that Redis is lost, unless ctx has ended.
func (l *Ledger) run(
	ctx context.Context, script *redis.Script, name string, makeCall func(process string) call, done func(reply),
) (reply, error) {
	l.steps.RLock()
	defer l.steps.RUnlock()
	limited, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	answer, err := l.send(limited, script, name, makeCall)
	reads := script == l.scripts.read
	if unreadable(err) && !reads {
		l.Log.Error("redis has an account that cannot be read; replacing it by an empty one", "account", name, "error", err)
		answer, err = l.send(limited, l.scripts.repair, name, makeCall)
	}
	if err != nil {
		if ctx.Err() == nil && (!reads || !unreadable(err)) {
			l.markLost(err)
		}
		return reply{}, unavailable(err)
	}
	if !answer.Missing {
		l.mu.Lock()
		defer l.mu.Unlock()
		done(answer)
	}
	return answer, nil
}

// unreadable reports whether a step found data that no step has written.
func unreadable(err error) bool {
	return redis.HasErrorPrefix(err, "WRONGTYPE") || redis.HasErrorPrefix(err, "user_script:")
}

func (l *Ledger) send(
	ctx context.Context, script *redis.Script, name string, makeCall func(process string) call,
) (answer reply, err error) {
	keys := l.keysOf(name)
	to, err := l.serverOf(ctx, keys[0])
	if err != nil {
		return answer, err
	}
	argument, err := json.Marshal(makeCall(to.process))
	if err != nil {
		return answer, err
	}
	text, err := script.Run(ctx, to.node, keys, argument).Text()
	if err != nil {
		return answer, err
	}
	return answer, json.Unmarshal([]byte(text), &answer)
}

// keysOf returns the keys of a step on an account: the hash of the account, and the epoch. In a cluster, the node of
// the account does not store the epoch.
func (l *Ledger) keysOf(name string) []string {
	sum := sha256.Sum256([]byte(name))
	key := accountPrefix + "{" + hex.EncodeToString(sum[:16]) + "}"
	if redisclient.IsCluster(l.Client) {
		return []string{key}
	}
	return []string{key, epochKey}
}

// server is the node that stores an account, and the Redis process (run_id) of the node.
//
// A new process may have lost the last writes of the old process. Only the first step of a new process detects the loss
// (account.lua, begin), and that step must be made for the new process. Therefore no step is sent to a new process
// until all steps for the old process have ended. Until then, Redis is lost.
type server struct {
	node    redis.Cmdable
	process string
}

func (l *Ledger) serverOf(ctx context.Context, key string) (server, error) {
	// The client does not redirect commands for the node. A node that no longer stores the account returns an error.
	node, address, err := redisclient.NodeOf(ctx, l.Client, key)
	if err != nil {
		return server{}, err
	}
	if address != "" && l.process(address) == "" {
		if err := node.Ping(ctx).Err(); err != nil { // a new connection calls meet
			return server{}, err
		}
	}
	return server{node, l.process(address)}, nil
}

func (l *Ledger) process(address string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trusted[address]
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

// trust waits for running steps and then trusts the new processes. It reports whether a new process exists.
func (l *Ledger) trust() (changed bool) {
	l.steps.Lock()
	defer l.steps.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	changed = len(l.met) > 0
	for address, process := range l.met {
		l.trusted[address] = process
		delete(l.met, address)
	}
	return changed
}
