package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy/caller"
	"github.com/weirgate/weir/proxy/inbound"
)

// registry returns the clients and credentials of a configuration. The configuration is valid, so an error reports that
// a file has changed since the check.
func (g *gateway) registry(c *config.Config, upstream *url.URL, dialect *policy.Dialect) (*credential.Registry, error) {
	keys := g.hashKeys.Load()
	r := credential.Config{
		Dialect: dialect, Egress: c.Upstream.Egress, PassThrough: c.Callers.PassThrough,
		HashKey: keys.current, FormerHashKey: keys.former, Issuers: c.Issuers, IssuerKeys: g.issuerKeys, Held: heldCredentials(g.appTokens, c, upstream, dialect), Health: g.credentialHealth,
	}
	if lent := c.Callers.Anonymous; lent.Credential != "" {
		r.Lent = &credential.Client{ // yields to clients with a key
			Name: config.AnonymousClient, Credentials: []string{lent.Credential}, Share: 1, Limit: lentLimit, Priority: policy.Batch,
			Scope: &policy.Scope{Methods: []string{http.MethodGet}, Operations: lent.Operations},
		}
	}
	for _, g := range c.Groups {
		r.Groups = append(r.Groups, policy.ClientBudget{Client: g.Name, Guarantee: g.Guarantee, Limit: g.Limit})
	}
	for _, entry := range c.Clients {
		client := credential.Client{
			Name: entry.Name, Group: entry.Group, Credentials: entry.Credentials, Share: entry.Share, Debug: entry.Debug, RefusalStatus: entry.RefusalStatus,
			Priority: policy.Priority(entry.Priority), Guarantee: entry.GuaranteedPart(), Limit: entry.Limit, TagLimit: entry.TagLimit,
			Token: entry.JWT, Scope: entry.Scope(),
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
func openAppTokens(cfg *config.Config, client redisclient.Client, transport http.RoundTripper, log *slog.Logger) (*credential.AppTokens, error) {
	if client == nil || cfg.Cache.Key == "" {
		return credential.NewAppTokens(transport, nil, log), nil
	}
	shared, err := credential.NewRedisTokens(client, []byte(cfg.Cache.Key.Reveal()))
	if err != nil {
		return nil, err
	}
	return credential.NewAppTokens(transport, shared, log), nil
}

// identify returns the proxy's Identify function. A program in a tunnel may send an Authorization value that only the program
// has, and the credential of the tunnel then identifies its client.
func identify(registry *credential.Registry, canonical func(string) string) func(*http.Request) (*caller.Identity, error) {
	return func(r *http.Request) (*caller.Identity, error) {
		sent := r.Header["Authorization"]
		tunnel, _ := inbound.TunnelOf(r.Context())
		if tunnel.Authorize == nil || !registry.HasOtherScheme(sent) {
			id, err := registry.Identify(r)
			if err != nil {
				return nil, err
			}
			return registry.Divided(id, canonical), nil
		}
		alone := (&http.Request{Header: http.Header{}}).WithContext(r.Context())
		tunnel.Authorize(alone.Header)
		client, err := registry.Identify(alone)
		if err != nil {
			return nil, err
		}
		return registry.WithOtherScheme(client, sent[0])
	}
}
