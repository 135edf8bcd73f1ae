package credential

import (
	"context"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/weirgate/weir/policy"
)

// Issuer is an OpenID Connect issuer whose tokens (JWT, RFC 7519) identify clients. The desc tags are the descriptions in the
// JSON Schema of the configuration.
type Issuer struct {
	Name string `yaml:"name" desc:"name for use under clients"`
	// The iss claim of a token must equal URL exactly.
	URL       string   `yaml:"url" desc:"issuer identifier, equal to iss in the tokens; its metadata are read from /.well-known/openid-configuration below it"`
	Audiences []string `yaml:"audiences" desc:"names of this gateway; a token must be for one of them (aud)"`
	// Algorithms are some of [SigningAlgorithms].
	Algorithms []string      `yaml:"algorithms" desc:"accepted signature algorithms; RS256 and ES256 by default"`
	Skew       time.Duration `yaml:"skew" desc:"tolerated clock difference"`
}

// TokenMatch selects tokens of an issuer: each of the claims must have a value that matches its pattern
// ([policy.Glob]). The zero value selects no tokens.
type TokenMatch struct {
	Issuer string            `yaml:"issuer" desc:"name of one of the issuers"`
	Claims map[string]string `yaml:"claims" desc:"patterns, with * for any characters; the token's claims must match all of them"`
	// Repositories names a claim with one name or a list of names.
	Repositories string `yaml:"repositories" desc:"claim with the repositories as OWNER/NAME that the token may reach, within the client's own repositories if it has any; no asterisks"`
	Tag          string `yaml:"tag" desc:"claim whose value tags the client's requests, such as repository; replaces the request header Weir-Tag"`
}

// Errors of [Registry.Identify] for a client's token.
var (
	ErrInvalidToken      = errors.New("token rejected")
	ErrIssuerUnavailable = errors.New("identity provider unavailable")
)

// errNoClient is the error for a valid token that selects no client.
var errNoClient = fmt.Errorf("%w: its claims match no client", ErrInvalidToken)

// SigningAlgorithms returns the names of the supported signature algorithms. All of them use
// public keys (RFC 7518 section 3.1, RFC 8037).
func SigningAlgorithms() []string {
	return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
}

// CheckIssuerURL returns an error for a URL from which an issuer's keys must not be fetched. The transfer must be
// protected, because a forged key could impersonate every client.
func CheckIssuerURL(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Fragment != "":
		return errors.New("must be an absolute URL without user name and fragment")
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && (u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1" || u.Hostname() == "::1"):
		return nil
	}
	return errors.New("must begin with https:// unless the host is loopback")
}

// byToken returns the first client that a token selects. If the credential is not a token of
// a configured issuer, ours is false.
func (r *Registry) byToken(ctx context.Context, credential string) (i *identified, ours bool, err error) {
	name := unverifiedIssuer(credential)
	at := slices.IndexFunc(r.config.Issuers, func(i Issuer) bool { return i.URL == name })
	if at < 0 {
		return nil, false, nil
	}
	issuer := r.config.Issuers[at]
	token, claims, err := r.config.IssuerKeys.verify(ctx, issuer, credential)
	if err != nil {
		return nil, true, fmt.Errorf("issuer %s: %w", issuer.URL, err)
	}
	for i, client := range r.config.Clients {
		if client.Token.Issuer == issuer.Name && client.Token.matches(claims) {
			id := *r.clients[i]
			if values := claims.values(client.Token.Tag); len(values) == 1 {
				id.TokenTag = values[0]
			}
			if claim := client.Token.Repositories; claim != "" {
				id.Scope = id.Scope.WithClaim(claims.values(claim))
			}
			return &identified{identity: &id, token: token}, true, nil
		}
	}
	return nil, true, errNoClient
}

// matches reports whether a token has all claims. A match without claims selects no token, because such a match would
// otherwise select all tokens of the issuer.
func (m TokenMatch) matches(claims jwtClaims) bool {
	for name, pattern := range m.Claims {
		matchesPattern := func(value string) bool { return policy.Glob(pattern, value) }
		if !slices.ContainsFunc(claims.values(name), matchesPattern) {
			return false
		}
	}
	return len(m.Claims) > 0
}

// unverifiedIssuer returns the issuer that a token names, without verifying the token. For a text that is not a token,
// the issuer is an empty string.
func unverifiedIssuer(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	return issuerOfPayload(text)
}

// jwtClaims are the claims of a verified token.
type jwtClaims map[string]any

// values returns the string values of a claim: a single string, or the strings of a list.
func (c jwtClaims) values(name string) []string {
	switch value := c[name].(type) {
	case string:
		return []string{value}
	case []any:
		var texts []string
		for _, v := range value {
			if text, ok := v.(string); ok {
				texts = append(texts, text)
			}
		}
		return texts
	}
	return nil
}

// verifiedToken is a token whose signature a key of its issuer verified.
type verifiedToken struct {
	issuer Issuer
	header jose.Header
	keys   *keySet // of the issuer at that time
	claims jwt.Claims
}

// verify checks a token of an issuer and returns its claims. The check may wait until the issuer's keys are fetched.
// The error wraps [ErrInvalidToken], [ErrIssuerUnavailable] or the context's error, and never contains the token.
func (k *IssuerKeys) verify(ctx context.Context, i Issuer, token string) (*verifiedToken, jwtClaims, error) {
	algorithms := make([]jose.SignatureAlgorithm, len(i.Algorithms))
	for n, name := range i.Algorithms {
		algorithms[n] = jose.SignatureAlgorithm(name)
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: malformed, or not signed by %s", ErrInvalidToken, strings.Join(i.Algorithms, ", "))
	}
	v := &verifiedToken{issuer: i, header: parsed.Headers[0]}
	if v.keys, err = k.matching(ctx, i.URL, v.header); err != nil {
		return nil, nil, err
	}
	claims := jwtClaims{}
	signed := func(key jose.JSONWebKey) bool {
		return matches(key, v.header) && parsed.Claims(key.Key, &v.claims, &claims) == nil
	}
	if !slices.ContainsFunc(v.keys.list, signed) {
		return nil, nil, fmt.Errorf("%w: invalid signature", ErrInvalidToken)
	}
	if err := v.check(time.Now()); err != nil {
		return nil, nil, err
	}
	return v, claims, nil
}

// check checks the claims of the token at a time.
func (v *verifiedToken) check(now time.Time) error {
	// jose skips a check whose claim or expected value is missing. A token without exp would be valid for ever, and a
	// token without aud could be for another service.
	if v.claims.Expiry == nil {
		return fmt.Errorf("%w: exp is missing", ErrInvalidToken)
	}
	if err := v.claims.ValidateWithLeeway(jwt.Expected{Issuer: v.issuer.URL, Time: now}, v.issuer.Skew); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidToken, err)
	}
	if !slices.ContainsFunc(v.issuer.Audiences, v.claims.Audience.Contains) {
		return fmt.Errorf("%w: %w", ErrInvalidToken, jwt.ErrInvalidAudience)
	}
	return nil
}

// verifiesStill reports whether verify would certainly accept a verified token again. The keys of the issuer must be those
// that verified the signature. They are fetched again at the times at which verify fetches them.
func (k *IssuerKeys) verifiesStill(ctx context.Context, v *verifiedToken) bool {
	keys, err := k.matching(ctx, v.issuer.URL, v.header)
	return err == nil && keys == v.keys && v.check(time.Now()) == nil
}

const (
	// keysRefreshAfter is the age at which keys are fetched again. A key that the issuer
	// withdraws is accepted for at most this long.
	keysRefreshAfter = 10 * time.Minute
	// keysUsableFor is the time for which keys are used while the issuer is unreachable.
	keysUsableFor = time.Hour
	// keysFetchPause is the minimum pause between two fetches, for tokens with any key ID.
	keysFetchPause = 10 * time.Second
	// keysFetchTimeout bounds each of the two requests of a fetch.
	keysFetchTimeout = 5 * time.Second
	maxIssuerBody    = 256 << 10 // bytes of a response
	minRSABits       = 2048      // RFC 7518 section 3.3
)

// IssuerKeys caches the signing keys that issuers publish (OpenID Connect Discovery 1.0,
// RFC 7517). Keys are fetched when a token needs them, at most once in [keysFetchPause] for each
// issuer. The cache survives a reload of the configuration and is safe for concurrent use.
type IssuerKeys struct {
	client   *http.Client
	ctx      context.Context
	stop     context.CancelFunc
	fetching sync.WaitGroup

	mu      sync.Mutex
	issuers map[string]*publishedKeys // by URL
}

// publishedKeys are the keys of one issuer, guarded by IssuerKeys.mu.
type publishedKeys struct {
	keys    *keySet   // nil before the first success
	fetched time.Time // of the last successful fetch; zero before the first success
	tried   time.Time // end of the last fetch
	err     error     // of the last fetch
	// done is closed when the fetch in progress ends. done is nil if no fetch is in progress.
	done chan struct{}
}

// keySet is the result of one fetch. A keySet is immutable.
type keySet struct{ list []jose.JSONWebKey }

// matches reports whether a key may have signed a token with this header. A header without a key ID matches a key without a
// key ID (RFC 7515 section 4.1.4).
func matches(key jose.JSONWebKey, header jose.Header) bool {
	return key.KeyID == header.KeyID && (key.Algorithm == "" || key.Algorithm == header.Algorithm)
}

// NewIssuerKeys returns an empty cache that fetches keys over a transport. The cache must be closed.
func NewIssuerKeys(transport http.RoundTripper) *IssuerKeys {
	ctx, stop := context.WithCancel(context.Background())
	client := &http.Client{
		Transport: transport,
		// A redirect could lead to a URL that CheckIssuerURL rejects.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &IssuerKeys{client: client, ctx: ctx, stop: stop, issuers: map[string]*publishedKeys{}}
}

// Close cancels the fetches in progress and waits for them. After Close no key is fetched.
func (k *IssuerKeys) Close() {
	k.mu.Lock()
	k.stop() // under mu, so that no fetch starts afterwards
	k.mu.Unlock()
	k.fetching.Wait()
	k.client.CloseIdleConnections()
}

// Keep discards the keys of all other issuers.
func (k *IssuerKeys) Keep(issuers []Issuer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.issuers, func(url string, _ *publishedKeys) bool {
		return !slices.ContainsFunc(issuers, func(i Issuer) bool { return i.URL == url })
	})
}

// matching returns the keys of an issuer, or an error if none of them matches a token's header. Cached keys are returned
// immediately, even while a refresh is in progress. If no cached key matches, matching waits for one fetch.
func (k *IssuerKeys) matching(ctx context.Context, url string, header jose.Header) (*keySet, error) {
	for {
		now := time.Now()
		k.mu.Lock()
		p := k.issuers[url]
		if p == nil {
			p = &publishedKeys{err: errors.New("keys were never fetched")}
			k.issuers[url] = p
		}
		keys, known := p.keys, !p.fetched.IsZero() && now.Sub(p.fetched) < keysUsableFor
		matched := known && slices.ContainsFunc(keys.list, func(key jose.JSONWebKey) bool { return matches(key, header) })
		stale := !matched || now.Sub(p.fetched) >= keysRefreshAfter
		if stale && p.done == nil && now.Sub(p.tried) >= keysFetchPause && k.ctx.Err() == nil {
			p.done = make(chan struct{})
			k.fetching.Go(func() { k.refresh(url, p) })
		}
		done, err := p.done, p.err
		k.mu.Unlock()
		switch {
		case matched:
			return keys, nil
		case done == nil && known:
			return nil, fmt.Errorf("%w: the issuer publishes no key with its key ID and algorithm", ErrInvalidToken)
		case done == nil:
			return nil, fmt.Errorf("%w: %w", ErrIssuerUnavailable, err)
		}
		select {
		case <-done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// refresh fetches the keys of an issuer. If the fetch fails, the cached keys remain.
func (k *IssuerKeys) refresh(url string, p *publishedKeys) {
	keys, err := k.fetch(url)
	k.mu.Lock()
	defer k.mu.Unlock()
	p.tried, p.err = time.Now(), err
	if err == nil {
		p.keys, p.fetched = keys, p.tried
	}
	close(p.done)
	p.done = nil
}

// fetch reads an issuer's metadata (OpenID Connect Discovery 1.0 section 4), then the keys at
// the URL that the metadata name.
func (k *IssuerKeys) fetch(issuer string) (*keySet, error) {
	var metadata struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := k.get(strings.TrimSuffix(issuer, "/")+"/.well-known/openid-configuration", &metadata); err != nil {
		return nil, fmt.Errorf("fetch metadata: %w", err)
	}
	if metadata.Issuer != issuer {
		return nil, fmt.Errorf("metadata name the issuer %q", metadata.Issuer)
	}
	if err := CheckIssuerURL(metadata.Keys); err != nil {
		return nil, fmt.Errorf("metadata: jwks_uri %q: %w", metadata.Keys, err)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := k.get(metadata.Keys, &set); err != nil {
		return nil, fmt.Errorf("fetch keys: %w", err)
	}
	var keys []jose.JSONWebKey
	for _, text := range set.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(text) == nil && canVerify(key) { // skip unknown kinds (RFC 7517 section 5)
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("fetch keys: none can verify tokens")
	}
	return &keySet{keys}, nil
}

// canVerify reports whether tokens may be verified with a published key. A secret key is
// refused, because every reader of a published secret could sign with it.
func canVerify(key jose.JSONWebKey) bool {
	if !key.IsPublic() || key.Use != "" && key.Use != "sig" {
		return false
	}
	public, isRSA := key.Key.(*rsa.PublicKey)
	return !isRSA || public.N.BitLen() >= minRSABits
}

// get reads a JSON document into a value.
func (k *IssuerKeys) get(url string, into any) error {
	ctx, cancel := context.WithTimeout(k.ctx, keysFetchTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	response, err := k.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", url, response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxIssuerBody))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: not JSON of at most %d bytes: %w", url, maxIssuerBody, err)
	}
	return nil
}
