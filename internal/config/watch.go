package config

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is the time for which a file must stay unchanged before it is read, because editors write in several steps.
const settle = 100 * time.Millisecond

// Watch calls changed whenever the configuration file or the file of a secret changes, and whenever hup receives a
// signal. The argument is the cause: "file" or "signal". before is an earlier [Source.Fingerprint]: if a file has changed
// since then, Watch also calls changed. Watch returns when ctx ends, or returns an error if the configuration file cannot
// be watched.
//
// Watch observes the directories of the files, because files are replaced by renaming and, in Kubernetes, by a symbolic
// link. Changes of other files neither cause nor delay a call.
func Watch(ctx context.Context, s Source, before string, hup <-chan os.Signal, changed func(cause string)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", s.Path, err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(filepath.Dir(s.Path)); err != nil {
		return fmt.Errorf("watch %s: %w", s.Path, err)
	}
	observe := func() (fingerprint string) {
		files := s.files()
		watchDirectories(watcher, files)
		return fingerprintOf(files)
	}
	applied, seen := before, before
	var check <-chan time.Time // nil while there is no event
	if observe() != before {
		check = time.After(settle)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
			applied = observe()
			changed("signal")
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
			switch now := observe(); now {
			case applied:
				seen = applied
			case seen:
				applied = now
				changed("file")
			default: // a file is still being written
				seen, check = now, time.After(settle)
			}
		}
	}
}

// watchDirectories watches exactly the directories of the files. A directory that does not exist is not watched.
func watchDirectories(watcher *fsnotify.Watcher, files []string) {
	directories := map[string]bool{}
	for _, file := range files {
		directory := filepath.Dir(file)
		directories[directory] = true
		_ = watcher.Add(directory) // a failed load reports the missing file
	}
	for _, directory := range watcher.WatchList() {
		if !directories[directory] {
			_ = watcher.Remove(directory)
		}
	}
}

// files returns the configuration file and the files of its secrets.
func (s Source) files() []string {
	text, err := os.ReadFile(s.Path)
	if err != nil {
		return []string{s.Path}
	}
	_, d := decode(s, text)
	return append([]string{s.Path}, d.files...)
}

// Fingerprint returns a text that changes with the content of the configuration file and of the files of its secrets.
func (s Source) Fingerprint() string { return fingerprintOf(s.files()) }

func fingerprintOf(files []string) string {
	sum := sha256.New()
	for _, file := range files {
		text, err := os.ReadFile(file)
		_, _ = fmt.Fprintf(sum, "%q %v %q\n", file, err, text) // never fails (hash.Hash)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
