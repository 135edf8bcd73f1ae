package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long a file must stay the same before it is read: editors and
// copies write in several steps.
const settle = 100 * time.Millisecond

// Watch loads the configuration anew whenever its file changes or hup receives
// a signal, and hands the result on: what caused it ("file" or "signal"), and a valid
// Config, or what is wrong with it.
// It watches the folder, because files are replaced by renaming and, in
// Kubernetes, by a link that moves; whatever else happens in there neither
// causes a reload nor puts one off. A secret that changes in its own file is
// read with the next reload. before is what the file held when it was last loaded, or
// earlier ([Source.Fingerprint]). Watch returns when ctx ends; the error is of starting to
// watch.
func Watch(ctx context.Context, s Source, before string, hup <-chan os.Signal, apply func(cause string, c *Config, err error)) error {
	load := func(cause string) {
		c, err := Load(s)
		apply(cause, c, err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", s.Path, err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(filepath.Dir(s.Path)); err != nil {
		return fmt.Errorf("watch %s: %w", s.Path, err)
	}
	applied, seen := before, before
	var look <-chan time.Time // nil while nothing has happened
	if s.Fingerprint() != before {
		look = time.After(settle)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			applied = s.Fingerprint()
			load("signal")
		case <-watcher.Events:
			if look == nil {
				look = time.After(settle)
			}
		case _, lost := <-watcher.Errors: // events: look for ourselves
			if lost && look == nil {
				look = time.After(settle)
			}
		case <-look:
			look = nil
			switch now := s.Fingerprint(); now {
			case applied:
				seen = applied
			case seen:
				applied = now
				load("file")
			default: // it may still be written: look again
				seen, look = now, time.After(settle)
			}
		}
	}
}

// Fingerprint tells whether the file is another one: other files of its folder
// change too.
func (s Source) Fingerprint() string {
	text, err := os.ReadFile(s.Path)
	if err != nil {
		return "unreadable: " + err.Error()
	}
	return string(text)
}
