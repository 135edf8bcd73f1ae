package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/cache/redisstore"
	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/telemetry"
	"github.com/weirgate/weir/internal/tlsauto"
	"github.com/weirgate/weir/internal/webhook"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
	"github.com/weirgate/weir/proxy/inbound"
)

// gateway is the running gateway: what outlives a reload, and what a
// configuration makes of it.
type gateway struct {
	log       *slog.Logger
	telemetry *telemetry.Telemetry
	store     *store
	limiter   *limits.Limiter
	last      proxy.LastRequests
	// Protection against clients.
	connections inbound.Connections
	rateLimiter inbound.RateLimiter
	shedder     inbound.Shedder
	drain       inbound.Drain
	cache       *cache.Store
	shared      *redisstore.Store // its second tier; nil without
	transport   *http.Transport
	// background is what goes on when its client has left.
	background *proxy.Background
	hashKey    []byte
	issuerKeys *credential.IssuerKeys
	reload     func() error
	trail      *admin.Trail
	history    *history.History
	stop       context.CancelFunc
	running    sync.WaitGroup // what stop ends

	credentialHealth *credential.Health
	appTokens        *credential.AppTokens
	sharedTokens     *credential.RedisTokens // where replicas share what it gets; nil without

	began    time.Time
	webhooks *webhook.Receiver
	tls      *tlsauto.Manager // nil where clients come by plain HTTP
	started  *config.Config   // the first that was applied
	current  atomic.Pointer[configured]
	former   former
	adminTLS atomic.Pointer[tls.Config] // nil where the operator comes by plain HTTP
}

// configured is one configuration and the gateway made from it.
type configured struct {
	config   *config.Config
	callers  *credential.Registry
	proxy    *proxy.Gateway
	webhooks http.Handler // nil where none are received
}

// newGateway makes a gateway that logs as log does, and tells of itself as the
// environment asks for; close it.
func newGateway(cfg *config.Config, log *slog.Logger) (*gateway, error) {
	replica := replicaName()
	t, err := telemetry.Open(telemetry.Config{
		ServiceName: cfg.Telemetry.ServiceName, Version: version(), Instance: replica, Sample: cfg.Telemetry.Sample, Log: log,
	})
	if err != nil {
		return nil, err
	}
	g, err := wire(cfg, replica, t, slog.New(t.Logs(log.Handler())))
	if err != nil {
		t.Close()
		return nil, err
	}
	return g, nil
}

// wire puts the parts of a gateway together.
func wire(cfg *config.Config, replica string, t *telemetry.Telemetry, log *slog.Logger) (*gateway, error) {
	store, err := openStore(cfg, replica, log)
	if err != nil {
		return nil, err
	}
	g := &gateway{
		log:       log,
		telemetry: t,
		store:     store,
		limiter:   limits.NewLimiter(store),
		transport: proxy.NewTransport(), background: proxy.NewBackground(),
		hashKey: store.hashKey, issuerKeys: credential.NewIssuerKeys(proxy.NewTransport()), credentialHealth: credential.NewHealth(log),
		reload: func() error { return errors.New("there is no configuration file to read anew") },
		trail:  admin.NewTrail(log), began: time.Now(),
	}
	g.history = history.New(history.Sources{Accounts: store.Accounts, Waiting: g.limiter.Waiting, State: g.state})
	g.webhooks = webhook.NewReceiver(g.changed)
	size, waiting := memoryBudget(debug.SetMemoryLimit(-1), int64(cfg.Cache.Memory))
	if size < int64(cfg.Cache.Memory) {
		log.Warn("the cache is smaller than cache.memory: it has half of GOMEMLIMIT", "bytes", size)
	}
	g.shedder.Configure(waiting)
	g.connections.LimitTotal(mostConnections(descriptors()))
	g.transport.MaxConnsPerHost = mostConnections(descriptors())
	memory := cache.NewMemory(size)
	g.cache = cache.NewStore(memory, nil)
	if g.shared, err = openShared(cfg, memory, log); err != nil {
		g.issuerKeys.Close()
		return nil, errors.Join(err, store.close())
	}
	if g.appTokens, g.sharedTokens, err = openAppTokens(cfg, g.transport, log); err != nil {
		g.issuerKeys.Close()
		if g.shared != nil {
			_ = g.shared.Close() // nothing is in it
		}
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
	if err == nil {
		err = t.Watch(g.watched())
	}
	if err != nil {
		g.close()
		return nil, err
	}
	g.running.Go(func() { g.history.Run(running) })
	return g, nil
}

// watched is what metrics are made from whenever somebody asks for them.
func (g *gateway) watched() telemetry.Sources {
	s := telemetry.Sources{
		Accounts: g.store.Accounts, Waiting: g.limiter.Waiting, Cache: g.cache.Size, Lost: g.store.lost, Replicas: g.store.replicas,
		Quarantined: func() int { return len(g.credentialHealth.Quarantined()) }, Reachable: func() bool { return g.current.Load().proxy.Reachable() },
	}
	if g.tls != nil {
		s.Certificates = g.tls.Expiries
	}
	return s
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
	if err := g.store.leave(); err != nil {
		g.log.Warn("what this replica has set aside is given back in five minutes only", "error", err)
	}
	g.telemetry.Close()
	g.issuerKeys.Close()
	g.appTokens.Close()
	if g.sharedTokens != nil {
		_ = g.sharedTokens.Close() // nothing is lost
	}
	g.transport.CloseIdleConnections()
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
	g.telemetry.Reloaded(err)
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
	callers, err := g.book(c, upstream, dialect)
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
	c = g.inForce(c)
	g.issuerKeys.Keep(issuerURLs(c))
	g.store.configure(limitRules(c))
	g.rateLimiter.Configure(c.Limits.Inbound.Rate, c.Limits.Inbound.Burst)
	maxPerAddress := c.Limits.Inbound.Burst
	if c.Limits.Inbound.Rate == 0 {
		maxPerAddress = 0
	}
	trusted := inbound.TrustedProxies(c.Callers.Networks())
	g.connections.LimitPerAddress(maxPerAddress, trusted)
	next := &configured{config: c, callers: callers, proxy: proxy.New(proxy.Config{
		Upstream: upstream, Timeout: c.Upstream.Timeout, BodyTimeout: c.Limits.Inbound.Body, Catalogue: catalogue, Dialect: dialect,
		Identify:    identify(callers),
		RateLimiter: &g.rateLimiter, Shedder: &g.shedder, Drain: &g.drain, TrustedProxies: trusted, Ledger: g.store, Limiter: g.limiter, Cache: g.cache, Transport: g.transport,
		Wait: c.Limits.Wait, RefusalStatus: c.Limits.RefusalStatus, RateLimitFields: c.Headers.RateLimit != "off",
		Statistics: proxy.Statistics{
			Wait: c.Statistics.Wait, First: c.Statistics.Poll.First, Factor: c.Statistics.Poll.Factor, Max: c.Statistics.Poll.Max, Budget: c.Statistics.Poll.Budget,
		},
		Background: g.background, LastRequests: &g.last, Log: g.log, Tracer: g.telemetry.Tracer(), Observe: g.observer(upstream.Hostname()),
		AccessLog: proxy.AccessLog(c.Telemetry.AccessLog),
	})}
	if c.Webhooks.Secret != "" {
		next.webhooks = g.webhooks.Handler(dialect, []byte(c.Webhooks.Secret.Reveal()))
	}
	if before := g.current.Swap(next); before != nil {
		g.former.add(before.proxy)
	}
	g.credentialHealth.Keep(callers)
	return nil
}

// observer tells telemetry and the history of each request that has ended.
func (g *gateway) observer(host string) func(*proxy.Record) {
	measure := g.telemetry.Observer(host)
	if measure == nil {
		return g.history.Observe
	}
	return func(r *proxy.Record) {
		measure(r)
		g.history.Observe(r)
	}
}

// inForce is a configuration without the changes that wait for the next start, of which the
// log is told.
func (g *gateway) inForce(c *config.Config) *config.Config {
	now, was := *c, g.started
	waits := map[string]bool{
		"listen": keep(&now.Listen, was.Listen), "admin.listen": keep(&now.Admin.Listen, was.Admin.Listen),
		"store.url": keep(&now.Store.URL, was.Store.URL), "limits.on_store_loss": keep(&now.Limits.OnStoreLoss, was.Limits.OnStoreLoss),
		"admin.token": keep(&now.Admin.Token, was.Admin.Token), "admin.hosts": !slices.Equal(was.Admin.Hosts, c.Admin.Hosts),
		"admin.tls":    was.Admin.TLS.Enabled() != c.Admin.TLS.Enabled() || (was.Admin.TLS.ClientCA == "") != (c.Admin.TLS.ClientCA == ""),
		"cache.memory": keep(&now.Cache.Memory, was.Cache.Memory),
		"cache.key":    keep(&now.Cache.Key, was.Cache.Key),
		"telemetry":    keep(&now.Telemetry, was.Telemetry),
		"tls":          was.TLS.Enabled() != c.TLS.Enabled(),
	}
	now.Admin.Hosts = was.Admin.Hosts
	if waits["admin.tls"] {
		now.Admin.TLS = was.Admin.TLS
	}
	if waits["tls"] {
		now.TLS = was.TLS
	}
	waits["tls.http"], waits["tls.email"] = keep(&now.TLS.HTTP, was.TLS.HTTP), keep(&now.TLS.Email, was.TLS.Email)
	waits["tls.ca"], waits["tls.storage"] = keep(&now.TLS.CA, was.TLS.CA), keep(&now.TLS.Storage, was.TLS.Storage)
	for key, changed := range waits {
		if changed {
			g.log.Warn("this change takes effect at the next start", "key", key)
		}
	}
	return &now
}

// keep puts a value back as it was, and reports whether it had changed.
func keep[T comparable](value *T, was T) (changed bool) {
	changed = *value != was
	*value = was
	return changed
}

// ServeHTTP answers with the configuration in force.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.telemetry.RequestStarted(r.Method)
	defer g.telemetry.RequestEnded(r.Method)
	c := g.current.Load()
	if g.drain.Begun() {
		w.Header().Set("Connection", "close") // of webhooks, too
	}
	if c.webhooks != nil && r.URL.Path == c.config.Webhooks.Path {
		c.webhooks.ServeHTTP(w, r)
		return
	}
	c.proxy.ServeHTTP(w, r)
}

// AnswerAtOnce is for the front, before ServeHTTP.
func (g *gateway) AnswerAtOnce(w http.ResponseWriter, r *http.Request) bool {
	c := g.current.Load()
	if c.webhooks != nil && r.URL.Path == c.config.Webhooks.Path {
		return false
	}
	g.telemetry.RequestStarted(r.Method)
	defer g.telemetry.RequestEnded(r.Method)
	return c.proxy.AnswerAtOnce(w, r)
}

// changed makes stale what an event has changed.
func (g *gateway) changed(e webhook.Event) {
	var tags []string
	if !e.OtherBranch { // what is kept of commits is about the default branch
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
		return nil, fmt.Errorf("listen: %w", err)
	}
	operator, err := g.operator(c.Admin)
	if err != nil {
		_ = clients.Close()
		return nil, err
	}
	endpoints, err := g.secure(endpoint{listener: g.connections.Listener(clients, clientPatience, g.log), handler: g, front: g}, c)
	if err != nil {
		return nil, errors.Join(err, clients.Close(), operator.listener.Close())
	}
	g.log.Info("gateway", "address", clients.Addr().String(), "upstream", c.Upstream.URL, "dialect", c.Upstream.Dialect)
	g.log.Info("admin", "address", operator.listener.Addr().String())
	return append(endpoints, operator), nil
}
