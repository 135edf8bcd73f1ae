package cache

import (
	"bytes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	"github.com/weirgate/weir/internal/redisclient"
)

// Codec writes entries as values for a store outside this process, and reads them.
// A value is bound to the key that it was written for: under another key it cannot
// be read, and neither can one that was changed. With a secret it is sealed
// (AES-256-GCM), so that who reads the store reads no answers.
type Codec struct {
	aead   cipher.AEAD // nil without a secret
	packer *zstd.Encoder
	opener *zstd.Decoder
}

// ErrValue is why a value cannot be read: it is corrupt, of another key, or of
// another writer.
var ErrValue = errors.New("not a value that was written for this key")

const (
	valueFormat = "weir2" // what a value begins with
	packed      = 1       // a flag: the payload is compressed
	sealed      = 2       // a flag: it is sealed

	// packFrom is the size from which payloads are compressed.
	packFrom = 1 << 10
	// maxPayload bounds what a value may unpack to.
	maxPayload = 16 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewCodec returns a codec. All who share a store have the same secret, or none.
func NewCodec(secret []byte) (*Codec, error) {
	c := &Codec{}
	var err error
	if c.packer, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest)); err != nil {
		return nil, err
	}
	if c.opener, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxPayload)); err != nil {
		return nil, err
	}
	c.aead, err = redisclient.NewSealer(secret, "weir cache values")
	return c, err
}

// meta is an entry beside its body.
type meta struct {
	Status    int           `json:"status"`
	Header    http.Header   `json:"header"`
	Vary      []Field       `json:"vary,omitempty"`
	Tags      tags          `json:"tags"`
	About     Key           `json:"about"`
	Lifetime  time.Duration `json:"lifetime"`
	Requested time.Time     `json:"requested"`
	Answered  time.Time     `json:"answered"`
	Since     Generation    `json:"since"`
	Age       time.Duration `json:"age"`
}

// Encode writes an entry for a key.
func (c *Codec) Encode(key Key, e *Entry) ([]byte, error) {
	if !legible(e) {
		return nil, ErrValue // JSON would change it
	}
	text, err := json.Marshal(meta{e.Status, e.Header(), e.Vary, e.tags, e.BaseKey, e.Lifetime, e.Requested(), e.Answered, e.Since, e.age})
	if err != nil {
		return nil, err
	}
	payload := binary.AppendUvarint(make([]byte, 0, len(text)+len(e.Body)+binary.MaxVarintLen64), uint64(len(text)))
	payload = append(append(payload, text...), e.Body...)
	flags := byte(0)
	if len(payload) >= packFrom {
		flags, payload = packed, c.packer.EncodeAll(payload, nil)
	}
	if c.aead != nil {
		flags |= sealed
		head := append([]byte(valueFormat), flags)
		return append(head, c.aead.Seal(nil, nil, payload, bind(key, flags))...), nil
	}
	head := append([]byte(valueFormat), flags)
	return append(binary.BigEndian.AppendUint32(head, sum(key, flags, payload)), payload...), nil
}

// legible reports whether all fields are UTF-8; they need not be.
func legible(e *Entry) bool {
	return e.fields.legible() && !slices.ContainsFunc(e.Vary, func(f Field) bool { return !utf8.ValidString(f.Name) || !utf8.ValidString(f.Value) })
}

// bind is what a value is bound to.
func bind(key Key, flags byte) []byte { return append([]byte{flags}, key[:]...) }

func sum(key Key, flags byte, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(bind(key, flags), castagnoli), castagnoli, payload)
}

// Decode reads the value that was written for a key. An error is ErrValue, or wraps it.
func (c *Codec) Decode(key Key, value []byte) (*Entry, error) {
	rest, ok := bytes.CutPrefix(value, []byte(valueFormat))
	if !ok || len(rest) == 0 {
		return nil, ErrValue
	}
	flags := rest[0]
	payload, err := c.open(key, flags, rest[1:])
	if err == nil && flags&packed != 0 {
		payload, err = c.opener.DecodeAll(payload, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrValue, err)
	}
	size, n := binary.Uvarint(payload)
	if n <= 0 || size > uint64(len(payload)-n) {
		return nil, ErrValue
	}
	var m meta
	if err := json.Unmarshal(payload[n:n+int(size)], &m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrValue, err)
	}
	body := payload[n+int(size):]
	if !m.mayBeKept(len(body)) {
		return nil, ErrValue
	}
	return &Entry{
		Status: m.Status, fields: newFields(m.Header), Body: body, Vary: m.Vary, tags: m.Tags, BaseKey: m.About, Lifetime: m.Lifetime,
		took: m.Answered.Sub(m.Requested), Answered: m.Answered, Since: m.Since, age: m.Age,
	}, nil
}

// mayBeKept reports whether it is of an entry that this process would keep: else whoever writes
// to the tier would decide how answers are framed.
func (m *meta) mayBeKept(body int) bool {
	for name := range m.Header {
		if !mayBeKept(name) {
			return false
		}
	}
	switch m.Status {
	case http.StatusNoContent:
		return body == 0
	case http.StatusUnprocessableEntity, http.StatusAccepted: // of statistics: see Rule.DefaultLifetime, FetchLease.Pending
		return true
	}
	return storable[m.Status]
}

// isToken reports whether a text is a token (RFC 9110 section 5.6.2), which a field's name must be.
func isToken(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// open returns the payload of a value as it was packed.
func (c *Codec) open(key Key, flags byte, rest []byte) ([]byte, error) {
	switch {
	case (flags&sealed != 0) != (c.aead != nil):
		return nil, ErrValue // one of a writer with another configuration
	case c.aead != nil:
		return c.aead.Open(nil, nil, rest, bind(key, flags))
	case len(rest) < 4 || binary.BigEndian.Uint32(rest) != sum(key, flags, rest[4:]):
		return nil, ErrValue
	}
	return rest[4:], nil
}
