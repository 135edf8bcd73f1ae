package testservers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/redis/go-redis/v9"
)

// DumpRedis returns all keys with their values. It decompresses the zstd values of hashes, so that a search finds text in them.
func DumpRedis(t testing.TB, c *redis.Client) string {
	t.Helper()
	decoder := Must(zstd.NewReader(nil))
	defer decoder.Close()
	var text strings.Builder
	for _, key := range c.Keys(t.Context(), "*").Val() {
		var value any
		switch kind := c.Type(t.Context(), key).Val(); kind {
		case "hash":
			hash := c.HGetAll(t.Context(), key).Val()
			for name, compressed := range hash {
				if plain, err := decoder.DecodeAll([]byte(compressed), nil); err == nil {
					hash[name] = string(plain)
				}
			}
			value = hash
		case "zset":
			value = c.ZRange(t.Context(), key, 0, -1).Val()
		case "stream":
			value = c.XRange(t.Context(), key, "-", "+").Val()
		case "string":
			value = c.Get(t.Context(), key).Val()
		case "none": // expired since the listing
		default:
			t.Errorf("key %q has the unknown type %s", key, kind)
		}
		_, _ = fmt.Fprintln(&text, key, value)
	}
	return text.String()
}
