package cache

import (
	"bytes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/net/http/httpguts"

	"github.com/weirgate/weir/internal/redisclient"
)

// Codec converts entries to values for a store outside this process, and back. A value contains its
// key, and cannot be decoded under another key. A checksum detects changes. With a secret, values are
// encrypted (AES-256-GCM).
type Codec struct {
	aead         cipher.AEAD // nil without a secret
	compressor   *zstd.Encoder
	decompressor *zstd.Decoder
}

// ErrValue reports a value that is corrupt, or belongs to another key, secret or version.
var ErrValue = errors.New("invalid value for this key")

// maxValue bounds a decompressed value.
const maxValue = 16 << 20

// NewCodec returns a codec. All replicas that share a store must use the same secret, or no secret.
func NewCodec(secret []byte) (*Codec, error) {
	c := &Codec{}
	var err error
	c.compressor, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, err
	}
	if c.decompressor, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxValue)); err != nil {
		return nil, err
	}
	c.aead, err = redisclient.NewSealer(secret, "weir cache values")
	return c, err
}

// valueHeader is the first part of a decompressed value. The body follows.
type valueHeader struct {
	Key   Key
	Entry Entry
}

// Encode returns the value of an entry under a key: compressed JSON, preceded by its length and
// followed by the body.
func (c *Codec) Encode(key Key, e *Entry) ([]byte, error) {
	h := valueHeader{key, *e}
	h.Entry.Body = nil
	text, err := json.Marshal(h)
	// Package json replaces bytes that are not UTF-8: by an escape sequence, or since Go 1.27 by the character itself.
	if err != nil || bytes.Contains(text, []byte(`\ufffd`)) || bytes.ContainsRune(text, utf8.RuneError) {
		return nil, errors.Join(ErrValue, err)
	}
	value := binary.AppendUvarint(make([]byte, 0, len(text)+len(e.Body)+binary.MaxVarintLen64), uint64(len(text)))
	value = c.compressor.EncodeAll(append(append(value, text...), e.Body...), nil)
	if c.aead != nil {
		value = c.aead.Seal(nil, nil, value, key[:])
	}
	return value, nil
}

// Decode returns the entry of a value that was encoded for the key. Errors wrap ErrValue.
func (c *Codec) Decode(key Key, value []byte) (*Entry, error) {
	var err error
	if c.aead != nil {
		if value, err = c.aead.Open(nil, nil, value, key[:]); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrValue, err)
		}
	}
	if value, err = c.decompressor.DecodeAll(value, nil); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrValue, err)
	}
	size, n := binary.Uvarint(value)
	if n <= 0 || size > uint64(len(value)-n) {
		return nil, ErrValue
	}
	var h valueHeader
	if err := json.Unmarshal(value[n:n+int(size)], &h); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrValue, err)
	}
	e := &h.Entry
	e.Body = value[n+int(size):]
	if h.Key != key || !plausible(e) {
		return nil, ErrValue
	}
	took := e.Answered.Sub(e.Requested)
	e.Answered = steady(e.Answered, time.Now())
	e.Requested = e.Answered.Add(-took) // Put compares it with the times of this process
	return e, nil
}

// maxSkew is the largest difference of the clocks of two replicas that is ignored.
const maxSkew = 10 * time.Second

// steady returns a time that another process has written, relative to the monotonic clock of this process, so that a step of
// the wall clock changes no age. A time in the future counts as now. Beyond maxSkew the clock has stepped back since then, so the
// age is unknown and counts as endless.
func steady(written, now time.Time) time.Time {
	age := now.Sub(written)
	if age < -maxSkew {
		age = longestTime
	}
	return now.Add(-max(0, age))
}

// plausible reports whether this process could have stored the entry. Without this check, a writer to
// the shared store could decide how responses are framed.
func plausible(e *Entry) bool {
	for name, values := range e.Header {
		if !storableField(name) {
			return false
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return false
			}
		}
	}
	switch e.Status {
	case http.StatusNoContent:
		return len(e.Body) == 0
	case http.StatusAccepted: // FetchLease.Pending
		return true
	}
	return mayBeStored(e.Status)
}
