package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/weirgate/weir/internal/credential"
)

const (
	// rotateEvery is the interval at which a ledger file is checked.
	rotateEvery = 5 * time.Second
	// fileErrorEvery is the interval between log lines about a file that cannot be written.
	fileErrorEvery = time.Minute
)

// ledgerFile is the file of a ledger in memory ([limits.Memory.Rotate]): the next process knows the spending even if this process is
// killed. A new file replaces the file atomically. The file does not survive a crash of the operating system.
type ledgerFile struct {
	memoryStore
	path    string
	hashKey []byte
	current *os.File
	lock    *flock.Flock
	log     *slog.Logger
}

// openLedgerFile reserves a ledger file for this process, and loads the ledger from it. Two processes with one file would each
// miss the spending of the other process.
func openLedgerFile(path string, memory memoryStore, log *slog.Logger) (f *ledgerFile, err error) {
	path = targetOf(path)
	info, err := os.Stat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return nil, fmt.Errorf("store.url: %s is no regular file: use memory:/FOLDER/FILE", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("store.url: read ledger: %w", err)
	}
	lock := flock.New(path + ".lock")
	locked, err := lock.TryLock()
	switch {
	case err != nil:
		return nil, fmt.Errorf("store.url: write ledger %s: %w; create its folder, and let the user of weir write there", path, err)
	case !locked:
		return nil, fmt.Errorf("store.url: %s is in use by another process: give each process its own file", path)
	}
	f = &ledgerFile{memoryStore: memory, path: path, lock: lock, log: log}
	defer func() {
		if err != nil {
			_ = lock.Unlock()
		}
	}()
	leftovers, _ := filepath.Glob(path + ".new-*") // of earlier versions
	for _, name := range leftovers {
		_ = os.Remove(name)
	}
	if info != nil {
		err = f.load(info.ModTime())
	} else {
		f.log.Info("no saved ledger found; past spending is unknown", "file", f.path, "held", f.ColdStart())
	}
	if err != nil {
		return nil, err
	}
	if f.hashKey == nil {
		f.hashKey = credential.NewHashKey()
	}
	if err = f.rotate(); err != nil {
		return nil, fmt.Errorf("store.url: write ledger %s: %w", path, err)
	}
	return f, nil
}

// targetOf returns the path of a file without symbolic links. A new ledger would replace a link, and the next start might find the
// link, and so the old ledger, again. The file need not exist.
func targetOf(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	target, err := os.Readlink(path)
	switch {
	case err != nil:
		return path
	case filepath.IsAbs(target):
		return target
	}
	return filepath.Join(filepath.Dir(path), target)
}

// load loads the ledger. A file that cannot be read is copied to another name. It is in force until the new file replaces it, so a start
// that fails in between changes nothing.
func (f *ledgerFile) load(modified time.Time) error {
	text, err := os.ReadFile(f.path)
	if err != nil {
		return fmt.Errorf("store.url: read ledger: %w", err)
	}
	saved, err := f.Load(bytes.NewReader(text))
	f.hashKey = saved.HashKey
	switch {
	case err != nil:
		kept := fmt.Sprintf("%s.corrupt-%d", f.path, modified.Unix()) // one copy, however often the start fails
		if failed := os.WriteFile(kept, text, 0o600); failed != nil {
			return fmt.Errorf("store.url: keep the unreadable ledger: %w", errors.Join(failed, err))
		}
		f.AssumeSpent()
		f.log.Error("loading the saved ledger failed; all points and content count as spent", "file", f.path, "kept", kept, "held", f.ColdStart(), "error", err)
	case saved.Incomplete:
		f.log.Error("saved ledger loaded without its last lines, which the disk refused; all points and content count as spent", "file", f.path, "held", f.ColdStart())
	case saved.Clean:
		f.log.Info("saved ledger loaded", "file", f.path)
	default:
		f.log.Warn("saved ledger loaded after an unclean stop; short windows count as spent", "file", f.path)
	}
	return nil
}

// Run replaces the file when it has grown or when lines are missing in it, until ctx ends.
func (f *ledgerFile) Run(ctx context.Context) {
	var sweeping sync.WaitGroup
	sweeping.Go(func() { f.memoryStore.Run(ctx) })
	defer sweeping.Wait()
	tick := time.NewTicker(rotateEvery)
	defer tick.Stop()
	var logged time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		due, err := f.RotationDue()
		if due {
			err = errors.Join(err, f.rotate())
		}
		if err != nil && time.Since(logged) > fileErrorEvery {
			logged = time.Now()
			f.log.Error("ledger file not written; after a kill all points and content would count as spent", "file", f.path, "error", err)
		}
	}
}

// rotate replaces the file by a new one with one line for each account.
func (f *ledgerFile) rotate() error {
	return f.replace(func(next *os.File, commit func() error) error { return f.Rotate(next, f.hashKey, commit) })
}

// Close writes the whole ledger, and releases the file.
func (f *ledgerFile) Close() error {
	err := f.replace(func(next *os.File, commit func() error) error {
		if err := f.Save(next, f.hashKey); err != nil {
			return err
		}
		return commit()
	})
	if err != nil {
		err = fmt.Errorf("save ledger %s: %w", f.path, err)
	} else {
		f.log.Info("ledger saved", "file", f.path)
	}
	return errors.Join(err, f.current.Close(), f.lock.Unlock())
}

// replace opens a new file for write. commit renames it.
func (f *ledgerFile) replace(write func(next *os.File, commit func() error) error) error {
	next, err := os.OpenFile(f.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	err = write(next, func() error {
		if err := next.Sync(); err != nil {
			return err
		}
		return os.Rename(next.Name(), f.path)
	})
	if err != nil {
		return errors.Join(err, next.Close(), os.Remove(next.Name()))
	}
	if f.current != nil {
		_ = f.current.Close()
	}
	f.current = next
	return nil
}
