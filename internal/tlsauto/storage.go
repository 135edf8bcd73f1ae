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

// Storage is where certificates, accounts and locks are kept.
type Storage interface {
	certmagic.Storage
	// Close releases the locks that are held, and what the storage has open.
	Close() error
}

// NewFolder returns a storage in a folder, which processes on one machine, or on
// one file system, may share. Its files are for their owner only.
func NewFolder(path string) Storage { return folder{&certmagic.FileStorage{Path: path}} }

type folder struct{ *certmagic.FileStorage }

// Close implements Storage.
func (folder) Close() error { return nil }

// NewMemory returns a storage that ends with the process: every start orders
// anew.
func NewMemory() Storage {
	return &memory{values: map[string]value{}, locks: map[string]chan struct{}{}}
}

type memory struct {
	mu     sync.Mutex
	values map[string]value
	locks  map[string]chan struct{} // of one place each, taken while locked
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
		return fmt.Errorf("lock %q: is not held", name)
	}
}

// lock returns the lock of a name. There are few names, and they stay.
func (m *memory) lock(name string) chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks[name] == nil {
		m.locks[name] = make(chan struct{}, 1)
	}
	return m.locks[name]
}

// missing is the error that the ACME library knows what is not there by.
func missing(key string) error { return fmt.Errorf("%s: %w", key, fs.ErrNotExist) }

// below lists what of the keys is below a prefix, by components: the keys and, when
// recursive, the folders between; else only the names right below it.
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
