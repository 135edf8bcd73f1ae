// Package testservers starts the servers that tests need: Redis, an ACME server, an OTLP receiver, in-memory listeners
// for testing/synctest, and network links with faults. The package also contains the documented schemas of responses.
//
// Invariants:
//   - A server listens on loopback or on a Unix socket, and stops when its test ends.
//   - After the test, a server leaves no files on disk.
//   - Production code never imports this package.
//
// Read Redis and ServePipe first: most tests use only these two functions.
package testservers

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Redis starts a Redis server and returns the path of its Unix socket. The environment
// variable WEIR_REDIS_SERVER overrides the program.
func Redis(t testing.TB) string {
	t.Helper()
	program := os.Getenv("WEIR_REDIS_SERVER")
	if program == "" {
		program = "redis-server"
	}
	dir, err := os.MkdirTemp("", "weir") //nolint:usetesting // a socket path may have 108 bytes, and test names are long
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "redis.sock")
	ctx, stop := context.WithCancel(context.Background())
	server := exec.CommandContext(ctx, program, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir)
	if err := server.Start(); err != nil {
		t.Fatalf("start %s: %v; install redis-server or run make test", program, err)
	}
	t.Cleanup(func() {
		stop()
		_ = server.Wait()
		_ = os.RemoveAll(dir)
	})
	for range 500 {
		if c, err := new(net.Dialer).DialContext(ctx, "unix", socket); err == nil {
			_ = c.Close()
			return socket
		}
		Sleep(ctx, 10*time.Millisecond)
	}
	t.Fatal("redis-server did not accept connections within 5 seconds")
	return ""
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
		Sleep(ctx, 20*time.Millisecond)
	}
}

// Sleep waits for a duration, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}
