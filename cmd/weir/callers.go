package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
)

// book is who may call. Its errors are of values that were checked with the
// file, and of files that have changed since.
func (g *gateway) book(c *config.Config, upstream *url.URL, dialect *policy.Dialect) (*credential.Registry, error) {
	b := credential.Config{
		Dialect: dialect, Egress: c.Upstream.Egress, PassThrough: c.Callers.PassThrough, HashKey: g.hashKey, IssuerKeys: g.issuerKeys,
		Held: g.held(c, upstream, dialect), Health: g.credentialHealth,
	}
	urls := map[string]string{}
	for _, i := range c.Issuers {
		urls[i.Name] = i.URL
		b.Issuers = append(b.Issuers, credential.Issuer{URL: i.URL, Audiences: i.Audiences, Algorithms: i.Algorithms, Skew: i.Skew})
	}
	for _, entry := range c.Clients {
		client, err := clientOf(entry, urls)
		if err != nil {
			return nil, fmt.Errorf("client %s: %w", entry.Name, err)
		}
		b.Clients = append(b.Clients, client)
	}
	var err error
	if b.Authorities, err = c.TLS.Authorities(); err != nil {
		return nil, fmt.Errorf("tls.client_ca: %w", err)
	}
	return credential.NewRegistry(b), nil
}

// issuerURLs are those whose keys are worth keeping.
func issuerURLs(c *config.Config) []string {
	urls := make([]string, len(c.Issuers))
	for i, entry := range c.Issuers {
		urls[i] = entry.URL
	}
	return urls
}

// clientOf is a client as the book knows it; issuers are URLs by name.
func clientOf(c config.Client, issuers map[string]string) (credential.Client, error) {
	known := credential.Client{
		Name: c.Name, Credentials: c.Credentials, Share: c.Share, Priority: policy.Priority(c.Priority), Debug: c.Debug,
		Token: credential.TokenMatch{Issuer: issuers[c.JWT.Issuer], Claims: c.JWT.Claims},
		Scope: &policy.Scope{Methods: c.Methods, Operations: c.Operations},
	}
	if c.Key != "" {
		sum, err := hex.DecodeString(strings.TrimPrefix(c.Key, "sha256:"))
		if err != nil || len(sum) != sha256.Size {
			return known, errors.New("its key is no SHA-256")
		}
		known.Key = [sha256.Size]byte(sum)
	}
	if c.Certificate == "" {
		return known, nil
	}
	var err error
	known.Certificate, err = credential.ParseCertificate(c.Certificate)
	return known, err
}

// identify shows the proxy no credential, only how to put one on a request.
func identify(b *credential.Registry) func(*http.Request) (proxy.Identity, error) {
	return func(r *http.Request) (proxy.Identity, error) {
		who, err := b.Identify(r)
		switch {
		case errors.Is(err, credential.ErrIssuerUnavailable):
			return proxy.Identity{}, fmt.Errorf("%w: %w", proxy.ErrIdentityUnavailable, err)
		case err != nil && r.Context().Err() != nil:
			return proxy.Identity{}, err
		case err != nil:
			return proxy.Identity{}, fmt.Errorf("%w: %w", proxy.ErrUnauthenticated, err)
		}
		if who.Pool != nil {
			return spending(who), nil
		}
		id := proxy.Identity{Caller: who.Caller, Scope: who.Scope}
		if authorization := who.Authorization; authorization != "" {
			id.AuthorizeIsLocal = true
			id.Authorize = func(_ context.Context, h http.Header) error {
				h.Set("Authorization", authorization.Reveal())
				return nil
			}
		}
		return id, nil
	}
}
