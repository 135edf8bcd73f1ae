package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/testservers"
)

// reload is a call of the apply function.
type reload struct {
	cause string
	c     *Config
	err   error
}

// String returns the listen address and the secret, or the error.
func (r reload) String() string {
	if r.err != nil && r.c == nil {
		return r.err.Error()
	}
	return fmt.Sprintf("listen=%s secret=%s", r.c.Listen, r.c.Webhooks.Secret.Reveal())
}

// watched runs Watch until the test ends.
type watched struct {
	*testing.T
	hup     chan os.Signal
	reloads chan reload
}

// watchSince starts to watch a file, whose fingerprint was taken before.
func watchSince(t *testing.T, s Source, fingerprint string) *watched {
	t.Helper()
	w := &watched{t, make(chan os.Signal), make(chan reload)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Watch(ctx, s, fingerprint, w.hup, func(cause string) {
			c, err := Load(s)
			select {
			case w.reloads <- reload{cause, c, err}:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		err := <-ended
		failIf(t, err != nil, "%v", err)
	})
	return w
}

// watch starts to watch a file. After watch returns, Watch detects every change.
func watch(t *testing.T, path string) *watched {
	t.Helper()
	s := Source{Path: path, Getenv: env()}
	w := watchSince(t, s, s.Fingerprint())
	w.hup <- os.Interrupt
	w.expect("signal", "listen=")
	return w
}

// expect waits for a reload with this cause, whose result contains a text.
func (w *watched) expect(cause, want string) {
	w.Helper()
	select {
	case r := <-w.reloads:
		failIf(w, r.cause != cause || !strings.Contains(r.String(), want), "got %s after a %s, want %s after a %s", r, r.cause, want, cause)
	case <-time.After(30 * time.Second):
		w.Fatal("no reload")
	}
}

// expectNoReload fails if the configuration is reloaded.
func (w *watched) expectNoReload() {
	w.Helper()
	select {
	case r := <-w.reloads:
		w.Errorf("reloaded: %s", r)
	case <-time.After(4 * settle):
	}
}

// configFile writes a new valid file with a listen address.
func configFile(t *testing.T, address string) (path string) {
	path = filepath.Join(t.TempDir(), "weir.yaml")
	testservers.WriteFile(t, path, listening(address))
	return path
}

// listening returns a valid file with a listen address.
func listening(address string) string { return minimal + "listen: \"" + address + "\"\n" }

func TestWatchReloadsAChangedFile(t *testing.T) {
	t.Parallel()
	path := configFile(t, ":8080")
	w := watch(t, path)
	testservers.WriteFile(t, path, listening(":1"))
	w.expect("file", "listen=:1 ")
	testservers.WriteFile(t, path, "nonsense: 1")
	w.expect("file", "weir.yaml:1:1: nonsense: unknown key")
	noError(t, os.Remove(path))
	w.expect("file", "no such file")
	noError(t, os.WriteFile(path, []byte(listening(":2")), 0o600)) // creates the file without renaming
	w.expect("file", "listen=:2 ")
}

func TestWatchReloadsAnUnchangedFileOnASignal(t *testing.T) {
	t.Parallel()
	w := watch(t, configFile(t, ":1"))
	for range 2 {
		w.hup <- os.Interrupt
		w.expect("signal", "listen=:1 ")
	}
}

// The file is in a directory that is not watched, so only the signal causes a reload.
func TestWatchReloadsAChangeOnce(t *testing.T) {
	t.Parallel()
	elsewhere, dir := configFile(t, ":8080"), t.TempDir()
	path := filepath.Join(dir, "weir.yaml")
	noError(t, os.Symlink(elsewhere, path))
	w := watch(t, path)
	testservers.WriteFile(t, elsewhere, listening(":1"))
	w.hup <- os.Interrupt
	w.expect("signal", "listen=:1 ")
	testservers.WriteFile(t, filepath.Join(dir, "other"), "")
	w.expectNoReload()
}

// Kubernetes replaces ..data, a symbolic link to the directory of the files.
func TestWatchReloadsWhenASymbolicLinkChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	version := func(name, text string) {
		t.Helper()
		noError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		testservers.WriteFile(t, filepath.Join(dir, name, "weir.yaml"), text)
		noError(t, os.Symlink(name, filepath.Join(dir, "..tmp")))
		noError(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
	}
	version("..one", listening(":1"))
	path := filepath.Join(dir, "weir.yaml")
	noError(t, os.Symlink("..data/weir.yaml", path))
	w := watch(t, path)
	version("..two", listening(":2"))
	w.expect("file", "listen=:2 ")
}

func TestOtherFilesNeitherCauseNorDelayAReload(t *testing.T) {
	t.Parallel()
	path := configFile(t, ":8080")
	w := watch(t, path)
	var logging sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	logging.Go(func() { // a log file in the same directory
		for ; ctx.Err() == nil; testservers.Sleep(ctx, settle/10) {
			err := os.WriteFile(filepath.Join(filepath.Dir(path), "log"), nil, 0o600)
			failIf(t, err != nil, "%v", err)
		}
	})
	defer func() { stop(); logging.Wait() }()
	w.expectNoReload()
	testservers.WriteFile(t, path, listening(":1"))
	w.expect("file", "listen=:1 ")
}

func TestWatchReturnsAnErrorForAMissingDirectory(t *testing.T) {
	err := Watch(t.Context(), Source{Path: filepath.Join(t.TempDir(), "none", "weir.yaml"), Getenv: env()}, "", nil, nil)
	failIf(t, err == nil || !strings.Contains(err.Error(), "none/weir.yaml: "), "got %v", err)
}

// The file may change between Load and Watch.
func TestWatchReloadsAChangeBeforeItsStart(t *testing.T) {
	t.Parallel()
	s := Source{Path: configFile(t, "127.0.0.1:1"), Getenv: env()}
	before := s.Fingerprint()
	testservers.WriteFile(t, s.Path, listening("127.0.0.1:2"))
	watchSince(t, s, before).expect("file", "listen=127.0.0.1:2 ")
}

func TestWatchReloadsAChangedSecretFile(t *testing.T) {
	t.Parallel()
	secrets, others := t.TempDir(), t.TempDir()
	path, token, other := filepath.Join(t.TempDir(), "weir.yaml"), filepath.Join(secrets, "token"), filepath.Join(others, "token")
	named := func(dir string) string { return minimal + "webhooks: {secret: \"file:" + dir + "/token\"}\n" }
	testservers.WriteFile(t, token, "one")
	testservers.WriteFile(t, other, "two")
	testservers.WriteFile(t, path, named(secrets))
	w := watch(t, path)
	testservers.WriteFile(t, token, "three")
	w.expect("file", "secret=three")
	noError(t, os.Remove(token))
	w.expect("file", "no such file")
	testservers.WriteFile(t, token, "four")
	w.expect("file", "secret=four")
	testservers.WriteFile(t, path, named(others))
	w.expect("file", "secret=two")
	testservers.WriteFile(t, token, "five")
	w.expectNoReload()
	testservers.WriteFile(t, other, "six")
	w.expect("file", "secret=six")
}
