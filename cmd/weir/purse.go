package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
)

// held returns the held credentials of a configuration.
func (g *gateway) held(c *config.Config, upstream *url.URL, dialect *policy.Dialect) []credential.Held {
	var list []credential.Held
	for _, h := range c.Credentials {
		held := credential.Held{Name: h.Name, Kind: h.Kind, Account: h.Account, Token: h.Token}
		if h.App.ID != "" {
			held.Source = g.appTokens.Source(h.Name, &credential.App{
				Upstream: upstream, Accept: dialect.MediaType(), ID: h.App.ID, Installation: int64(h.App.Installation),
				Key: h.App.Key, Permissions: h.App.Permissions,
			})
			if held.Account == "" { // all tokens of an installation together
				held.Account = "installation:" + strconv.Itoa(h.App.Installation)
			}
		}
		list = append(list, held)
	}
	return list
}

// openAppTokens returns the cache of installation tokens and the store that replicas share. The
// store is nil without Redis, or without a key to seal tokens with.
func openAppTokens(cfg *config.Config, transport http.RoundTripper, log *slog.Logger) (*credential.AppTokens, *credential.RedisTokens, error) {
	if strings.HasPrefix(cfg.Store.URL, "memory:") || cfg.Cache.Key == "" {
		return credential.NewAppTokens(transport, nil, log), nil, nil
	}
	client, err := redisclient.Open(cfg.Store.URL, nil)
	if err != nil {
		return nil, nil, err
	}
	store, err := credential.NewRedisTokens(client, []byte(cfg.Cache.Key.Reveal()))
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return credential.NewAppTokens(transport, store, log), store, nil
}

// spending is how one of a client's credentials shows itself to the proxy, which sees
// none.
func spending(who credential.Caller) proxy.Identity {
	pool, class := who.Pool, who.Class
	id := proxy.Identity{
		Caller: who.Caller, Scope: who.Scope, Debug: who.Debug,
		Authorize: func(ctx context.Context, h http.Header) error {
			value, err := pool.Authorization(ctx, class)
			var unusable *credential.UnusableError
			if errors.As(err, &unusable) {
				return &proxy.UnusableError{Until: unusable.Until, Cause: err}
			}
			if err == nil {
				h.Set("Authorization", value.Reveal())
			}
			return err
		},
		OnResponse: func(op *policy.Operation, status int, sent time.Time) {
			pool.OnResponse(who.Caller, op, status, sent, time.Now())
		},
	}
	if pool.HasChoice() {
		id.Pick = func(w proxy.CredentialRequest) (proxy.Identity, bool) {
			next, ok := pool.Pick(credential.Request(w), time.Now())
			if !ok {
				return proxy.Identity{}, false
			}
			return spending(next), true
		}
		id.OnHidden = func(w proxy.CredentialRequest, status int, seen bool) {
			pool.OnHidden(who.Caller, credential.Request(w), status, seen, time.Now())
		}
	}
	return id
}
