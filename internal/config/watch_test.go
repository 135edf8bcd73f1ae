package config

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// reload is a call of the apply function.
type reload struct {
	cause string
	c     *Config
	err   error
}

// watched runs Watch until the test ends.
type watched struct {
	*testing.T
	hup     chan os.Signal
	reloads chan reload
}

// watch starts to watch a file. After watch returns, Watch detects every change.
func watch(t *testing.T, path string) *watched {
	t.Helper()
	w := &watched{t, make(chan os.Signal), make(chan reload)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		s := Source{Path: path, Getenv: env()}
		ended <- Watch(ctx, s, s.Fingerprint(), w.hup, func(cause string) {
			c, err := Load(s)
			select {
			case w.reloads <- reload{cause, c, err}:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	w.hup <- os.Interrupt
	if r := w.next(); r.cause != "signal" {
		t.Errorf("reload after a signal has the cause %q", r.cause)
	}
	return w
}

// next waits for a reload.
func (w *watched) next() reload {
	w.Helper()
	select {
	case r := <-w.reloads:
		return r
	case <-time.After(30 * time.Second):
		w.Fatal("no reload")
		return reload{}
	}
}

// expectNoReload fails if the configuration is reloaded.
func (w *watched) expectNoReload() {
	w.Helper()
	select {
	case r := <-w.reloads:
		w.Errorf("reloaded: %+v, %v", r.c, r.err)
	case <-time.After(4 * settle):
	}
}

// expectListen waits for a reload of a valid file with this address.
func (w *watched) expectListen(want string) {
	w.Helper()
	if r := w.next(); r.err != nil || r.c.Listen != want {
		w.Errorf("got %+v, %v; want %s", r.c, r.err, want)
	}
}

// write replaces a file by renaming, like editors and tools.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// listening returns a valid file with a listen address.
func listening(address string) string { return minimal + "listen: \"" + address + "\"\n" }

func TestWatchReloadsAChangedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, minimal)
	w := watch(t, path)
	write(t, path, listening(":1"))
	w.expectListen(":1")
	write(t, path, "nonsense: 1")
	if r := w.next(); r.cause != "file" || r.c != nil || r.err == nil || !strings.Contains(r.err.Error(), "weir.yaml:1:1: nonsense: unknown key") {
		t.Errorf("invalid file: %+v, %v", r.c, r.err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if r := w.next(); r.c != nil || r.err == nil || !strings.Contains(r.err.Error(), "no such file") {
		t.Errorf("removed file: %+v, %v", r.c, r.err)
	}
	if err := os.WriteFile(path, []byte(listening(":2")), 0o600); err != nil { // creates the file without renaming
		t.Fatal(err)
	}
	w.expectListen(":2")
}

func TestWatchReloadsAnUnchangedFileOnASignal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, listening(":1"))
	w := watch(t, path)
	for range 2 {
		w.hup <- os.Interrupt
		w.expectListen(":1")
	}
}

// The file is in a directory that is not watched, so only the signal causes a reload.
func TestWatchReloadsAChangeOnce(t *testing.T) {
	elsewhere, dir := filepath.Join(t.TempDir(), "weir.yaml"), t.TempDir()
	write(t, elsewhere, minimal)
	path := filepath.Join(dir, "weir.yaml")
	if err := os.Symlink(elsewhere, path); err != nil {
		t.Fatal(err)
	}
	w := watch(t, path)
	write(t, elsewhere, listening(":1"))
	w.hup <- os.Interrupt
	w.expectListen(":1")
	write(t, filepath.Join(dir, "other"), "")
	w.expectNoReload()
}

// Kubernetes replaces ..data, a symbolic link to the directory of the files.
func TestWatchReloadsWhenASymbolicLinkChanges(t *testing.T) {
	dir := t.TempDir()
	version := func(name, text string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "weir.yaml"), text)
		if err := os.Symlink(name, filepath.Join(dir, "..tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..one", listening(":1"))
	path := filepath.Join(dir, "weir.yaml")
	if err := os.Symlink("..data/weir.yaml", path); err != nil {
		t.Fatal(err)
	}
	w := watch(t, path)
	version("..two", listening(":2"))
	w.expectListen(":2")
}

func TestOtherFilesNeitherCauseNorDelayAReload(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "weir.yaml")
	write(t, path, minimal)
	w := watch(t, path)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // a log file in the same directory
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(settle / 10):
				if err := os.WriteFile(filepath.Join(dir, "log"), nil, 0o600); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	w.expectNoReload()
	write(t, path, listening(":1"))
	w.expectListen(":1")
}

func TestWatchReturnsAnErrorForAMissingDirectory(t *testing.T) {
	err := Watch(t.Context(), Source{Path: filepath.Join(t.TempDir(), "none", "weir.yaml"), Getenv: env()}, "", nil, nil)
	if err == nil || !strings.Contains(err.Error(), "none/weir.yaml: ") {
		t.Errorf("got %v", err)
	}
}

// The file may change between Load and Watch.
func TestWatchReloadsAChangeBeforeItsStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, path, "listen: 127.0.0.1:1\nupstream: {url: http://api.test}\n")
	s := Source{Path: path, Getenv: env()}
	before := s.Fingerprint()
	write(t, path, "listen: 127.0.0.1:2\nupstream: {url: http://api.test}\n")
	ctx, cancel := context.WithCancel(t.Context())
	reloads, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- Watch(ctx, s, before, nil, func(string) {
			c, err := Load(s)
			if err != nil {
				t.Error(err)
				return
			}
			reloads <- c.Listen
		})
	}()
	select {
	case listen := <-reloads:
		if listen != "127.0.0.1:2" {
			t.Errorf("got %q", listen)
		}
	case <-time.After(30 * time.Second):
		t.Error("no reload")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWatchReloadsAChangedSecretFile(t *testing.T) {
	secrets, others := t.TempDir(), t.TempDir()
	path, token := filepath.Join(t.TempDir(), "weir.yaml"), filepath.Join(secrets, "token")
	named := func(dir string) string { return minimal + "webhooks: {secret: \"file:" + dir + "/token\"}\n" }
	write(t, token, "one")
	write(t, filepath.Join(others, "token"), "two")
	write(t, path, named(secrets))
	w := watch(t, path)
	expect := func(want string) {
		t.Helper()
		if r := w.next(); r.cause != "file" || r.err != nil || r.c.Webhooks.Secret.Reveal() != want {
			t.Errorf("got %+v, want the secret %s", r, want)
		}
	}
	write(t, token, "three")
	expect("three")
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	if r := w.next(); r.err == nil {
		t.Error("no error for a missing secret file")
	}
	write(t, token, "four")
	expect("four")
	write(t, path, named(others))
	expect("two")
	write(t, token, "five")
	w.expectNoReload()
	write(t, filepath.Join(others, "token"), "six")
	expect("six")
}
