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
	// Close releases all locks of the storage.
	Close()
}

// NewFolder returns a storage in a folder. Processes with a common file system may share the folder. Only the owner of
// the folder can read the files.
func NewFolder(path string) Storage { return folder{&certmagic.FileStorage{Path: path}} }

// folder implements [Storage].
type folder struct{ *certmagic.FileStorage }

func (folder) Close() {}

// NewMemory returns a storage in memory. Every start of the process orders new certificates.
func NewMemory() Storage {
	m := &memory{values: map[string]value{}}
	m.reader = reader{m.keys, m.get}
	return m
}

// memory implements [Storage].
type memory struct {
	reader
	mu     sync.Mutex
	values map[string]value
	locks  sync.Map // by name: a channel that holds one value while the lock is held; the number of names is small
}

type value struct {
	data     []byte
	modified time.Time
}

func (*memory) Close() {}

func (m *memory) Store(_ context.Context, key string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[key] = value{slices.Clone(data), time.Now()}
	return nil
}

func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.values, func(other string, _ value) bool { return other == key || strings.HasPrefix(other, key+"/") })
	return nil
}

func (m *memory) get(_ context.Context, key string) (value, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.values[key]
	if !ok {
		return v, missing(key)
	}
	return value{slices.Clone(v.data), v.modified}, nil
}

func (m *memory) keys(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.values)), nil
}

func (m *memory) Lock(ctx context.Context, name string) error {
	select {
	case m.lock(name) <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *memory) Unlock(_ context.Context, name string) error {
	select {
	case <-m.lock(name):
		return nil
	default:
		return fmt.Errorf("unlock %q: lock is not held", name)
	}
}

func (m *memory) lock(name string) chan struct{} {
	lock, _ := m.locks.LoadOrStore(name, make(chan struct{}, 1))
	return lock.(chan struct{})
}

// reader implements the methods of certmagic.Storage that only read.
type reader struct {
	keys func(context.Context) ([]string, error)
	get  func(ctx context.Context, key string) (value, error)
}

func (r reader) Load(ctx context.Context, key string) ([]byte, error) {
	v, err := r.get(ctx, key)
	return v.data, err
}

func (r reader) Exists(ctx context.Context, key string) bool {
	_, err := r.Stat(ctx, key)
	return err == nil
}

func (r reader) List(ctx context.Context, prefix string, recursive bool) ([]string, error) {
	keys, err := r.keys(ctx)
	if err != nil {
		return nil, err
	}
	return below(prefix, keys, recursive)
}

func (r reader) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	keys, err := r.keys(ctx)
	if err != nil {
		return certmagic.KeyInfo{}, err
	}
	if !slices.Contains(keys, key) {
		_, err = below(key, keys, false)
		return certmagic.KeyInfo{Key: key}, err
	}
	v, err := r.get(ctx, key)
	return certmagic.KeyInfo{Key: key, Modified: v.modified, Size: int64(len(v.data)), IsTerminal: err == nil}, err
}

// missing returns the error by which the ACME library recognizes a missing key.
func missing(key string) error { return fmt.Errorf("%s: %w", key, fs.ErrNotExist) }

// below lists the paths below a folder, by path components. Unless recursive is set, only direct children are listed.
func below(folder string, keys []string, recursive bool) ([]string, error) {
	prefix := strings.TrimLeft(strings.Trim(folder, "/")+"/", "/")
	found := map[string]bool{}
	for _, key := range keys {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		parts := strings.Split(rest, "/")
		if !recursive {
			parts = parts[:1]
		}
		for i := range parts {
			found[prefix+strings.Join(parts[:i+1], "/")] = true
		}
	}
	if len(found) == 0 {
		return nil, missing(folder)
	}
	return slices.Sorted(maps.Keys(found)), nil
}
