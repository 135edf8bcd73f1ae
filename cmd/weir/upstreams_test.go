package main

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/testservers"
)

func TestOnlyThePublicAPIHasPlainNamesInRedis(t *testing.T) {
	names := map[string]string{}
	for _, api := range []string{
		"https://api.github.com", "https://github.example.com/api/v3", "http://localhost:3000", "http://localhost:3001", "http://localhost:3000/base", "https://api.github.com:8443",
	} {
		cfg := configure(api)
		cfg.Upstream.Dialect = "github"
		name := ledgerName(cfg)
		other, known := names[name]
		failIf(t, known || (name == "") != (api == "https://api.github.com"), "%s has the name %q, as %q", api, name, other)
		names[name] = api
		for _, same := range []string{strings.ToUpper(api[:12]) + api[12:], api + "/"} {
			cfg.Upstream.URL = same
			failIf(t, ledgerName(cfg) != name, "%s and %s have different names", api, same)
		}
	}
}

// A gateway with Redis keeps its API until the next start.
func TestReloadKeepsTheAPIOfTheNamesInRedis(t *testing.T) {
	t.Parallel()
	g := open(t, configure(serveAPI(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("first")) }), func(c *config.Config) {
		c.Store.URL = "unix://" + testservers.Redis(t)
	}))
	reloadChanged(t, g, func(c *config.Config) { c.Upstream.URL = "http://127.0.0.1:1" })
	w := sendTo(g, http.MethodGet, "/zen", "")
	failIf(t, w.Code != http.StatusOK, "got %d from another API than that of the ledger", w.Code)
}

// TestUpstreamsOnOneRedisShareNothing starts gateways for two APIs with the same credentials on one Redis. The first API limits
// its account.
func TestUpstreamsOnOneRedisShareNothing(t *testing.T) {
	t.Parallel()
	socket := testservers.Redis(t)
	start := func(limited bool) (g *gateway, calls *atomic.Int32) {
		calls = &atomic.Int32{}
		return open(t, configure(serveAPI(t, func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			w.Header().Set("Cache-Control", "private, max-age=60")
			if limited {
				w.Header().Set("Retry-After", "600")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		}), trusting, func(c *config.Config) {
			c.Store.URL, c.Limits.Wait = "unix://"+socket, time.Second
			c.Webhooks.Secret, c.Webhooks.Fresh = "secret", time.Hour
			c.Credentials = []config.Credential{userToken("ci", "octo-bot", "held-token")}
			c.Clients = []config.Client{clientOf("builds", "gateway-key", "ci")}
		})), calls
	}
	get := func(g *gateway, path string) int {
		w := sendTo(g, http.MethodGet, path, "", "Authorization: Bearer gateway-key")
		if strings.Contains(w.Header().Get("Cache-Status"), "detail=store") { // accounts of a new Redis wait for other replicas
			return 0
		}
		return w.Code
	}
	first, limitErrors := start(true)
	second, calls := start(false)
	testservers.Eventually(t, "the first API limits its account", func(context.Context) bool {
		return get(first, "/user") == http.StatusTooManyRequests && limitErrors.Load() > 0
	})
	testservers.Eventually(t, "the other API responds", func(context.Context) bool {
		code := get(second, "/user")
		stopIf(t, code == http.StatusTooManyRequests, "the other API has the cool-down")
		return code == http.StatusOK
	})
	for _, g := range []*gateway{first, second} {
		testservers.Eventually(t, "each API has one replica", func(context.Context) bool { return g.store.Replicas() == 1 })
	}
	list := must(second.store.Accounts(t.Context(), 100))(t)
	for _, a := range list {
		failIf(t, !a.BlockedUntil.IsZero(), "the other API shows the cool-down of %+v", a)
	}
	// A purge and a webhook of the first API do not concern the other API.
	deliver(first, "X-Service-", "secret", "push", "1", `{"repository": {"full_name": "acme/widgets"}}`)
	first.cache.Purge(t.Context(), "url:/user")
	another := open(t, second.started)
	testservers.Eventually(t, "a response is stored", func(context.Context) bool { return get(second, "/users/a") == http.StatusOK })
	another.cache.Purge(t.Context(), "url:/users/a")
	testservers.Eventually(t, "a later purge of the same API arrives", func(context.Context) bool {
		before := calls.Load()
		return get(second, "/users/a") == http.StatusOK && calls.Load() > before
	})
	before := calls.Load()
	get(second, "/user")
	failIf(t, calls.Load() != before, "a purge of the first API made a response of the other API stale")
}
