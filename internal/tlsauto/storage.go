package tlsauto

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
)

// Storage holds certificates, accounts and locks.
type Storage interface {
	certmagic.Storage
	// Close releases all locks and connections of the storage.
	Close() error
}

// NewFolder returns a storage in a folder. Processes with a common file system may share it. Only the owner
// can read its files.
func NewFolder(path string) Storage { return folder{&certmagic.FileStorage{Path: path}} }

type folder struct{ *certmagic.FileStorage }

// Close implements Storage.
func (folder) Close() error { return nil }

// NewMemory returns a storage in memory. Every start of the process orders new certificates.
func NewMemory() Storage {
	return &memory{values: map[string]value{}, locks: map[string]chan struct{}{}}
}

type memory struct {
	mu     sync.Mutex
	values map[string]value
	locks  map[string]chan struct{} // each holds one value while it is locked
}

type value struct {
	data     []byte
	modified time.Time
}

// Close implements Storage.
func (*memory) Close() error { return nil }

// Store implements certmagic.Storage.
func (m *memory) Store(_ context.Context, key string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[key] = value{slices.Clone(data), time.Now()}
	return nil
}

// Load implements certmagic.Storage.
func (m *memory) Load(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.values[key]
	if !ok {
		return nil, missing(key)
	}
	return slices.Clone(v.data), nil
}

// Delete implements certmagic.Storage.
func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.values, func(other string, _ value) bool { return other == key || strings.HasPrefix(other, key+"/") })
	return nil
}

// Exists implements certmagic.Storage.
func (m *memory) Exists(ctx context.Context, key string) bool {
	_, err := m.Stat(ctx, key)
	return err == nil
}

// List implements certmagic.Storage.
func (m *memory) List(_ context.Context, prefix string, recursive bool) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return below(prefix, slices.Collect(maps.Keys(m.values)), recursive)
}

// Stat implements certmagic.Storage.
func (m *memory) Stat(_ context.Context, key string) (certmagic.KeyInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v, ok := m.values[key]; ok {
		return certmagic.KeyInfo{Key: key, Modified: v.modified, Size: int64(len(v.data)), IsTerminal: true}, nil
	}
	if _, err := below(key, slices.Collect(maps.Keys(m.values)), false); err != nil {
		return certmagic.KeyInfo{}, err
	}
	return certmagic.KeyInfo{Key: key}, nil
}

// Lock implements certmagic.Locker.
func (m *memory) Lock(ctx context.Context, name string) error {
	select {
	case m.lock(name) <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unlock implements certmagic.Locker.
func (m *memory) Unlock(_ context.Context, name string) error {
	select {
	case <-m.lock(name):
		return nil
	default:
		return fmt.Errorf("unlock %q: lock is not held", name)
	}
}

// lock returns the lock of a name. Locks are never removed: there are few names.
func (m *memory) lock(name string) chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks[name] == nil {
		m.locks[name] = make(chan struct{}, 1)
	}
	return m.locks[name]
}

// missing returns the error by which the ACME library recognizes a missing key.
func missing(key string) error { return fmt.Errorf("%s: %w", key, fs.ErrNotExist) }

// below lists the paths below a prefix, by path components. Without recursive it lists only direct children.
func below(prefix string, keys []string, recursive bool) ([]string, error) {
	prefix = strings.Trim(prefix, "/")
	found := map[string]bool{}
	for _, key := range keys {
		rest := key
		if prefix != "" {
			var ok bool
			if rest, ok = strings.CutPrefix(key, prefix+"/"); !ok {
				continue
			}
		}
		parts := strings.Split(rest, "/")
		if !recursive {
			parts = parts[:1]
		}
		for i := range parts {
			found[strings.Trim(prefix+"/"+strings.Join(parts[:i+1], "/"), "/")] = true
		}
	}
	if len(found) == 0 {
		return nil, missing(prefix)
	}
	return slices.Sorted(maps.Keys(found)), nil
}
