// Package issuer verifies the tokens (JWT, RFC 7519) by which clients show who
// they are, against the keys that their issuer publishes (OpenID Connect
// Discovery 1.0, RFC 7517).
//
// Invariants:
//   - A token counts only with a signature by a published key of the very
//     issuer that it names, an algorithm and an audience that the
//     configuration names, and an end that has not passed. "none" and HMAC are
//     no algorithms.
//   - Whatever tokens say, an issuer is asked once in ten seconds at most, by
//     one request at a time, each with a fetchTimeout and a bound on its answer.
//   - A token stands in no error.
//
// It does not say what a token's holder may do, and keeps no tokens.
package credential

import (
	"context"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Issuer is one whose tokens count.
type Issuer struct {
	// URL is its identifier: the tokens' iss, to the letter, and where its
	// metadata are found.
	URL string
	// Audiences are names of this gateway; a token is for one of them.
	Audiences []string
	// Algorithms are those of [SigningAlgorithms] by which it may sign.
	Algorithms []string
	// Skew is how far its clock may be off.
	Skew time.Duration
}

// Errors of [IssuerKeys.Verify].
var (
	ErrInvalidToken      = errors.New("the token is not accepted")
	ErrIssuerUnavailable = errors.New("the issuer's keys cannot be had")
)

// SigningAlgorithms returns the names of the signatures that can be checked, all of
// them with public keys (RFC 7518 section 3.1, RFC 8037).
func SigningAlgorithms() []string {
	return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
}

// CheckIssuerURL says what is wrong with the URL of an issuer, or of its keys: who can
// change them on the way says who the clients are.
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
	return errors.New("must begin with https://, unless it is on this machine")
}

// issuerOf returns the issuer that a token names, whether or not that is true; false
// for what is no token.
func issuerOf(token string) (url string, ok bool) {
	if strings.Count(token, ".") != 2 {
		return "", false
	}
	_, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	text, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return "", false
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(text, &claims) != nil || claims.Issuer == "" {
		return "", false
	}
	return claims.Issuer, true
}

// jwtClaims are what a verified token says.
type jwtClaims map[string]any

// values returns the values of a claim that are texts: one, or those of a list.
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

// Verify returns what a token of an issuer says. It may wait for the issuer's
// keys. The error is an [ErrInvalidToken], an [ErrIssuerUnavailable] or the context's.
func (k *IssuerKeys) Verify(ctx context.Context, i Issuer, token string) (jwtClaims, error) {
	algorithms := make([]jose.SignatureAlgorithm, len(i.Algorithms))
	for n, name := range i.Algorithms {
		algorithms[n] = jose.SignatureAlgorithm(name)
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return nil, fmt.Errorf("%w: it cannot be read, or is signed by another algorithm than %s", ErrInvalidToken, strings.Join(i.Algorithms, ", "))
	}
	keys, err := k.of(ctx, i.URL, parsed.Headers[0])
	if err != nil {
		return nil, err
	}
	var registered jwt.Claims
	claims := jwtClaims{}
	if !slices.ContainsFunc(keys, func(key jose.JSONWebKey) bool { return parsed.Claims(key.Key, &registered, &claims) == nil }) {
		return nil, fmt.Errorf("%w: its signature is not that of the issuer", ErrInvalidToken)
	}
	if err := i.check(registered); err != nil {
		return nil, err
	}
	return claims, nil
}

// check holds the registered claims (RFC 7519 section 4.1) against what the
// issuer must say. There is no default for what a token leaves out: one
// without an end would be a key.
func (i Issuer) check(c jwt.Claims) error {
	if c.Expiry == nil {
		return fmt.Errorf("%w: it has no end (exp)", ErrInvalidToken)
	}
	if err := c.ValidateWithLeeway(jwt.Expected{Issuer: i.URL, Time: time.Now()}, i.Skew); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidToken, err)
	}
	if !slices.ContainsFunc(i.Audiences, c.Audience.Contains) { // jwt.Expected takes no audience for any
		return fmt.Errorf("%w: %w", ErrInvalidToken, jwt.ErrInvalidAudience)
	}
	return nil
}

// keyMatches reports whether a token with this header may be signed by a key. A
// header without a key ID fits a key without one (RFC 7515 section 4.1.4).
func keyMatches(key jose.JSONWebKey, header jose.Header) bool {
	return key.KeyID == header.KeyID && (key.Algorithm == "" || key.Algorithm == header.Algorithm)
}

// minRSA is the shortest modulus, in bits, that may sign (RFC 7518 section 3.3).
const minRSA = 2048

// signs reports whether a published key is one by which tokens are verified.
// Secret ones, by which anybody who knows them signs too, are not.
func signs(key jose.JSONWebKey) bool {
	if !key.IsPublic() || key.Use != "" && key.Use != "sig" {
		return false
	}
	if k, ok := key.Key.(*rsa.PublicKey); ok {
		return k.N.BitLen() >= minRSA
	}
	return true
}
