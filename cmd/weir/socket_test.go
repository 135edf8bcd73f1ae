package main

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestSocketNeverHasAnotherMode looks at the socket all the time while it is opened.
func TestSocketNeverHasAnotherMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	seen, stop, done := map[fs.FileMode]bool{}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if info, err := os.Lstat(path); err == nil {
				seen[info.Mode().Perm()] = true
			}
		}
	}()
	for range 300 {
		l := must(listenUnix(path, 0o600, ""))(t)
		stopIf(t, l.Addr().String() != path, "the listener has the address %s, want %s", l.Addr(), path)
		c := must(net.Dial("unix", path))(t)
		_ = c.Close()
		noError(t, l.Close())
		_, err := os.Lstat(path)
		stopIf(t, !errors.Is(err, fs.ErrNotExist), "after Close: %v", err)
	}
	close(stop)
	<-done
	delete(seen, 0o600)
	failIf(t, len(seen) > 0, "the socket had the modes %v", seen)
	left := must(os.ReadDir(filepath.Dir(path)))(t)
	failIf(t, len(left) > 0, "left in the directory: %v", left)
}
