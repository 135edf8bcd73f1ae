package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is the time for which a file must stay unchanged before it is read, because editors write in several steps.
const settle = 100 * time.Millisecond

// Watch loads the configuration whenever its file changes or hup receives a signal. Watch calls apply with the cause
// ("file" or "signal") and either a valid Config or an error. before is an earlier [Source.Fingerprint]: if the file
// has changed since then, Watch also reloads. Watch returns when ctx ends, or returns an error if the file cannot be
// watched.
//
// Watch observes the directory, because files are replaced by renaming and, in Kubernetes, by a
// symbolic link. Changes of other files neither cause nor delay a reload. A changed secret file
// takes effect with the next reload.
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
	var check <-chan time.Time // nil while there is no event
	if s.Fingerprint() != before {
		check = time.After(settle)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			applied = s.Fingerprint()
			load("signal")
		case <-watcher.Events:
			if check == nil {
				check = time.After(settle)
			}
		case _, lost := <-watcher.Errors: // events may be lost
			if lost && check == nil {
				check = time.After(settle)
			}
		case <-check:
			check = nil
			switch now := s.Fingerprint(); now {
			case applied:
				seen = applied
			case seen:
				applied = now
				load("file")
			default: // the file is still being written
				seen, check = now, time.After(settle)
			}
		}
	}
}

// Fingerprint returns a text that changes with the content of the file.
func (s Source) Fingerprint() string {
	text, err := os.ReadFile(s.Path)
	if err != nil {
		return "unreadable: " + err.Error()
	}
	return string(text)
}
