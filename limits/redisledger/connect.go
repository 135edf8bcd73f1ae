package redisledger

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/redisclient"
)

// connect opens a client on a store's URL. It calls meet for every new connection with
// its address and the run_id of the process that answers there.
func connect(address string, meet func(address, process string) error) (redisclient.Client, error) {
	return redisclient.Open(address, func(node string) redisclient.OnConnect { return identify(node, meet) })
}

// identify asks every new connection which process it leads to. Sentinels are
// asked for the way only.
func identify(address string, meet func(address, process string) error) redisclient.OnConnect {
	return func(ctx context.Context, c redis.Cmdable) error {
		text, err := c.Info(ctx, "server").Result()
		if err != nil {
			return err
		}
		told := map[string]string{}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			told[key] = value
		}
		switch {
		case told["redis_mode"] == "sentinel":
			return nil
		case told["run_id"] == "":
			return errors.New("the server does not tell its run_id")
		}
		return meet(address, told["run_id"])
	}
}
