package credential

import (
	"context"
	"crypto/rand"
	"crypto/sha256"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/weirgate/weir/proxy/caller"
)

// maxKnown bounds the Authorization values in each list of knownValues.
const maxKnown = 16384

// knownValues remembers the callers of the Authorization values of earlier requests. It belongs to one [Registry], so a reload
// of the configuration starts with empty lists. Values that identify no caller are not remembered.
//
// A passed-through credential may be made up, because only the upstream checks it. Clients that the gateway has verified
// therefore have a separate list, which no flood of made-up credentials changes.
type knownValues struct {
	// key begins the hashed text, so that a hash in memory cannot confirm a guessed value. Its length lets an
	// Authorization field with a key of NewKey fit one block of SHA-256.
	key             [16]byte
	clients, passed *lru.Cache[valueHash, *identified]
}

// valueHash is a keyed hash of an Authorization value. A short hash such as that of hash/maphash may be equal for two values,
// and one of the callers would then get the responses of the other.
type valueHash [sha256.Size]byte

// identified is the caller of an Authorization value. It contains no part of the value.
type identified struct {
	identity *caller.Identity
	// token must still be valid. It is nil for a value that identifies its caller until the end of the configuration.
	token *verifiedToken
}

func newKnownValues() knownValues {
	var k knownValues
	_, _ = rand.Read(k.key[:])                               // never fails (crypto/rand)
	k.clients, _ = lru.New[valueHash, *identified](maxKnown) // fails only for a size below 1
	k.passed, _ = lru.New[valueHash, *identified](maxKnown)
	return k
}

func (k *knownValues) hash(value string) valueHash {
	text := append(make([]byte, 0, 256), k.key[:]...) // on the stack, and enough for most values without a JWT
	return sha256.Sum256(append(text, value...))
}

// find returns the caller of a value, or nil.
func (k *knownValues) find(h valueHash) *identified {
	if i, ok := k.clients.Get(h); ok {
		return i
	}
	i, _ := k.passed.Get(h)
	return i
}

func (k *knownValues) add(h valueHash, i *identified) {
	if i.identity.Passed {
		k.passed.Add(h, i)
	} else {
		k.clients.Add(h, i)
	}
}

// byValue returns the caller of an Authorization value, which is not blank.
func (r *Registry) byValue(ctx context.Context, value string) (*caller.Identity, error) {
	h := r.known.hash(value)
	i := r.known.find(h)
	if i == nil || i.token != nil && !r.config.IssuerKeys.verifiesStill(ctx, i.token) {
		var err error
		if i, err = r.identify(ctx, value); err != nil {
			return nil, err
		}
		r.known.add(h, i)
	}
	return i.identity, nil
}
