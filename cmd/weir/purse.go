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

// held are the credentials of a configuration. What outlives it are custody and mint.
func (g *gateway) held(c *config.Config, upstream *url.URL, dialect *policy.Dialect) []credential.Held {
	issuer := &credential.TokenEndpoint{Upstream: upstream, Accept: dialect.MediaType(), Transport: g.transport}
	var list []credential.Held
	for _, h := range c.Credentials {
		held := credential.Held{Name: h.Name, Kind: h.Kind, Account: h.Account, Token: h.Token}
		if h.App.ID != "" {
			app := &credential.App{Upstream: upstream.String(), ID: h.App.ID, Installation: int64(h.App.Installation), Key: h.App.Key, Permissions: h.App.Permissions}
			held.Source = g.appTokens.Source(h.Name, app, issuer)
			if held.Account == "" { // all tokens of an installation together
				held.Account = "installation:" + strconv.Itoa(h.App.Installation)
			}
		}
		list = append(list, held)
	}
	return list
}

// openAppTokens returns the mint of installation tokens, and where replicas share them: nil
// without a store that they share, or without a key to seal them.
func openAppTokens(cfg *config.Config, log *slog.Logger) (*credential.AppTokens, *credential.RedisTokens, error) {
	if strings.HasPrefix(cfg.Store.URL, "memory:") || cfg.Cache.Key == "" {
		return credential.NewAppTokens(nil, log), nil, nil
	}
	client, err := redisclient.Open(cfg.Store.URL, nil)
	if err != nil {
		return nil, nil, err
	}
	vault, err := credential.NewRedisTokens(client, []byte(cfg.Cache.Key.Reveal()))
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return credential.NewAppTokens(vault, log), vault, nil
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
	if pool.Choice() {
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
