package redisledger

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/limits"
)

// grantsKey contains the grants by ID. It expires when the last grant has certainly ended.
const grantsKey = sharedPrefix + "grants"

// Grant implements [limits.Ledger].
func (l *Ledger) Grant(ctx context.Context, g limits.Grant) error {
	if err := l.rules.Load().CheckGrant(g, time.Now()); err != nil {
		return err
	}
	text, err := json.Marshal(g)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	var all *redis.MapStringStringCmd
	_, err = l.Client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, l.shared(grantsKey), g.ID, text)
		p.Expire(ctx, l.shared(grantsKey), limits.MaxGrantTime)
		all = p.HGetAll(ctx, l.shared(grantsKey))
		return nil
	})
	if err != nil {
		return unavailable(err)
	}
	inForce, _ := limits.SplitGrants(parseGrants(all.Val()), time.Now())
	if err := limits.CheckGrants(len(inForce)); err != nil {
		return errors.Join(err, l.Client.HDel(ctx, l.shared(grantsKey), g.ID).Err())
	}
	l.changeGrants(func(known []limits.Grant) []limits.Grant { return append(slices.Clone(known), g) })
	return nil
}

// Revoke implements [limits.Ledger].
func (l *Ledger) Revoke(ctx context.Context, id string) (limits.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	inForce, err := l.storedGrants(ctx)
	if err != nil {
		return limits.Grant{}, err
	}
	i := slices.IndexFunc(inForce, func(g limits.Grant) bool { return g.ID == id })
	if i < 0 {
		return limits.Grant{}, limits.ErrUnknownGrant
	}
	if err := l.Client.HDel(ctx, l.shared(grantsKey), id).Err(); err != nil {
		return limits.Grant{}, unavailable(err)
	}
	l.changeGrants(func(known []limits.Grant) []limits.Grant {
		return slices.DeleteFunc(slices.Clone(known), func(g limits.Grant) bool { return g.ID == id })
	})
	return inForce[i], nil
}

// Grants implements [limits.Ledger]. An error leaves the known grants in force until they end.
func (l *Ledger) Grants(ctx context.Context) (inForce, ended []limits.Grant, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	if inForce, err = l.storedGrants(ctx); err != nil {
		return nil, nil, err
	}
	l.changeGrants(func(known []limits.Grant) []limits.Grant {
		_, ended = limits.SplitGrants(known, time.Now())
		return inForce
	})
	return inForce, ended, nil
}

// storedGrants returns the grants in force, and removes the other grants from Redis.
func (l *Ledger) storedGrants(ctx context.Context) ([]limits.Grant, error) {
	texts, err := l.Client.HGetAll(ctx, l.shared(grantsKey)).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	inForce, ended := limits.SplitGrants(parseGrants(texts), time.Now())
	for _, g := range ended {
		if err := l.Client.HDel(ctx, l.shared(grantsKey), g.ID).Err(); err != nil {
			return nil, unavailable(err)
		}
	}
	return inForce, nil
}

// parseGrants returns the readable grants in the order of their end.
func parseGrants(texts map[string]string) (list []limits.Grant) {
	for _, text := range texts {
		var g limits.Grant
		if json.Unmarshal([]byte(text), &g) == nil {
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b limits.Grant) int { return cmp.Or(a.Ends.Compare(b.Ends), cmp.Compare(a.ID, b.ID)) })
	return list
}

// changeGrants replaces the grants that this replica applies.
func (l *Ledger) changeGrants(change func(known []limits.Grant) []limits.Grant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rules := *l.rules.Load()
	rules.Grants, rules.Ahead = change(rules.Grants), l.clock.Ahead()
	l.rules.Store(&rules)
}
