package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
)

// registry returns the clients and credentials of a configuration. The configuration is valid, so an error reports that
// a file has changed since the check.
func (g *gateway) registry(c *config.Config, upstream *url.URL, dialect *policy.Dialect) (*credential.Registry, error) {
	keys := g.hashKeys.Load()
	r := credential.Config{
		Dialect: dialect, Egress: c.Upstream.Egress, PassThrough: c.Callers.PassThrough,
		HashKey: keys.current, FormerHashKey: keys.former, IssuerKeys: g.issuerKeys, Held: heldCredentials(g.appTokens, c, upstream, dialect), Health: g.credentialHealth,
	}
	if lent := c.Callers.Anonymous; lent.Credential != "" {
		r.Lent = &credential.Client{ // yields to clients with a key
			Name: config.AnonymousClient, Credentials: []string{lent.Credential}, Share: 1, Limit: lentLimit, Priority: policy.Batch,
			Scope: &policy.Scope{Methods: []string{http.MethodGet}, Operations: lent.Operations},
		}
	}
	issuerURLs := map[string]string{}
	for _, i := range c.Issuers {
		issuerURLs[i.Name] = i.URL
		r.Issuers = append(r.Issuers, credential.Issuer{URL: i.URL, Audiences: i.Audiences, Algorithms: i.Algorithms, Skew: i.Skew})
	}
	for _, g := range c.Groups {
		r.Groups = append(r.Groups, policy.ClientBudget{Client: g.Name, Guarantee: g.Guarantee, Limit: g.Limit})
	}
	for _, entry := range c.Clients {
		client := credential.Client{
			Name: entry.Name, Group: entry.Group, Credentials: entry.Credentials, Share: entry.Share, Debug: entry.Debug, RefusalStatus: entry.RefusalStatus,
			Priority: policy.Priority(entry.Priority), Guarantee: entry.GuaranteedPart(), Limit: entry.Limit, TagLimit: entry.TagLimit,
			Token: credential.TokenMatch{Issuer: issuerURLs[entry.JWT.Issuer], Claims: entry.JWT.Claims, Tag: entry.JWT.Tag, Repositories: entry.JWT.Repositories},
			Scope: entry.Scope(),
		}
		if entry.Key != "" {
			sum, err := hex.DecodeString(strings.TrimPrefix(entry.Key, "sha256:"))
			if err != nil || len(sum) != sha256.Size {
				return nil, fmt.Errorf("client %s: key is not a SHA-256 hash", entry.Name)
			}
			client.Key = [sha256.Size]byte(sum)
		}
		if entry.Certificate != "" {
			var err error
			if client.Certificate, err = credential.ParseCertificate(entry.Certificate); err != nil {
				return nil, fmt.Errorf("client %s: %w", entry.Name, err)
			}
		}
		r.Clients = append(r.Clients, client)
	}
	var err error
	if r.Authorities, err = c.TLS.Authorities(); err != nil {
		return nil, fmt.Errorf("tls.client_ca: %w", err)
	}
	return credential.NewRegistry(r), nil
}

// lentLimit is the part of each primary window that all anonymous clients together may use of a credential that other
// clients use, too. It is the default of a client.
const lentLimit = 0.9

// heldCredentials returns the upstream credentials that the gateway holds. Apps take their tokens from appTokens.
func heldCredentials(appTokens *credential.AppTokens, c *config.Config, upstream *url.URL, dialect *policy.Dialect) []credential.Held {
	var list []credential.Held
	for _, entry := range c.Credentials {
		held := credential.Held{Name: entry.Name, Kind: entry.Kind, Account: entry.Account, Token: entry.Token}
		if entry.App.ID != "" {
			held.Source = appTokens.Source(entry.Name, &credential.App{
				Upstream: upstream, Accept: dialect.MediaType(), ID: entry.App.ID, Installation: int64(entry.App.Installation),
				Key: entry.App.Key, Permissions: entry.App.Permissions,
			})
			if held.Account == "" { // all tokens of an installation share one account
				held.Account = credential.AccountOfInstallation(int64(entry.App.Installation))
			}
		}
		list = append(list, held)
	}
	return list
}

// openAppTokens returns the source of installation tokens, which replicas share in Redis. Without Redis or an encryption key each
// replica has its own.
func openAppTokens(cfg *config.Config, client redis.UniversalClient, transport http.RoundTripper, log *slog.Logger) (*credential.AppTokens, error) {
	if client == nil || cfg.Cache.Key == "" {
		return credential.NewAppTokens(transport, nil, log), nil
	}
	shared, err := credential.NewRedisTokens(client, []byte(cfg.Cache.Key.Reveal()))
	if err != nil {
		return nil, err
	}
	return credential.NewAppTokens(transport, shared, log), nil
}

// otherScheme is the key of the Authorization value of a program in a tunnel, if only the program has the credential.
type otherScheme struct{}

// identify returns the proxy's Identify function. The proxy sees no credential: an Identity has only a function that
// adds the credential to a request.
func identify(registry *credential.Registry) func(*http.Request) (proxy.Identity, error) {
	return func(r *http.Request) (proxy.Identity, error) {
		caller, err := registry.Identify(r)
		if value, ok := r.Context().Value(otherScheme{}).(string); ok && err == nil {
			caller, err = registry.WithOtherScheme(caller, value)
		}
		switch {
		case errors.Is(err, credential.ErrIssuerUnavailable):
			return proxy.Identity{}, fmt.Errorf("%w: %w", proxy.ErrIdentityUnavailable, err)
		case err != nil && r.Context().Err() != nil:
			return proxy.Identity{}, err
		case err != nil:
			return proxy.Identity{}, fmt.Errorf("%w: %w", proxy.ErrUnauthenticated, err)
		}
		if caller.Pool != nil {
			return pooledIdentity(caller), nil
		}
		id := proxy.Identity{
			Caller: caller.Caller, FormerAccount: caller.FormerAccount, Scope: caller.Scope, LentOnly: caller.LentOnly,
			Debug: caller.Debug, RefusalStatus: caller.RefusalStatus, Tag: caller.Tag, TagFromClaim: caller.TagFromClaim,
		}
		if caller.Lent != nil {
			lent := pooledIdentity(*caller.Lent)
			id.Lent = &lent
		}
		if authorization := caller.Authorization; authorization != "" {
			id.Authorize = func(_ context.Context, h http.Header) error {
				h.Set("Authorization", authorization.Reveal())
				return nil
			}
		}
		return id, nil
	}
}

// pooledIdentity returns the identity of a client with one credential of its pool.
func pooledIdentity(caller credential.Caller) proxy.Identity {
	pool := caller.Pool
	id := proxy.Identity{
		Caller: caller.Caller, Held: true, Scope: caller.Scope, Debug: caller.Debug, RefusalStatus: caller.RefusalStatus,
		Tag: caller.Tag, TagFromClaim: caller.TagFromClaim,
		Credential: heldCredential{pool, caller.Class},
	}
	if pool.HasChoice() {
		id.Pool = choice{caller}
	}
	return id
}

// choice implements [proxy.CredentialPool] for a client with several credentials.
type choice struct{ caller credential.Caller }

// Pick implements [proxy.CredentialPool].
func (c choice) Pick(r policy.CredentialRequest) (proxy.Identity, bool) {
	next, ok := c.caller.Pool.Pick(r, time.Now())
	if !ok {
		return proxy.Identity{}, false
	}
	return pooledIdentity(next), true
}

// OnHidden implements [proxy.CredentialPool].
func (c choice) OnHidden(r policy.CredentialRequest, status int, visible bool) {
	c.caller.Pool.OnHidden(c.caller.Caller, r, status, visible, time.Now())
}

// heldCredential is one credential of a pool.
type heldCredential struct {
	pool  *credential.Pool
	class string
}

// Await implements [proxy.HeldCredential].
func (c heldCredential) Await(ctx context.Context, by time.Time, use policy.CredentialUse) error {
	return c.pool.Await(ctx, by, c.class, use)
}

// Authorize implements [proxy.HeldCredential].
func (c heldCredential) Authorize(h http.Header, use policy.CredentialUse) (proxy.SentCredential, error) {
	sent, err := c.pool.Begin(c.class, use)
	if err != nil {
		return nil, err
	}
	h.Set("Authorization", sent.Authorization.Reveal())
	return sent, nil
}
