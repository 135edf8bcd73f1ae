package credential

import (
	"context"
	"fmt"
	"slices"

	"github.com/weirgate/weir/policy"
)

// TokenMatch says by which tokens a client is known: those of an issuer in which
// each of the claims has a value that its pattern ([policy.Glob]) is made for.
// The zero value stands for none.
type TokenMatch struct {
	Issuer string // its URL
	Claims map[string]string
}

// tokens are clients by their tokens.
type tokens struct {
	issuers   map[string]Issuer // by URL
	published *IssuerKeys
	clients   []tokenClient
}

type tokenClient struct {
	TokenMatch
	Caller
}

func newTokens(issuers []Issuer, published *IssuerKeys) tokens {
	t := tokens{issuers: make(map[string]Issuer, len(issuers)), published: published}
	for _, i := range issuers {
		t.issuers[i.URL] = i
	}
	return t
}

// add takes a client's tokens. Without a claim they would be everybody's of that
// issuer, so they are nobody's.
func (t *tokens) add(token TokenMatch, c Caller) {
	if len(token.Claims) > 0 {
		t.clients = append(t.clients, tokenClient{token, c})
	}
}

// errNobody is the error for a token that is valid and names no client.
var errNobody = fmt.Errorf("%w: its claims are those of no client", ErrInvalidToken)

// caller returns the client that a token names: the first of those whose
// claims it has. A credential is ours when it is a token, and says that it is of an issuer
// that is configured.
func (t *tokens) caller(ctx context.Context, credential string) (c Caller, ours bool, err error) {
	if len(t.issuers) == 0 {
		return Caller{}, false, nil
	}
	url, ok := issuerOf(credential)
	if !ok {
		return Caller{}, false, nil
	}
	by, ours := t.issuers[url]
	if !ours {
		return Caller{}, false, nil
	}
	claims, err := t.published.Verify(ctx, by, credential)
	if err != nil {
		return Caller{}, true, fmt.Errorf("issuer %s: %w", url, err)
	}
	for _, client := range t.clients {
		if client.Issuer == url && client.fits(claims) {
			return client.Caller, true, nil
		}
	}
	return Caller{}, true, errNobody
}

func (t TokenMatch) fits(claims jwtClaims) bool {
	for name, pattern := range t.Claims {
		if !slices.ContainsFunc(claims.values(name), func(value string) bool { return policy.Glob(pattern, value) }) {
			return false
		}
	}
	return true
}
