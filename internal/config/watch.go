package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long a file must be left alone before it is read: editors and
// copies write in several steps.
const settle = 100 * time.Millisecond

// Watch loads the configuration anew whenever its file changes or hup receives
// a signal, and hands the result on: a valid Config, or what is wrong with it.
// It watches the folder, because files are replaced by renaming and, in
// Kubernetes, by a link that moves. It returns when ctx ends; the error is of
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
	before := fingerprint(s.Path)
	timer := time.NewTimer(settle)
	timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			before = fingerprint(s.Path)
			apply(Load(s))
		case <-watcher.Events:
			timer.Reset(settle)
		case _, ok := <-watcher.Errors: // an event was lost: look for ourselves
			if !ok {
				return nil
			}
			timer.Reset(settle)
		case <-timer.C:
			if now := fingerprint(s.Path); now != before {
				before = now
				apply(Load(s))
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
