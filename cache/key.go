package cache

import (
	"crypto/sha256"
	"encoding/binary"
)

// Key names what is asked and for whom. It reveals nothing of its parts.
type Key [sha256.Size]byte

// NewKey hashes the parts, each preceded by its length, so that no two
// different lists of parts can give one key.
func NewKey(parts ...string) Key {
	var room [512]byte
	buf := room[:0]
	for _, p := range parts {
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(p)))
		buf = append(buf, p...)
	}
	return sha256.Sum256(buf)
}

// short is what a key is found by within this process: whoever finds something so looks at the
// whole key, or at what it is the key of.
type short uint64

func (k Key) short() short { return short(binary.BigEndian.Uint64(k[:])) }
