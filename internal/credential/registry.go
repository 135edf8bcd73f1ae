package credential

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/weirgate/weir/policy"
)

// Held is an upstream credential that the gateway holds.
type Held struct {
	Name string
	Kind policy.CallerKind
	// Account names what the upstream counts it against; credentials of one
	// user have one account. Empty means the credential stands for itself.
	Account string
	// Token is sent as a bearer token; of an OAuth app it is "id:secret",
	// sent as Basic.
	Token Secret
	// Source is set in place of a token that lasts.
	Source *Source
}

// Source is where a token comes from that does not last: an app's, of an installation.
type Source struct {
	// Identity tells apart whose tokens they are, and what they may do.
	Identity string
	// Token returns the token of now. An error is [UnusableError], or the context's.
	Token func(context.Context) (Secret, error)
	// Reject gives up the token that was sent at some time.
	Reject func(sent time.Time)
}

// Client is a program that may use the gateway. It is known by its key, its
// certificate or tokens of its issuer: by each of them that is set.
type Client struct {
	Name string
	// Key is the SHA-256 of the client's key.
	Key         [sha256.Size]byte
	Certificate Certificate
	Token       TokenMatch
	// Scope is what it may ask for; nil is everything.
	Scope *policy.Scope
	// Credentials are the names of those it may spend; [Pool.Pick] chooses.
	Credentials []string
	// Share and Priority order it among the clients of one account.
	Share    int
	Priority policy.Priority
	// Debug lets it ask what was made of its requests.
	Debug bool
}

// Registry knows who may call, and whose credential pays. It is immutable and safe
// for concurrent use.
//
// It keeps hashes of clients' keys and of passed-through credentials, never
// these themselves; the hash that names an account is keyed, so it cannot be
// looked up.
type Registry struct {
	dialect     *policy.Dialect
	egress      string
	passThrough bool
	hashKey     []byte
	// The clients, by what they show.
	keys         keys
	certificates certificates
	tokens       tokens
	accounts     map[string]account // by class
}

type account struct {
	name string
	kind policy.CallerKind
}

// Caller is who a request is for, and its Authorization value upstream (empty
// for none).
type Caller struct {
	policy.Caller
	Authorization Secret
	// Scope is what it may ask for; nil is everything.
	Scope *policy.Scope
	// Debug is set for one that may ask what was made of its requests.
	Debug bool
	// Pool is set for a client that spends what the gateway holds: the caller is then
	// the first of its credentials.
	Pool *Pool

	name   string  // of what is held
	source *Source // nil where Authorization is what is sent
}

// Errors of [Registry.Identify].
var (
	ErrMissing = errors.New("no credential, nor a certificate that is known: this gateway accepts its own clients only")
	ErrUnknown = errors.New("unknown key, or a credential of the client's own where none is accepted")
	ErrTwice   = errors.New("more than one Authorization field")
	// ErrInvalidToken wraps those of a token of an issuer that is configured, and
	// ErrIssuerUnavailable the reason why it cannot be verified now.
)

// Config is what a book is made from.
type Config struct {
	Dialect *policy.Dialect
	// Egress names the address from which anonymous calls leave.
	Egress string
	// PassThrough accepts clients that bring their own credential, or none.
	PassThrough bool
	Held        []Held
	// Clients must name credentials that are held.
	// One that shows what stands for several is the first of these.
	Clients []Client
	// Authorities vouch for the names in certificates.
	Authorities []*x509.Certificate
	// Issuers are those whose tokens Clients name, IssuerKeys their keys, which
	// outlive a book.
	Issuers    []Issuer
	IssuerKeys *IssuerKeys
	// HashKey keys the hashes that name accounts. It must outlive a reload,
	// or every account would be a new one; see [NewHashKey].
	HashKey []byte
	// Health is what is known of those that are held; it must outlive a
	// reload. Nil begins anew.
	Health *Health
}

// NewHashKey returns a key for one life of the process.
func NewHashKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails (crypto/rand)
	return key
}

// NewRegistry returns a book.
func NewRegistry(c Config) *Registry {
	b := &Registry{
		dialect: c.Dialect, egress: c.Egress, passThrough: c.PassThrough, hashKey: c.HashKey,
		keys:         make(keys, len(c.Clients)),
		certificates: newCertificates(c.Authorities),
		tokens:       newTokens(c.Issuers, c.IssuerKeys),
		accounts:     make(map[string]account, len(c.Held)),
	}
	byName := make(map[string]Caller, len(c.Held))
	for _, h := range c.Held {
		byName[h.Name] = b.hold(h)
	}
	if c.Health == nil {
		c.Health = NewHealth(slog.New(slog.DiscardHandler))
	}
	for _, client := range c.Clients {
		pays := newPool(c, client, byName).first()
		b.keys.add(client.Key, pays)
		b.certificates.add(client.Certificate, pays)
		b.tokens.add(client.Token, pays)
	}
	return b
}

func (b *Registry) hold(h Held) Caller {
	class := b.hash(h.Token.Reveal())
	if h.Source != nil {
		// What stands for a token that is not known must be nothing that a client could
		// send as one: it would be of this class.
		class = b.hash(string(b.hashKey) + h.Source.Identity)
	}
	name := h.Account
	if name == "" {
		name = class
	}
	b.accounts[class] = account{name, h.Kind}
	value := "Bearer " + h.Token.Reveal()
	if h.Kind == policy.OAuthApp {
		value = "Basic " + base64.StdEncoding.EncodeToString([]byte(h.Token.Reveal()))
	}
	return Caller{Caller: policy.Caller{Kind: h.Kind, Account: name, Class: class}, Authorization: Secret(value), name: h.Name, source: h.Source}
}

// Identify reads the Authorization of a request or, without one, the
// certificate of its connection. "token X" and "Bearer X" are one credential.
// It may wait for an issuer's keys; the error is then the context's if that
// ends first.
func (b *Registry) Identify(r *http.Request) (Caller, error) {
	values := r.Header["Authorization"]
	if len(values) > 1 {
		return Caller{}, ErrTwice
	}
	if len(values) == 0 || strings.TrimSpace(values[0]) == "" {
		if c, ok := b.certificates.caller(r.TLS); ok {
			return c, nil
		}
		if !b.passThrough {
			return Caller{}, ErrMissing
		}
		return Caller{Caller: policy.Caller{Kind: policy.Unauthenticated, Account: "egress:" + b.egress, Class: "anonymous"}}, nil
	}
	scheme, credential := parse(values[0])
	if c, ok := b.keys.caller(credential); ok {
		return c, nil
	}
	if c, ours, err := b.tokens.caller(r.Context(), credential); ours {
		return c, err
	}
	if !b.passThrough || holdsKey(credential) {
		return Caller{}, ErrUnknown
	}
	class := b.hash(credential)
	who := policy.Caller{Kind: b.dialect.Kind(scheme, credential), Account: class, Class: class}
	if known, ok := b.accounts[class]; ok {
		who.Account, who.Kind = known.name, known.kind
	}
	return Caller{Caller: who, Authorization: Secret(values[0])}, nil
}

// parse splits an Authorization value. Of a Basic one the credential is the
// pair of name and password as they were written; a value that cannot be read
// stands for itself, and the upstream will say what it thinks of it.
func parse(value string) (scheme, credential string) {
	scheme, credential, ok := strings.Cut(strings.TrimSpace(value), " ")
	if !ok {
		return "", value
	}
	credential = strings.TrimSpace(credential)
	if strings.EqualFold(scheme, "basic") {
		if pair, err := base64.StdEncoding.DecodeString(credential); err == nil {
			return scheme, string(pair)
		}
	}
	return scheme, credential
}

// hash returns a keyed hash of a credential, which names it without revealing it. Security
// classes are such hashes, so 128 bits are kept: two credentials never share a class.
func (b *Registry) hash(credential string) string {
	mac := hmac.New(sha256.New, b.hashKey)
	_, _ = mac.Write([]byte(credential)) // never fails (hash.Hash)
	return hex.EncodeToString(mac.Sum(nil)[:16])
}
