package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"

	"github.com/weirgate/weir/limits"
)

// legacy is the file by which a process leaves its ledger to the next one: a
// line with the key that accounts are named by, and the ledger. One process at a
// time has it: what another spent would be missing.
type legacy struct {
	path string
	lock *flock.Flock
}

func newLegacy(path string) *legacy { return &legacy{path, flock.New(path + ".lock")} }

// firstLine is the first line.
type firstLine struct {
	HashKey []byte `json:"hash_key"`
}

// take makes the file this process's own until it ends, and makes sure, while
// there is time to mend it, that it can be written.
func (l *legacy) take() error {
	free, err := l.lock.TryLock()
	switch {
	case err != nil:
		return fmt.Errorf("store.url: the ledger cannot be kept in %s: %w", l.path, err)
	case !free:
		return fmt.Errorf("store.url: another process keeps its ledger in %s: give each its own file", l.path)
	}
	f, err := l.create()
	if err != nil {
		return fmt.Errorf("store.url: the ledger cannot be kept in %s: %w", l.path, err)
	}
	_ = f.Close()
	return os.Remove(f.Name())
}

// create makes a file beside, to be put in the place of the last one.
func (l *legacy) create() (*os.File, error) {
	return os.CreateTemp(filepath.Dir(l.path), filepath.Base(l.path)+".new-*")
}

// load takes up what was left. The file is gone then: should this process end
// without leaving another, the next one must not take an old one for what was
// spent.
func (l *legacy) load(ledger *limits.Memory) (key []byte, err error) {
	text, err := os.ReadFile(l.path) // whole: Windows removes no file that is open
	if err != nil {
		return nil, err
	}
	if err := os.Remove(l.path); err != nil {
		return nil, err
	}
	var h firstLine
	rest := bytes.NewReader(text)
	lines := json.NewDecoder(rest)
	if err := lines.Decode(&h); err != nil {
		return nil, err
	}
	if len(h.HashKey) == 0 {
		return nil, errors.New("it does not begin with a key")
	}
	return h.HashKey, ledger.Load(io.MultiReader(lines.Buffered(), rest))
}

// save leaves the ledger, whole or not at all.
func (l *legacy) save(ledger *limits.Memory, key []byte) error {
	f, err := l.create()
	if err != nil {
		return err
	}
	err = json.NewEncoder(f).Encode(firstLine{key})
	if err == nil {
		err = ledger.Save(f)
	}
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), l.path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // half of it is of no use
	}
	return err
}
