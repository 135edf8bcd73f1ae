package cache

import (
	"crypto/sha256"
	"encoding/binary"
)

// Key identifies a question together with the security class of its caller. It reveals none of its parts.
type Key [sha256.Size]byte

// NewKey hashes the parts. Each part is preceded by its length, so different lists of parts
// have different keys.
func NewKey(parts ...string) Key {
	var buf []byte
	for _, p := range parts {
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(p)))
		buf = append(buf, p...)
	}
	return sha256.Sum256(buf)
}
