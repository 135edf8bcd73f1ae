package cache

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/weirgate/weir/internal/contentcoding"
)

// Coded returns the body of an entry in a content coding. If the entry is stored under key, the
// encoded body is kept with the entry, within the bound of the memory. Concurrent calls encode a body
// once.
func (m *Memory) Coded(key Key, e *Entry, c *contentcoding.Coding) []byte {
	if body, ok := e.Coded[c.Name]; ok {
		return body
	}
	// The address identifies the entry, because each caller holds a reference.
	body, _, _ := m.encoding.Do(fmt.Sprintf("%p %s", e, c.Name), func() (any, error) {
		body := c.Encode(e.Body)
		m.keepCoded(key, e, c.Name, body)
		return body, nil
	})
	return body.([]byte) //nolint:forcetypeassert // the function above returns a []byte
}

// Unpack returns the identity form of a packed body.
func (e *Entry) Unpack() io.Reader {
	body, _, err := contentcoding.NewReader(contentcoding.Gzip.Name, bytes.NewReader(e.Packed))
	if err != nil {
		panic(err) // the body is not in gzip
	}
	return body
}

// keepCoded replaces an entry under key by a copy with an encoded body. If the entry is not stored,
// or the copy exceeds the bound of the memory, keepCoded has no effect.
func (m *Memory) keepCoded(key Key, e *Entry, coding string, body []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list, _ := m.variants.Peek(key)
	i := slices.Index(list, e)
	if i < 0 {
		return
	}
	kept := *e
	kept.Coded = map[string][]byte{coding: body}
	maps.Copy(kept.Coded, e.Coded)
	list = slices.Clone(list)
	list[i] = &kept
	if weight(list) <= m.maxBytes {
		m.setLocked(key, list)
	}
}
