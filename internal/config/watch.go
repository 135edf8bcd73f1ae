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
// a signal, and hands the result on: a valid Config, or what is wrong with it.
// It watches the folder, because files are replaced by renaming and, in
// Kubernetes, by a link that moves; whatever else happens in there neither
// causes a reload nor puts one off. A secret that changes in its own file is
// read with the next reload. Watch returns when ctx ends; the error is of
// starting to watch.
func Watch(ctx context.Context, s Source, hup <-chan os.Signal, apply func(*Config, error)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", s.Path, err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(filepath.Dir(s.Path)); err != nil {
		return fmt.Errorf("watch %s: %w", s.Path, err)
	}
	applied := fingerprint(s.Path)
	seen := applied
	var look <-chan time.Time // nil while nothing has happened
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			applied = fingerprint(s.Path)
			apply(Load(s))
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
			switch now := fingerprint(s.Path); now {
			case applied:
				seen = applied
			case seen:
				applied = now
				apply(Load(s))
			default: // it may still be written: look again
				seen, look = now, time.After(settle)
			}
		}
	}
}

// fingerprint tells whether the file is another one: other files of its folder
// change too.
func fingerprint(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unreadable: " + err.Error()
	}
	return string(text)
}
