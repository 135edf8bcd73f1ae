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
	"github.com/weirgate/weir/internal/installation"
	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/internal/tokenstore"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
)

// held are the credentials of a configuration. What outlives it are custody and mint.
func (g *gateway) held(c *config.Config, upstream *url.URL, dialect *policy.Dialect) []credential.Held {
	issuer := &installation.Issuer{Upstream: upstream, Accept: dialect.MediaType(), Transport: g.transport}
	var list []credential.Held
	for _, h := range c.Credentials {
		held := credential.Held{Name: h.Name, Kind: h.Kind, Account: h.Account, Token: h.Token}
		if h.App.ID != "" {
			app := &installation.App{Upstream: upstream.String(), ID: h.App.ID, Installation: int64(h.App.Installation), Key: h.App.Key, Permissions: h.App.Permissions}
			held.Source = g.mint.Source(h.Name, app, issuer)
			if held.Account == "" { // all tokens of an installation together
				held.Account = "installation:" + strconv.Itoa(h.App.Installation)
			}
		}
		list = append(list, held)
	}
	return list
}

// openMint returns the mint of installation tokens, and where replicas share them: nil
// without a store that they share, or without a key to seal them.
func openMint(cfg *config.Config, log *slog.Logger) (*installation.Mint, *tokenstore.Store, error) {
	if strings.HasPrefix(cfg.Store.URL, "memory:") || cfg.Cache.Key == "" {
		return installation.New(nil, log), nil, nil
	}
	client, err := redisclient.Open(cfg.Store.URL, nil)
	if err != nil {
		return nil, nil, err
	}
	vault, err := tokenstore.New(client, []byte(cfg.Cache.Key.Reveal()))
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return installation.New(vault, log), vault, nil
}

// spending is how one of a client's credentials shows itself to the proxy, which sees
// none.
func spending(who credential.Caller) proxy.Identity {
	purse, class := who.Purse, who.Class
	id := proxy.Identity{
		Caller: who.Caller, Scope: who.Scope, Debug: who.Debug,
		Authorize: func(ctx context.Context, h http.Header) error {
			value, err := purse.Authorization(ctx, class)
			var unusable *credential.Unusable
			if errors.As(err, &unusable) {
				return &proxy.UnusableError{Until: unusable.Until, Cause: err}
			}
			if err == nil {
				h.Set("Authorization", value.Reveal())
			}
			return err
		},
		Heard: func(op *policy.Operation, status int, sent time.Time) {
			purse.Heard(who.Caller, op, status, sent, time.Now())
		},
	}
	if purse.Choice() {
		id.Pick = func(w proxy.Wanted) (proxy.Identity, bool) {
			next, ok := purse.Pick(credential.Wanted(w), time.Now())
			if !ok {
				return proxy.Identity{}, false
			}
			return spending(next), true
		}
		id.Blind = func(w proxy.Wanted, status int, seen bool) {
			purse.Blind(who.Caller, credential.Wanted(w), status, seen, time.Now())
		}
	}
	return id
}
