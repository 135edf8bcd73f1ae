package credential

import (
	"context"
	"fmt"
	"slices"

	"github.com/weirgate/weir/internal/issuer"
	"github.com/weirgate/weir/policy"
)

// Token says by which tokens a client is known: those of an issuer in which
// each of the claims has a value that its pattern ([policy.Glob]) is made for.
// The zero value stands for none.
type Token struct {
	Issuer string // its URL
	Claims map[string]string
}

// tokens are clients by their tokens.
type tokens struct {
	issuers   map[string]issuer.Issuer // by URL
	published *issuer.Keys
	clients   []tokenClient
}

type tokenClient struct {
	Token
	Caller
}

func newTokens(issuers []issuer.Issuer, published *issuer.Keys) tokens {
	t := tokens{issuers: make(map[string]issuer.Issuer, len(issuers)), published: published}
	for _, i := range issuers {
		t.issuers[i.URL] = i
	}
	return t
}

// add takes a client's tokens. Without a claim they would be everybody's of that
// issuer, so they are nobody's.
func (t *tokens) add(token Token, c Caller) {
	if len(token.Claims) > 0 {
		t.clients = append(t.clients, tokenClient{token, c})
	}
}

// errNobody is the error for a token that is valid and names no client.
var errNobody = fmt.Errorf("%w: its claims are those of no client", ErrToken)

// caller returns the client that a token names: the first of those whose
// claims it has. A credential is ours when it is a token, and says that it is of an issuer
// that is configured.
func (t *tokens) caller(ctx context.Context, credential string) (c Caller, ours bool, err error) {
	if len(t.issuers) == 0 {
		return Caller{}, false, nil
	}
	url, ok := issuer.Of(credential)
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

func (t Token) fits(claims issuer.Claims) bool {
	for name, pattern := range t.Claims {
		if !slices.ContainsFunc(claims.Texts(name), func(value string) bool { return policy.Glob(pattern, value) }) {
			return false
		}
	}
	return true
}
