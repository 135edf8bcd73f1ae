package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math"
	"net"
	"net/http"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"time"

	"github.com/weirgate/weir/internal/admin"
	"github.com/weirgate/weir/internal/config"
	"github.com/weirgate/weir/internal/credential"
	"github.com/weirgate/weir/proxy/coalesce"
	"github.com/weirgate/weir/proxy/tags"
)

// adminIOTimeout bounds the time to read a request on the admin listener, and the time to write the response.
const adminIOTimeout = 30 * time.Second

// listenAdmin opens the admin listener. If other machines can reach its address, the listener
// must require a token or a client certificate.
func (g *gateway) listenAdmin(a config.Admin) (endpoint, error) {
	listener, err := listenTCP("admin.listen", a.Listen)
	if err != nil {
		return endpoint{}, err
	}
	address, ok := listener.Addr().(*net.TCPAddr)
	if loopback := ok && address.IP.IsLoopback(); !loopback && !g.adminAccess(a).Guarded() {
		_ = listener.Close()
		return endpoint{}, fmt.Errorf("admin.listen: %s is not on loopback: set admin.token, or admin.tls.client_ca", listener.Addr())
	}
	e := endpoint{
		listener: listener, handler: g.admin(a), timeout: adminIOTimeout,
		last: true, onShutdown: g.history.Close, connections: &g.adminConnections,
	}
	if current := g.adminTLS.Load(); current != nil {
		e.tls = current.Clone()
		e.tls.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return g.adminTLS.Load(), nil }
	}
	return e, nil
}

// adminTLSNeedsRestart reports whether a change would enable or disable TLS or client
// certificates. A reload must not weaken the authentication of a listener that is open.
func adminTLSNeedsRestart(started, changed config.Admin) bool {
	return started.TLS.Enabled() != changed.TLS.Enabled() || (started.TLS.ClientCA == "") != (changed.TLS.ClientCA == "")
}

// loadAdminTLS reads the certificates of the admin listener at the start and at each reload.
func (g *gateway) loadAdminTLS(a config.Admin) error {
	if !a.TLS.Enabled() || adminTLSNeedsRestart(g.started.Admin, a) {
		return nil
	}
	loaded, err := a.TLS.Load()
	if err != nil {
		return fmt.Errorf("admin.tls: %w", err)
	}
	g.adminTLS.Store(loaded)
	return nil
}

func (g *gateway) adminAccess(a config.Admin) admin.Access {
	access := admin.Access{Token: a.Token, Hosts: a.Hosts}
	if a.TLS.ClientCA != "" {
		access.Authorities = func() *x509.CertPool { return g.adminTLS.Load().ClientCAs }
	}
	return access
}

// admin returns the handler of the admin listener. Its pages show all requests that have finished.
func (g *gateway) admin(a config.Admin) http.Handler {
	pages := admin.Handler(g.adminAccess(a), admin.Sources{
		Ready:    func() bool { return !g.drain.Begun() },
		Accounts: g.accounts,
		Refused:  func() any { return g.credentialHealth.Quarantined() },
		Requests: func() any { return g.history.Recent() },
		Config:   func() any { return g.current.Load().config.Masked() },
		Defaults: func() any { return config.Default().Masked() },
		Reload:   g.reload,
		Cache:    g.cache.Size,
		Metrics:  g.telemetry,
		Purge:    g.purge,
		Open:     g.openAccount,
		Trail:    g.trail,
		State:    g.state,
		History:  g.history,
		Prometheus: func() admin.Prometheus {
			return admin.Prometheus(g.current.Load().config.Admin.Prometheus)
		},
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.observer.Flush()
		pages.ServeHTTP(w, r)
	})
}

// purge marks cache entries stale, or removes them, and returns their number.
func (g *gateway) purge(p admin.Purge) (entries int, err error) {
	tag := p.Tag
	if p.URL != "" {
		if tag, err = g.current.Load().proxy.TagOf(p.URL); err != nil {
			return 0, err
		}
	}
	list := tags.OfOperator(tag)
	if p.Hard {
		return g.cache.PurgeHard(context.Background(), list...), nil
	}
	entries = g.cache.Count(list...)
	g.cache.Purge(context.Background(), list...)
	return entries, nil
}

// gatewayState is the JSON of /api/v1/state.
type gatewayState struct {
	Version  string                   `json:"version"`
	Started  time.Time                `json:"started"`
	Now      time.Time                `json:"now"`
	Upstream string                   `json:"upstream"`
	Dialect  string                   `json:"dialect"`
	Limits   string                   `json:"limits"`  // on or off
	Guarded  bool                     `json:"guarded"` // the admin listener requires a token
	Store    storeState               `json:"store"`
	Waiting  map[string]int           `json:"waiting"` // waiting requests, by account
	Polling  []coalesce.Poll          `json:"polling"`
	Refused  []credential.Quarantined `json:"refused"` // credentials that the upstream rejects
	Cache    struct {
		Keys     int    `json:"keys"`
		Bytes    uint64 `json:"bytes"`
		MaxBytes uint64 `json:"max_bytes"`
	} `json:"cache"`
	Memory struct {
		Bytes    uint64 `json:"bytes"`
		MaxBytes int64  `json:"max_bytes,omitempty"` // GOMEMLIMIT; 0 without a limit
	} `json:"memory"`
	Certificates []certificateState `json:"certificates"`
}

// certificateState is a certificate of a listener, or an authority.
type certificateState struct {
	Name    string    `json:"name"`
	Expires time.Time `json:"expires"`
}

type storeState struct {
	Kind     string    `json:"kind"` // memory, file or redis
	Lost     time.Time `json:"lost,omitzero"`
	Replicas int       `json:"replicas"`
	// ColdStart describes what the ledger holds back because past spending is unknown.
	ColdStart string `json:"cold_start,omitempty"`
}

// state returns a gatewayState.
func (g *gateway) state() any {
	c := g.current.Load()
	s := gatewayState{
		Version: version(), Started: g.startTime.UTC(), Now: time.Now().UTC(),
		Upstream: c.config.Upstream.Shown(), Dialect: c.config.Upstream.Dialect, Limits: c.config.Upstream.Limits.String(), Guarded: g.started.Admin.Token != "",
		Store:   storeState{Kind: storeKind(g.started), Lost: g.store.Lost(), Replicas: g.store.Replicas(), ColdStart: g.store.ColdStart()},
		Waiting: map[string]int{}, Polling: c.proxy.Polling(),
		Refused: g.credentialHealth.Quarantined(),
	}
	for of, n := range g.limiter.Waiting() {
		s.Waiting[of.Account] += n
	}
	s.Cache.Keys, s.Cache.Bytes = g.cache.Size()
	s.Cache.MaxBytes = uint64(g.started.Cache.Memory)
	s.Memory.Bytes, s.Memory.MaxBytes = memoryInUse()
	s.Certificates = append([]certificateState{}, c.certificates...) // a list in JSON, also without any
	if g.tls != nil {
		for name, expires := range g.tls.Expiries() {
			s.Certificates = append(s.Certificates, certificateState{name, expires.UTC()})
		}
	}
	slices.SortFunc(s.Certificates, func(a, b certificateState) int { return a.Expires.Compare(b.Expires) })
	return s
}

// memoryInUse returns the memory that the runtime holds, and GOMEMLIMIT or zero.
func memoryInUse() (bytes uint64, limit int64) {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	if limit = debug.SetMemoryLimit(-1); limit == math.MaxInt64 {
		limit = 0
	}
	return samples[0].Value.Uint64() - samples[1].Value.Uint64(), limit
}
