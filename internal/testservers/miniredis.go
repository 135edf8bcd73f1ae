package testservers

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"net"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// packer replaces the Lua library cmsgpack, which miniredis does not have.
const packer = "local cmsgpack = {pack = cjson.encode, unpack = cjson.decode}\n"

// MiniRedis starts a Redis server in the bubble of a test with virtual time, and returns a dialer for it. The server also
// has what the ledger needs and miniredis lacks: a run_id, and the library cmsgpack.
func MiniRedis(t testing.TB) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	redis := miniredis.NewMiniRedis()
	t.Cleanup(redis.Close)
	var names sync.Map // of the scripts with packer, by the name without
	nameOf := func(script string) string {
		sum := sha1.Sum([]byte(script))
		return hex.EncodeToString(sum[:])
	}
	extend := func(c *server.Peer, command string, arguments ...string) bool {
		switch {
		case command == "INFO":
			c.WriteBulk("# Server\r\nrun_id:miniredis\r\n")
			return true
		case command == "EVAL" && len(arguments) > 0 && len(arguments[0]) > len(packer) && arguments[0][:len(packer)] != packer:
			names.Store(nameOf(arguments[0]), nameOf(packer+arguments[0]))
			redis.Server().Dispatch(c, append([]string{command, packer + arguments[0]}, arguments[1:]...))
			return true
		case command == "EVALSHA":
			if name, ok := names.Load(arguments[0]); ok {
				redis.Server().Dispatch(c, append([]string{command, name.(string)}, arguments[1:]...))
				return true
			}
		}
		return false
	}
	NoError(t, func() error { c, err := redis.Dial(); _ = c.Close(); return err }()) // starts the server
	redis.Server().SetPreHook(extend)
	return func(context.Context, string, string) (net.Conn, error) { return redis.Dial() }
}
