package tlsauto

import (
	"bytes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"time"

	"github.com/weirgate/weir/internal/redisclient"
)

// errValue is why a value is taken for one that is not there: it is of another
// writer, was written for another key, or has been changed.
var errValue = errors.New("not a value that was written for this key")

const (
	valueFormat = "weirtls1" // what a value begins with
	plainValue  = 0          // then: how it goes on
	sealedValue = 1
)

// sealer writes what is kept outside this process, and reads it:
//
//	weirtls1 | 0 or 1 | when it was written, 8 bytes, milliseconds of Unix time | data
//
// After a 1 the data are sealed (AES-256-GCM, the nonce before them), bound to the
// key and to all that stands before. With a secret nothing else is read, so that
// who can write there can put no private key of his own in the place of ours.
type sealer struct {
	aead cipher.AEAD // nil without a secret
}

// newSealer derives the key from a secret, so that one secret may serve other ends.
func newSealer(secret []byte) (sealer, error) {
	a, err := redisclient.NewSealer(secret, "weir tls storage")
	return sealer{a}, err
}

// seal writes a value for a key.
func (s sealer) seal(key string, data []byte, written time.Time) []byte {
	kind := byte(plainValue)
	if s.aead != nil {
		kind = sealedValue
	}
	head := binary.BigEndian.AppendUint64(append([]byte(valueFormat), kind), uint64(written.UnixMilli()))
	if s.aead == nil {
		return append(head, data...)
	}
	return append(head, s.aead.Seal(nil, nil, data, bound(key, head))...)
}

// open reads what was written for a key.
func (s sealer) open(key string, text []byte) (data []byte, written time.Time, err error) {
	const headLength = len(valueFormat) + 1 + 8
	if len(text) < headLength || !bytes.HasPrefix(text, []byte(valueFormat)) {
		return nil, written, errValue
	}
	head, data := text[:headLength], text[headLength:]
	written = time.UnixMilli(int64(binary.BigEndian.Uint64(head[len(valueFormat)+1:])))
	switch kind := head[len(valueFormat)]; {
	case kind == plainValue && s.aead == nil:
		return data, written, nil
	case kind == sealedValue && s.aead != nil:
		if data, err = s.aead.Open(nil, nil, data, bound(key, head)); err != nil {
			return nil, written, errValue
		}
		return data, written, nil
	}
	return nil, written, errValue
}

// bound is what a sealed value is bound to. The head has one length, so that no
// two keys and heads make the same text.
func bound(key string, head []byte) []byte { return append(bytes.Clone(head), key...) }
