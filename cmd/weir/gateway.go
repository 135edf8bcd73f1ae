package main

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/cache/redisstore"
	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/issuer"
	"github.com/weirgate/weir/internal/tlsauto"
	"github.com/weirgate/weir/internal/webhook"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
)

// gateway is the running gateway: what outlives a reload, and what a
// configuration makes of it.
type gateway struct {
	log       *slog.Logger
	store     *store
	limiter   *limits.Limiter
	inbound   proxy.Inbound
	cache     *cache.Store
	shared    *redisstore.Store // its second tier; nil without
	transport *http.Transport
	// background is what goes on when its client has left.
	background *proxy.Background
	hashKey    []byte
	issuers    *issuer.Keys
	reload     func() error
	trail      *admin.Trail
	stop       context.CancelFunc
	running    sync.WaitGroup // what stop ends

	webhooks *webhook.Receiver
	tls      *tlsauto.Manager // nil where clients come by plain HTTP
	started  *config.Config   // the first that was applied
	current  atomic.Pointer[configured]
	adminTLS atomic.Pointer[tls.Config] // nil where the operator comes by plain HTTP
}

// configured is one configuration and the gateway made from it.
type configured struct {
	config   *config.Config
	callers  *credential.Book
	proxy    *proxy.Gateway
	webhooks http.Handler // nil where none are received
}

// newGateway wires a gateway; close it.
func newGateway(cfg *config.Config, log *slog.Logger) (*gateway, error) {
	store, err := openStore(cfg, log)
	if err != nil {
		return nil, err
	}
	g := &gateway{
		log:       log,
		store:     store,
		limiter:   limits.NewLimiter(store),
		transport: proxy.NewTransport(), background: proxy.NewBackground(),
		hashKey: store.hashKey, issuers: issuer.NewKeys(proxy.NewTransport()),
		reload: func() error { return errors.New("there is no configuration file to read anew") },
		trail:  admin.NewTrail(log),
	}
	g.webhooks = webhook.NewReceiver(g.changed)
	memory := cache.NewMemory(int64(cfg.Cache.Memory))
	g.cache = cache.NewStore(memory, nil)
	if g.shared, err = openShared(cfg, memory, log); err != nil {
		g.cache.Close()
		g.issuers.Close()
		return nil, errors.Join(err, store.close())
	}
	running, stop := context.WithCancel(context.Background())
	if g.shared != nil {
		g.cache = cache.NewStore(memory, g.shared)
		g.running.Go(func() { g.shared.Run(running) })
	}
	g.stop = stop
	g.running.Go(func() { g.limiter.Run(running) })
	g.running.Go(func() { store.run(running) })
	if g.tls, err = openTLS(cfg, log); err == nil {
		err = g.apply(cfg)
	}
	if err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// limitRules are the limits that the configuration asks to keep.
func limitRules(c *config.Config) limits.Rules {
	return limits.Rules{Limits: c.Limits.Limits, Headroom: c.Limits.Headroom, ColdStart: c.Limits.ColdStart}
}

func (g *gateway) close() {
	if g.tls != nil {
		if err := g.tls.Close(); err != nil {
			g.log.Error("what certificates are kept in was not closed", "error", err)
		}
	}
	g.background.Close()
	g.stop()
	g.running.Wait()
	g.issuers.Close()
	g.transport.CloseIdleConnections()
	g.cache.Close()
	if g.shared != nil {
		_ = g.shared.Close() // nothing is lost
	}
	if err := g.store.close(); err != nil {
		g.log.Error("the store was not closed", "error", err)
	}
}

// take applies a configuration that was read anew; an invalid one leaves
// everything as it was, and says so.
func (g *gateway) take(c *config.Config, err error) error {
	if err == nil {
		err = g.apply(c)
	}
	if err != nil {
		g.log.Error("the new configuration is not used; the old one stays", "error", err)
		return err
	}
	g.log.Info("the new configuration is in force")
	return nil
}

// apply makes a gateway from a configuration and puts it in the place of the
// old one. Ledger, cache, connections and what addresses have sent stay.
func (g *gateway) apply(c *config.Config) error {
	upstream, err := url.Parse(c.Upstream.URL)
	if err != nil {
		return err
	}
	dialect, err := policy.LoadDialect(c.Upstream.Dialect)
	if err != nil {
		return err
	}
	catalogue, err := c.Catalogue()
	if err != nil {
		return err
	}
	callers, err := book(c, dialect, g.hashKey, g.issuers)
	if err != nil {
		return err
	}
	if g.started == nil {
		g.started = c
	} else if err := g.changeTLS(c); err != nil {
		return err
	}
	if err := g.changeAdminTLS(c.Admin); err != nil {
		return err
	}
	g.fixed(g.started, c)
	g.issuers.Keep(issuerURLs(c))
	g.store.configure(limitRules(c))
	g.inbound.Configure(c.Limits.Inbound.Rate, c.Limits.Inbound.Burst)
	next := &configured{config: c, callers: callers, proxy: proxy.New(proxy.Config{
		Upstream: upstream, Timeout: c.Upstream.Timeout, Catalogue: catalogue, Dialect: dialect,
		Identify: identify(callers),
		Inbound:  &g.inbound, Ledger: g.store, Limiter: g.limiter, Cache: g.cache, Transport: g.transport,
		Wait: c.Limits.Wait, RefusalStatus: c.Limits.RefusalStatus, RateLimitFields: c.Headers.RateLimit != "off",
		Statistics: proxy.Statistics{
			Wait: c.Statistics.Wait, First: c.Statistics.Poll.First, Factor: c.Statistics.Poll.Factor, Max: c.Statistics.Poll.Max, Budget: c.Statistics.Poll.Budget,
		},
		Background: g.background, Log: g.log,
	})}
	if c.Webhooks.Secret != "" {
		next.webhooks = g.webhooks.Handler(dialect, []byte(c.Webhooks.Secret.Reveal()))
	}
	g.current.Store(next)
	return nil
}

// fixed says which changes wait for the next start.
func (g *gateway) fixed(started, c *config.Config) {
	waits := map[string]bool{
		"listen": started.Listen != c.Listen, "admin.listen": started.Admin.Listen != c.Admin.Listen,
		"store.url": started.Store.URL != c.Store.URL, "limits.on_store_loss": started.Limits.OnStoreLoss != c.Limits.OnStoreLoss,
		"admin.token": !started.Admin.Token.Equal(c.Admin.Token), "admin.hosts": !slices.Equal(started.Admin.Hosts, c.Admin.Hosts),
		"admin.tls":    started.Admin.TLS.Enabled() != c.Admin.TLS.Enabled() || (started.Admin.TLS.ClientCA == "") != (c.Admin.TLS.ClientCA == ""),
		"cache.memory": started.Cache.Memory != c.Cache.Memory,
		"cache.key":    started.Cache.Key != c.Cache.Key,
	}
	maps.Copy(waits, tlsFixed(started, c))
	for key, changed := range waits {
		if changed {
			g.log.Warn("this change takes effect at the next start", "key", key)
		}
	}
}

// ServeHTTP answers with the configuration in force.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := g.current.Load()
	if c.webhooks != nil && r.URL.Path == c.config.Webhooks.Path {
		c.webhooks.ServeHTTP(w, r)
		return
	}
	c.proxy.ServeHTTP(w, r)
}

// changed makes stale what an event has changed.
func (g *gateway) changed(e webhook.Event) {
	var tags []string
	if !e.Aside { // what is kept of commits is about the default branch
		tags = g.current.Load().proxy.TagsOfEvent(e.Name, e.Repository, e.Organization)
	}
	if len(tags) > 0 {
		g.cache.Purge(context.Background(), tags...)
	}
	g.log.Info("webhook", "event", e.Name, "delivery", e.Delivery, "repository", e.Repository, "organization", e.Organization, "tags", len(tags))
}

// listen opens the listeners; the first is the clients', the last the operator's.
func (g *gateway) listen() ([]endpoint, error) {
	c := g.current.Load().config
	clients, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, err
	}
	operator, err := g.operator(c.Admin)
	if err != nil {
		_ = clients.Close()
		return nil, err
	}
	endpoints, err := g.secure(endpoint{listener: clients, handler: g}, c)
	if err != nil {
		return nil, errors.Join(err, clients.Close(), operator.listener.Close())
	}
	g.log.Info("gateway", "address", clients.Addr().String(), "upstream", c.Upstream.URL, "dialect", c.Upstream.Dialect)
	g.log.Info("admin", "address", operator.listener.Addr().String())
	return append(endpoints, operator), nil
}
