package redisledger

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/redisclient"
)

// server is who keeps an account: whom to send its steps to, and the process
// (run_id) that answers there.
//
// Another process than before may have lost the last writes, and the first step
// that it is sent must say so: what a step before would add could no longer be
// told from what was kept (account.lua, begin). So a process that was not met
// before is asked nothing until every step that was made for the one before has
// ended; until then Redis counts as lost.
type server struct {
	node    redis.Cmdable
	process string
}

// serverOf finds who keeps an account.
func (l *Ledger) serverOf(ctx context.Context, key string) (server, error) {
	// A step goes to the node that it is made for, whatever a cluster has decided
	// meanwhile; one that does not keep the account any more says so.
	node, address, err := redisclient.NodeOf(ctx, l.Client, key)
	if err != nil {
		return server{}, err
	}
	if address != "" && l.process(address) == "" {
		if err := node.Ping(ctx).Err(); err != nil { // a connection tells
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

// answers reports whether Redis does, over every connection that is open, so that no
// step meets one later that leads nowhere.
func (l *Ledger) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return redisclient.PingAll(ctx, l.Client)
}

// meet takes note of the process that a new connection leads to. An error means
// that the connection must not be used.
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
	return fmt.Errorf("another process (run_id %s) answers than before", process)
}

// trust lets steps go to the processes that were met, once those that were made
// for others have ended. It reports whether there are any.
func (l *Ledger) trust() (another bool) {
	l.steps.Lock()
	defer l.steps.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	another = len(l.met) > 0
	for address, process := range l.met {
		l.trusted[address] = process
		delete(l.met, address)
	}
	return another
}
