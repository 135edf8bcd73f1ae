package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/limits"
)

const (
	// compactEvery is the interval at which the size of a ledger file is checked, and compactFrom the number of appended bytes
	// from which the file is written again, if they are also more than the file had.
	compactEvery = 5 * time.Second
	compactFrom  = 1 << 20
	// fileErrorEvery is the interval between log lines about a file that cannot be written.
	fileErrorEvery = time.Minute
)

// ledgerFile is the file of a ledger in memory. Before the ledger grants more than the file covers, it appends a new bound, so
// the next process knows the spending even if this process is killed. The file does not survive a crash of the operating system.
//
// The first line is a [ledgerHeader], and the lines of [limits.Memory] follow. A new file replaces the file atomically.
type ledgerFile struct {
	path string
	key  []byte
	lock *flock.Flock
	log  *slog.Logger

	mu            sync.Mutex // guards the fields below
	current, next *os.File   // next is the new file while it is written, otherwise nil
	size, base    int64      // of current, now and when it was new
	failed        bool       // the last write failed
	logged        time.Time  // time of the last log line about an error
}

// ledgerHeader is the first line of a ledger file.
type ledgerHeader struct {
	HashKey []byte `json:"hash_key"`
}

// openLedgerFile reserves a ledger file for this process, and loads the ledger from it. Two processes with one file would each
// miss the spending of the other process.
func openLedgerFile(path string, ledger *limits.Memory, log *slog.Logger) (f *ledgerFile, hashKey []byte, err error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("store.url: %s is no regular file: use memory:/FOLDER/FILE", path)
	}
	lock := flock.New(path + ".lock")
	locked, err := lock.TryLock()
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("store.url: write ledger %s: %w", path, err)
	case !locked:
		return nil, nil, fmt.Errorf("store.url: %s is in use by another process: give each process its own file", path)
	}
	f = &ledgerFile{path: path, lock: lock, log: log}
	defer func() {
		if err != nil {
			_ = lock.Unlock()
		}
	}()
	leftovers, _ := filepath.Glob(path + ".new-*") // of earlier versions
	for _, name := range leftovers {
		_ = os.Remove(name)
	}
	if err = f.load(ledger); err != nil {
		return nil, nil, err
	}
	if f.key == nil {
		f.key = credential.NewHashKey()
	}
	if err = f.compact(ledger); err != nil {
		return nil, nil, fmt.Errorf("store.url: write ledger %s: %w", path, err)
	}
	ledger.Journal(f)
	return f, f.key, nil
}

// load loads the ledger. A file that cannot be read is kept under another name.
func (f *ledgerFile) load(ledger *limits.Memory) error {
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		f.log.Info("no saved ledger found; past spending is unknown", "file", f.path, "held", ledger.ColdStart())
		return nil
	}
	if err != nil {
		return fmt.Errorf("store.url: read ledger: %w", err)
	}
	defer func() { _ = file.Close() }()
	text := bufio.NewReader(file)
	var header ledgerHeader
	first, err := text.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(first, &header)
	}
	if err == nil && len(header.HashKey) == 0 {
		err = errors.New("missing hash key in the first line")
	}
	clean := false
	if err == nil {
		clean, err = ledger.Load(text)
	}
	switch {
	case err != nil:
		kept := fmt.Sprintf("%s.corrupt-%d", f.path, time.Now().Unix())
		if renamed := os.Rename(f.path, kept); renamed != nil {
			return fmt.Errorf("store.url: keep the unreadable ledger: %w", errors.Join(renamed, err))
		}
		ledger.AssumeSpent()
		f.log.Error("loading the saved ledger failed; all points and content count as spent", "file", f.path, "kept", kept, "held", ledger.ColdStart(), "error", err)
	case clean:
		f.key = header.HashKey
		f.log.Info("saved ledger loaded", "file", f.path)
	default:
		f.key = header.HashKey
		f.log.Warn("saved ledger loaded after an unclean stop; short windows count as spent", "file", f.path)
	}
	return nil
}

// Write appends a line. The file gets an error only once a minute, and the next compaction tries again.
func (f *ledgerFile) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.current.Write(line)
	f.size += int64(n)
	if f.next != nil {
		_, nextErr := f.next.Write(line)
		err = errors.Join(err, nextErr)
	}
	if err != nil {
		f.failedWith(err)
	}
	return len(line), err
}

// failedWith logs an error of a write. mu must be held.
func (f *ledgerFile) failedWith(err error) {
	f.failed = true
	if time.Since(f.logged) > fileErrorEvery {
		f.logged = time.Now()
		f.log.Error("ledger file not written; a killed process would lose its spending", "file", f.path, "error", err)
	}
}

// run compacts the file until ctx ends.
func (f *ledgerFile) run(ctx context.Context, ledger *limits.Memory) {
	var sweeping sync.WaitGroup
	sweeping.Go(func() { ledger.Run(ctx) })
	defer sweeping.Wait()
	tick := time.NewTicker(compactEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		f.mu.Lock()
		due := f.failed || f.size-f.base > max(compactFrom, f.base)
		f.mu.Unlock()
		if !due {
			continue
		}
		if err := f.compact(ledger); err != nil {
			f.mu.Lock()
			f.failedWith(err)
			f.mu.Unlock()
		}
	}
}

// compact replaces the file by a new one with one line for each account.
func (f *ledgerFile) compact(ledger *limits.Memory) error {
	return f.replace(ledger.Dump, true)
}

// close writes the whole ledger, and releases the file.
func (f *ledgerFile) close(ledger *limits.Memory) error {
	err := f.replace(ledger.Save, false)
	if err != nil {
		return errors.Join(fmt.Errorf("save ledger %s: %w", f.path, err), f.current.Close(), f.lock.Unlock())
	}
	f.log.Info("ledger saved", "file", f.path)
	return errors.Join(f.current.Close(), f.lock.Unlock())
}

// replace writes a new file and renames it. While it is written, the ledger appends to both files.
func (f *ledgerFile) replace(write func(io.Writer) error, appended bool) (err error) {
	next, err := os.OpenFile(f.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.mu.Lock()
			f.next = nil
			f.mu.Unlock()
			err = errors.Join(err, next.Close(), os.Remove(next.Name()))
		}
	}()
	var header bytes.Buffer
	if err = json.NewEncoder(&header).Encode(ledgerHeader{f.key}); err != nil {
		return err
	}
	if _, err = next.Write(header.Bytes()); err != nil {
		return err
	}
	lines := &startedFile{File: next, started: func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.current != nil && appended {
			f.next = next
		}
	}}
	if err = errors.Join(write(lines), next.Sync()); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := next.Stat()
	if err == nil {
		err = os.Rename(next.Name(), f.path)
	}
	if err != nil {
		return err
	}
	if f.current != nil {
		_ = f.current.Close()
	}
	f.current, f.next, f.failed = next, nil, false
	f.size, f.base = info.Size(), info.Size()
	return nil
}

// startedFile calls started after the first line, which must precede the lines that the ledger appends.
type startedFile struct {
	*os.File
	started func()
}

func (s *startedFile) Write(p []byte) (int, error) {
	n, err := s.File.Write(p)
	if s.started != nil {
		s.started()
		s.started = nil
	}
	return n, err
}
