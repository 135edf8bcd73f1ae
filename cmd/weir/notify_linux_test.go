package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// TestServeNotifiesSystemd checks the states of a unit with Type=notify-reload.
func TestServeNotifiesSystemd(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	noError(t, err)
	defer func() { _ = conn.Close() }()
	t.Setenv("NOTIFY_SOCKET", socket)
	want := func(pattern string) {
		t.Helper()
		noError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		buffer := make([]byte, 256)
		n, err := conn.Read(buffer)
		got := string(buffer[:n])
		stopIf(t, err != nil || !regexp.MustCompile("^"+pattern+"$").MatchString(got), "systemd got %q, %v, want %s", got, err, pattern)
	}
	file := filepath.Join(dir, "weir.yaml")
	testservers.WriteFile(t, file, "listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\nupstream: {url: \"http://127.0.0.1:9\"}\n")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "--config", file}, os.LookupEnv, &testservers.Output{}, &testservers.Output{})
	}()
	want("READY=1")
	noError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	want(`RELOADING=1\nMONOTONIC_USEC=[1-9]\d+`)
	want("READY=1")
	stop()
	want("STOPPING=1")
	code := <-ended
	failIf(t, code != 0, "exit code %d", code)
}
