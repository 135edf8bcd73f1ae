package redisledger

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// unreadable reports whether a step found something in Redis that no step has written:
// somebody else did, or the server has lost a part of it.
func unreadable(err error) bool {
	return redis.HasErrorPrefix(err, "WRONGTYPE") || redis.HasErrorPrefix(err, "user_script:") // without the ERR before it
}

// headerFields is how many arguments every step that changes something begins with.
const headerFields = 7

// mend begins an account anew that cannot be read. One that stayed as it is would have
// Redis count as lost for all the others. The answer is that of a step whose replica's
// writes are missing, all of them: they are written again.
func (l *Ledger) mend(ctx context.Context, name string, args func(process string) []any, unread error) ([]any, error) {
	header := func(process string) []any { return args(process)[:headerFields] }
	if _, err := l.send(ctx, l.scripts.mend, l.keysOf(name), header); err != nil {
		return nil, err
	}
	l.Log.Error("an account cannot be read in Redis; it is begun anew", "account", name, "error", unread)
	return []any{int64(-1), int64(0)}, nil
}
