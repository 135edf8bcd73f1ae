package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/weirgate/weir/cache"
	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/authority"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/internal/history"
	"github.com/weirgate/weir/internal/redisclient"
	"github.com/weirgate/weir/internal/telemetry"
	"github.com/weirgate/weir/internal/tlsauto"
	"github.com/weirgate/weir/internal/webhook"
	"github.com/weirgate/weir/limits"
	"github.com/weirgate/weir/policy"
	"github.com/weirgate/weir/proxy"
	"github.com/weirgate/weir/proxy/inbound"
	"github.com/weirgate/weir/proxy/learned"
	"github.com/weirgate/weir/proxy/tags"
)

// gateway is the gateway process: the parts of it that a reload keeps, and the current
// [proxy.Gateway], which a reload replaces. gateway passes each request to the proxy or to the
// webhook receiver. The field store is the ledger.
type gateway struct {
	log       *slog.Logger
	telemetry *telemetry.Telemetry
	load      func() (*config.Config, error) // loads the configuration again
	trail     *admin.Trail
	history   *history.History
	observer  *telemetry.Observer // of finished requests
	started   *config.Config      // the first configuration; see keepStartSettings
	startTime time.Time
	instance  string // unique name of this process in Via

	// These fields protect the gateway against clients.
	connections      inbound.Connections
	adminConnections inbound.Connections
	rateLimiter      inbound.RateLimiter
	abuse            inbound.RateLimiter // disconnects addresses above twice the rate
	abuseLog         inbound.RateLimiter
	shedder          inbound.Shedder
	drain            inbound.Drain

	store      store
	hashKeys   atomic.Pointer[hashKeys]
	limiter    *limits.Limiter // of store
	unlimited  *limits.Limiter // used instead of limiter if upstream.limits is off
	cache      *cache.Store
	egress     *egress
	transport  *http.Transport   // through egress
	files      *http.Transport   // the same for hosts with files
	background *proxy.Background // work that continues after its client disconnects
	tokens     learned.ClientTokens
	fileTokens learned.ClientTokens // of hosts with files
	resources  learned.Resources
	identities learned.Identities
	webhooks   *webhook.Receiver
	// deliveryWarning bounds the log lines about refused deliveries.
	deliveryWarning rate.Sometimes

	issuerKeys       *credential.IssuerKeys
	credentialHealth *credential.Health
	appTokens        *credential.AppTokens

	tls      *tlsauto.Manager           // nil if clients connect over plain HTTP
	adminTLS atomic.Pointer[tls.Config] // nil if the admin listener uses plain HTTP

	applying sync.Mutex // held while a configuration is loaded and applied
	current  atomic.Pointer[configured]

	stop    context.CancelFunc
	running sync.WaitGroup // goroutines that end when stop is called
}

// configured is the part of a gateway that a reload replaces.
type configured struct {
	config    *config.Config
	callers   *credential.Registry
	hosts     []host         // the API is the first
	proxy     *proxy.Gateway // of the API
	ledger    ledger         // of proxy
	webhooks  http.Handler   // nil if webhooks are disabled
	trusted   inbound.TrustedProxies
	authority *authority.Authority // nil without the forward proxy
	// certificates are those in files that the manager of TLS does not have.
	certificates []certificateState
}

// newGateway starts a gateway, which must be closed. It writes the lines of its log of a level and above.
func newGateway(cfg *config.Config, output io.Writer, level slog.Level) (*gateway, error) {
	replica := replicaName()
	t, err := telemetry.Open(telemetry.Config{
		ServiceName: cfg.Telemetry.ServiceName, Version: version(), Instance: replica, Sample: cfg.Telemetry.Sample,
		Log: output, Level: level, LogFormat: cfg.Telemetry.LogFormat, AccessLog: cfg.Telemetry.AccessLog,
	})
	if err != nil {
		return nil, err
	}
	log := t.Log()
	running, stop := context.WithCancel(context.Background())
	out := &egress{}
	g := &gateway{
		deliveryWarning: rate.Sometimes{Interval: time.Second},
		log:             log, telemetry: t, trail: admin.NewTrail(log), startTime: time.Now(), instance: rand.Text(), stop: stop,
		load:   func() (*config.Config, error) { return nil, errors.New("this process has no configuration file") },
		egress: out, transport: out.transport(), files: out.fileTransport(), background: proxy.NewBackground(),
		issuerKeys: credential.NewIssuerKeys(out.transport()), credentialHealth: credential.NewHealth(log),
	}
	if err := g.start(running, cfg, replica); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

// start opens the store, the cache and the certificates, and applies the configuration.
func (g *gateway) start(ctx context.Context, cfg *config.Config, replica string) (err error) {
	var hashKey []byte
	if g.store, hashKey, err = openStore(cfg, replica, g.joined, g.log); err != nil {
		return err
	}
	g.hashKeys.CompareAndSwap(nil, &hashKeys{current: hashKey}) // unless joined has replaced it
	g.limiter, g.unlimited = limits.NewLimiter(g.store), limits.NewLimiter(limits.Unlimited{})
	g.running.Go(func() { g.store.Run(ctx) })
	g.running.Go(func() { g.limiter.Run(ctx) })
	shared, isShared := g.store.(sharedStore)
	if isShared {
		g.running.Go(func() {
			learned.EveryShareInterval(ctx, func() { g.resources.Share(ctx, g.limiter.AcceptsResource, shared.ShareResources) })
		})
		g.running.Go(func() {
			learned.EveryShareInterval(ctx, func() { g.identities.Share(ctx, g.store.Merge, shared.ShareAliases) })
		})
	}

	cacheSize, waiting := memoryShares(debug.SetMemoryLimit(-1), int64(cfg.Cache.Memory))
	if cacheSize < int64(cfg.Cache.Memory) {
		g.log.Warn("cache reduced below cache.memory to half of GOMEMLIMIT", "bytes", cacheSize)
	}
	g.shedder.Configure(waiting)
	connections := maxConnections(fileLimit())
	g.connections.LimitTotal(connections)
	g.adminConnections.LimitTotal(maxAdminConnections)
	g.adminConnections.LimitPerAddress(maxAdminConnections, maxAdminConnections, nil)
	g.transport.MaxConnsPerHost, g.files.MaxConnsPerHost = connections, connections

	memory := cache.NewMemory(cacheSize)
	g.cache = cache.NewStore(memory, nil)
	var client redisclient.Client // nil without Redis
	if isShared {
		client = shared.Redis()
		redisCache, err := openRedisCache(cfg, client, g.log)
		if err != nil {
			return err
		}
		g.cache = cache.NewStore(memory, redisCache)
		g.running.Go(func() { g.cache.Run(ctx) })
		g.running.Go(func() { redisCache.Run(ctx, memory) })
		<-redisCache.Joined() // each call to Redis has a deadline
	}
	if g.appTokens, err = openAppTokens(cfg, client, g.transport, g.log); err != nil {
		return err
	}
	if g.tls, err = openTLS(cfg, client, g.egress, g.log); err != nil {
		return err
	}
	g.history = history.New(history.Sources{Accounts: g.accounts, Waiting: g.limiter.Waiting, State: g.state, Label: g.label})
	g.observer = g.telemetry.NewObserver(g.history.Observe)
	g.trail.OnChange(func(c admin.Change) { g.history.PublishChange(c) })
	g.webhooks = webhook.NewReceiver(g.purgeForEvent)
	g.webhooks.Once = func(ctx context.Context, name string, end time.Time) (bool, error) {
		if !isShared || g.current.Load().config.Webhooks.Fresh == 0 {
			return true, nil // the receiver remembers deliveries to this replica, or they need not show anything
		}
		return shared.Once(ctx, name, end)
	}
	if err := g.loadAndApply(func() (*config.Config, error) { return cfg, nil }); err != nil {
		return err
	}
	sources := telemetry.Sources{
		Accounts: g.accounts, Lost: g.store.Lost, Replicas: g.store.Replicas,
		Waiting: g.limiter.Waiting, Cache: g.cache.Size, LostEvents: g.cache.LostEvents,
		Quarantined: func() int { return len(g.credentialHealth.Quarantined()) },
		Reachable:   func() bool { return g.current.Load().proxy.Reachable() },
	}
	if g.tls != nil {
		sources.Certificates = g.tls.Expiries
	}
	if err := g.telemetry.Watch(sources); err != nil {
		return err
	}
	g.running.Go(func() { g.history.Run(ctx) })
	return nil
}

// joined renames the accounts of a gateway that started without its store, so that all replicas use the same names.
func (g *gateway) joined(hashKey []byte) {
	g.hashKeys.Store(&hashKeys{hashKey, g.hashKeys.Load().current})
	g.applying.Lock()
	defer g.applying.Unlock()
	if c := g.current.Load(); c != nil { // otherwise start will use the new key
		if err := g.apply(c.config); err != nil {
			g.log.Error("joining the other replicas failed; restart this replica", "error", err)
		}
	}
}

// close stops the gateway, also after an incomplete start. An error means that the ledger is not saved.
func (g *gateway) close() error {
	if g.tls != nil {
		g.tls.Close()
	}
	g.background.Close()
	g.stop()
	g.running.Wait()
	if g.observer != nil {
		g.observer.Close()
	}
	if g.store != nil {
		if err := g.store.Leave(context.Background()); err != nil {
			g.log.Warn("returning leases failed; they expire within five minutes", "error", err)
		}
	}
	g.telemetry.Close()
	g.issuerKeys.Close()
	if g.appTokens != nil {
		g.appTokens.Close()
	}
	g.transport.CloseIdleConnections()
	g.files.CloseIdleConnections()
	if g.store != nil {
		if err := g.store.Close(); err != nil {
			return fmt.Errorf("close the store: %w", err)
		}
	}
	return nil
}

// reload loads the configuration again and applies it. If that fails, the previous configuration stays active. Without
// an error, the configuration in force is the loaded one, or one of a later reload.
func (g *gateway) reload() error {
	err := g.loadAndApply(g.load)
	g.telemetry.Reloaded(err)
	if err != nil {
		g.log.Error("reload failed; the previous configuration stays in force", "error", err)
		return err
	}
	g.log.Info("configuration reloaded")
	return nil
}

// loadAndApply loads and applies a configuration before the next one is loaded, so that the last change wins.
func (g *gateway) loadAndApply(load func() (*config.Config, error)) error {
	g.applying.Lock()
	defer g.applying.Unlock()
	c, err := load()
	if err != nil {
		return err
	}
	return g.apply(c)
}

// reloadFor calls reload and writes an entry to the audit trail. The cause is a signal or a changed file.
func (g *gateway) reloadFor(cause, path string) {
	err := g.reload()
	g.trail.Record(admin.Change{Operator: cause, Action: "reload", Target: path, Outcome: admin.Outcome(err, "in force")})
}

// apply builds a proxy from a configuration and replaces the current proxy. If apply returns an error, the current
// proxy stays. Ledger, cache and connections survive the replacement. The caller holds g.applying.
func (g *gateway) apply(c *config.Config) error {
	if g.started != nil && !inMemory(g.started) && ledgerName(c) != ledgerName(g.started) { // the names in Redis are those of the started API
		kept := *c
		kept.Upstream.URL = g.started.Upstream.URL
		c = &kept
		g.log.Warn("configuration change takes effect at the next start", "key", "upstream.url")
	}
	upstream, dialect := c.Upstream.Base(), c.Upstream.MustDialect()
	catalogue, err := c.Catalogue()
	if err != nil {
		return err
	}
	callers, err := g.registry(c, upstream, dialect)
	if err != nil {
		return err
	}
	if g.started == nil {
		g.started = c
	} else if g.tls != nil && c.TLS.Enabled() {
		if err := g.tls.Change(tlsNames(c)); err != nil {
			return err
		}
	}
	if err := g.loadAdminTLS(c.Admin); err != nil {
		return err
	}
	c = g.keepStartSettings(c)
	g.egress.configure(c.Upstream)
	g.issuerKeys.Keep(c.Issuers)
	g.store.Configure(limitRules(c))
	g.rateLimiter.Configure(c.Limits.Inbound.Rate, c.Limits.Inbound.Burst)
	g.abuse.Configure(2*c.Limits.Inbound.Rate, 2*c.Limits.Inbound.Burst)
	g.abuseLog.Configure(1, 1)
	trusted := inbound.TrustedProxies(c.Callers.Networks())
	g.connections.LimitPerAddress(c.Limits.Inbound.Rate, c.Limits.Inbound.Burst, trusted)
	g.tokens.LimitAddresses(c.Limits.Inbound.Rate > 0)
	g.fileTokens.LimitAddresses(c.Limits.Inbound.Rate > 0)
	inUse, limiter := ledger(g.store), g.limiter
	if !c.Upstream.Limits {
		g.log.Info("limits are off", "key", "upstream.limits", "upstream", c.Upstream.Shown())
		inUse, limiter = limits.Unlimited{}, g.unlimited
	}
	next := &configured{config: c, callers: callers, ledger: inUse, trusted: trusted}
	next.hosts = g.newHosts(c, proxy.Config{
		Upstream: upstream, Aliases: c.AliasURLs(), Instance: g.instance, Timeout: c.Upstream.Timeout, BodyTimeout: c.Limits.Inbound.Body, Transport: g.upstreamTransport(c),
		Catalogue: catalogue, Dialect: dialect, ETags: proxy.ETags(c.Cache.ETags), Identify: identify(callers, inUse.Canonical), HoldsOwn: callers.HoldsOwn,
		RateLimiter: &g.rateLimiter, Shedder: &g.shedder, Drain: &g.drain, TrustedProxies: trusted,
		Ledger: inUse, Limiter: limiter, Cache: g.cache, WebhookFresh: c.Webhooks.Fresh, Lag: c.Cache.Lag, GraphQLCache: c.Cache.GraphQL, Resources: &g.resources,
		Wait: c.Limits.Wait, RefusalStatus: c.Limits.RefusalStatus, RateLimitFields: c.Headers.RateLimit != "off",
		Statistics: proxy.Statistics{
			Wait: c.Statistics.Wait, First: c.Statistics.Poll.First, Factor: c.Statistics.Poll.Factor,
			Max: c.Statistics.Poll.Max, Budget: c.Statistics.Poll.Budget,
		},
		Background: g.background, Tokens: &g.tokens,
		Identities: &g.identities, AccountOf: callers.AccountOf,
		Log: g.log, Tracer: g.telemetry.Tracer(), PropagateTrace: c.Telemetry.Propagate == "upstream", Observe: g.observer.Observe,
	}, callers)
	next.proxy = next.hosts[0].proxy
	if next.authority, err = loadAuthority(c); err != nil {
		return err
	}
	if c.Webhooks.Secret != "" {
		next.webhooks = g.webhooks.Handler(webhook.Config{
			Dialect: dialect, Secrets: c.Webhooks.AllSecrets(), Refused: g.refusedDelivery, RateLimiter: &g.rateLimiter, TrustedProxies: trusted,
		})
	}
	for _, f := range c.CertificateFiles() {
		if !strings.HasPrefix(f.Key, "tls.certificates") {
			next.certificates = append(next.certificates, certificateState{f.Path, f.Expires.UTC()})
		}
	}
	var earlier *credential.Registry
	if before := g.current.Load(); before != nil {
		earlier = before.callers
	}
	callers.MergeRenamed(earlier, g.store.Rename)
	if shared, ok := g.store.(sharedStore); ok {
		names, _ := shared.ShareNames(context.Background(), callers.Names()) // the ledger logs that its store is lost, and stores the names later
		callers.MergeStored(names, g.store.Rename)
	}
	g.current.Store(next)
	g.credentialHealth.Keep(callers)
	for _, w := range c.Warnings(time.Now()) {
		g.log.Warn("configuration has a problem", "key", w.Key, "problem", w.Found, "remedy", w.Remedy)
	}
	return nil
}

// upstreamTransport returns the transport of a configuration. It logs a warning if the first response shows another dialect.
func (g *gateway) upstreamTransport(c *config.Config) *firstAnswer {
	return &firstAnswer{throughProxy: throughProxy{g.transport}, check: func(answer http.Header) {
		if found, remedy := foreignDialect(c, answer); found != "" {
			g.log.Warn("configuration has a problem", "key", "upstream.dialect", "problem", found, "remedy", remedy)
		}
	}}
}

// refusedDelivery counts a refused webhook delivery, and logs at most one per second. The name of the event is not verified.
func (g *gateway) refusedDelivery(reason webhook.Refusal, event string, address netip.Addr) {
	g.telemetry.DeliveryRefused(string(reason))
	g.deliveryWarning.Do(func() {
		g.log.Warn("webhook delivery refused", "reason", reason, "event", event[:min(len(event), 64)], "address", address)
	})
}

// accounts returns at most the given number of accounts of the ledger in use.
func (g *gateway) accounts(ctx context.Context, most int) ([]limits.Account, error) {
	return g.current.Load().ledger.Accounts(ctx, most)
}

// openAccount opens a closed account of the ledger in use, and ends the pause after a failed request for its token.
func (g *gateway) openAccount(ctx context.Context, account string) error {
	retried := g.appTokens.Retry(account)
	err := g.current.Load().ledger.Open(ctx, account)
	if retried && errors.Is(err, limits.ErrNotClosed) {
		return nil
	}
	return err
}

// label returns the name of an account for people: the configured name, else the login that the upstream named, else the
// account with a shortened hash. A login that is a configured name is no label, because people would take the account for
// the configured one.
func (g *gateway) label(account string) string {
	callers := g.current.Load().callers
	if label, ok := callers.Label(account); ok {
		return label
	}
	if login := g.identities.Login(account); login != "" && !callers.HasLabel(login) {
		return login
	}
	return credential.ShortLabel(account)
}

func limitRules(c *config.Config) limits.Rules {
	writes := map[string]policy.ClientWrites{}
	for _, client := range c.Clients {
		if w := (policy.ClientWrites{Client: client.Writes, Tag: client.TagWrites}); w != (policy.ClientWrites{}) {
			writes[client.Name] = w
		}
	}
	return limits.Rules{Limits: c.Limits.Limits, Headroom: c.Limits.Headroom, Probes: c.Limits.Probes, ColdStart: c.Limits.ColdStart, Writes: writes}
}

// keepStartSettings returns a copy of c in which settings that need a restart have their values from the start. Each
// setting that differs in c is logged.
func (g *gateway) keepStartSettings(c *config.Config) *config.Config {
	next, started := *c, g.started
	changed := map[string]bool{
		"listen":               keep(&next.Listen, started.Listen),
		"socket":               keep(&next.Socket, started.Socket),
		"proxy.listen":         keep(&next.Proxy.Listen, started.Proxy.Listen),
		"admin.listen":         keep(&next.Admin.Listen, started.Admin.Listen),
		"admin.token":          keep(&next.Admin.Token, started.Admin.Token),
		"admin.hosts":          !slices.Equal(started.Admin.Hosts, c.Admin.Hosts),
		"admin.tls":            adminTLSNeedsRestart(started.Admin, c.Admin),
		"store.url":            keep(&next.Store.URL, started.Store.URL),
		"limits.on_store_loss": keep(&next.Limits.OnStoreLoss, started.Limits.OnStoreLoss),
		"cache.memory":         keep(&next.Cache.Memory, started.Cache.Memory),
		"cache.key":            keep(&next.Cache.Key, started.Cache.Key),
		"telemetry":            keep(&next.Telemetry, started.Telemetry),
		"tls":                  started.TLS.Enabled() != c.TLS.Enabled(),
	}
	next.Admin.Hosts = started.Admin.Hosts
	if changed["admin.tls"] {
		next.Admin.TLS = started.Admin.TLS
	}
	if c.Proxy.Listen == "" {
		next.Proxy = started.Proxy // the listener stays open, so it needs its authority
	}
	if changed["tls"] {
		next.TLS = started.TLS
	}
	changed["tls.http"] = keep(&next.TLS.HTTP, started.TLS.HTTP)
	changed["tls.email"] = keep(&next.TLS.Email, started.TLS.Email)
	changed["tls.ca"] = keep(&next.TLS.CA, started.TLS.CA)
	changed["tls.storage"] = keep(&next.TLS.Storage, started.TLS.Storage)
	for key, is := range changed {
		if is {
			g.log.Warn("configuration change takes effect at the next start", "key", key)
		}
	}
	return &next
}

// keep resets a value to old, and reports whether the value differed.
func keep[T comparable](value *T, old T) (changed bool) {
	changed = *value != old
	*value = old
	return changed
}

// ServeHTTP passes a request to the proxy or the webhook receiver of the current configuration.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := g.current.Load()
	// A client above its rate gets status 429. Above twice the rate even these responses cost too much, so the client must
	// connect again, and its new connections are bounded. Other clients share the connection of a trusted proxy.
	if address := c.trusted.ClientAddress(r); !c.trusted.SentBy(r) && !g.abuse.Allow(address, time.Now()) {
		if g.abuseLog.Allow(address, time.Now()) {
			g.log.Warn("client disconnected: it sends at more than twice limits.inbound.rate", "address", address.String())
		}
		inbound.Disconnect(r) // panics
	}
	g.telemetry.RequestStarted(r.Method)
	defer g.telemetry.RequestEnded(r.Method)
	if g.drain.Begun() {
		w.Header().Set("Connection", "close")
	}
	if c.webhooks != nil && r.URL.Path == c.config.Webhooks.Path {
		c.webhooks.ServeHTTP(w, r)
		return
	}
	if tunnel, _ := inbound.TunnelOf(r.Context()); tunnel.Authorize != nil && !c.callers.HasOtherScheme(r.Header["Authorization"]) {
		tunnel.Authorize(r.Header)
	}
	h, err := c.route(r)
	if err != nil {
		c.proxy.Misdirected(w, r)
		return
	}
	c.serve(h, w, r)
}

// purgeForEvent marks the responses stale that a webhook event affects, and records what the webhook delivers.
func (g *gateway) purgeForEvent(e webhook.Event) {
	current := g.current.Load()
	list := tags.OfEvent(current.proxy.Catalogue, e.Name, e.Repository, e.Organization, e.OtherBranch)
	if policy.ChangesPermissions(e.Name) && e.Installation != 0 {
		g.appTokens.Renew(e.Installation)
	}
	if e.Former != "" {
		current.proxy.EndName(context.Background(), e.Former)
	}
	coverage, ok := e.Coverage()
	switch {
	case ok && current.config.Webhooks.Fresh > 0:
		g.cache.Deliver(context.Background(), coverage, current.config.Cache.Lag, list...)
	case len(list) > 0:
		g.cache.PurgeUnsettled(context.Background(), current.config.Cache.Lag, cache.CauseEvent, list...)
	}
	g.log.Info("webhook received", "event", e.Name, "delivery", e.Delivery,
		"repository", e.Repository, "organization", e.Organization, "tags", len(list))
}

// listen opens the listeners. The first endpoint is the clients' endpoint, and the last endpoint is the admin listener.
func (g *gateway) listen() ([]endpoint, error) {
	c := g.current.Load().config
	clients, err := listenForClients(c)
	if err != nil {
		return nil, err
	}
	adminEndpoint, err := g.listenAdmin(c.Admin)
	if err != nil {
		return nil, errors.Join(err, clients.Close())
	}
	plain := endpoint{listener: clients, handler: g, connections: &g.connections}
	endpoints, err := g.withTLS(plain, c)
	if err != nil {
		return nil, errors.Join(err, clients.Close(), adminEndpoint.listener.Close())
	}
	forward, err := g.listenProxy(c)
	if err != nil {
		return nil, errors.Join(err, clients.Close(), adminEndpoint.listener.Close())
	}
	endpoints = append(endpoints, forward...)
	g.log.Info("gateway started", "address", clients.Addr().String(), "upstream", c.Upstream.Shown(), "dialect", c.Upstream.Dialect)
	g.log.Info("admin listener started", "address", adminEndpoint.listener.Addr().String())
	return append(endpoints, adminEndpoint), nil
}
