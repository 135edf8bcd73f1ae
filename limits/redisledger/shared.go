package redisledger

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Names that replicas share, and that belong to no account.
const (
	resourcesKey = sharedPrefix + "resources"
	aliasesKey   = sharedPrefix + "aliases"
	oncePrefix   = sharedPrefix + "once:"
	// resourcesKept is the time for which Redis keeps learned resources without a change. A replica uses a resource for
	// an hour without a response that confirms it.
	resourcesKept = 2 * time.Hour
	// aliasesKept is the time for which Redis keeps aliases without a change, and maxSharedAliases bounds their number.
	aliasesKept      = 24 * time.Hour
	maxSharedAliases = 16384
)

// ShareResources stores the resources that the upstream named, and returns what all replicas stored. Both maps are by
// operation and kind of caller, whose number the catalogue bounds.
func (l *Ledger) ShareResources(ctx context.Context, changed map[string]string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var all *redis.MapStringStringCmd
	_, err := l.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		if len(changed) > 0 {
			p.HSet(ctx, l.shared(resourcesKey), changed)
			p.Expire(ctx, l.shared(resourcesKey), resourcesKept)
		}
		all = p.HGetAll(ctx, l.shared(resourcesKey))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all.Val(), nil
}

// aliasesCall is the argument of aliases.lua. aliasesReply is the reply.
type aliasesCall struct {
	After   int64    `json:"after"`
	Changed []string `json:"changed,omitempty"`
	Most    int64    `json:"most"`
	TTL     int64    `json:"ttl"` // milliseconds
}

type aliasesReply struct {
	Last  int64    `json:"last"`
	Names []string `json:"names"`
}

// ShareAliases stores what this replica learned about the accounts of credentials, and returns what the replicas stored
// since the previous call. The texts contain no secret.
func (l *Ledger) ShareAliases(ctx context.Context, changed []string) (all []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	l.mu.Lock()
	after := l.sharedAliases
	l.mu.Unlock()
	argument := aliasesCall{after, changed, maxSharedAliases, aliasesKept.Milliseconds()}
	var answer aliasesReply
	if err := runScript(ctx, l.Client, l.scripts.aliases, []string{l.shared(aliasesKey)}, argument, &answer); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.sharedAliases = answer.Last
	l.mu.Unlock()
	return answer.Names, nil
}

// Once reports whether a call is the first one with this name at any replica. Redis keeps the name until end.
func (l *Ledger) Once(ctx context.Context, name string, end time.Time) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	kept := max(time.Until(end), time.Second)
	err := l.Client.SetArgs(ctx, l.shared(oncePrefix+name), "", redis.SetArgs{Mode: "NX", TTL: kept}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}
