// Package redistest starts real Redis servers, for tests.
//
// Invariants: a server listens on a socket of its own and nowhere else, keeps nothing,
// and ends with its test. It is not for production code.
package redistest

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Server starts redis-server, or what WEIR_REDIS_SERVER names, and returns its
// socket.
func Server(t testing.TB) string {
	t.Helper()
	program := os.Getenv("WEIR_REDIS_SERVER")
	if program == "" {
		program = "redis-server"
	}
	dir, err := os.MkdirTemp("", "weir") //nolint:usetesting // the path of a socket has 108 bytes, and tests have long names
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "redis.sock")
	ctx, stop := context.WithCancel(context.Background())
	server := exec.CommandContext(ctx, program, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir)
	if err := server.Start(); err != nil {
		t.Fatalf("%s cannot be started: install redis-server, or run make test: %v", program, err)
	}
	t.Cleanup(func() {
		stop()
		_ = server.Wait()
		_ = os.RemoveAll(dir)
	})
	for range 100 {
		if c, err := new(net.Dialer).DialContext(ctx, "unix", socket); err == nil {
			_ = c.Close()
			return socket
		}
		_, _ = exec.CommandContext(ctx, "sleep", "0.05").Output()
	}
	t.Fatal("redis-server does not come up")
	return ""
}

// Eventually waits until something holds, and fails the test where it does not.
func Eventually(t testing.TB, what string, holds func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !holds(ctx) {
		if ctx.Err() != nil {
			t.Fatalf("it did not come true that %s", what)
		}
		Rest(ctx, 20*time.Millisecond)
	}
}

// Rest lets time go by.
func Rest(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}
