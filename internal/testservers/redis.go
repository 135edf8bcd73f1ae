// Package testservers starts the servers that tests need: Redis, an ACME server, an OTLP receiver, in-memory listeners
// for testing/synctest, and network links with faults. The package also contains the documented schemas of responses,
// certificates, and functions that prepare tests and compare values.
//
// Invariants:
//   - A server listens on loopback or on a Unix socket, and stops when its test ends.
//   - After the test, a server leaves no files on disk.
//   - Production code never imports this package.
//
// Read Redis and ServePipe first: most tests use only these two functions.
package testservers

import (
	"cmp"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis starts a Redis server and returns the path of its Unix socket. The environment variable WEIR_REDIS_SERVER
// overrides the program. Without the program, Redis skips the test.
func Redis(t testing.TB) string {
	t.Helper()
	socket, stop := startRedis(t)
	t.Cleanup(stop)
	return socket
}

func startRedis(t testing.TB) (socket string, stop func()) {
	t.Helper()
	program := RedisProgram(t)
	dir, err := os.MkdirTemp("", "weir") //nolint:usetesting // a socket path may have 108 bytes, and test names are long
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "redis.sock")
	ctx, kill := context.WithCancel(context.Background())
	server := exec.CommandContext(ctx, program, "--port", "0", "--unixsocket", socket, "--databases", strconv.Itoa(databases),
		"--save", "", "--appendonly", "no", "--dir", dir)
	if err := server.Start(); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	stop = func() {
		kill()
		_ = server.Wait()
		_ = os.RemoveAll(dir)
	}
	for range 1000 {
		if c, err := new(net.Dialer).DialContext(ctx, "unix", socket); err == nil {
			_ = c.Close()
			return socket, stop
		}
		Sleep(ctx, 5*time.Millisecond)
	}
	stop()
	t.Fatal("redis-server did not accept connections within 5 seconds")
	return "", nil
}

// RedisProgram returns the path of redis-server. Without the program, RedisProgram skips the test.
func RedisProgram(t testing.TB) string {
	t.Helper()
	path, err := redisProgram()
	if err != nil {
		t.Skipf("this test needs redis-server: %v", err)
	}
	return path
}

// HasRedis reports whether the environment has redis-server.
func HasRedis() bool {
	_, err := redisProgram()
	return err == nil
}

func redisProgram() (path string, err error) {
	return exec.LookPath(cmp.Or(os.Getenv("WEIR_REDIS_SERVER"), "redis-server"))
}

// databases is the number of databases of each server.
const databases = 512

// shared contains the servers that the tests of a process share. Main stops them.
var shared struct {
	sync.Mutex
	sockets map[int]string
	stops   []func()
	last    int // database
}

// RedisDatabase returns the socket of a server that the tests of the package share, and an empty database of the server.
// Servers with different numbers are different processes. The package needs a TestMain that calls [Main].
func RedisDatabase(t testing.TB, server int) (socket string, database int) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.sockets[server] == "" {
		socket, stop := startRedis(t)
		if shared.sockets == nil {
			shared.sockets = map[int]string{}
		}
		shared.sockets[server], shared.stops = socket, append(shared.stops, stop)
	}
	shared.last = shared.last%(databases-1) + 1
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: shared.sockets[server], DB: shared.last})
	NoError(t, client.FlushDB(context.Background()).Err()) // another test may have used the database
	NoError(t, client.Close())
	return shared.sockets[server], shared.last
}

// Main runs the tests of a package, and stops the shared servers.
func Main(m *testing.M) {
	code := m.Run()
	for _, stop := range shared.stops {
		stop()
	}
	os.Exit(code)
}

// Eventually waits until a condition holds. It fails the test after one minute.
func Eventually(t testing.TB, condition string, holds func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !holds(ctx) {
		if ctx.Err() != nil {
			t.Fatalf("condition not reached within a minute: %s", condition)
		}
		Sleep(ctx, 5*time.Millisecond)
	}
}

// Sleep waits for a duration, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// Setting returns a number from the environment, or the default.
func Setting(t testing.TB, name string, fallback int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
