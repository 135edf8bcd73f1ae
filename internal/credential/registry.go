package credential

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
)

// Held is an upstream credential that the gateway holds.
type Held struct {
	Name string
	Kind policy.CallerKind
	// Account is the name of the account that the upstream charges for the credential. Credentials of one user have one
	// account. If Account is empty, the credential has a separate account.
	Account string
	// Token is sent as a bearer token. The token of an OAuth app is "id:secret" and is sent as Basic.
	Token Secret
	// Source provides the expiring tokens of an app and replaces Token.
	Source *Source
}

// Client is a program that may use the gateway. The key, the certificate and the tokens each identify the client. A
// zero value identifies no client.
type Client struct {
	Name        string
	Key         [sha256.Size]byte // SHA-256 of the client's key
	Certificate Certificate
	Token       TokenMatch
	// Scope limits the requests of the client; nil allows all requests.
	Scope *policy.Scope
	// Credentials are names of held credentials. [Pool.Pick] chooses among them.
	Credentials []string
	// Share and Priority order the clients of one account.
	Share    int
	Priority policy.Priority
	// Group is the name of a group of Config.Groups, or empty.
	Group string
	// Guarantee and Limit are the client's part of each primary window (see [policy.ClientBudget]). A Limit of zero counts
	// as 1.
	Guarantee, Limit float64
	// TagLimit is the part of each primary window that the requests with one tag may use, or zero for no limit.
	TagLimit float64
	// Debug permits the request header Weir-Debug.
	Debug bool
	// RefusalStatus is the status of limit refusals, or zero for that of the gateway.
	RefusalStatus int
}

// Config describes a registry.
type Config struct {
	Dialect *policy.Dialect
	// Egress names the address that anonymous requests are sent from.
	Egress string
	// PassThrough accepts clients that send their own credential or no credential.
	PassThrough bool
	// Groups are the budgets of groups of clients.
	Groups []policy.ClientBudget
	Held   []Held
	// Lent is a client that the configuration does not name. Its credential is used for anonymous requests that its scope
	// allows. Nil lends no credential.
	Lent *Client
	// Clients may name held credentials only. If a request identifies several clients, the first client applies.
	Clients []Client
	// Authorities verify the names in client certificates.
	Authorities []*x509.Certificate
	// Issuers sign the tokens of clients. IssuerKeys caches the issuers' keys across reloads.
	Issuers    []Issuer
	IssuerKeys *IssuerKeys
	// HashKey is the key of the hashes that name accounts. Keep HashKey across reloads, because a new key renames all
	// accounts. See [NewHashKey].
	HashKey []byte
	// FormerHashKey is the HashKey that named the accounts before; empty if HashKey never changed.
	FormerHashKey []byte
	// Health is the state of the held credentials, kept across reloads. Nil selects a new, empty state.
	Health *Health
}

// Registry identifies the caller of a request and the credential to forward the request with. The configuration of a
// Registry never changes. A Registry is safe for concurrent use.
//
// A Registry stores hashes of client keys and of passed-through credentials, not the texts. The hashes of passed-through
// credentials are keyed, so that a guessed credential cannot be confirmed.
type Registry struct {
	config   Config
	accounts map[string]policy.Caller         // of held credentials, by security class
	labels   map[string]string                // of the accounts of held credentials
	budgets  map[string][]policy.ClientBudget // of the accounts of held credentials that are divided
	clients  []*caller.Identity               // of Config.Clients, each with its first credential
	// keys maps the hash of a client key to the index of the client. The duration of a lookup leaks nothing, because a
	// sender cannot choose the hash.
	keys map[[sha256.Size]byte]int
	// anonymous is the caller of requests without a credential; nil refuses these requests.
	anonymous *caller.Identity
	known     knownValues
}

// Errors of [Registry.Identify].
var (
	ErrMissing = errors.New("request has no credential and no known client certificate")
	ErrUnknown = errors.New("unknown client key, or an upstream credential while pass-through is off")
	ErrForm    = errors.New("not the form of an upstream credential; use Bearer TOKEN, token TOKEN or Basic")
	ErrOwn     = errors.New("credential contains a key or a token for this gateway; send it alone as Bearer")
	ErrTwice   = errors.New("more than one Authorization field")
	// ErrOtherSite refuses an unsafe request that a browser sent with its client certificate for a page of another site.
	ErrOtherSite = errors.New("a page of another site sent this request with the client certificate of the browser; send a key or a token")
)

// crossOrigin recognizes unsafe requests that pages of other sites cause. A browser adds its client certificate to such
// requests, unlike an Authorization field.
var crossOrigin = http.NewCrossOriginProtection()

// NewHashKey returns a random key for [Config.HashKey].
func NewHashKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails (crypto/rand)
	return key
}

// NewRegistry returns a registry of the clients and held credentials in c.
func NewRegistry(c Config) *Registry {
	r := &Registry{
		config: c, accounts: map[string]policy.Caller{}, labels: map[string]string{}, keys: map[[sha256.Size]byte]int{},
		known: newKnownValues(),
	}
	held := map[string]heldCredential{}
	for _, h := range c.Held {
		held[h.Name] = r.hold(h)
		account := held[h.Name].Account
		r.labels[account] = cmp.Or(h.Account, r.labels[account], h.Name)
	}
	clients := c.Clients
	if c.Lent != nil {
		clients = append(slices.Clone(clients), *c.Lent)
	}
	r.divide(clients, held)
	if c.Health == nil {
		c.Health = NewHealth(slog.New(slog.DiscardHandler))
	}
	for i, client := range c.Clients {
		r.clients = append(r.clients, newPool(c.Health, client, held).first())
		if _, taken := r.keys[client.Key]; !taken && client.Key != [sha256.Size]byte{} {
			r.keys[client.Key] = i
		}
	}
	if c.PassThrough || c.Lent != nil {
		r.anonymous = &caller.Identity{Caller: r.Anonymous(), LentOnly: !c.PassThrough}
	}
	if c.Lent != nil {
		r.anonymous.Lent = newPool(c.Health, *c.Lent, held).first()
	}
	return r
}

// hold registers the account of a held credential.
func (r *Registry) hold(h Held) heldCredential {
	class := r.hash(h.Token.Reveal())
	if h.Source != nil {
		// The hash key is secret, so no client can send a token of this class.
		class = r.hash(string(r.config.HashKey) + h.Source.app.identity())
	}
	account := policy.Caller{Kind: h.Kind, Account: cmp.Or(h.Account, class), Class: class}
	r.accounts[class] = account
	return heldCredential{Identity: caller.Identity{Caller: account}, name: h.Name, authorization: h.value(h.Token), source: h.Source}
}

// Authorization returns the header value of the credential. The call may wait for an app's token. The error is an
// [policy.UnusableError] or the context's error.
func (h Held) Authorization(ctx context.Context) (Secret, error) {
	if h.Source == nil {
		return h.value(h.Token), nil
	}
	token, err := h.Source.get(ctx)
	if err != nil {
		return "", err
	}
	return h.value(token), nil
}

// value returns the header value of a token.
func (h Held) value(token Secret) Secret {
	if h.Kind.Base() == policy.OAuthApp {
		return Secret("Basic " + base64.StdEncoding.EncodeToString([]byte(token.Reveal())))
	}
	return "Bearer " + token
}

// divide sets the budgets of clients and groups of each account that several clients may use. A single client has a
// budget only if its tags have a limit, or if it has a guarantee that callers with a token of their own must respect.
func (r *Registry) divide(clients []Client, held map[string]heldCredential) {
	budgets := map[string][]policy.ClientBudget{} // by account
	for _, client := range clients {
		b := policy.ClientBudget{
			Client: client.Name, Share: max(1, client.Share), Guarantee: client.Guarantee, Limit: cmp.Or(client.Limit, 1), TagLimit: client.TagLimit,
			Batch: client.Priority == policy.Batch,
		}
		list := []policy.ClientBudget{b}
		if i := slices.IndexFunc(r.config.Groups, func(g policy.ClientBudget) bool { return g.Client == client.Group }); i >= 0 {
			list = append(list, r.config.Groups[i])
		}
		for _, name := range client.Credentials {
			account := held[name].Account
			for _, b := range list {
				if !slices.Contains(budgets[account], b) {
					budgets[account] = append(budgets[account], b)
				}
			}
		}
	}
	for account, list := range budgets {
		switch {
		case len(list) > 1:
		case list[0].TagLimit > 0, list[0].Guarantee > 0 && r.config.PassThrough:
			list[0].Limit, list[0].Batch = 1, false
		default:
			delete(budgets, account)
		}
	}
	for name, c := range held {
		if list := budgets[c.Account]; len(list) > 0 {
			c.Clients = list
			held[name], r.accounts[c.Class] = c, c.Caller
		}
	}
	r.budgets = budgets
}

// Divided returns the identity of a caller with the budgets of the clients of its account. A passed token has an account of its
// own until the upstream names its user. canonical returns the name of a merged account.
func (r *Registry) Divided(id *caller.Identity, canonical func(account string) string) *caller.Identity {
	if len(r.budgets) == 0 || !id.Passed || len(id.Clients) > 0 {
		return id
	}
	name := canonical(id.Account)
	if name == id.Account {
		return id
	}
	divided := *id
	for _, account := range slices.Sorted(maps.Keys(r.budgets)) {
		if canonical(account) == name {
			divided.Clients = append(slices.Clip(divided.Clients), r.budgets[account]...)
		}
	}
	return &divided
}

// Client returns the caller of a configured client, and nil for another name.
func (r *Registry) Client(name string) *caller.Identity {
	i := slices.IndexFunc(r.config.Clients, func(c Client) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return r.clients[i]
}

// Identify returns the caller of a request, by its Authorization field or, without that field, by the client
// certificate of its connection. The call may wait for an issuer's keys. The error is [caller.ErrUnauthenticated],
// [caller.ErrIdentityUnavailable], or that of the request's context if it has ended. The registry remembers the callers of
// Authorization values, but not those of certificates.
func (r *Registry) Identify(req *http.Request) (*caller.Identity, error) {
	id, err := r.callerOf(req)
	switch {
	case err == nil:
		return id, nil
	case errors.Is(err, ErrIssuerUnavailable):
		return nil, fmt.Errorf("%w: %w", caller.ErrIdentityUnavailable, err)
	case req.Context().Err() != nil:
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", caller.ErrUnauthenticated, err)
}

func (r *Registry) callerOf(req *http.Request) (*caller.Identity, error) {
	values := req.Header["Authorization"]
	if len(values) > 1 {
		return nil, ErrTwice
	}
	if len(values) == 1 && strings.TrimSpace(values[0]) != "" {
		return r.byValue(req.Context(), values[0])
	}
	if id := r.byCertificate(req.TLS); id != nil {
		if crossOrigin.Check(req) != nil {
			return nil, ErrOtherSite
		}
		return id, nil
	}
	if r.anonymous == nil {
		return nil, ErrMissing
	}
	return r.anonymous, nil
}

// identify returns the caller of an Authorization value that is not known.
func (r *Registry) identify(ctx context.Context, value string) (*identified, error) {
	_, credential := parseAuthorization(value)
	if i, ok := r.keys[sha256.Sum256([]byte(credential))]; ok {
		return &identified{identity: r.clients[i]}, nil
	}
	if i, ours, err := r.byToken(ctx, credential); ours {
		return i, err
	}
	if !r.config.PassThrough {
		return nil, ErrUnknown
	}
	return r.passThrough(value)
}

// HasOtherScheme reports whether Authorization values are one value with a scheme of the dialect. No credential of the gateway can
// replace such a value.
func (r *Registry) HasOtherScheme(values []string) bool {
	if len(values) != 1 {
		return false
	}
	scheme, _, _ := strings.Cut(values[0], " ")
	return r.config.Dialect.HasScheme(scheme)
}

// WithOtherScheme returns the caller that sends an Authorization value with a scheme of the dialect. The rules of a client apply
// to the caller.
func (r *Registry) WithOtherScheme(client *caller.Identity, value string) (*caller.Identity, error) {
	i, err := r.passThrough(value)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", caller.ErrUnauthenticated, err)
	}
	id := *i.identity
	id.Scope, id.Debug, id.RefusalStatus, id.TokenTag, id.TagFromClaim = client.Scope, client.Debug, client.RefusalStatus, client.TokenTag, client.TagFromClaim
	return &id, nil
}

// passThrough returns the caller of an Authorization value that is forwarded.
func (r *Registry) passThrough(value string) (*identified, error) {
	scheme, credential := parseAuthorization(value)
	switch {
	case !r.hasUpstreamForm(value):
		return nil, ErrForm
	case r.holdsOwn(credential, ownKey):
		return nil, ErrOwn
	}
	if token, ok := r.tokenOfPair(scheme, credential); ok {
		scheme, credential = "", token
	}
	class := r.hash(credential)
	account, held := r.accounts[class]
	if !held {
		account = policy.Caller{Kind: r.config.Dialect.Kind(scheme, credential), Account: class, Class: class}
	}
	passed := &caller.Identity{Caller: account, Passed: true}
	if !held && len(r.config.FormerHashKey) > 0 {
		passed.FormerAccount = hash(r.config.FormerHashKey, credential)
	}
	return &identified{identity: passed}, nil
}

// Anonymous returns the caller of requests without a credential.
func (r *Registry) Anonymous() policy.Caller {
	return policy.Caller{Kind: policy.Unauthenticated, Account: "egress:" + r.config.Egress, Class: "anonymous"}
}

// parseAuthorization splits an Authorization value. For Basic, the credential is the decoded pair of name and password.
// For a malformed value, the credential is the value itself, which the upstream will reject.
func parseAuthorization(value string) (scheme, credential string) {
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

// tokenOfPair returns the upstream token in a Basic pair. Such a pair identifies the same caller as the token alone,
// because the upstream charges the user of the token. The token is the password, or the name with an empty password or
// "x-oauth-basic". In any other pair, name and password are the ID and the secret of an OAuth app.
func (r *Registry) tokenOfPair(scheme, credential string) (token string, ok bool) {
	name, password, pair := strings.Cut(credential, ":")
	switch {
	case !pair || !strings.EqualFold(scheme, "basic"):
		return "", false
	case password == "" || strings.EqualFold(password, "x-oauth-basic"):
		token, name = name, ""
	default:
		token = password
	}
	_, held := r.accounts[r.hash(token)]
	return token, held || r.config.Dialect.IsTokenOfPair(token, name)
}

// AccountOf returns the account of a token that clients send as their own. A held token has its configured account.
func (r *Registry) AccountOf(token string) string {
	class := r.hash(token)
	if caller, held := r.accounts[class]; held {
		return caller.Account
	}
	return class
}

// Label returns the configured name of an account: the name of the account, or that of its credential. ok is false if no
// held credential has the account.
func (r *Registry) Label(account string) (label string, ok bool) {
	label, ok = r.labels[account]
	return label, ok
}

// HasLabel reports whether a name looks like the label of a held credential's account. Letter case does not matter.
func (r *Registry) HasLabel(name string) bool {
	for _, label := range r.labels {
		if strings.EqualFold(label, name) {
			return true
		}
	}
	return false
}

// ShortLabel returns the name for people of an account without a configured name. A hash is shortened.
func ShortLabel(account string) string {
	if sum, err := hex.DecodeString(account); err != nil || len(sum) != hashLength {
		return account
	}
	return "account " + account[:8]
}

// hashLength is the length of the hashes that name credentials, in bytes.
const hashLength = 16

// hash returns a keyed hash of a credential, which names the credential without revealing it. Security classes are such
// hashes of 128 bits, so two credentials never share a class.
func (r *Registry) hash(credential string) string { return hash(r.config.HashKey, credential) }

func hash(key []byte, credential string) string {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(credential)) // never fails (hash.Hash)
	return hex.EncodeToString(mac.Sum(nil)[:hashLength])
}
